"""Recorded episodes: a label belongs to the state of its frame, and images are rendered only where they are used."""

from __future__ import annotations

import numpy as np
import pytest
from replan.envs.demonstrations import Labelled
from replan.envs.libero.demonstrations import episode as simulated
from replan.envs.robotwin.demonstrations import episode as scripted
from replan.envs.robotwin.world import UnstableScene
from replan.eval.collect import Request, collect
from replan.policies.training.recording import Conventions, Frames

HORIZON = 16


def plan(x, horizon):
    chunk = []
    for _ in range(horizon):
        chunk.append(-np.clip(x, -1, 1) / 2)
        x = x + chunk[-1]
    return np.stack(chunk)


class Line:
    """A point in seven dimensions; the expert halves the way to the origin. Observations tell if images were made."""

    action_space = np.zeros(7)
    steps = 40

    def __init__(self):
        self.cameras_on, self.rendered, self.starts = True, 0, []

    def reset(self, *, seed, options):
        self.starts.append((seed, options["task"], self.sampled_starts))
        self.x, self.time = np.random.default_rng(seed).uniform(-0.5, 0.5, 7), 0
        return self._observation(), {"success": False}

    def step(self, action):
        self.x, self.time = self.x + action, self.time + 1
        return self._observation(), 0.0, False, self.time == self.steps, {"success": bool(self.time == self.steps)}

    def expert_chunk(self, horizon):
        return plan(self.x, horizon)

    def _observation(self):
        self.rendered += self.cameras_on
        return {"state": self.x.copy(), "rendered": self.cameras_on}


@pytest.mark.parametrize("acted", [False, True])
def test_every_label_is_what_the_expert_would_do_from_that_very_state(acted):
    policy = (lambda observation: np.full((HORIZON, 7), 0.1)) if acted else None
    for seed in range(8):
        env = Line()
        frames = simulated(env, np.random.default_rng(seed), seed, "task", HORIZON, policy)
        assert frames.success and frames.labels
        for observation, label in zip(frames.observations, frames.labels, strict=True):
            assert observation["rendered"]
            np.testing.assert_allclose(label, plan(observation["state"], HORIZON), atol=1e-12)
        assert env.rendered < 0.7 * env.steps  # most images are not used
        assert env.starts == [(seed, "task", True)]


def test_the_disturbed_expert_leaves_its_path_and_a_policy_leads_elsewhere():
    own, acted, clean = Line(), Line(), Line()
    simulated(own, np.random.default_rng(0), 0, "task", HORIZON, None)
    simulated(acted, np.random.default_rng(0), 0, "task", HORIZON, lambda _: np.full((HORIZON, 7), 0.1))
    clean.sampled_starts = True
    clean.reset(seed=0, options={"task": "task"})
    for action in clean.expert_chunk(clean.steps):
        clean.step(action)
    assert np.abs(clean.x).max() < 1e-6
    assert np.abs(own.x - clean.x).max() > 1e-3 and np.abs(acted.x).max() > 0.05


class Script(Line):
    """Its expert only acts whole tasks, one unit of the first channel a frame."""

    sampled_starts = None

    def __init__(self, works=True, stable=True):
        super().__init__()
        self.works, self.stable = works, stable

    def reset(self, *, seed, options):
        if not self.stable:
            raise UnstableScene
        assert options["init_state"] == seed
        return super().reset(seed=seed, options=options)

    def demonstrate(self, every, watch):
        for count in range(20):
            watch(self._observation(), np.full(7, float(count)))
        return self.works


def test_the_label_of_a_scripted_frame_is_what_came_after_it_and_then_rest():
    frames = scripted(Script(), np.random.default_rng(0), 0, "task", HORIZON, None)
    assert frames.success and len(frames.labels) == 20
    for count, label in enumerate(frames.labels):
        assert label[:, 0].tolist() == [min(count + 1 + k, 19) for k in range(HORIZON)]


@pytest.mark.parametrize("env", [Script(works=False), Script(stable=False)])
def test_a_scripted_failure_or_a_scene_that_falls_over_is_not_recorded(env):
    frames = scripted(env, np.random.default_rng(0), 0, "task", HORIZON, None)
    assert not frames.success and not frames.labels and not frames.observations


def test_a_policy_acts_before_the_script_takes_over():
    shots = []

    def policy(observation):
        shots.append(observation["rendered"])
        return np.full((HORIZON, 7), 0.01)

    env = Script()
    env.steps = 100
    frames = scripted(env, np.random.default_rng(5), 0, "task", HORIZON, policy)
    assert 10 < env.time < env.steps and len(frames.labels) == 20
    assert len(shots) == -(-env.time // 10) and all(shots)  # one call per ten actions, each on a rendered image


def dark(env, rng, seed, task, horizon, policy):
    """An episode that is over before its cameras are turned on again."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    env.cameras_on = False
    return Labelled([observation], [np.zeros((horizon, 7))])


def test_an_episode_that_ends_with_its_cameras_off_does_not_darken_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("replan.envs.conveyor.demonstrations.episode", dark)
    conventions = Conventions("conveyor", ("third", "wrist"), (6,), relative=False, image_size=64)
    episode = "replan.envs.conveyor.demonstrations:episode"
    env_id, out = "replan.envs:replan/ConveyorSorting-v0", tmp_path / "dog-red"
    collect(Request(env_id, conventions, episode, "dog-red", 0, out, episodes=2, seed=0, horizon=4))
    frames = Frames.load(out)
    assert len(frames.images) == 2 and all(image.any() for image in frames.images)
