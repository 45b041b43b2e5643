from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from replan.results import Mark, RunIdentity, Store
from replan.results.leaderboard import board, to_json


def badges(row):
    return {mark.badge for mark in row.marks}


@pytest.fixture
def four_cells(make):
    """Dense wins 3 of 4; flash loses one of those and gains the other; flash calls are four times as fast."""
    dense = [make.episode("dense", cell, cell != 3, rounds=(make.round(0, ms=40),)) for cell in range(4)]
    flash = [
        make.episode(
            "flash",
            cell,
            cell != 0,
            rounds=tuple(make.round(i, ms=10, route="flash", executed=5, accepted=5) for i in range(3 if cell else 5)),
        )
        for cell in range(4)
    ]
    return [*dense, *flash]


def test_a_row_a_method(written, four_cells):
    dense, flash = board([written(*four_cells)])

    assert (dense.method, dense.success.rate, dense.success.n) == ("dense", 0.75, 4)
    assert dense.paired is None and dense.speed_up is None and dense.flips == ()
    assert (flash.method, flash.success.rate) == ("flash", 0.75)
    assert (flash.paired.difference, flash.paired.lost, flash.paired.gained, flash.paired.n) == (0, 1, 1, 4)
    assert (flash.speed_up.round, flash.speed_up.action) == (4, 2)
    assert flash.rounds == (3.5, 3)
    assert flash.action_ns == 2_000_000
    assert flash.acceptance.rate == 0.5
    assert flash.routes["flash"].share == 1 and flash.routes["flash"].durations.p50 == 10_000_000
    assert flash.contention == 1


def test_success_at_the_end_is_known_where_every_episode_knows_it(written, make):
    ended = [make.episode("dense", cell, cell < 3, success_at_end=cell in (0, 3)) for cell in range(4)]
    refused = make.episode("dense", 4, False, outcome="invalid action", failure="not finite")
    (row,) = board([written(*ended, refused, make.error("dense", 5))])
    assert (row.success.rate, row.at_end) == (0.6, 0.4)
    for unknown in ([refused], [*ended, make.episode("dense", 6)], []):
        assert all(math.isnan(row.at_end) for row in board([written(*unknown, make.error("dense", 5))]))


def test_acceptance_counts_every_draft_whatever_its_route_is_called(written, make):
    drafts = (make.round(1, route="fast", accepted=7), make.round(2, route="other", accepted=1, drafted=5))
    (row,) = board([written(make.episode("flash", rounds=(make.round(0), *drafts, make.round(3, accepted=0))))])
    assert (row.acceptance.drafts, row.acceptance.length) == (3, pytest.approx(8 / 3))
    assert row.acceptance.rate == pytest.approx(8 / 25)
    assert row.acceptance.rate_if_any == pytest.approx(8 / 15)
    assert row.acceptance.per_position == pytest.approx((2 / 3, *(1 / 3,) * 6, 0, 0, 0))


def test_flips_name_the_cells_and_the_direction(written, four_cells):
    _, flash = board([written(*four_cells)])
    found = {flip.init_state: (flip.direction, flip.baseline_outcome, flip.outcome) for flip in flash.flips}
    assert found == {0: ("lost", "success", "lost"), 3: ("gained", "lost", "success")}


def test_pairs_are_formed_by_cell_and_not_by_position(written, make):
    dense = [make.episode("dense", cell, cell < 2) for cell in range(4)]
    flash = [make.episode("flash", cell, cell < 2) for cell in (3, 1)]
    _, row = board([written(*dense, *flash)])
    assert (row.paired.lost, row.paired.gained, row.paired.n) == (0, 0, 2)
    assert "part paired" not in badges(row)


def test_speed_up_is_taken_on_shared_cells_only(written, make):
    dense = [
        make.episode("dense", 0, rounds=(make.round(ms=40),)),
        make.episode("dense", 1, rounds=(make.round(ms=400),)),
    ]
    flash = [
        make.episode("flash", 0, rounds=(make.round(ms=10),)),
        make.episode("flash", 2, rounds=(make.round(ms=1),)),
    ]
    _, row = board([written(*dense, *flash)])
    assert row.speed_up.round == 4
    assert "part paired" in badges(row)


def test_speed_up_counts_failed_episodes(written, make):
    dense = [make.episode("dense", cell, True, rounds=(make.round(ms=40),)) for cell in range(2)]
    flash = [make.episode("flash", cell, not cell, rounds=(make.round(ms=70 if cell else 10),)) for cell in range(2)]
    _, row = board([written(*dense, *flash)])
    assert row.speed_up.round == 1


def test_a_method_without_its_baseline_is_unpaired(written, make):
    (row,) = board([written(make.episode("flash"))])
    assert row.paired is None and row.speed_up is None and "unpaired" in badges(row)
    _, row = board([written(make.episode("flash"), make.episode("dense", 1))])
    assert row.method == "flash" and row.paired is None and "unpaired" in badges(row)


def test_the_baseline_must_share_the_condition(written, make):
    rows = board([written(make.episode("dense", latency="zero"), make.episode("flash", latency="fixed:9ms"))])
    assert [row.paired for row in rows] == [None, None]


def test_harness_errors_are_shown_and_are_no_failures(written, make):
    rows = [make.episode("dense", cell) for cell in range(3)] + [make.error("dense", 3)]
    (row,) = board([written(*rows)])
    assert (row.success.rate, row.success.n, row.errors, row.retries) == (1, 3, 1, 1)
    assert "errors" in badges(row)


def test_a_cell_that_the_harness_lost_for_one_method_is_not_paired(written, make):
    dense = [make.episode("dense", cell) for cell in range(2)]
    _, row = board([written(*dense, make.episode("flash", 0), make.error("flash", 1))])
    assert (row.paired.n, row.paired.lost) == (1, 0)


def test_a_method_with_nothing_but_errors_has_a_row_and_no_rate(written, make):
    (row,) = board([written(make.error("flash"))])
    assert row.success.n == 0 and math.isnan(row.success.rate) and row.errors == 1


@pytest.mark.parametrize(
    ("counters", "active"), [({"drafts": 0.0}, False), ({}, False), ({"drafts": 3.0}, True), ({"other": 3.0}, False)]
)
def test_a_method_must_move_its_counters(written, make, counters, active):
    run = make.run(activity_counters={"flash": ("drafts",), "dp_cache": ("reused",)})
    episodes = [make.episode("flash", 0, counters={"drafts": 0.0}), make.episode("flash", 1, counters=counters)]
    (row,) = board([written(*episodes, run=run)])
    assert row.active is active
    assert ("NOT ACTIVE" in badges(row)) is not active


def test_every_promised_counter_must_move(written, make):
    run = make.run(activity_counters={"flash+dp_cache": ("drafts", "reused")})
    (row,) = board([written(make.episode("flash+dp_cache", counters={"drafts": 1.0}), run=run)])
    (mark,) = [mark for mark in row.marks if mark.badge == "NOT ACTIVE"]
    assert "reused" in mark.text and "drafts" not in mark.text


def test_small_n_is_marked_until_the_interval_is_narrow(written, make):
    (few,) = board([written(*(make.episode("dense", cell) for cell in range(34)))])
    (many,) = board([written(*(make.episode("dense", cell) for cell in range(35)))])
    assert "small n" in badges(few)  # Wilson's interval of 34 of 34 is 10.2 points wide, of 35 of 35 9.9
    assert "small n" not in badges(many)


@pytest.mark.parametrize(("share", "marked"), [(1.0, False), (0.95, False), (0.6, True)])
def test_a_shared_core_is_marked(written, make, share, marked):
    rounds = (make.round(ms=10, cpu_ns=round(10_000_000 * share)),)
    (row,) = board([written(make.episode("dense", rounds=rounds))])
    assert ("core shared" in badges(row)) is marked
    assert row.contention == pytest.approx(1 / share)


def test_warm_up_rounds_are_calls_and_no_latencies(written, make):
    rounds = (make.round(0, ms=900, warmup=True), *(make.round(i, ms=10) for i in range(1, 8)))
    (row,) = board([written(make.episode("dense", rounds=rounds))])
    assert row.rounds.all == 8
    assert (row.round_ns.n, row.round_ns.p50, row.action_ns) == (7, 10_000_000, 1_000_000)
    assert row.contention == 1


def test_only_warm_up_is_no_latency(written, make):
    (row,) = board([written(make.episode("dense", rounds=(make.round(warmup=True),)))])
    assert math.isnan(row.round_ns.mean) and "latency unknown" in badges(row)


def test_a_method_that_changes_no_action_is_marked(written, make):
    dense = [make.episode("dense", cell) for cell in range(2)]
    same = [make.episode("compile", row.init_state, trajectory_hash=row.trajectory_hash) for row in dense]
    half = [make.episode("dp_cache", 0, trajectory_hash=dense[0].trajectory_hash), make.episode("dp_cache", 1)]
    found = {row.method: badges(row) for row in board([written(*dense, *same, *half)])}
    assert "same as dense" in found["compile"]
    assert "same as dense" not in found["dense"] | found["dp_cache"]


@pytest.mark.parametrize(
    ("change", "badge"),
    [
        ({"commit": "def5678"}, "mixed commits"),
        ({"packages": {"torch": "3"}}, "mixed packages"),
        (
            {"identity": RunIdentity({"fixed": 0}, {"conveyor": {"belt": "longer"}, "shelf": {}})},
            "mixed fingerprints",
        ),
    ],
)
def test_a_comparison_across_runs_is_marked_where_they_differ(written, make, change, badge):
    dense, flash = written(make.episode("dense")), written(make.episode("flash"), run=make.run(**change))
    found = board([dense, flash])
    assert badge in badges(found[1]) and badge not in badges(found[0])
    same = board([dense, written(make.episode("flash"))])
    assert not any(name.startswith("mixed") for row in same for name in badges(row))


@pytest.mark.parametrize(
    ("changes", "badge"),
    [({"machine": "another"}, "mixed machines"), ({"device": "RTX 4090"}, "mixed devices")],
)
def test_episodes_of_several_machines_or_devices_are_marked(written, make, changes, badge):
    dense, flash = ([make.episode(method, cell, device="H200") for cell in range(2)] for method in ("dense", "flash"))
    (_, same), (_, moved) = (
        board([written(*dense, flash[0], other)]) for other in (flash[1], replace(flash[1], **changes))
    )
    assert badges(moved) - badges(same) == {badge}
    (dense_row, flash_row) = board([written(*(replace(row, **changes) for row in dense), *flash)])
    assert badge in badges(flash_row) and badge not in badges(dense_row)  # it is the comparison that is mixed


def test_an_old_run_that_was_resumed_elsewhere_may_hold_episodes_of_both_machines(written, make):
    store = written(make.episode("dense", machine=""))
    assert "mixed machines" not in badges(board([store])[0])
    Store.start(store.path.parent, make.run(machines={"another": {}})).close()
    with Store.open(store.path) as resumed:
        assert "mixed machines" in badges(board([resumed])[0])


def test_a_fingerprint_of_another_suite_is_no_mark(written, make):
    identity = RunIdentity({"fixed": 0}, {"shelf": {"boards": "oak"}})
    found = board([written(make.episode("dense")), written(make.episode("flash"), run=make.run(identity=identity))])
    assert not any(name.startswith("mixed") for row in found for name in badges(row))


def test_a_repeated_measurement_is_marked(written, make):
    (row,) = board([written(make.episode("dense")), written(make.episode("dense", trajectory_hash="other"))])
    (mark,) = [mark for mark in row.marks if mark.badge == "repeats"]
    assert "1 measured twice, 1 of them differently" in mark.text and row.success.n == 1


def test_marks_of_the_runs_reach_every_row(written, make):
    cpu = make.run(marks=(Mark("CPU", "no accelerator"),))
    rows = board([written(make.episode("dense")), written(make.episode("flash"), run=cpu)])
    assert [[str(mark) for mark in row.run_marks] for row in rows] == [
        ["tiny model trained here"],
        ["CPU: no accelerator"],
    ]


def test_marks_of_a_suite_are_badges_on_its_rows_alone(written, make):
    texts = {"robotwin": ["stand-in: another robot and other objects", "untrained"], "shelf": ["never: seen"]}
    marks = {suite: tuple(map(Mark.parse, each)) for suite, each in texts.items()}
    episodes = [make.episode("dense"), make.episode("dense", suite="robotwin")]
    belt, robotwin = board([written(*episodes, run=make.run(suite_marks=marks))])
    told = {mark.badge: mark.text for mark in robotwin.marks}
    assert (told["stand-in"], told["untrained"]) == ("another robot and other objects", "untrained")
    assert badges(belt) & {"stand-in", "untrained", "never"} == set()


def test_methods_are_ranked_by_speed_up_per_action_after_the_baseline(written, make):
    times = {"a": 20, "b": 5, "dense": 40, "c": 10}
    rows = board([written(*(make.episode(name, rounds=(make.round(ms=ms),)) for name, ms in times.items()))])
    assert [row.method for row in rows] == ["dense", "b", "c", "a"]


def test_action_error_is_over_the_rounds_that_measured_it(written, make):
    rounds = (make.round(0, action_error=0.1), make.round(1), make.round(2, action_error=0.3))
    (row,) = board([written(make.episode("flash", rounds=rounds))])
    assert (row.action_error.n, row.action_error.mean) == (2, pytest.approx(0.2))


def test_latency_is_that_of_every_round(written, make):
    rounds = (make.round(0, latency_ns=58_000_000, warmup=True), make.round(1, latency_ns=8_000_000))
    (row,) = board([written(make.episode("dense", rounds=rounds, clock="realtime"))])
    assert row.latency_ns == 33_000_000


def test_json_is_plain_and_has_null_for_what_is_unknown(written, four_cells):
    dense, flash = json.loads(json.dumps(to_json(board([written(*four_cells)])), allow_nan=False))
    assert dense["paired"] is None and dense["round_ns"]["p90"] is None and dense["acceptance"]["rate"] is None
    wilson = {"low": pytest.approx(0.3006, abs=1e-4), "high": pytest.approx(0.9544, abs=1e-4)}
    assert flash["success"] == {"rate": 0.75, "n": 4, **wilson}
    assert flash["routes"]["flash"]["durations"]["mean"] == 10_000_000
    assert flash["acceptance"]["per_position"] == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert (flash["dtype"], flash["devices"], flash["machines"]) == ("float32", ["cpu"], ["a-machine"])
    assert {flip["direction"] for flip in flash["flips"]} == {"lost", "gained"}
    assert {"badge", "text"} == set(flash["marks"][0])


def test_no_store_is_an_empty_board(written):
    assert board([]) == [] and board([written()]) == []
