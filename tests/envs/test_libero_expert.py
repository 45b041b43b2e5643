"""LIBERO's scripted experts: they do the tasks, find back after a mishap, and looking ahead leaves no trace."""

from __future__ import annotations

import importlib.util

import gymnasium
import numpy as np
import pytest
from replan.envs import SUITES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None, reason="LIBERO is not installed; run `replan setup libero`"
)
MILK = ("libero_object", "pick_up_the_milk_and_place_it_in_the_basket", 3)


@pytest.fixture(scope="module")
def begin():
    """Begins the cell (suite, task, init_state); only one environment is kept, because a simulator takes 2 GB."""
    kept = {}

    def get(suite, task, init_state):
        if suite not in kept:
            close()
            kept[suite] = gymnasium.make(SUITES[suite].env_id, disable_env_checker=True).unwrapped
        env = kept[suite]
        env.cameras_on = False
        env.reset(seed=0, options={"task": task, "init_state": init_state})
        return env

    def close():
        while kept:
            kept.popitem()[1].close()

    yield get
    close()


def play(env, horizon=1, until=lambda env: False, spoil=lambda action: action):
    """Acts as the expert wants until the episode or ``until`` ends it; returns what it wanted and the last info."""
    wanted, over, info = [], False, {}
    while not over and not until(env):
        wanted.append(env.expert_chunk(horizon)[0])
        _, _, success, truncated, info = env.step(spoil(wanted[-1]))
        over = success or truncated
    return np.stack(wanted), info


def height(env, thing):
    return env._simulator.data.body(f"{thing}_main").xpos[2]


def move(env, thing, shift):
    env._simulator.data.joint(f"{thing}_joint0").qpos[:3] += shift
    env._simulator.refresh()


@pytest.mark.parametrize(
    ("suite", "task", "init_state"),
    [
        pytest.param("libero_goal", "open_the_top_drawer_and_put_the_bowl_inside", 5, id="drawer"),
        pytest.param("libero_goal", "turn_on_the_stove", 1, id="knob"),
        pytest.param("libero_10", "KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it", 2, id="two_parts"),
        pytest.param("libero_90", "KITCHEN_SCENE6_close_the_microwave", 0, id="door"),
    ],
)
def test_the_expert_does_what_the_task_asks_for_within_the_limit(begin, suite, task, init_state):
    _, info = play(begin(suite, task, init_state))
    assert info["outcome"] == "success"


@pytest.mark.slow
@pytest.mark.long
def test_looking_ahead_leaves_no_trace_in_the_expert(begin):
    without, info = play(begin(*MILK))
    assert info["outcome"] == "success"
    ahead, _ = play(begin(*MILK), horizon=8)
    assert np.array_equal(ahead, without)


def test_looking_ahead_forgets_the_grasps_that_it_planned(begin):
    env = begin(*MILK)
    move(env, "milk_1", [0.02, 0.0, 0.04])
    env.expert_chunk(1)
    (remembered,) = env._expert.snapshot()
    env.expert_chunk(20)  # by then it has fallen, and is grasped elsewhere
    assert env._expert.snapshot()[0] is remembered


def test_an_object_that_moves_under_the_hand_is_taken_where_it_is_now(begin):
    env = begin(*MILK)
    start = env._simulator.proprioception()[2]
    play(env, until=lambda env: env._simulator.proprioception()[2] < start - 0.12)  # the hand comes down for it
    move(env, "milk_1", [-0.05, 0.03, 0.0])
    _, info = play(env)
    assert info["outcome"] == "success"


def test_an_object_that_is_dropped_on_the_way_is_picked_up_again(begin):
    env = begin(*MILK)
    lying = height(env, "milk_1")
    play(env, until=lambda env: height(env, "milk_1") > lying + 0.06)
    open_hand = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
    _, info = play(env, until=lambda env: height(env, "milk_1") < lying + 0.02, spoil=lambda action: open_hand)
    assert "outcome" not in info
    _, info = play(env)
    assert info["outcome"] == "success"


def test_a_goal_without_a_skill_is_refused_by_name(begin, monkeypatch):
    env = begin(*MILK)
    monkeypatch.setitem(env._simulator.problem.parsed_problem, "goal_state", [["open", "basket_1"]])
    with pytest.raises(NotImplementedError, match="open basket_1"):
        env.expert_chunk(1)


class Slab:
    """A scene with one thing, of which the points given are known."""

    base = np.array([-0.6, 0.0])

    def __init__(self, points):
        self.points = np.asarray(points, np.float64)

    def cloud(self, name):
        return self.points

    def position(self, name):
        return self.points.mean(axis=0)

    def rotation(self, name):
        return np.eye(3)

    def obstacles(self, *excluded):
        return np.zeros((0, 3))


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([[x, y, z] for x in (-0.1, 0.1) for y in (-0.06, 0.06) for z in (0.0, 0.2)], id="no_wall"),
        pytest.param([[0.02, 0.03, 0.4]], id="a_point"),
    ],
)
def test_what_cannot_be_grasped_is_tried_over_its_middle(points):
    from replan.envs.libero.expert.grasp import WIDEST, plan_grasp

    scene = Slab(points)
    grasp = plan_grasp(scene, "slab", np.zeros(3))
    assert np.allclose(grasp.offset[:2], 0, atol=1e-9)
    assert np.allclose(grasp.hand[:, 2], [0, 0, -1]) and grasp.width <= WIDEST
