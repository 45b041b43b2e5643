from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from dataclasses import replace
from itertools import permutations

import pytest
from replan.results import Mark, RunIdentity, Store
from replan.results.leaderboard import board, to_json
from replan.results.pairs import CodeMismatch

TIMES = {"dense": 40, "fast": 10, "slow": 20}


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
            rounds=tuple(
                make.round(i, ms=10, route="flash", control_step=5 * i, executed=5, accepted=5)
                for i in range(3 if cell else 5)
            ),
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
    assert (flash.speed_up.round.value, flash.speed_up.action.value) == (4, 2)
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
    assert row.speed_up.round.value == 4
    assert "part paired" in badges(row)


def test_speed_up_counts_failed_episodes(written, make):
    dense = [make.episode("dense", cell, True, rounds=(make.round(ms=40),)) for cell in range(2)]
    flash = [make.episode("flash", cell, not cell, rounds=(make.round(ms=70 if cell else 10),)) for cell in range(2)]
    _, row = board([written(*dense, *flash)])
    assert row.speed_up.round.value == 1


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


def test_a_cold_round_is_charged_what_its_route_takes_when_warm(written, make):
    rounds = [make.round(0, ms=900, warmup=True), make.round(1, ms=70, route="flash")]
    rounds += [make.round(i, ms=10) for i in range(2, 9)]
    (row,) = board([written(make.episode("dense", rounds=tuple(rounds)))])
    assert row.rounds.all == 9
    assert row.round_ns.n == 9 and row.round_ns.mean == pytest.approx((8 * 10 + 70) * 1e6 / 9)
    assert row.action_ns == pytest.approx((8 * 10 + 70) * 1e6 / 90)
    assert (row.routes["full"].durations.n, row.routes["full"].durations.mean) == (7, 10_000_000)
    assert row.contention == 1


def test_a_cold_round_of_a_route_that_is_never_warm_counts_as_it_was(written, make):
    (row,) = board([written(make.episode("dense", rounds=(make.round(ms=50, warmup=True),)))])
    assert row.round_ns.mean == 50_000_000 and "latency unknown" in badges(row)


def with_cold(make, method, cell, cold_ms, route, *, ms=10.0):
    """An episode of one cold round and nine warm ones."""
    rounds = [make.round(0, ms=cold_ms, route=route, warmup=True)]
    rounds += [make.round(i, ms=ms, route="full" if i % 2 else "few") for i in range(1, 10)]
    return make.episode(method, cell, rounds=tuple(rounds))


def test_expensive_rounds_under_a_route_of_their_own_are_not_left_out(written, make):
    dense = versions(make, "dense", 40, ms=40)
    relabelled = [with_cold(make, "relabelled", cell, 1000, f"r{cell}") for cell in range(40)]
    _, row = board([written(*dense, *relabelled)])
    assert row.speed_up.round.value == pytest.approx(40 / ((1000 + 9 * 10) / 10))


@pytest.mark.parametrize(("cold_ms", "badge", "rank"), [(12, "cold rounds", 1), (1000, "NOT WARM", None)])
def test_a_row_says_how_much_time_cold_rounds_leave_out_and_has_no_rank_where_that_is_a_lot(
    written, make, cold_ms, badge, rank
):
    dense = versions(make, "dense", 40, ms=40)
    _, row = board([written(*dense, *(with_cold(make, "fast", cell, cold_ms, "few") for cell in range(40)))])
    share = (cold_ms - 10) / (cold_ms + 90)
    text = {mark.badge: mark.text for mark in row.marks}[badge]
    assert text.startswith("40 rounds took a route for the first time") and f"{100 * share:.2g} % of the time" in text
    assert (row.rank, row.speed_up.round.value) == (rank, pytest.approx(4))


def test_a_method_that_changes_no_action_is_marked(written, make):
    dense = [make.episode("dense", cell) for cell in range(2)]
    same = [make.episode("compile", row.init_state, trajectory_hash=row.trajectory_hash) for row in dense]
    half = [make.episode("dp_cache", 0, trajectory_hash=dense[0].trajectory_hash), make.episode("dp_cache", 1)]
    found = {row.method: badges(row) for row in board([written(*dense, *same, *half)])}
    assert "same as dense" in found["compile"]
    assert "same as dense" not in found["dense"] | found["dp_cache"]


def test_episodes_without_a_trajectory_equal_none(written, make):
    """Both lost their process."""
    lost = [make.episode(method, 0, False, trajectory_hash="", outcome="timeout") for method in ("dense", "compile")]
    assert not any("same as dense" in badges(row) for row in board([written(*lost)]))


@pytest.mark.parametrize(
    ("change", "badge"),
    [({"packages": {"torch": "3"}}, "mixed packages")],
)
def test_a_comparison_across_runs_is_marked_where_they_differ(written, make, change, badge):
    dense, flash = written(make.episode("dense")), written(make.episode("flash"), run=make.run(**change))
    found = board([dense, flash])
    assert badge in badges(found[1]) and badge not in badges(found[0])
    same = board([dense, written(make.episode("flash"))])
    assert not any(name.startswith("mixed") for row in same for name in badges(row))


@pytest.mark.parametrize(
    ("changes", "badge"),
    [({"machine": "another"}, "matched cells"), ({"device": "RTX 4090"}, "mixed devices")],
)
def test_a_comparison_across_machines_or_devices_is_marked(written, make, changes, badge):
    dense, flash = ([make.episode(method, cell, device="H200") for cell in range(2)] for method in ("dense", "flash"))
    (_, same), (_, moved) = (
        board([written(*dense, flash[0], other)]) for other in (flash[1], replace(flash[1], **changes))
    )
    assert badges(moved) - badges(same) == {badge}
    (dense_row, flash_row) = board([written(*(replace(row, **changes) for row in dense), *flash)])
    assert badge in badges(flash_row) and badge not in badges(dense_row)  # it is the comparison that is mixed


def test_pairs_of_one_machine_each_are_same_machine_pairs_also_where_there_are_two(written, make):
    rows = [make.episode(method, cell, machine=f"m{cell}") for method in ("dense", "flash") for cell in range(2)]
    _, flash = board([written(*rows)])
    assert "mixed machines" in badges(flash) and "matched cells" not in badges(flash)


def test_an_old_run_that_was_resumed_elsewhere_may_hold_episodes_of_both_machines(written, make):
    store = written(make.episode("dense", machine=""))
    assert "mixed machines" not in badges(board([store])[0])
    Store.start(store.path.parent, make.run(machines={"another": {}})).close()
    with Store.open(store.path) as resumed:
        assert "mixed machines" in badges(board([resumed])[0])


def test_a_fingerprint_of_another_suite_changes_nothing(written, make):
    identity = RunIdentity(None, {"shelf": {"boards": "oak"}})
    _, flash = board([written(make.episode("dense")), written(make.episode("flash"), run=make.run(identity=identity))])
    assert flash.paired.n == 1


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


def versions(make, method, n=4, /, *, ms=20, success=True, **code):
    """Episodes of one version of a method."""
    rounds = (make.round(ms=ms),)
    return [make.episode(method, cell, success, rounds=rounds, code=make.code(method, **code)) for cell in range(n)]


def test_two_versions_of_a_method_are_two_rows_and_the_newer_run_hides_nothing(written, make):
    dense = versions(make, "dense")
    old = written(*dense, *versions(make, "flash", method="a" * 64))
    new = written(*versions(make, "flash", method="b" * 64, success=False), run=make.run(started="2026-03"))
    first, *both = board([old, new], allow_mixed=True)
    assert [(row.label, row.success.rate) for row in both] == [("flash @aaaaaa", 1.0), ("flash @bbbbbb", 0.0)]
    assert first.label == "dense" and both[1].paired.lost == 4
    assert [row.label for row in board([new])] == ["flash"]


def test_a_new_version_of_the_suite_has_a_baseline_of_its_own_below_the_older_one(written, make):
    def run(suite, ms):
        return [*versions(make, "dense", 30, ms=40, suite=suite), *versions(make, "flash", 30, ms=ms, suite=suite)]

    newer = written(*run("b" * 64, 10), run=make.run(started="2026-03"))
    older = written(*run("a" * 64, 20))
    rows = board([newer, older])
    assert [row.label for row in rows] == [
        f"{method} suite@{each * 6}" for each in "ab" for method in ("dense", "flash")
    ]
    assert [row.speed_up.round.value for row in rows if row.speed_up] == [2, 4]
    assert [row.rank for row in rows] == [None, 1, None, 1]


@pytest.mark.parametrize("other", [{"suite": "c" * 64}, {"policy": "c" * 64}], ids=lambda changes: next(iter(changes)))
def test_a_baseline_that_other_code_played_is_refused_and_marked_on_request(written, make, other):
    stores = [written(*versions(make, "dense", success=False, **other)), written(*versions(make, "flash"))]
    with pytest.raises(CodeMismatch, match=r"(555555|999999).*cccccc.*--allow-mixed"):
        board(stores)
    _, flash = board(stores, allow_mixed=True)
    assert flash.paired.gained == 4 and "mixed code" in badges(flash)


def test_a_baseline_in_another_world_of_the_suite_is_refused(written, make):
    changed = make.run(identity=RunIdentity(None, {"conveyor": {"belt": "longer"}}))
    with pytest.raises(CodeMismatch):
        board([written(make.episode("dense")), written(make.episode("flash"), run=changed)])


@pytest.mark.parametrize("other", ["0", "c"])  # before and after the method's own code in the order of digests
def test_a_method_is_paired_with_the_baseline_of_its_own_code_where_both_are_there(written, make, other):
    dense = [*versions(make, "dense", success=False, suite=other * 64), *versions(make, "dense")]
    rows = [*dense, *versions(make, "flash")]
    flash = next(row for row in board([written(*rows)]) if row.method == "flash")
    assert flash.paired.difference == 0 and "mixed code" not in badges(flash)


def test_rows_without_a_record_of_their_code_are_paired_within_one_run_alone(written, make):
    dense, flash = make.episode("dense", code={}), make.episode("flash", code={})
    rows = board([written(dense, flash)])
    assert rows[1].paired.n == 1 and all("code not recorded" in badges(row) for row in rows)
    apart = [written(dense), written(flash)]
    with pytest.raises(CodeMismatch, match="code not recorded, in .*run-2.*code not recorded, in .*run-1"):
        board(apart)
    _, row = board(apart, allow_mixed=True)
    assert row.paired.n == 1 and {"mixed code", "code not recorded"} <= badges(row)


def test_rows_without_a_record_of_their_code_are_told_apart_by_their_run(written, make):
    rows = [make.episode(method, code={}) for method in ("dense", "flash")]
    found = board([written(*rows), written(*rows)])
    assert [row.label for row in found] == ["dense in run-0", "flash in run-0", "dense in run-1", "flash in run-1"]


def test_one_policy_under_two_spellings_of_its_path_is_one(written, make):
    dense = [make.episode("dense", cell, policy="pol/x", weights="beef") for cell in range(2)]
    flash = [make.episode("flash", cell, policy="./pol/x", weights="beef") for cell in range(2)]
    again = make.episode("dense", 1, policy="/elsewhere/x", weights="beef")
    rows = board([written(*dense), written(*flash), written(again)])
    assert [(row.policy, row.method) for row in rows] == [("pol/x", "dense"), ("pol/x", "flash")]
    assert rows[1].paired.n == 2 and "repeats" in badges(rows[0])


def test_one_trace_under_two_spellings_of_its_path_is_one_latency(written, make):
    stores = [
        written(
            make.episode(method, latency=name, clock="realtime"),
            run=make.run(spec={"latency": name}, identity=RunIdentity({"trace": "d1"})),
        )
        for method, name in (("dense", "trace:t.jsonl"), ("flash", "trace:./t.jsonl"))
    ]
    rows = board(stores)
    assert [row.latency for row in rows] == ["trace:t.jsonl"] * 2 and rows[1].paired.n == 1


def test_a_method_that_is_lost_in_its_hard_episodes_is_shown_and_ranked_in_its_worst_case(written, make):
    def rows(method, ms, measured=40):
        played = [make.episode(method, cell, cell < 24, rounds=(make.round(ms=ms),)) for cell in range(measured)]
        return [*played, *(make.error(method, cell) for cell in range(measured, 40))]

    dense, steady, fragile = board([written(*rows("dense", 40), *rows("fragile", 8, 18), *rows("steady", 20))])
    assert (steady.method, steady.rank, fragile.method, fragile.rank) == ("steady", 1, "fragile", None)
    (mark,) = [mark for mark in fragile.marks if mark.badge == "loss not excluded"]
    assert "points is not excluded in the worst case; a rank takes 10 at most" in mark.text
    assert (fragile.success.rate, fragile.worst.rate, fragile.worst.n) == (1, 18 / 40, 40)
    assert (fragile.paired.difference, fragile.paired.lost) == (0, 0)
    assert (fragile.paired_worst.lost, fragile.paired_worst.n) == (6, 40)  # dense solved six of the cells it missed
    assert fragile.speed_up.action.value == 5
    assert steady.worst is None and steady.paired_worst is None and dense.worst is None


def test_a_cell_that_the_baseline_lost_counts_against_the_method_in_the_worst_case(written, make):
    dense = [make.episode("dense", 0), make.error("dense", 1), make.error("dense", 2), make.error("dense", 3)]
    flash = [
        make.episode("flash", 0),
        make.episode("flash", 1, False),
        make.episode("flash", 2),
        make.error("flash", 3),
    ]
    _, row = board([written(*dense, *flash)])
    assert row.paired.n == 1 and (row.paired_worst.lost, row.paired_worst.n) == (1, 3)


def test_what_could_not_be_measured_is_charged_the_baselines_time_in_the_ranking(written, make):
    def rows(method, ms, measured=64):
        played = [make.episode(method, cell, rounds=(make.round(ms=ms),)) for cell in range(measured)]
        return [*played, *(make.error(method, cell) for cell in range(measured, 64))]

    rows = board([written(*rows("dense", 40), *rows("lost", 10, 63), *rows("steady", 10.4))])
    assert [(row.method, row.rank) for row in rows] == [("dense", None), ("steady", 1), ("lost", 2)]


@pytest.mark.parametrize("outcome", ["raised", "timeout"])
def test_a_method_is_not_fast_because_it_fails_early(written, make, outcome):
    """One round of 10 ms and 10 actions, and then one that does not return and is charged dense's 40 ms."""
    rows = [make.episode("dense", cell, rounds=(make.round(ms=30), make.round(1, ms=50))) for cell in range(30)]
    fails = dict(success=False, outcome=outcome, failure="gave up", rounds=(make.round(ms=10),))
    rows += [
        make.episode("flash", cell, **fails if cell % 2 else {"rounds": (make.round(ms=10),)}) for cell in range(30)
    ]
    _, flash = board([written(*rows)])
    assert flash.speed_up.action.value == pytest.approx(40 / 30)  # 15 * (10 + 10 + 40) ms over 300 actions
    assert flash.action_ns == 3_000_000 and flash.round_ns.n == 45 and flash.round_ns.mean == 20_000_000
    (mark,) = [mark for mark in flash.marks if mark.badge == "broke off"]
    assert "15 of 30 episodes ended in a round" in mark.text


def test_a_slow_method_is_charged_its_own_round(written, make):
    rows = [make.episode(method, rounds=(make.round(ms=ms),)) for method, ms in (("dense", 40), ("slow", 100))]
    rows += [make.episode("dense", 1, rounds=(make.round(ms=40),))]
    rows += [make.episode("slow", 1, False, outcome="raised", failure="no", rounds=())]
    _, slow = board([written(*rows)])
    assert slow.round_ns.mean == 100_000_000 and slow.speed_up.action.value == pytest.approx(4 / 20)


def test_a_round_that_did_not_return_is_charged_the_methods_own_median_without_a_baseline(written, make):
    lost = make.episode("flash", 1, False, outcome="timeout", failure="late", rounds=())
    (alone,) = board([written(make.episode("flash", rounds=tuple(make.round(i, ms=i + 1) for i in range(5))), lost)])
    assert alone.action_ns == (15 + 3) * 1_000_000 / 50 and "broke off" in badges(alone)
    (nothing,) = board([written(lost)])
    assert math.isnan(nothing.action_ns) and "broke off" in badges(nothing)


def test_an_action_that_is_none_ends_a_round_that_did_return(written, make):
    refused = make.episode("flash", success=False, outcome="invalid action", failure="NaN", rounds=(make.round(ms=10),))
    _, flash = board([written(make.episode("dense"), refused)])
    assert flash.round_ns.n == 1 and "broke off" not in badges(flash)


def test_an_idle_method_is_never_ranked(written, make):
    times = {"idle": 10, "once": 20, "real": 30, "dense": 40}
    run = make.run(activity_counters={name: ("used",) for name in times if name != "dense"})
    moved = {"idle": 0, "once": 1, "real": 60, "dense": 0}
    episodes = [
        make.episode(name, cell, rounds=(make.round(ms=ms),), counters={"used": float(cell < moved[name])})
        for name, ms in times.items()
        for cell in range(100)
    ]
    rows = board([written(*episodes, run=run)])
    assert [(row.method, row.rank) for row in rows] == [("dense", None), ("real", 1), ("idle", None), ("once", None)]
    assert [row.active for row in rows] == [True, True, False, False]
    assert [row.activity for row in rows] == [{}, {"used": 0.6}, {"used": 0}, {"used": 0.01}]
    texts = [{mark.badge: mark.text for mark in row.marks} for row in rows]
    assert texts[1]["part active"] == "used moved in 60 % of the episodes"
    assert texts[3]["NOT ACTIVE"] == "used moved in 1 % of the episodes, and has to in 50 %"
    assert to_json(rows)[2]["rank"] is None


@pytest.mark.parametrize(("moved", "active"), [(49, False), (50, True)])
def test_a_method_is_active_from_half_of_its_episodes_on(written, make, moved, active):
    run = make.run(activity_counters={"flash": ("used",)})
    episodes = [make.episode("flash", cell, counters={"used": float(cell < moved)}) for cell in range(100)]
    (row,) = board([written(*episodes, run=run)])
    assert row.active is active


def test_contention_of_the_baseline_marks_the_method(written, make):
    shared = [make.episode("dense", cell, rounds=(make.round(ms=80, cpu_ns=40_000_000),)) for cell in range(2)]
    alone = [make.episode("flash", cell, rounds=(make.round(ms=40),)) for cell in range(2)]
    dense, flash = board([written(*shared, *alone)])
    (mark,) = [mark for mark in flash.marks if mark.badge == "core shared"]
    assert mark.text == "dense's, which the speed-up compares with, is 2.0 × processor time"
    assert flash.contention == 1 and "core shared" in badges(dense)


@pytest.mark.parametrize(
    ("clock", "latency", "affected"),
    [("realtime", "measured", True), ("realtime", "fixed:9ms", False), ("sync", "measured", False)],
)
def test_a_shared_core_affects_success_where_the_world_moves_by_measured_times(written, make, clock, latency, affected):
    rounds = (make.round(ms=10, cpu_ns=5_000_000),)
    (row,) = board([written(make.episode("dense", clock=clock, latency=latency, rounds=rounds))])
    (mark,) = [mark for mark in row.marks if mark.badge == "core shared"]
    assert ("success is affected" in mark.text) is affected


def test_runs_that_were_measured_apart_have_no_speed_up_unless_asked(written, make):
    stores = [written(*versions(make, "dense", ms=40)), written(*versions(make, "flash", ms=10))]
    _, flash = board(stores)
    assert flash.paired.n == 4 and flash.speed_up is None and flash.rank is None and "separate runs" in badges(flash)
    _, flash = board(stores, allow_mixed=True)
    assert flash.speed_up.action.value == 4 and "separate runs" in badges(flash) and "mixed code" not in badges(flash)


def test_two_starts_of_one_run_are_measured_apart(written, make, tmp_path):
    for methods in (("dense",), ("flash",)):
        with Store.start(tmp_path / "resumed", make.run()) as store:
            for row in (row for method in methods for row in versions(make, method)):
                store.add(row)
    with Store.open(tmp_path / "resumed") as store:
        _, flash = board([store])
        assert flash.paired.n == 4 and flash.speed_up is None and "separate runs" in badges(flash)
        _, flash = board([store], allow_mixed=True)
        assert flash.speed_up is not None


def test_which_of_several_starts_measured_an_old_run_is_unknown_and_nothing_is_timed(written, make):
    store = written(*versions(make, "dense"), *versions(make, "flash"))
    with contextlib.closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE episodes SET session = 0")
    with Store.open(store.path) as again:
        _, flash = board([again])
    assert flash.speed_up is None and "separate runs" in badges(flash)


def test_the_order_of_directories_changes_nothing(written, make):
    def run(day, ms, policy):
        rows = versions(make, "dense", ms=4 * ms) + versions(make, "flash", ms=ms)
        return written(*(replace(row, policy=policy) for row in rows), run=make.run(started=f"2026-0{day}"))

    newer, older = run(2, 10, "./pol"), run(1, 20, "pol")
    copy = run(1, 30, "pol/")
    rows = board([older, newer, copy])
    assert rows[0].policy == "pol" and rows[1].round_ns.mean == 20_000_000
    for stores in permutations([older, newer, copy]):
        assert to_json(board(stores)) == to_json(rows)


def test_a_repeat_that_was_timed_with_the_baseline_gives_the_speed_up(written, make):
    first = written(*versions(make, "dense", ms=400), run=make.run(started="2026-01"))
    both = [*versions(make, "dense", ms=40), *versions(make, "flash", ms=10)]
    _, flash = board([first, written(*both, run=make.run(started="2026-02"))])
    assert flash.speed_up.action.value == 4 and "separate runs" not in badges(flash)


def test_a_speed_up_is_over_the_cells_that_one_run_measured(written, make):
    together = [make.episode(m, 0, rounds=(make.round(ms=ms),)) for m, ms in (("dense", 40), ("flash", 10))]
    dense, flash = (make.episode(m, 1, rounds=(make.round(ms=ms),)) for m, ms in (("dense", 400), ("flash", 1)))
    _, row = board([written(*together, dense), written(flash)])
    assert row.paired.n == 2 and row.speed_up.round.value == 4


def test_cold_rounds_count_in_a_speed_up_as_warm_ones_and_with_all_their_actions(written, make):
    def episode(method, cell, ms, executed):
        rounds = (make.round(0, ms=5000, warmup=True), make.round(1, ms=ms, executed=executed))
        return make.episode(method, cell, rounds=rounds)

    rows = [episode("dense", cell, 40, 10) for cell in range(9)] + [episode("flash", cell, 10, 5) for cell in range(9)]
    _, flash = board([written(*rows)])
    assert flash.speed_up == ((4, 4, 4), (3, 3, 3))  # per action: 80 ms for 20 over 20 ms for 15


def test_success_is_told_by_task_and_the_worst_is_named(written, make):
    tasks = {"lift": (True, True), "stack": (True, False)}
    rows = [make.episode("dense", i, won, task=task) for task, each in tasks.items() for i, won in enumerate(each)]
    (row,) = board([written(*rows)])
    assert {task: (rate.rate, rate.n) for task, rate in row.tasks.items()} == {"lift": (1, 2), "stack": (0.5, 2)}
    assert row.worst_task == "stack"
    (row,) = board([written(make.episode("dense"))])
    assert row.worst_task is None and to_json([row])[0]["tasks"]["dog-red"]["n"] == 1
