from __future__ import annotations

from dataclasses import replace

import pytest
from replan.results.groups import ManifestMismatch, MeasurementMismatch, groups, natural


def test_cells_that_are_not_the_same_episode_are_refused_by_name(written, make):
    dense = make.episode("dense", 1)
    flash = make.episode("flash", 1, manifest={**dense.manifest, "step_budget": 280})
    with pytest.raises(ManifestMismatch, match="step_budget is 200 for dense and 280 for flash") as caught:
        groups([written(dense, flash)])
    assert (caught.value.cell, caught.value.field) == (dense.cell, "step_budget")


def test_a_field_that_only_one_manifest_has_is_a_difference(written, make):
    dense = make.episode("dense", 1)
    flash = make.episode("flash", 1, manifest={**dense.manifest, "fixtures": "abc"})
    with pytest.raises(ManifestMismatch) as caught:
        groups([written(dense, flash)])
    assert caught.value.field == "fixtures"


def test_another_first_observation_is_refused(written, make):
    with pytest.raises(ManifestMismatch) as caught:
        groups([written(make.episode("dense"), make.episode("flash", observation_hash="other"))])
    assert caught.value.field == "observation_hash"


def test_manifests_are_compared_across_runs(written, make):
    with pytest.raises(ManifestMismatch):
        groups([written(make.episode("dense")), written(make.episode("flash", manifest={"init_state": "moved"}))])


def test_a_repeat_that_is_another_episode_is_refused_too(written, make):
    with pytest.raises(ManifestMismatch):
        groups([written(make.episode("dense")), written(make.episode("dense", manifest={"init_state": "moved"}))])


def test_policies_may_look_at_a_cell_through_other_cameras(written, make):
    other = make.episode("dense", policy="pi0-full", observation_hash="larger image")
    assert len(groups([written(make.episode("dense"), other)])) == 2


def test_policies_must_still_see_the_same_episode(written, make):
    other = make.episode("dense", policy="pi0-full", manifest={"init_state": "moved"})
    with pytest.raises(ManifestMismatch):
        groups([written(make.episode("dense"), other)])


def test_an_episode_that_never_began_has_no_manifest_to_compare(written, make):
    (dense, flash) = groups([written(make.episode("dense"), make.error("flash"))])
    assert len(dense.done) == 1 and not flash.done and len(flash.errors) == 1


def test_another_draft_is_another_version_of_the_method(written, make):
    def run(draft, started):
        files = {"conveyor": {"dense": "f" * 64, "flash": draft * 64}}
        return make.run(identity=replace(make.run().identity, files=files), started=started)

    first = written(make.episode("dense"), make.episode("flash"), run=run("a", "2026-01"))
    retrained = written(make.episode("flash", key="other"), run=run("b", "2026-02"))
    assert [group.label for group in groups([retrained, first])] == [
        "dense",
        "flash files@aaaaaa",
        "flash files@bbbbbb",
    ]


@pytest.mark.parametrize("field", ["latency"])
def test_one_latency_text_for_two_kinds_of_measurement_is_refused_whatever_the_cell_and_the_method(
    written, make, field
):
    def stores(latency):
        return [
            written(
                make.episode(method, cell, latency=name),
                run=make.run(identity=replace(make.run().identity, **{field: value})),
            )
            for method, cell, name, value in (("dense", 0, "profile:mine", 1), ("flash", 1, latency, 2))
        ]

    assert len(groups(stores("profile:other"))) == 2
    with pytest.raises(MeasurementMismatch, match=rf"sync profile:mine.*identity\.{field} is 1 in one and 2") as caught:
        groups(stores("profile:mine"))
    assert caught.value.field == f"identity.{field}"


@pytest.mark.parametrize("kind", ["episode", "error"])
def test_two_measurements_of_one_cell_are_not_merged(written, make, kind):
    with pytest.raises(MeasurementMismatch, match="key is 'one' in one and 'two' in another"):
        groups([written(make.episode("dense", key="one")), written(getattr(make, kind)("dense", key="two"))])


def test_a_measurement_in_two_runs_counts_once_and_the_first_stands(written, make):
    first, again = make.episode("dense", success=True), make.episode("dense", success=False, trajectory_hash="other")
    (group,) = groups([written(first), written(again), written(first)])
    assert list(group.done.values()) == [first]
    assert (group.repeats, group.contradictions) == (2, 1)


def test_a_repeat_under_another_name_of_the_policy_has_the_first_name(written, make):
    names = ("pol/x", "./pol/x")
    (group,) = groups([written(make.episode("dense", policy=name, weights="beef")) for name in names])
    assert (group.policy, group.repeats) == ("pol/x", 1)


def test_one_policy_name_for_two_sets_of_weights_has_their_digests(written, make):
    found = groups([written(make.episode("dense", weights=each * 64)) for each in "ab"])
    assert [group.policy for group in found] == ["pi0-tiny @aaaaaa", "pi0-tiny @bbbbbb"]


def test_a_measurement_in_one_run_stands_for_an_error_in_another(written, make):
    measured = make.episode("dense")
    (group,) = groups([written(make.error("dense")), written(measured)])
    assert list(group.done.values()) == [measured] and not group.errors and group.repeats == 0


def test_settings_clock_latency_policy_precision_and_device_tell_groups_apart(written, make):
    changes = [{}, {"settings": {"speed": 6.0}}, {"clock": "realtime"}, {"latency": "fixed:9ms"}, {"policy": "other"}]
    changes += [{"dtype": "bfloat16", "key": "1"}, {"device": "H200", "key": "2"}]
    rows = [make.episode("dense", **each) for each in changes]
    assert len(groups([written(*rows)])) == len(changes)


def test_conditions_come_in_natural_order_and_the_baseline_first(written, make):
    rows = [
        make.episode(method, latency=latency, settings={"speed": speed})
        for method in ("dp_cache", "dense")
        for latency in ("fixed:100ms", "fixed:20ms")
        for speed in (10.0, 6.0)
    ]
    found = [(group.latency, group.settings["speed"], group.method) for group in groups([written(*rows)])]
    assert found == [
        (latency, speed, method)
        for latency in ("fixed:20ms", "fixed:100ms")
        for speed in (6.0, 10.0)
        for method in ("dense", "dp_cache")
    ]


def test_natural_order_compares_numbers_as_numbers():
    assert sorted(["a10", "b1", "a9.5", "a9"], key=natural) == ["a9", "a9.5", "a10", "b1"]
    assert sorted(["9ms", "zero", "10ms"], key=natural) == ["9ms", "10ms", "zero"]


def test_two_versions_of_a_suite_may_have_two_manifests_and_one_version_has_one(written, make):
    new = {"suite": "b" * 64}
    old, changed = make.episode("dense"), make.episode("dense", manifest={"rule": "other"}, code=make.code(**new))
    assert [group.world[0][:1] for group in groups([written(old, changed)])] == ["5", "b"]
    flash = make.episode("flash", code=make.code("flash", **new))
    with pytest.raises(ManifestMismatch):
        groups([written(old, changed, flash)])


def test_policies_of_other_code_must_still_see_the_same_episode(written, make):
    moved = make.episode("dense", policy="other", code=make.code(policy="b" * 64), manifest={"init_state": "moved"})
    with pytest.raises(ManifestMismatch):
        groups([written(make.episode("dense"), moved)])


@pytest.mark.parametrize("part", ["suite", "policy", "method"])
def test_code_of_which_a_part_could_not_be_read_is_not_recorded(written, make, part):
    (group,) = groups([written(make.episode("dense", code=make.code(**{part: ""})))])
    assert group.code == {} and group.world[0] == ""
