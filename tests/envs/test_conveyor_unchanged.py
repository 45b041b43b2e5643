"""The conveyor's cells and their motion are those of earlier releases: stored rows are compared with new ones.

Whoever changes a value here on purpose measures every row of the suite again.
"""

from __future__ import annotations

import hashlib
import inspect

import numpy as np
import pytest
from replan.envs.conveyor import physics, task
from replan.envs.conveyor.physics import ConveyorPhysics


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_cell_is_made_of_the_same_bodies():
    assert digest(physics.model_xml(("dog", "brush"))) == "b1390f44503e77b1"


@pytest.mark.parametrize(
    ("cell", "settings", "expected"),
    [
        (("dog-red", 0, 0), {"distractor": False, "speed": None}, "71c03fc0dac473c1"),
        (("brush-blue", 3, 7), {"distractor": True, "speed": None}, "8e46ce66df052468"),
        (("dog-blue", 3, 8), {"distractor": True, "speed": 9.0}, "b82d783103d20d84"),
        (("brush-red", 1, 2), {"distractor": True, "speed": None}, "68abe846c419f42d"),
    ],
)
def test_a_cell_is_sampled_alike(cell, settings, expected):
    assert digest(repr(task.sample(*cell, **settings))) == expected


def test_the_numbers_that_judge_an_episode_are_those_of_the_documentation():
    assert (task.SPEEDS, task.TIME_LIMIT_NS, task.REACH_Y) == ((6.0, 15.0), 10 * 10**9, 0.5)
    assert "(fingers open wider than 52 mm)" in task.SUCCESS_RULE
    assert (task.RESTING, task.IN_BIN_Z, task.RELEASED) == (0.05, 0.09, pytest.approx(0.052))
    assert inspect.signature(task.sample).parameters["spread"].default == 0.03
    assert physics.TICK_NS * physics.CONTROL_TICKS == 50_000_000
    assert physics.BIN_HALF == 0.11 and physics.BINS == {"red": (0.25, 0.46), "blue": (0.25, -0.46)}
    assert (physics.BELT_X, physics.BELT_WIDTH, physics.BELT_TOP) == (0.52, 0.28, 0.12)


PLACED = [0.002, -0.4633138, -1.5693877, 1.6255497, -1.6269368, -1.5707964, -2.4341104, 0.0325002, 0.0324997]
MOVED = [0.138, -0.7377555, -0.3460502, 0.2905476, -1.1507753, -0.8380124, -4.1327721, -0.0016616, -0.0009708]


def test_the_arm_and_the_objects_move_alike():
    """Belt, arm and fingers after placing everything, and after twelve actions that reach the workspace's edge."""
    poses = {"dog": (0.5, -0.4, 0.3), "brush": (0.55, -0.1, -2.0)}
    world = ConveyorPhysics(("dog", "brush"), 0.2, (0.5, -0.1, 0.35), 0.4, poses)
    np.testing.assert_allclose(world.data.qpos[:9], PLACED, atol=1e-6)
    assert world.gripper == -1.0 and world.width == pytest.approx(physics.OPENING, abs=1e-5)
    np.testing.assert_allclose(world.object_position("brush"), [0.55, -0.098, 0.1214114], atol=1e-6)
    for step in range(12):
        world.control(np.array([0.9, -0.7, -1.0, 0.2, -0.3, 0.5, 1.0 if step > 5 else -1.0]))
    world.advance(40)
    np.testing.assert_allclose(world.data.qpos[:9], MOVED, atol=1e-5)
    np.testing.assert_allclose(world.tool_position, [0.7996433, -0.3503813, 0.1443243], atol=1e-5)
    assert (world.tool_yaw, world.target_yaw) == (pytest.approx(1.84575, abs=1e-4), pytest.approx(1.835649, abs=1e-5))
    np.testing.assert_allclose(world.object_position("dog"), [0.5, -0.262, 0.1199732], atol=1e-5)
    assert world.object_speed("dog") == pytest.approx(0.2, abs=1e-5)
    assert (world.object_yaw("dog"), world.object_yaw("brush")) == pytest.approx((0.3, -2.0), abs=1e-5)


def test_the_tool_stays_in_its_workspace_on_every_side():
    world = ConveyorPhysics(("dog",), 0.1, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.4, 0.0)})
    for far, limit in ((9.0, [0.80, 0.60, 0.50]), (-9.0, [0.10, -0.60, 0.126])):
        world.target_position = np.full(3, far)
        world.control(np.zeros(7))
        assert world.target_position == pytest.approx(limit)


def test_the_belt_carries_on_where_its_box_is_set_back():
    """The box never leaves the arm's side, and what lies on it does not notice that it is set back."""
    world = ConveyorPhysics(("dog",), 0.25, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.5, 0.0)})
    before = world.object_position("dog")[1]
    world.data.qpos[world._belt_q] = 0.5 + 1e-4
    world.advance(20)
    assert world.data.qpos[world._belt_q] == pytest.approx(1e-4 + 20 * 0.002 * 0.25, abs=1e-6)
    assert world.object_position("dog")[1] - before == pytest.approx(20 * 0.002 * 0.25, abs=1e-5)


def test_out_of_reach_is_on_the_belt_and_past_its_end():
    def lost(x, y, z):
        return task.out_of_reach(np.array([x, y, z]))

    edge, top = physics.BELT_WIDTH / 2 + 0.03, physics.BELT_TOP + 0.03
    for side in (-1, 1):
        assert lost(physics.BELT_X + side * (edge - 1e-3), 0.51, top - 1e-3)
        assert not lost(physics.BELT_X + side * (edge + 1e-3), 0.51, top - 1e-3)
    assert not lost(physics.BELT_X, 0.51, top + 1e-3)
    assert not lost(physics.BELT_X, 0.499, physics.BELT_TOP)


def test_time_is_up_at_ten_seconds_and_not_before():
    world = ConveyorPhysics(("dog",), 0.1, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.4, 0.0)})
    start = task.sample("dog-red", 0, 0, distractor=False, speed=6.0)
    assert [task.outcome(world, start, ns) for ns in (10**10 - 1, 10**10)] == [None, "time"]
