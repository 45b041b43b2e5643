"""The gate on synthetic runs: what passes, what fails, and what is not known."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from replan.results.gate import Limits, Outcome, gate, registration
from replan.results.gate_report import junit, markdown, text


def outcomes(result):
    return {check.name: check.outcome for check in result.checks}


def episodes(make, method, lost=(), cells=45, ms=50.0, **changes):
    return [
        make.episode(method, cell, cell not in lost, rounds=(make.round(ms=ms + cell % 7),), **changes)
        for cell in range(cells)
    ]


@pytest.mark.parametrize(
    "lost, cells, outcome",
    [
        ((), 45, Outcome.PASS),
        (range(20), 45, Outcome.FAIL),
        ((), 12, Outcome.INSUFFICIENT),
        ((0,), 30, Outcome.INSUFFICIENT),
    ],
    ids=("equal", "degraded", "few cells", "one flip"),
)
def test_success_passes_fails_or_is_not_known(written, make, lost, cells, outcome):
    run = written(*episodes(make, "dense", cells=cells), *episodes(make, "flash", lost, cells))
    result = gate(run, None, Limits(0.1))
    assert outcomes(result)["success"] == result.outcome == outcome


@pytest.mark.parametrize("lost, outcome", [(0, Outcome.PASS), (3, Outcome.INSUFFICIENT), (20, Outcome.FAIL)])
def test_retention_takes_the_place_of_the_margin(written, make, lost, outcome):
    run = written(*episodes(make, "dense"), *episodes(make, "flash", range(lost)))
    result = gate(run, None, Limits(0.1, retention=0.9))
    assert outcomes(result)["retention"] == outcome and "success" not in outcomes(result)


@pytest.mark.parametrize("ms, outcome", [(30, Outcome.PASS), (80, Outcome.FAIL)])
def test_each_route_is_timed_against_dense_of_the_same_start(written, make, ms, outcome):
    run = written(*episodes(make, "dense"), *episodes(make, "flash", ms=ms))
    result = gate(run, None, Limits(0.1, slower=0.1))
    assert outcomes(result)["latency of full"] == result.outcome == outcome


def test_runs_of_two_starts_are_compared_through_dense_of_each(written, make):
    """The machine is twice as slow the second time: that is no change of the method."""
    before = written(*episodes(make, "dense", ms=50), *episodes(make, "flash", ms=20))
    same = written(*episodes(make, "dense", ms=106), *episodes(make, "flash", ms=43))
    worse = written(*episodes(make, "dense", ms=51), *episodes(make, "flash", ms=40))
    assert gate(same, before, Limits(0.1, slower=0.1)).outcome == Outcome.PASS
    assert outcomes(gate(worse, before, Limits(0.1, slower=0.1)))["latency of full"] == Outcome.FAIL


def test_an_idle_method_and_one_that_raises_fail(written, make):
    run = make.run(activity_counters={"flash": ("drafts",)})
    idle = gate(written(*episodes(make, "dense"), *episodes(make, "flash"), run=run), None, Limits(0.1))
    assert outcomes(idle)["counters"] == idle.outcome == Outcome.FAIL
    raised = episodes(make, "flash", range(45), failure="it raised", outcome="raised")
    assert outcomes(gate(written(*episodes(make, "dense"), *raised), None, Limits(0.1)))["failures"] == Outcome.FAIL


def test_a_method_without_counters_must_come_out_otherwise_than_dense(written, make):
    rows = [*episodes(make, "dense"), *episodes(make, "theirs")]
    idle = [make.episode("theirs", cell, trajectory_hash=f"trajectory-{cell}-dense") for cell in range(45)]
    acted, did_not = gate(written(*rows), None, Limits(0.1)), gate(written(*rows[:45], *idle), None, Limits(0.1))
    assert outcomes(acted)["counters"] == acted.outcome == Outcome.PASS
    assert outcomes(did_not)["counters"] == did_not.outcome == Outcome.INSUFFICIENT
    later = gate(written(*episodes(make, "dense", ms=51), *idle), written(*rows), Limits(0.1))
    assert outcomes(later)["counters"] == Outcome.INSUFFICIENT


def test_what_could_not_be_measured_counts_as_lost_and_is_said(written, make):
    flash = [*episodes(make, "flash", cells=40), *(make.error("flash", cell) for cell in range(40, 45))]
    result = gate(written(*episodes(make, "dense"), *flash), None, Limits(0.1))
    assert outcomes(result)["errors"] == Outcome.INSUFFICIENT and outcomes(result)["success"] != Outcome.PASS


def test_a_run_that_was_stopped_early_does_not_pass(written, make):
    run = written(*episodes(make, "dense", cells=60), *episodes(make, "flash", cells=45))
    result = gate(run, None, Limits(0.1))
    assert outcomes(result)["success"] == Outcome.PASS and result.outcome == Outcome.INSUFFICIENT


def test_a_run_that_both_sides_stopped_early_does_not_pass(written, make):
    """Whoever stops at the first look that passes gets through with a method that loses the margin."""
    rows = [*episodes(make, "dense"), *episodes(make, "flash")]
    assert gate(written(*rows), None, Limits(0.1)).outcome == Outcome.PASS
    result = gate(written(*rows, run=make.run(spec={"episodes": 300})), None, Limits(0.1))
    assert outcomes(result)["success"] == Outcome.PASS and result.outcome == Outcome.INSUFFICIENT


def test_a_copy_of_the_older_run_is_no_new_measurement(written, make):
    rows = [*episodes(make, "dense"), *episodes(make, "flash")]
    result = gate(written(*rows), written(*rows), Limits(0.1))
    assert outcomes(result)["cells"] == result.outcome == Outcome.NOT_COMPARABLE


@pytest.mark.parametrize("methods", [("dense",), ("dense", "flash", "hold"), ("dense", "flash:delta=0.2")])
def test_a_method_that_only_one_run_has_does_not_pass_unseen(written, make, methods):
    before = written(*episodes(make, "dense"), *episodes(make, "flash"))
    now = written(*(row for method in methods for row in episodes(make, method, ms=51)))
    assert gate(now, before, Limits(0.1)).outcome == Outcome.NOT_COMPARABLE


def test_a_route_that_the_older_run_did_not_have_does_not_pass_untimed(written, make):
    def flash(routes, ms):
        rounds = tuple(make.round(i, ms=ms, route=route) for i, route in enumerate(routes))
        return [make.episode("flash", cell, rounds=rounds) for cell in range(45)]

    before = written(*episodes(make, "dense"), *flash(("draft", "draft"), 20))
    now = written(*episodes(make, "dense", ms=51), *flash(("draft", "other"), 21))
    result = gate(now, before, Limits(0.1, slower=0.1))
    assert outcomes(result)["latency of draft"] == Outcome.PASS
    assert outcomes(result)["latency of other"] == result.outcome == Outcome.NOT_COMPARABLE


def test_a_method_whose_rounds_are_fast_and_twice_as_many_fails(written, make):
    rounds = tuple(make.round(i, ms=50, control_step=5 * i, executed=5, window=5) for i in range(4))
    short = [make.episode("window", cell, rounds=rounds) for cell in range(45)]
    long = [make.episode("dense", cell, rounds=(make.round(0), make.round(1))) for cell in range(45)]
    result = gate(written(*long, *short), None, Limits(0.1, slower=0.1))
    assert outcomes(result)["latency of full"] == Outcome.PASS
    assert outcomes(result)["latency per action"] == result.outcome == Outcome.FAIL


@pytest.mark.parametrize("error, outcome", [(0.05, Outcome.PASS), (0.001, Outcome.FAIL)])
def test_action_error_has_a_limit(written, make, error, outcome):
    rounds = (make.round(action_error=0.03),)
    flash = [make.episode("flash", cell, rounds=rounds) for cell in range(45)]
    result = gate(written(*episodes(make, "dense"), *flash), None, Limits(0.1, error=error))
    assert outcomes(result)["action error"] == outcome


def test_nothing_to_compare_is_said_and_does_not_pass(written, make):
    alone = written(*episodes(make, "flash"))
    other = written(*episodes(make, "flash", code=make.code("flash", suite="c" * 64)))
    assert gate(alone, None, Limits(0.1)).outcome == Outcome.NOT_COMPARABLE
    assert gate(alone, other, Limits(0.1)).outcome == Outcome.NOT_COMPARABLE
    assert gate(written(*episodes(make, "dense")), None, Limits(0.1)).outcome == Outcome.NOT_COMPARABLE


def test_the_registration_is_known_before_the_first_result_and_changes_with_the_limits(written, make):
    before = registration(written(), Limits(0.1))
    assert before == gate(written(*episodes(make, "dense"), *episodes(make, "flash")), None, Limits(0.1)).registration
    assert before != registration(written(), Limits(margin=0.05))
    assert before != registration(written(run=make.run(spec={"episodes": 51})), Limits(0.1))


def test_reports_say_the_outcome_and_junit_counts_no_open_check_as_passed(written, make):
    run = written(
        *episodes(make, "dense", cells=30),
        *episodes(make, "flash", range(20), 30),
        *episodes(make, "a|b", cells=30),
        run=make.run(spec={"episodes": 30}),
    )
    result = gate(run, None, Limits(0.1))
    assert text(result).splitlines()[-1] == "FAIL"
    assert "### replan gate: FAIL" in markdown(result) and "a\\|b" in markdown(result)
    suite = ElementTree.fromstring(junit(result))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("6", "1", "1")
    json.dumps([check._asdict() for check in result.checks])
