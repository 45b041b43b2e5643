"""Rows say what job, run and machine they are of, and hold nothing that the store cannot keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fake import FakeRegistry
from gymnasium.spaces import Box
from replan.eval import rows
from replan.eval.cells import Cell, Job
from replan.eval.journal import Entry
from replan.eval.spec import make_spec
from replan.results.schema import RoundRow

CELL = Cell("belt", "left", 3, 5, {"speed": 2.0})
JOB = Job(CELL, "pi0-tiny", "flash", "0123456789abcdef", weights="ab", code={"suite": "cd"}, files=("ef",))
HOST = rows.Host("a machine", "cuda")
SPEC = make_spec(
    {"suite": "belt", "clock": "realtime", "latency": "fixed:5ms", "dtype": "bfloat16", "out": "unused"},
    FakeRegistry().suites(),
)


def a_round(index, control_step):
    return RoundRow(index, control_step, "full", 7, 6, 5, {}, executed=0, window=4)


def identity_of(row):
    names = "key cell suite task init_state seed settings policy method clock latency dtype device machine weights code"
    return tuple(getattr(row, name) for name in names.split())


IDENTITY = (
    "0123456789abcdef", CELL.key, "belt", "left", 3, 5, {"speed": 2.0}, "pi0-tiny", "flash", "realtime", "fixed:5ms",
    "bfloat16", "cuda", "a machine", "ab", {"suite": "cd"},
)  # fmt: skip


def test_an_episode_that_was_played():
    rounds = [a_round(0, 0), a_round(1, 4), a_round(2, 7)]
    played = rows.Played({"step_budget": 9}, "seen", 9, 450, rounds, {"calls": 3.0})
    row = played.row(JOB, SPEC, HOST, True, "success", success_at_end=False, trajectory="path", retries=2)
    assert identity_of(row) == IDENTITY
    assert (row.status, row.success, row.outcome, row.success_at_end) == ("done", True, "success", False)
    assert (row.steps, row.sim_ns, row.manifest, row.counters) == (9, 450, {"step_budget": 9}, {"calls": 3.0})
    assert (row.observation_hash, row.trajectory_hash, row.retries) == ("seen", "path", 2)
    assert (row.failure, row.error) == (None, None)
    assert [each.executed for each in row.rounds] == [4, 3, 2]  # up to the next round, and to the end
    assert [each.control_step for each in row.rounds] == [0, 4, 7]


def test_an_episode_without_rounds_and_with_nothing_to_say():
    row = rows.Played({}, "seen").row(JOB, SPEC, HOST, False, "lost")
    assert (row.rounds, row.steps, row.sim_ns, row.counters, row.retries) == ((), 0, 0, {}, 0)
    assert (row.success, row.success_at_end, row.trajectory_hash) == (False, None, "")


def test_an_episode_whose_worker_was_lost_is_a_failure_with_the_rounds_that_it_noted():
    entry = Entry(True, 6, 300, (({"step_budget": 9}, "seen"), a_round(0, 0), a_round(1, 4)))
    row = rows.abandoned(JOB, SPEC, HOST, entry, "timeout", "no answer", 1)
    assert identity_of(row) == IDENTITY
    assert (row.status, row.success, row.outcome, row.failure) == ("done", False, "timeout", "no answer")
    assert (row.steps, row.sim_ns, row.retries, row.manifest) == (6, 300, 1, {"step_budget": 9})
    assert (row.observation_hash, row.trajectory_hash, row.counters) == ("seen", "", {})
    assert [each.executed for each in row.rounds] == [4, 2]


def test_an_episode_that_the_harness_could_not_finish_says_nothing_about_the_policy():
    row = rows.failed(JOB, SPEC, HOST, "no display", 3)
    assert identity_of(row) == IDENTITY
    assert (row.status, row.success, row.error, row.retries) == ("error", None, "no display", 3)
    assert (row.steps, row.sim_ns, row.rounds, row.failure, row.outcome) == (0, 0, (), None, "")
    assert rows.failed(JOB, SPEC, HOST, "no display").retries == 0


def test_an_action_has_the_spaces_type_and_a_bad_one_names_the_step():
    space = Box(-1, 1, (2,), np.float32)
    action = rows.checked_action(np.arange(4.0)[::2] / 4, space, 8)
    assert action.dtype == np.float32 and action.flags["C_CONTIGUOUS"] and action.tolist() == [0.0, 0.5]
    with pytest.raises(rows.ActionError, match=r"at control step 8, .*shape"):
        rows.checked_action([1.0], space, 8)


def test_what_the_environment_must_say():
    assert rows.entry_of({"success": False}, "success") is False
    with pytest.raises(rows.WorldError, match="no 'outcome'"):
        rows.entry_of({"success": False}, "outcome")
    assert [rows.bool_or_none(value) for value in (None, np.True_, 0)] == [None, True, False]
    assert rows.bool_or_none(np.True_) is True


def test_a_manifest_becomes_plain_json():
    manifest = {"a": None, "b": True, "c": 1, "d": np.float64(0.5), "e": (1, [2.5, "x"]), "f": {"g": {"h": "i"}}}
    plain = rows.manifest_of({"manifest": manifest})
    assert plain == {"a": None, "b": True, "c": 1, "d": 0.5, "e": [1, [2.5, "x"]], "f": {"g": {"h": "i"}}}
    assert type(plain["d"]) is float and type(plain["e"]) is list


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"a": math.nan}, "no finite JSON value: 'a' is nan, of type float"),
        ({"a": [1.0, math.inf]}, "no finite JSON value: 'a' is inf"),
        ({"a": {"b": {1, 2}}}, "no finite JSON value: 'b' is .*set"),
        ({"a": np.float32(1)}, "no finite JSON value: 'a'"),
        ({1: 2}, "a name that is no string: 1"),
        ({"a": {None: 2}}, "a name that is no string: None"),
    ],
)
def test_a_manifest_that_cannot_be_kept_is_refused(manifest, said):
    with pytest.raises(rows.WorldError, match=said):
        rows.manifest_of({"manifest": manifest})


def test_the_text_of_an_exception_is_short_and_can_be_stored():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    assert rows.text_of(KeyError("a")) == "KeyError: 'a'"
    assert rows.text_of(Mute()) == "Mute, whose text cannot be read"
    assert rows.text_of(ValueError("\ud800")) == "ValueError: \\ud800"
    assert rows.text_of(ValueError("x" * 5000)) == "ValueError: " + "x" * (2000 - len("ValueError: "))


def test_routes_are_plain_strings():
    class Name(str):
        __slots__ = ()

    assert type(rows.name_of(Name("full"))) is str
    with pytest.raises(TypeError, match="a route or stage is named by a string, got 3"):
        rows.name_of(3)


def test_counts_are_what_a_database_can_keep():
    counted = [rows.count_of(value, "window") for value in (0, np.int64(4), 5.0, 2**63 - 1)]
    assert counted == [0, 4, 5, 2**63 - 1] and {type(value) for value in counted} == {int}
    for bad in (-1, 2**63):
        with pytest.raises(ValueError, match=f"window of a round must be 0 or more, and below 2.63, got {bad}"):
            rows.count_of(bad, "window")
    with pytest.raises(TypeError):
        rows.count_of("4", "window")


def test_a_broken_diagnostic_is_dropped_and_the_others_are_kept():
    given = {"a": 1, "b": np.float32(0.5), "c": True, "d": math.nan, "e": "7", "f": None, "g": 10**400}
    given |= {3: 1.0, "h": 2.0}
    kept = rows.finite(given)
    assert kept == {"a": 1.0, "b": 0.5, "c": 1.0, "h": 2.0}
    assert {type(value) for value in kept.values()} == {float}
