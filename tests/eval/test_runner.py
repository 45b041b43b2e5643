"""The runner with real worker processes, on the fake suite."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake
import pytest
from fake import FakeRegistry
from pebble import ProcessExpired
from play import plan, play
from replan.eval import claims
from replan.eval.runner import ALIKE, Alike, run
from replan.eval.spec import BadInput, RunStopped
from replan.eval.workers import loss
from replan.results.leaderboard import board
from replan.results.store import SpecMismatch, Store, StoreError

TWO = {"method": "dense,draft"}
REALTIME = {**TWO, "clock": "realtime"}


def hashes(rows):
    return {key: (row.observation_hash, row.trajectory_hash, row.success, row.steps) for key, row in rows.items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Six cells, two methods, one worker, in order."""
    return play(tmp_path_factory.mktemp("reference"), **TWO)


def test_every_cell_is_played_by_every_method(reference):
    assert len(reference) == 12
    assert {row.status for row in reference.values()} == {"done"}
    by_cell = {}
    for (cell, _), row in reference.items():
        by_cell.setdefault(cell, []).append(row)
    assert len(by_cell) == 6
    for one, other in by_cell.values():
        assert {one.method, other.method} == {"dense", "draft"}
        assert one.observation_hash == other.observation_hash
        assert one.manifest == other.manifest
    assert len({row.observation_hash for row in reference.values()}) == 6


def test_episodes_are_the_same_with_two_workers_and_in_reversed_order(reference, tmp_path):
    assert hashes(play(tmp_path, backwards=True, workers=2, **TWO)) == hashes(reference)


def kill_after_three(out, episodes, method):
    """Starts an evaluation in a process of its own, kills it in the middle, and returns what it has stored."""
    run = [sys.executable, str(Path(__file__).with_name("play.py")), str(out), str(episodes), method]
    here = str(Path(__file__).parent)
    process = subprocess.Popen(run, env={**os.environ, "PYTHONPATH": here}, stderr=subprocess.DEVNULL)
    while len(stored(out)) < 3:
        assert process.poll() is None, "it ended before it could be killed"
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = stored(out)
    assert 3 <= len(before) < episodes
    return before


def test_killed_run_resumes_without_losing_or_repeating_an_episode(tmp_path):
    before = kill_after_three(tmp_path / "killed", episodes=8, method="slow")

    resumed = play(tmp_path / "killed", episodes=8, method="slow")
    assert hashes(resumed) == hashes(play(tmp_path / "whole", episodes=8, method="slow"))
    after = stored(tmp_path / "killed")
    assert len(after) == 8
    assert {key: after[key] for key in before} == before  # the host times too, so none of them was played again


def stored(directory):
    """Finished episodes by key, with the host times of their calls."""
    file = directory / "episodes.db"
    if not file.exists():
        return {}
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            'SELECT key, group_concat(host_ns) FROM episodes JOIN rounds ON episode = key GROUP BY key ORDER BY "index"'
        )
        return dict(rows.fetchall())
    finally:
        connection.close()


def test_finished_run_is_not_played_again_and_another_specification_is_refused(tmp_path):
    first = play(tmp_path, episodes=2)
    assert play(tmp_path, episodes=2, workers=2, timeout=30) == first
    with pytest.raises(SpecMismatch, match=r"spec\.episodes"):
        play(tmp_path, episodes=3)
    with pytest.raises(SpecMismatch, match=r"spec\.clock"):
        play(tmp_path, episodes=2, clock="realtime", latency="zero")


def test_run_of_a_suite_that_is_made_of_something_else_is_refused(tmp_path, monkeypatch):
    first = play(tmp_path, suite="shelf", episodes=1)
    monkeypatch.setitem(fake.shelves, "boards", "pine 2")
    with pytest.raises(
        SpecMismatch, match=r"identity\.fingerprints\.shelf\.boards: stored 'oak 1', requested 'pine 2'"
    ):
        play(tmp_path, suite="shelf", episodes=1)
    monkeypatch.undo()
    assert play(tmp_path, suite="shelf", episodes=1) == first


def test_worker_that_died_once_costs_a_retry_and_nothing_else(reference, tmp_path):
    method = f"die_once:{tmp_path / 'died'}"
    rows = play(tmp_path / "run", method=method)
    assert {row.status for row in rows.values()} == {"done"}
    assert sorted(row.retries for row in rows.values()) == [0, 0, 0, 0, 0, 1]
    assert {row.trajectory_hash for row in rows.values()} == {
        row.trajectory_hash for row in reference.values() if row.method == "dense"
    }


def test_a_policy_that_takes_its_process_down_twice_or_does_not_return_has_failed(tmp_path):
    rows = play(tmp_path, method="dense,die,hang", episodes=1, workers=2, timeout=6)
    by_method = {row.method: row for row in rows.values()}
    assert by_method["dense"].status == "done"
    for method, outcome, retries, failure in (
        ("die", "raised", 1, "the worker died with exit code 3, 2 times while the policy or its method was at work"),
        ("hang", "timeout", 0, "the policy or its method was at work when the episode's 6 s were over"),
    ):
        row = by_method[method]
        assert (row.status, row.success, row.outcome, row.retries) == ("done", False, outcome, retries)
        assert (row.failure, row.error) == (failure, None)
        # What it had come to: one round of four steps, which is dense's first.
        assert (row.steps, row.sim_ns, [each.executed for each in row.rounds]) == (4, 200_000_000, [4])
        assert row.rounds[0].control_step == 0 and row.rounds[0].route == "full"
        assert row.manifest == by_method["dense"].manifest
        assert row.observation_hash == by_method["dense"].observation_hash
    with Store.open(tmp_path) as store:
        assert {row.method: (row.success.rate, row.success.n) for row in board([store]) if row.method != "dense"} == {
            "die": (0, 1),
            "hang": (0, 1),
        }


def test_what_a_new_process_loads_does_not_count_in_the_time_limit_of_an_episode(tmp_path):
    marker = tmp_path / "died"
    (row,) = play(tmp_path / "run", method=f"heavy_die_once:{marker}", episodes=1, timeout=7).values()
    assert marker.exists()
    assert (row.status, row.retries, row.failure) == ("done", 1, None)


def test_a_simulator_that_hangs_is_an_error_after_one_retry(tmp_path):
    rows = play(tmp_path, suite="stuck", episodes=1, timeout=5)
    (row,) = rows.values()
    assert (row.status, row.success, row.retries) == ("error", None, 1)
    assert row.error == "the worker hung: no result before the timeout"


def test_simulator_that_aborts_costs_its_own_cells_and_no_other(tmp_path):
    rows = play(tmp_path, suite="crash", episodes=4, workers=2)
    by_task = {task: [row for row in rows.values() if row.task == task] for task in ("abort", "left")}
    assert {row.error for row in by_task["abort"]} == {"the worker was killed by SIGABRT"}
    assert {(row.status, row.success, row.retries) for row in by_task["abort"]} == {("error", None, 1)}
    assert [(row.status, row.error) for row in by_task["left"]] == [("done", None)] * 2


def test_a_method_that_raises_in_long_episodes_wins_nothing(tmp_path):
    rows = play(tmp_path, method="dense,raise_far", episodes=6)
    raised = [row for row in rows.values() if row.failure]
    assert 0 < len(raised) < 6
    for row in raised:
        assert (row.status, row.success, row.outcome, row.retries, row.error) == ("done", False, "raised", 0, None)
        assert (row.method, row.failure) == ("raise_far", "RuntimeError: the policy tripped")
        assert row.rounds and {each.executed for each in row.rounds} == {4}
    with Store.open(tmp_path) as store:
        assert {row.success.n for row in board([store])} == {6}
    assert [row.status for row in rows.values() if row.method == "dense"] == ["done"] * 6


def test_a_run_whose_first_episodes_all_fail_alike_stops_and_keeps_them(tmp_path):
    cause = "suite 'broken', .* RuntimeError: the simulator broke"
    with pytest.raises(
        RunStopped, match=f"method 'dense' failed alike in all of its first {ALIKE} episodes on {cause}"
    ):
        play(tmp_path, suite="broken", episodes=40)
    with Store.open(tmp_path) as store:
        assert [row.status for row in store.episodes()] == ["error"] * ALIKE


def test_failures_that_differ_or_refused_actions_do_not_stop_a_run(tmp_path):
    rows = play(tmp_path, method="nan", episodes=12)
    assert len(rows) == 12
    alike = Alike()
    (row, *_) = rows.values()
    for number in range(3 * ALIKE):
        alike.see(replace(row, outcome="raised", failure=f"{'ValueError' if number % 7 else 'KeyError'}: {number}"))
    for number in range(3 * ALIKE):
        other = replace(row, method="other", outcome="raised", failure=f"ValueError: {number}")
        if number == ALIKE - 1:
            with pytest.raises(RunStopped, match="method 'other'"):
                alike.see(other)
            break
        alike.see(other)


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (-40, "signal 40")])
def test_a_worker_is_lost_to_a_signal_with_a_name_or_a_number(code, name):
    assert loss(ProcessExpired("lost", code=code)) == f"the worker was killed by {name}"


def test_an_action_that_is_none_is_a_failure_of_the_policy_and_stays_in_the_denominator(tmp_path):
    rows = play(tmp_path, method="dense,nan,short", episodes=2)
    refused = [row for row in rows.values() if row.method != "dense"]
    assert {(row.status, row.success, row.outcome, row.error) for row in refused} == {
        ("done", False, "invalid action", None)
    }
    assert {row.method: row.failure.split(":")[0] for row in refused} == {
        "nan": "at control step 0, the action must be finite as float32, got [nan, -1.0]",
        "short": "at control step 0, the action must have shape (2,), got (1,)",
    }
    assert all([call.executed for call in row.rounds] == [0] for row in refused)
    with Store.open(tmp_path) as store:
        assert {row.method: (row.success.rate, row.success.n) for row in board([store]) if row.method != "dense"} == {
            "nan": (0, 2),
            "short": (0, 2),
        }


def test_diagnostics_that_are_not_finite_are_left_out_and_cost_nothing_else(tmp_path):
    odd, same = (play(tmp_path / name, method=name) for name in ("odd", "dense"))
    assert [(row.trajectory_hash, row.status) for row in odd.values()] == [
        (row.trajectory_hash, row.status) for row in same.values()
    ]
    calls = [call for row in odd.values() for call in row.rounds]
    assert {tuple(call.extra.items()) for call in calls} == {(("distance", 0.5),)}
    assert {call.action_error for call in calls} == {None}
    assert all(row.counters == {"calls": len(row.rounds)} for row in odd.values())


def test_errors_are_tried_again_when_the_run_is_started_again(tmp_path):
    marker = tmp_path / "died"
    method = f"die_once:{marker}"
    rows = play(tmp_path / "run", method=method, episodes=1, timeout=60)
    assert [row.retries for row in rows.values()] == [1]
    with sqlite3.connect(tmp_path / "run" / "episodes.db") as store:
        store.execute("UPDATE episodes SET status = 'error', success = NULL, error = 'lost'")
    again = play(tmp_path / "run", method=method, episodes=1)
    assert [(row.status, row.retries) for row in again.values()] == [("done", 0)]


def test_what_cannot_be_built_is_told_before_anything_is_measured(tmp_path):
    with pytest.raises(BadInput, match="no such method: 'unbuildable'"):
        play(tmp_path / "one", method="dense,unbuildable")
    with pytest.raises(BadInput, match=r"speed must not be negative, got -3\.0"):
        play(tmp_path / "two", set={"speed": "-3"})


def test_a_method_that_cannot_act_is_told_before_anything_is_measured_and_leaves_no_directory(tmp_path):
    told = "policy 'tiny' with method 'early_raise' cannot act in suite 'belt': RuntimeError: the policy tripped"
    with pytest.raises(BadInput, match=told):
        play(tmp_path / "a" / "run", method="dense,early_raise")
    with pytest.raises(RunStopped, match="method 'early_die' cannot act .*died with exit code 3 in the first rounds"):
        play(tmp_path / "a" / "run", method="dense,early_die")
    with pytest.raises(RunStopped, match="method 'early_hang' cannot act .*the worker hung"):
        play(tmp_path / "a" / "run", method="early_hang", timeout=2)
    assert os.listdir(tmp_path) == []


def test_a_resumed_run_reads_its_store_once(tmp_path, monkeypatch, capsys):
    rows = play(tmp_path, episodes=2)
    reads, episodes = [], Store.episodes
    monkeypatch.setattr(Store, "episodes", lambda store: reads.append(store) or episodes(store))
    run(*plan(tmp_path, episodes=2), FakeRegistry())
    assert len(rows) == 2 and len(reads) == 1
    assert "2 of 2 episodes are there, measured by the same code" in capsys.readouterr().err


def test_a_directory_that_a_refused_command_found_stays_as_it_was(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(BadInput):
        play(tmp_path / "run", set={"speed": "-3"})
    assert os.listdir(tmp_path / "run") == ["notes.txt"]
    before = play(tmp_path / "run", episodes=1)
    with pytest.raises(SpecMismatch):
        play(tmp_path / "run", episodes=1, set={"speed": "-3"})
    assert play(tmp_path / "run", episodes=1) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_once_while_it_is_built_costs_nothing(reference, tmp_path, workers):
    marker = tmp_path / "died"
    rows = play(tmp_path / "run", method=f"early_die_once:{marker}", workers=workers)
    assert marker.exists()
    assert sorted((row.status, row.retries) for row in rows.values()) == [("done", 0)] * 6
    assert {row.trajectory_hash for row in rows.values()} == {
        row.trajectory_hash for row in reference.values() if row.method == "dense"
    }


def test_a_worker_that_is_killed_while_it_is_built_is_named_with_its_signal(tmp_path):
    with pytest.raises(RunStopped, match=r"suite 'fatal' could not be set up: the worker was killed by SIGABRT; see"):
        play(tmp_path, suite="fatal")


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_what_it_lacks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"from play import play\nplay({str(tmp_path / 'run')!r}, episodes=1)\n")
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "if __name__ == '__main__':" in done.stderr.strip().splitlines()[-1]
    assert "another evaluation" not in done.stderr


def test_a_run_directory_that_is_deleted_meanwhile_ends_the_run(tmp_path, monkeypatch):
    def gone(store, row):
        shutil.rmtree(tmp_path / "run")
        raise StoreError("the file is gone")

    monkeypatch.setattr(Store, "add", gone)
    with pytest.raises(StoreError, match="the file is gone"):  # and not what its trace cannot be written to
        play(tmp_path / "run", clock="realtime", episodes=20)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("suite", ["absent", "empty"])
def test_unavailable_suite_is_told_with_the_mend_also_beside_others(tmp_path, suite):
    with pytest.raises(BadInput, match=f"; run: replan setup {suite}"):
        play(tmp_path, suite=f"belt,{suite}")
    assert os.listdir(tmp_path) == []
    assert len(play(tmp_path, suite="belt")) == 6  # the directory is free


def test_policy_that_does_not_fit_its_suite_is_told_before_anything_is_measured(tmp_path):
    told = r"policy 'wide' does not fit suite 'belt': its state is \(2,\), not \(3,\)\. Name another --policy"
    with pytest.raises(BadInput, match=told):
        play(tmp_path, policy="wide")


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_keep_to_a_task_where_another_one_is_expensive_and_to_one_suite_a_process(tmp_path, workers):
    log = tmp_path / "log"
    fields = {"suite": "shelf,belt", "episodes": 8, "set": {"log": str(log)}, **TWO}
    rows = play(tmp_path / "run", workers=workers, **fields)
    loaded = [line.split() for line in log.read_text().splitlines()]
    tasks = {}
    for process, task in loaded:
        tasks.setdefault(process, set()).add(task)
    assert all(each <= {"up", "down"} or each <= {"left", "right", "middle"} for each in tasks.values())
    # Two tasks with two seeds are four batches for 16 episodes; a worker that gets the same task again loads nothing.
    assert 2 <= sum(task in ("up", "down") for _, task in loaded) <= 4
    assert len(rows) == 32 and {row.status for row in rows.values()} == {"done"}
    assert {(row.suite, row.policy) for row in rows.values()} == {("shelf", "tiny-shelf"), ("belt", "tiny")}


def test_settings_reach_the_environment_and_are_run_side_by_side(tmp_path):
    rows = play(tmp_path, set={"speed": "0,0.3"}, episodes=2)
    assert sorted(row.settings["speed"] for row in rows.values()) == [0.0, 0.0, 0.3, 0.3]
    assert len({row.trajectory_hash for row in rows.values()}) == 4


def test_real_time_without_latency_equals_the_synchronous_clock(reference, tmp_path):
    rows = play(tmp_path, latency="zero", **REALTIME)
    assert hashes(rows) == hashes(reference)


def test_the_environment_moves_during_the_latency_which_is_recorded(reference, tmp_path):
    rows = play(tmp_path, latency="fixed:57ms", **REALTIME)
    for key, row in rows.items():
        assert {call.latency_ns for call in row.rounds} == {57_000_000}
        assert row.sim_ns == row.steps * 50_000_000 + len(row.rounds) * 58_000_000  # whole ticks of 2 ms
        assert row.trajectory_hash != reference[key].trajectory_hash
    assert {call.latency_ns for row in reference.values() for call in row.rounds} == {0}


def test_latency_is_added_to_steps_of_any_length(tmp_path):
    sync = play(tmp_path / "sync", suite="jerky")
    late = play(tmp_path / "late", suite="jerky", clock="realtime", latency="fixed:57ms")
    assert play(tmp_path / "none", suite="jerky", clock="realtime", latency="zero").keys() == sync.keys()
    assert hashes(play(tmp_path / "none", suite="jerky", clock="realtime", latency="zero")) == hashes(sync)
    for key, row in late.items():
        steps_ns = row.sim_ns - len(row.rounds) * 58_000_000
        assert 20_000_000 * row.steps <= steps_ns <= 98_000_000 * row.steps
        assert row.trajectory_hash != sync[key].trajectory_hash
    lengths = {row.sim_ns / row.steps for row in sync.values()}
    assert len(lengths) > 1  # they really take different times


def test_replayed_trace_gives_the_measured_episodes_again(tmp_path):
    measured = play(tmp_path / "measured", **REALTIME)
    again = play(tmp_path / "again", **REALTIME)
    assert hashes(again) != hashes(measured)  # wall time differs from call to call
    trace = tmp_path / "measured" / "trace.jsonl"
    replayed = play(tmp_path / "replayed", latency=f"trace:{trace}", backwards=True, workers=2, **REALTIME)
    assert hashes(replayed) == hashes(measured)
    for key, row in replayed.items():
        assert [call.latency_ns for call in row.rounds] == [call.host_ns for call in measured[key].rounds]


def test_replay_that_leaves_the_recording_is_an_error_and_not_a_result(tmp_path):
    play(tmp_path / "measured", episodes=3, **REALTIME)
    trace = tmp_path / "measured" / "trace.jsonl"
    episodes = [json.loads(line) for line in trace.read_text().splitlines()]
    spoiled = next(episode for episode in episodes if episode["method"] == "draft")
    spoiled["rounds"][0][0] = "fallback"
    trace.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    rows = play(tmp_path / "replayed", episodes=3, latency=f"trace:{trace}", **REALTIME)
    (error,) = [row for row in rows.values() if row.status == "error"]
    assert (error.cell, error.method) == (spoiled["cell"], "draft")
    assert "trace diverged at round 0: recorded 'fallback', now 'full'" in error.error


def test_changed_trace_under_the_same_name_does_not_resume_the_old_run(tmp_path):
    play(tmp_path / "measured", episodes=1, **REALTIME)
    trace = tmp_path / "measured" / "trace.jsonl"
    fields = {"episodes": 1, "latency": f"trace:{trace}", **REALTIME}
    play(tmp_path / "replayed", **fields)
    trace.write_text(trace.read_text().replace('["full", ', '["full", 1'))
    with pytest.raises(SpecMismatch, match=r"identity\.latency\.trace"):
        play(tmp_path / "replayed", **fields)


def test_calls_are_counted_from_chunk_to_chunk(reference):
    for row in reference.values():
        assert [call.index for call in row.rounds] == list(range(len(row.rounds)))
        assert sum(call.executed for call in row.rounds) == row.steps
        assert row.counters == {"calls": len(row.rounds)}
        for call, following in zip(row.rounds, row.rounds[1:], strict=False):
            assert call.control_step + call.executed == following.control_step
            assert call.executed == (2 if call.route == "flash" else 4)


def test_no_call_is_warm_up_where_the_warm_up_took_every_route(reference):
    assert not [call for row in reference.values() for call in row.rounds if call.warmup]


def test_a_route_that_is_cold_in_its_first_episode_moves_no_world(tmp_path):
    rows = play(tmp_path, method="late", clock="realtime", workers=2)
    assert {call.latency_ns for row in rows.values() for call in row.rounds} == {20_000_000}
    assert {call.route for row in rows.values() for call in row.rounds} == {"full", "flash"}


def test_methods_are_compared_with_dense_on_some_calls_and_dense_never(reference):
    calls = [(row.method, call) for row in reference.values() for call in row.rounds]
    assert {call.action_error for method, call in calls if method == "dense"} == {None}
    compared = [call.index for method, call in calls if method == "draft" and call.action_error is not None]
    assert 0 < len(compared) < sum(method == "draft" for method, _ in calls)
    assert {call.action_error for method, call in calls if method == "draft"} == {None, 0.25}


def test_jobs_of_a_run_have_distinct_addresses_that_the_rows_carry(reference, tmp_path):
    assert {(job.key, job.cell.key, job.method) for job in plan(tmp_path, **TWO).jobs} == {
        (row.key, row.cell, row.method) for row in reference.values()
    }


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot keep a process to a core")
def test_workers_of_evaluations_side_by_side_do_not_share_a_core(monkeypatch):
    kept = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: kept.append(cores))
    first, second = claims.claim_core([1001, 1002]), claims.claim_core([1001, 1002])  # no machine has them
    assert kept == [{1001}, {1002}]
    assert claims.claim_core([1001, 1002]) is None and len(kept) == 2
    first.close()
    claims.claim_core([1001, 1002]).close()
    second.close()
    assert kept[2:] == [{1001}]


@pytest.mark.skipif(sys.platform != "linux", reason="held by a name that only Linux has")
def test_a_second_evaluation_of_a_run_directory_is_refused_while_the_first_one_lasts(tmp_path):
    with (
        claims.claim_directory(tmp_path / "run"),
        pytest.raises(BadInput, match="another evaluation is writing to .*run"),
    ):
        play(tmp_path / "run")
    play(tmp_path / "run")


LEARN = {"method": "dense,learn"}


def learnt(rows):
    return {key: value for key, value in hashes(rows).items() if key[1].startswith("learn")}


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Six cells of a method that learns across episodes, uninterrupted."""
    return play(tmp_path_factory.mktemp("lesson"), **LEARN)


def test_what_an_ordered_method_does_depends_on_its_episodes_so_far(lesson, reference, tmp_path):
    dense, learning = (
        {cell: row for (cell, name), row in lesson.items() if name == each} for each in ("dense", "learn")
    )
    equal = [dense[cell].trajectory_hash == learning[cell].trajectory_hash for cell in dense]
    assert sum(equal) == 1  # only in its first episode has it learnt nothing
    shorter = learnt(play(tmp_path, episodes=4, **LEARN))
    assert shorter.items() <= learnt(lesson).items()  # more episodes only add to the chain
    assert {key: value for key, value in hashes(lesson).items() if key[1] == "dense"}.items() <= hashes(
        reference
    ).items()


def test_an_ordered_method_plays_in_its_order_in_whatever_order_the_jobs_come(lesson, tmp_path):
    assert hashes(play(tmp_path, backwards=True, **LEARN)) == hashes(lesson)


def test_a_chain_that_was_killed_is_played_again_from_its_start_and_gives_the_same_rows(tmp_path):
    before = kill_after_three(tmp_path / "killed", episodes=6, method="learn_slow")

    resumed = play(tmp_path / "killed", method="learn_slow")
    assert hashes(resumed) == hashes(play(tmp_path / "whole", method="learn_slow"))
    assert {row.status for row in resumed.values()} == {"done"}
    after = stored(tmp_path / "killed")
    assert {key: after[key] for key in before} == before  # played again, and not stored again


def test_a_chain_whose_worker_died_is_played_again_from_its_start(lesson, tmp_path):
    marker = tmp_path / "died"
    rows = play(tmp_path / "run", method=f"learn_die_once:{marker}")
    assert marker.exists()
    assert sorted(row.retries for row in rows.values()) == [0, 0, 0, 0, 0, 1]
    assert {cell: row.trajectory_hash for (cell, _), row in rows.items()} == {
        cell: row.trajectory_hash for (cell, name), row in lesson.items() if name == "learn"
    }


def test_after_an_episode_that_an_ordered_method_ended_itself_a_fresh_agent_goes_on(lesson, tmp_path):
    rows = play(tmp_path / "run", method="dense,learn_raise")
    assert [row.status for (_, name), row in rows.items() if name == "dense"] == ["done"] * 6
    order = [rows[job.cell.key, job.method] for job in plan(method="learn_raise").jobs]
    learning = [lesson[job.cell.key, "learn"] for job in plan(method="learn").jobs]
    assert [row.status for row in order] == ["done"] * 6
    assert [row.outcome for row in order].count("raised") == 1
    assert (order[3].success, order[3].failure) == (False, "RuntimeError: the library is full")
    assert [a.trajectory_hash == b.trajectory_hash for a, b in zip(order[:3], learning, strict=False)] == [True] * 3
    dense = [rows[row.cell, "dense"].trajectory_hash for row in order]
    assert [row.trajectory_hash == same for row, same in zip(order, dense, strict=True)] == [
        place in (0, 4) for place in range(6)
    ]  # with nothing learned it does what dense does


def test_an_episode_that_cannot_be_measured_ends_its_chain(tmp_path):
    rows = play(tmp_path, suite="crash", method="dense,learn", task="left,abort", episodes=4)
    order = [rows[job.cell.key, job.method] for job in plan(suite="crash", method="learn", episodes=4).jobs]
    assert [row.status for row in order] == ["error"] * 4
    assert order[0].error == "the worker was killed by SIGABRT"
    assert all(
        row.error.startswith("not played, because episode 0 of the chain of 'learn'")
        and row.error.endswith("the worker was killed by SIGABRT")
        for row in order[1:]
    )


def test_a_chain_under_measured_latency_is_not_resumed_and_not_played_again(tmp_path):
    fields = {"method": "learn", "clock": "realtime", "latency": "measured"}
    play(tmp_path / "run", **fields)
    last = plan(tmp_path / "run", **fields).jobs[-1]
    with sqlite3.connect(tmp_path / "run" / "episodes.db") as store:
        store.execute("PRAGMA foreign_keys = ON")  # its rounds too
        store.execute("DELETE FROM episodes WHERE key = ?", (last.key,))
    before = stored(tmp_path / "run")
    with pytest.raises(
        BadInput, match=r"'learn' in .* were interrupted, .*another --out, or with --latency trace:FILE"
    ):
        play(tmp_path / "run", **fields)
    assert stored(tmp_path / "run") == before

    rows = play(tmp_path / "lost", **{**fields, "method": f"learn_die_once:{tmp_path / 'died'}"})
    assert [row.status for row in rows.values()].count("error") == 3
    assert {row.retries for row in rows.values()} == {0}


def test_a_chain_that_does_not_come_again_is_an_error_of_what_was_left(tmp_path):
    play(tmp_path, method="learn")
    first, *_, last = plan(tmp_path, method="learn").jobs
    with sqlite3.connect(tmp_path / "episodes.db") as store:
        store.execute("PRAGMA foreign_keys = ON")  # its rounds too
        store.execute("DELETE FROM episodes WHERE key = ?", (last.key,))
        store.execute("UPDATE episodes SET trajectory_hash = 'another' WHERE key = ?", (first.key,))
    rows = play(tmp_path, method="learn")
    row = rows[last.cell.key, "learn"]
    assert row.status == "error" and "episode 0 of the chain of 'learn'" in row.error and "and was another" in row.error
    assert [each.status for each in rows.values()].count("done") == 5


def test_a_finished_chain_is_not_played_again(tmp_path):
    play(tmp_path, method="learn", episodes=2)
    before = stored(tmp_path)
    play(tmp_path, method="learn", episodes=2)
    assert stored(tmp_path) == before


def test_an_ordered_method_on_several_workers_is_refused(tmp_path):
    with pytest.raises(BadInput, match="method 'learn' learns across episodes.*write --workers 1, not 2"):
        play(tmp_path, workers=2, **LEARN)
    assert not (tmp_path / "episodes.db").exists()


def test_what_a_chain_cannot_build_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(BadInput, match=r"speed must not be negative, got -3\.0"):
        play(tmp_path, method="learn", set={"speed": "0.2,-3"})
    assert stored(tmp_path) == {}
