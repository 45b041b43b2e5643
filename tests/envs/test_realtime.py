from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from replan.envs.realtime import RealTime

TICK = 2_000_000


class World(gymnasium.Env):
    """Moves one unit a tick, 25 ticks a step."""

    tick_ns = TICK
    observation_space = spaces.Box(0, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        self.place = 0
        return np.array([0.0]), {}

    def step(self, action):
        self.place += 25
        return np.array([float(self.place)]), 0.0, False, False, {}

    def hold(self, ticks):
        self.place += ticks


@pytest.mark.parametrize(
    ("latency", "ticks"),
    [(0, 0), (1, 1), (TICK - 1, 1), (TICK, 1), (TICK + 1, 2), (57_999_999, 29), (58_000_000, 29), (58_000_001, 30)],
)
def test_world_moves_until_the_first_tick_at_or_after_the_action_is_due(latency, ticks):
    env = RealTime(World())
    env.reset()
    assert env.think(latency) == ticks * TICK
    assert env.unwrapped.place == ticks


def test_world_waits_without_a_call_of_think():
    env = RealTime(World())
    env.reset()
    observation, *_ = env.step(0)
    assert observation == 25


@pytest.mark.parametrize("latency", [-1, 1.5, float("nan"), "58ms"])
def test_latency_that_is_no_whole_number_of_nanoseconds_is_refused(latency):
    env = RealTime(World())
    env.reset()
    with pytest.raises(ValueError, match="latency must be whole nanoseconds"):
        env.think(latency)
    assert env.unwrapped.place == 0


class WithoutHold(World):
    hold = None


class WithoutTick(World):
    tick_ns = 0


class FinestTick(World):
    tick_ns = 1


@pytest.mark.parametrize("world", [WithoutHold, WithoutTick])
def test_environment_that_cannot_run_in_real_time_is_refused_by_name(world):
    with pytest.raises(TypeError, match=world.__name__):
        RealTime(world())


def test_a_tick_may_be_a_nanosecond():
    env = RealTime(FinestTick())
    env.reset()
    assert env.think(5) == env.unwrapped.place == 5


def test_conveyor_moves_on_by_the_latency_while_the_arm_holds():
    env = RealTime(gymnasium.make("replan/ConveyorSorting-v0", speed=12.0))
    world = env.unwrapped
    world.cameras_on = False
    env.reset(seed=1, options={"task": "dog-red", "init_state": 0})
    still = np.zeros(7, np.float32)
    for _ in range(3):
        before, *_ = env.step(still)
    state = world.get_state()
    assert env.think(99_000_001) == 100_000_000
    assert world.time_ns == 3 * 50_000_000 + 100_000_000
    assert not np.array_equal(world.get_state(), state)
    after, *_ = env.step(still)
    np.testing.assert_allclose(after["state"][:3], before["state"][:3], atol=1e-6)  # where the arm is told to be
    env.close()
