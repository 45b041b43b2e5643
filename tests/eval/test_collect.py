"""Recordings of an expert: repeatable, complete, made once, and what a policy that acts changes."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from replan.eval import collect as collecting
from replan.eval.cells import make_cells
from replan.eval.collect import Request, collect, collect_all
from replan.eval.commands.collect import shared
from replan.eval.registry import Registry
from replan.eval.spec import make_spec
from replan.policies.training.recording import Conventions, Frames

BELT = Conventions("conveyor", ("third", "wrist"), (6,), relative=False, image_size=64)


def request(out, episodes=1, **changes):
    env_id, episode = "replan.envs:replan/ConveyorSorting-v0", "replan.envs.conveyor.demonstrations:episode"
    whole = Request(env_id, BELT, episode, "dog-red", 0, out, episodes, seed=0, horizon=16)
    return replace(whole, **changes)


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    out = tmp_path_factory.mktemp("recording") / "dog-red"
    collect(request(out, 3))
    return out


def test_a_recording_is_repeatable_and_another_seed_or_task_is_another(recording, tmp_path):
    collect(request(tmp_path / "again"))
    collect(request(tmp_path / "other", seed=1))
    collect(request(tmp_path / "task", task="dog-blue", index=1))
    first, again, other, task = (
        Frames.load(path) for path in (recording, tmp_path / "again", tmp_path / "other", tmp_path / "task")
    )
    length = len(again.state)
    assert np.array_equal(first.images[:length], again.images) and np.array_equal(first.actions[:length], again.actions)
    assert not np.array_equal(other.state[0], again.state[0]) and not np.array_equal(task.state[0], again.state[0])
    assert set(task.instruction) == {"put the toy dog in the blue bin"}


def test_an_existing_recording_is_not_made_again(recording, tmp_path):
    requests = [request(recording, 3), request(tmp_path / "blue", task="dog-blue", index=1)]
    before = (recording / "state.npy").stat().st_mtime_ns
    assert list(collect_all(requests, workers=1)) == ["dog-blue"]
    assert (recording / "state.npy").stat().st_mtime_ns == before and Frames.load(tmp_path / "blue")


def test_a_task_that_the_expert_cannot_do_does_not_stop_the_others(monkeypatch, tmp_path):
    done = []

    def some(asked):
        if asked.task == "dog-red":
            raise NotImplementedError("no skill for dogs")
        done.append(asked.task)
        return 1.0

    monkeypatch.setattr(collecting, "collect", some)
    monkeypatch.setattr(collecting, "ProcessPoolExecutor", lambda workers, context: ThreadPoolExecutor(workers))
    requests = [request(tmp_path / task, task=task) for task in ("dog-red", "dog-blue")]
    with pytest.raises(ValueError, match="1 tasks were recorded, and these could not be: dog-red: no skill for dogs"):
        collect_all(requests, workers=1)
    assert done == ["dog-blue"]


def test_a_recording_of_another_request_is_refused(recording, policy_file):
    with pytest.raises(ValueError, match="other episodes, seed"):
        collect_all([request(recording, 4, seed=2)], workers=1)
    with pytest.raises(ValueError, match="other policy"):
        collect_all([request(recording, 3, policy=policy_file)], workers=1)


@pytest.mark.parametrize("changes", [{"seed": 1000}, {"episodes": 1001}, {"episodes": 0}])
def test_episodes_beyond_the_numbering_are_refused(tmp_path, changes):
    with pytest.raises(ValueError, match="seed must be"):
        collect(request(tmp_path / "x", **changes))


def test_a_recording_has_views_instructions_and_whole_labels(recording):
    frames = Frames.load(recording)
    count = len(frames.state)
    assert frames.images.shape == (count, 2, 64, 64, 3) and frames.images.dtype == np.uint8
    assert frames.actions.shape == (count, 16, 7) and (np.abs(frames.actions) <= 1).all()
    assert set(np.unique(frames.episode)) == {0, 1, 2} and frames.conventions == BELT
    assert all(instruction.startswith("put the ") for instruction in frames.instruction)


def test_a_policy_can_act_while_the_expert_labels(policy_file, tmp_path):
    collect(request(tmp_path / "driven", policy=policy_file))
    collect(request(tmp_path / "own"))
    driven, own = Frames.load(tmp_path / "driven"), Frames.load(tmp_path / "own")
    assert np.array_equal(driven.state[0], own.state[0])  # the same cell
    shared = min(len(driven.state), len(own.state))
    assert not np.array_equal(driven.state[:shared], own.state[:shared])


def test_a_file_where_the_recording_should_be_is_refused_before_anything_is_played(recording, tmp_path):
    (tmp_path / "dog-red").write_text("")
    request = Request("unused", BELT, "unused", "dog-red", 0, tmp_path / "dog-red", 1, seed=0, horizon=16)
    with pytest.raises(ValueError, match="exists and is no folder"):
        collect_all([request], 1)


def test_tasks_share_the_episodes_as_in_an_evaluation():
    assert shared(10, ["a", "b", "c", "d"]) == {"a": 3, "b": 3, "c": 2, "d": 2}
    assert shared(2, ["a", "b", "c"]) == {"a": 1, "b": 1}
    suites = Registry().suites()
    cells = make_cells(make_spec({"out": "x", "suite": "conveyor", "episodes": 10}, suites), suites)
    assert Counter(cell.task for cell in cells) == shared(10, list(suites["conveyor"].tasks))
