from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from replan.eval.commands.compare import compare
from replan.results import Mark
from replan.results.compare import NothingToCompare, compare_across, compare_runs
from replan.results.groups import ManifestMismatch
from replan.results.leaderboard import board, to_json
from replan.results.pairs import CodeMismatch
from replan.results.tables import comparison_text
from replan.results.thresholds import broken, parse


def badges(found):
    return {mark.badge for mark in found.marks}


@pytest.fixture
def versions(written, make):
    """Writes one version of a method with the given successes."""

    def write(won, **changes):
        method = changes.pop("method", "flash")
        code = changes.pop("code", make.code(method))
        return written(*(make.episode(method, cell, success, code=code, **changes) for cell, success in enumerate(won)))

    return write


def test_two_versions_of_a_method_are_compared_cell_by_cell(versions, make):
    old = versions([True, True, True, False], code=make.code(method="a" * 64))
    new = versions([True, False, False, True], code=make.code(method="b" * 64))
    (found,) = compare_runs(old, new)
    assert (found.paired.difference, found.paired.lost, found.paired.gained, found.paired.n) == (-0.25, 2, 1, 4)
    assert [(flip.direction, flip.init_state) for flip in found.flips] == [("lost", 1), ("lost", 2), ("gained", 3)]
    assert (found.old.success.rate, found.new.success.rate) == (0.75, 0.5)
    assert found.old.value.endswith("run-0") and found.new.value.endswith("run-1")
    assert badges(found) >= {"other method code", "small n", "tiny model trained here"}
    assert "aaaaaa before, bbbbbb now" in str(found.marks[0])
    (back,) = compare_runs(new, old)
    assert (back.paired.lost, back.paired.gained) == (1, 2)


def test_an_arm_has_the_marks_of_its_row_on_the_board(written, make):
    run = make.run(activity_counters={"flash": ("used",)}, suite_marks={"conveyor": (Mark.parse("stand-in assets"),)})
    dense = [make.episode("dense", cell, trajectory_hash=f"{cell}") for cell in range(4)]
    idle = [make.episode("flash", cell, trajectory_hash=f"{cell}", counters={"used": 0.0}) for cell in range(4)]
    slow = (make.round(ms=10, cpu_ns=5_000_000),)
    code, raised = make.code("flash", method="b" * 64), dict(success=False, outcome="raised", failure="no", rounds=slow)
    new = [make.episode("flash", cell, counters={"used": 1.0}, code=code, **raised) for cell in range(4)]
    old, late = written(*dense, *idle, run=run), written(*new, run=run)
    found = compare_runs(old, late)[0]
    texts = {mark.badge: mark.text for mark in found.marks}
    for badge in ("stand-in assets", "tiny model trained here"):
        assert texts[badge] == badge
    for badge, when in (("NOT ACTIVE", "before"), ("same as dense", "before"), ("core shared", "now")):
        assert texts[badge].startswith(f"{when}: "), badge
    assert texts["NONE FINISHED"].startswith("now: ") and texts["broke off"].startswith("now: 4 of 4")
    (row,) = (row for row in board([old]) if row.method == "flash")
    assert badges(row) - {"loss not excluded"} <= texts.keys()  # which is about the rank


def test_two_versions_in_one_run_are_told_apart(written, make):
    def versions(*digests):
        return written(*(make.episode("flash", code=make.code("flash", method=each * 64)) for each in digests))

    found = compare_runs(versions("a", "b"), versions("c"))
    assert [each.old.method for each in found] == ["flash @aaaaaa", "flash @bbbbbb"]
    assert "flash @aaaaaa" in comparison_text(found) and "flash @bbbbbb" in comparison_text(found)


def test_methods_that_are_arms_are_named_once(written, make):
    plain = comparison_text(compare_across([written(make.episode("dense"), make.episode("flash"))], "method"))
    title, *_ = plain.splitlines()
    assert "flash" not in title and plain.splitlines()[4].startswith("dense → flash")


def test_two_policies_are_compared_and_named(versions, make):
    old, new = versions([True] * 2), versions([False] * 2, policy="retrained")
    (found,) = compare_runs(old, new)
    assert found.paired.lost == 2 and "other weights" in badges(found)
    assert (found.old.policy, found.new.policy) == ("pi0-tiny", "retrained")


def test_two_versions_of_the_suite_are_compared_on_request_alone(versions, make):
    old, new = versions([True]), versions([False], code=make.code("flash", suite="c" * 64))
    with pytest.raises(CodeMismatch, match="cccccc.*555555"):
        compare_runs(old, new)
    (found,) = compare_runs(old, new, allow_mixed=True)
    assert found.paired.lost == 1 and "mixed code" in badges(found)


def test_code_that_was_not_recorded_is_compared_on_request_alone(versions):
    old, new = versions([True], code={}), versions([False], code={})
    with pytest.raises(CodeMismatch, match="not recorded"):
        compare_runs(old, new)
    assert "mixed code" in badges(compare_runs(old, new, allow_mixed=True)[0])


def test_another_episode_is_refused(versions):
    with pytest.raises(ManifestMismatch):
        compare_runs(versions([True]), versions([True], manifest={"init_state": "moved"}))


def test_methods_are_compared_under_their_own_condition(versions):
    old = versions([True], method="dense")
    with pytest.raises(NothingToCompare, match="no method under the same condition"):
        compare_runs(old, versions([True]))
    with pytest.raises(NothingToCompare):
        compare_runs(old, versions([True], method="dense", latency="fixed:9ms"))


def test_cells_that_one_arm_alone_has_are_no_comparison_and_errors_are_shown(versions, written, make):
    old = versions([True, True, True], code=make.code(method="a" * 64))
    new = written(make.episode("flash", 0), make.error("flash", 1))
    (found,) = compare_runs(old, new)
    assert (found.paired.n, found.paired.lost, found.paired_worst.n, found.paired_worst.lost) == (1, 0, 2, 1)
    assert {"part paired", "errors"} <= badges(found) and found.new.errors == 1


def test_values_of_a_setting_are_matched_by_all_but_the_setting(written, make):
    def rows(speed, won, light="dim"):
        settings = {"speed": speed, "light": light}
        return [
            make.episode("dense", cell, success, settings=settings, manifest={"speed": speed, "state": cell})
            for cell, success in enumerate(won)
        ]

    episodes = [*rows(15.0, [True, False, False]), *rows(6.0, [True] * 3), *rows(6.0, [False] * 3, light="bright")]
    (found,) = compare_across([written(*episodes)], "speed")
    assert (found.old.value, found.new.value, found.condition["light"]) == ("6", "15", "dim")
    assert (found.paired.lost, found.paired.gained, found.paired.n) == (2, 0, 3)
    assert "matched cells" in badges(found)


def test_a_setting_is_compared_within_one_version_of_the_code(written, make):
    def row(speed, suite, success):
        return make.episode("dense", 0, success, settings={"speed": speed}, code=make.code(suite=suite * 64))

    rows = [row(6.0, "a", True), row(15.0, "a", True), row(6.0, "b", False), row(15.0, "b", False)]
    found = compare_across([written(*rows)], "speed")
    assert len(found) == 2 and all(each.paired.difference == 0 for each in found)
    with pytest.raises(CodeMismatch):
        compare_across([written(rows[0]), written(rows[3])], "speed")


def test_methods_and_policies_may_be_arms(written, make):
    rows = [make.episode("dense"), make.episode("flash", success=False), make.episode("dense", policy="other")]
    (by_method,) = compare_across([written(*rows)], "method")
    assert (by_method.old.value, by_method.new.value, by_method.paired.lost) == ("dense", "flash", 1)
    (by_policy,) = compare_across([written(*rows)], "policy")
    assert {by_policy.old.value, by_policy.new.value} == {"pi0-tiny", "other"}
    assert badges(by_policy) == {"small n", "tiny model trained here", "same episodes"}


def test_a_name_that_no_rows_differ_in_is_refused_with_those_that_there_are(written, make):
    store = written(make.episode("dense", settings={"speed": 6.0}))
    with pytest.raises(NothingToCompare, match="'sped' is neither a setting .* --across takes suite, .*method, speed"):
        compare_across([store], "sped")
    for name in ("speed", "method"):
        with pytest.raises(NothingToCompare, match=f"'{name}' only; --across takes suite, .*method, speed"):
            compare_across([store], name)


def test_the_text_fits_80_columns_and_holds_the_figures(written, make):
    rows = [
        make.episode(method, cell, cell % 7 > 0 or speed < 10, settings={"speed": speed}, task="a_long_task" * 9)
        for method in ("dense", "flash:delta=0.15:refresh=4")
        for speed in (6.0, 15.0)
        for cell in range(100)
    ]
    found = compare_across([written(*rows)], "speed")
    plain = comparison_text(found)
    assert max(map(len, plain.splitlines())) <= 80
    for part in ("speed 6 → 15", "100.0 %", "85.0 %", "-15.0 (p 6.1e-05)", "success → lost", "and 11 more"):
        assert part in " ".join(plain.split()), part
    assert json.loads(json.dumps(to_json(found), allow_nan=False))[0]["paired"]["lost"] == 15


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("success<-2", "success is -25"),
        ("success < -25", None),
        ("success<=-25", "success is -25"),
        ("lost>1", "lost is 2"),
        ("lost>=3", None),
        ("gained<2", "gained is 1"),
        ("low<-50", "low is -"),
        ("p<0.05", None),
    ],
)
def test_a_condition_holds_or_does_not(versions, condition, said):
    found = compare_runs(versions([True, True, True, False]), versions([True, False, False, True]))
    sentences = broken(found, [parse(condition)])
    assert len(sentences) == (said is not None) and (said is None or said in sentences[0])


def test_what_could_not_be_measured_breaks_a_condition(written, make):
    old = written(*(make.episode("flash", cell) for cell in range(4)))
    new = written(make.episode("flash", 0), *(make.error("flash", cell) for cell in range(1, 4)))
    found = compare_runs(old, new)
    assert found[0].paired.difference == 0 and broken(found, [parse("success<-2")])


@pytest.mark.parametrize("text", ["", "success", "success<", "success=-2", "speed<1", "success<nan", "a success<1"])
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(ValueError, match="is no condition; write one of success, low"):
        parse(text)


def test_the_command_ends_with_1_where_a_condition_holds(versions):
    runs = [str(versions(won).path.parent) for won in ([True] * 4, [True, False, True, True])]
    ended = [CliRunner().invoke(compare, [*runs, "--fail-if", condition]) for condition in ("lost>0", "lost>1")]
    assert [getattr(each.exception, "exit_code", 0) for each in ended] == [1, 0]
    assert ended[0].exception.result["failed"] == ["flash on conveyor: lost is 1"]
