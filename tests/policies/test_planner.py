"""Policies of any kind: how their plans are executed, and lerobot's interface."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from replan.policies.lerobot_planner import LeRobotPlanner
from replan.policies.planner import PlannerAgent, PlannerPolicy
from replan.policies.processing import ObservationError


class Counting:
    """Plans two actions, each with the number of its round and its place in it."""

    def reset(self, seed):
        self.rounds = 10 * seed

    def plan(self, observation):
        self.rounds += 1
        return [[self.rounds, 0], [self.rounds, 1]]


def test_a_plan_is_executed_to_its_end_before_the_next_one_is_made():
    agent = PlannerAgent(Counting())
    agent.reset(3)
    acted = []
    for _ in range(4):
        needed, action = agent.needs_observation, agent.act({})
        acted.append((needed, agent.round is not None, *action.tolist()))
        assert action.dtype == np.float32
    assert acted == [(True, True, 31, 0), (False, False, 31, 1), (True, True, 32, 0), (False, False, 32, 1)]
    agent.act({})
    assert (agent.round.route, agent.round.window, agent.round.stages_ns.keys()) == ("full", 2, {"plan"})
    assert agent.round.stages_ns["plan"] <= agent.round.host_ns
    agent.reset(5)  # what was planned is forgotten
    assert agent.act({}).tolist() == [51, 0]


@pytest.mark.parametrize("plan", [np.zeros(7), np.zeros((0, 7)), [["a"]], None, np.zeros((1, 2, 7))])
def test_what_is_no_plan_is_refused_with_its_shape(plan):
    agent = PlannerAgent(SimpleNamespace(reset=lambda seed: None, plan=lambda observation: plan))
    agent.reset(0)
    with pytest.raises(ValueError, match=r"actions must be numbers \[n, A\]"):
        agent.act({})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"make": 3}, "make must be a function"),
        ({"cameras": "third"}, "cameras must be a tuple of str"),
        ({"files": ("weights",)}, "files must be a tuple of Path"),
        ({"marks": ["toy"]}, "marks must be a tuple"),
        ({"suites": "shelf"}, "suites must be a tuple"),
        ({"state": 0}, "state must be the number"),
        ({"action": None}, "action must be the number"),
    ],
)
def test_a_description_of_another_type_is_refused(change, words):
    whole = {"make": Counting, "cameras": ("third",), "state": None, "action": 7, "files": (Path("weights"),)}
    PlannerPolicy(**whole)
    with pytest.raises(ValueError, match=words):
        PlannerPolicy(**{**whole, **change})


class LeRobot:
    """The interface of a lerobot policy; actions are the mean of the image, the state and noise."""

    def __init__(self, **config):
        self.config = SimpleNamespace(**{"n_obs_steps": 1, "n_action_steps": 3, **config})
        self.seen, self.resets = [], 0

    def reset(self):
        self.resets += 1

    def predict_action_chunk(self, batch):
        self.seen.append(batch)
        return torch.randn(1, 8, 2) + batch["observation.state"].sum()

    def select_action(self, batch):
        return self.predict_action_chunk(batch)[:, 0]


def planner(policy):
    def before(batch):
        return {**batch, "task": [f"{text}\n" for text in batch["task"]]}

    def after(action):
        assert action.shape == (1, 2)  # lerobot's pipelines take one action
        return 10 * action

    return LeRobotPlanner(policy, before, after, {"observation.images.image": "third"}, mirror=True)


OBSERVATION = {
    "third": np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3),
    "wrist": np.zeros((4, 6, 3), np.uint8),
    "state": np.array([0.5, 0.25], np.float32),
    "instruction": "open it",
}


def test_a_lerobot_policy_is_given_its_own_names_and_its_chunk_is_executed_in_part():
    policy = LeRobot()
    lerobot = planner(policy)
    lerobot.reset(1)
    actions = lerobot.plan(OBSERVATION)
    assert (actions.shape, actions.dtype, policy.resets) == ((3, 2), np.float32, 1)
    batch = policy.seen[0]
    assert batch.keys() == {"observation.images.image", "observation.state", "task"}
    image = batch["observation.images.image"]
    assert (image.shape, image.dtype, batch["task"]) == ((1, 3, 4, 6), torch.float32, ["open it\n"])
    assert np.allclose(image[0].permute(1, 2, 0).numpy() * 255, OBSERVATION["third"][:, ::-1], atol=1e-4)
    assert np.array_equal(batch["observation.state"].numpy(), OBSERVATION["state"][None])


@pytest.mark.parametrize("history", [True, False])
def test_a_lerobot_policy_with_a_history_or_without_chunks_is_asked_for_one_action(history):
    policy = LeRobot(n_obs_steps=2) if history else LeRobot()
    if not history:
        policy = SimpleNamespace(config=policy.config, reset=policy.reset, select_action=policy.select_action)
    lerobot = planner(policy)
    lerobot.reset(1)
    assert lerobot.plan(OBSERVATION).shape == (1, 2)


def test_noise_of_a_lerobot_policy_comes_from_the_seed_and_the_global_generator_is_left_alone():
    lerobot = planner(LeRobot())

    def two(seed):
        lerobot.reset(seed)
        return np.stack([lerobot.plan(OBSERVATION) for _ in range(2)])

    state = torch.get_rng_state()
    first = two(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(5)
    assert np.array_equal(two(1), first) and not np.array_equal(two(2), first)
    assert not np.array_equal(first[0], first[1])


def test_a_lerobot_policy_is_not_asked_about_an_observation_without_its_camera():
    lerobot = planner(LeRobot())
    lerobot.reset(0)
    with pytest.raises(ObservationError, match="lacks 'third'"):
        lerobot.plan({key: value for key, value in OBSERVATION.items() if key != "third"})
