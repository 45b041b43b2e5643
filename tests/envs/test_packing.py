"""Conveyor packing: three parts, one order, and a tray that shows who placed what when."""

from __future__ import annotations

import dataclasses
import hashlib

import gymnasium
import mujoco
import numpy as np
import pytest
from replan.envs.conveyor import physics as conveyor
from replan.envs.packing import task
from replan.envs.packing.physics import FLOOR, PARTS, SLOTS, PackingPhysics

CELL = {"task": "screw-leg-top", "init_state": 5}
ORDER = ("leg", "top", "screw")


@pytest.fixture
def make():
    made = []

    def build(**settings):
        made.append(gymnasium.make("replan/ConveyorPacking-v0", **settings).unwrapped)
        made[-1].cameras_on = False
        return made[-1]

    yield build
    for env in made:
        env.close()


def run_expert(env, task_name, init_state, *, seed=77, window=1):
    env.reset(seed=seed, options={"task": task_name, "init_state": init_state})
    while True:
        for action in env.expert_chunk(window):
            *_, terminated, truncated, info = env.step(action.astype(np.float32))
            if terminated or truncated:
                return info["outcome"]


def cell(placed_at):
    """A cell in which parts lie still at given places, and the others are on the belt; the gripper is far and open."""
    belt = {part: (conveyor.BELT_X, -0.2 - 0.15 * number, 0.0) for number, part in enumerate(PARTS)}
    world = PackingPhysics(0.05, tuple(conveyor.TOOL_HOME), 0.0, belt)
    for part, place in placed_at.items():
        start, speed = world._object_q[part], world._object_v[part]
        world.data.qpos[start : start + 7] = [*place, 1, 0, 0, 0]
        world.data.qvel[speed : speed + 6] = 0
    mujoco.mj_forward(world.model, world.data)
    world.advance(50)
    return world


def in_slot(part, above=0.001):
    return (*SLOTS[part], FLOOR + above)


def test_the_expert_packs_every_order_at_slow_and_fast_belts(make):
    for speed in (3.0, 6.0):
        env = make(speed=speed)
        assert [run_expert(env, name, i) for i, name in enumerate(task.TASKS)] == ["success"] * 6


@pytest.mark.slow
@pytest.mark.long
def test_the_experts_rate_over_50_cells_of_the_fastest_belt(make):
    env = make(speed=6.0)
    assert [run_expert(env, task.TASKS[i % 6], i) for i in range(50)].count("success") >= 48


def test_executing_ten_actions_of_a_chunk_still_packs_slow_belts(make):
    env = make(speed=3.0)
    assert [run_expert(env, task.TASKS[i % 6], i, window=10) for i in range(6)].count("success") >= 5


@pytest.mark.parametrize(("order", "placed"), [(("top", "leg", "screw"), 1), (("leg", "screw", "top"), 2)])
def test_the_right_parts_in_another_order_are_a_failure(make, order, placed):
    env, info = make(speed=4.0), {}
    env.reset(seed=0, options={"task": "leg-top-screw", "init_state": 0})
    named = env._start
    while "outcome" not in info:
        env._start = dataclasses.replace(named, order=order)  # the expert follows another order
        action = env.expert_chunk(1)[0]
        env._start = named
        *_, info = env.step(action)
    assert (info["outcome"], env._placed) == ("order", order[:placed])


def test_doing_nothing_loses_a_part_on_a_fast_belt_and_runs_out_of_time_on_a_slow_one(make):
    outcomes = {}
    for speed in (6.0, 1.0):
        env, info = make(speed=speed), {}
        env.reset(seed=0, options=CELL)
        while "outcome" not in info:
            *_, reward, terminated, truncated, info = env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
        outcomes[info["outcome"]] = info["success"], reward, terminated, truncated
    assert outcomes == {"lost": (False, 0.0, True, False), "time": (False, 0.0, False, True)}


def test_parts_at_rest_in_their_slots_are_success_only_in_the_order_named():
    world = cell({part: in_slot(part) for part in PARTS})
    assert set(task.newly_placed(world, ())) == set(PARTS)
    assert task.outcome(world, ORDER, ORDER, 0) == "success"
    for placed in (("top", "leg", "screw"), ("leg", "screw", "top"), ("screw",)):
        assert task.outcome(world, ORDER, placed, 0) == "order"
    assert task.outcome(world, ORDER, ORDER[:2], 0) is None


def test_parts_that_were_laid_down_with_a_closed_gripper_have_no_order():
    world = cell({"leg": in_slot("leg"), "top": in_slot("top")})
    world.gripper = 1.0
    assert task.newly_placed(world, ()) == ()
    world.gripper = -1.0  # it opens, and both count in the same control step
    new = task.newly_placed(world, ())
    assert new == ("leg", "top")
    assert task.outcome(world, ORDER, new, 0, together=len(new) > 1) == "order"
    assert task.outcome(world, ORDER, new, 0) is None


def test_a_step_in_which_two_parts_come_to_count_ends_the_episode(make):
    env = make(speed=1.0)
    env.reset(seed=0, options={"task": "leg-top-screw", "init_state": 0})
    env._physics = cell({"leg": in_slot("leg"), "top": in_slot("top")})
    *_, info = env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    assert info["outcome"] == "order"


def plant(planted, world):
    """Makes the leg in its slot one that is not laid down."""
    if planted == "held":
        start = world._object_q["leg"]
        world.data.qpos[start : start + 3] = in_slot("leg", 0.10)
    if planted == "moving":
        world.data.qvel[world._object_v["leg"]] = 0.1
    if planted == "closed":
        world.gripper = 1.0


@pytest.mark.parametrize("planted", ["nothing", "held", "moving", "closed", "swapped", "order"])
def test_a_lasting_success_is_all_parts_at_rest_released_in_their_slots_and_in_order(planted):
    world, placed = cell({part: in_slot(part) for part in PARTS}), ORDER
    plant(planted, world)
    if planted == "swapped":
        world = cell({"leg": in_slot("top"), "top": in_slot("leg"), "screw": in_slot("screw")})
    if planted == "order":
        placed = ("top", "leg", "screw")
    assert task.solved(world, ORDER, placed) == (planted == "nothing")


def test_a_part_in_another_parts_slot_is_a_failure():
    world = cell({"leg": in_slot("top")})
    assert task.newly_placed(world, ()) == ("leg",)
    assert task.outcome(world, ORDER, ("leg",), 0) == "slot"


def test_a_placed_part_that_was_pushed_out_is_no_success():
    world = cell({"leg": in_slot("leg"), "top": in_slot("top"), "screw": (0.24, 0.33 - 0.30, FLOOR)})
    assert task.outcome(world, ORDER, ORDER, 0) == "slot"


@pytest.mark.parametrize("planted", ["held", "moving", "closed"])
def test_a_part_is_not_placed_while_it_is_held_up_moves_or_the_gripper_is_closed(planted):
    world = cell({"leg": in_slot("leg")})
    assert task.newly_placed(world, ()) == ("leg",)
    plant(planted, world)
    assert task.newly_placed(world, ()) == ()


def test_a_part_that_rode_out_of_reach_or_fell_is_lost():
    ridden = cell({"screw": (conveyor.BELT_X, 0.51, conveyor.BELT_TOP + 0.001)})
    fallen = cell({"screw": (0.9, 0.0, 0.001)})
    assert task.outcome(ridden, ORDER, (), 0) == task.outcome(fallen, ORDER, (), 0) == "lost"
    assert task.outcome(cell({}), ORDER, (), 0) is None
    assert task.outcome(cell({}), ORDER, (), task.TIME_LIMIT_NS) == "time"


def test_the_queue_on_the_belt_does_not_tell_the_order_named():
    queues = set()
    for init_state in range(60):
        start = task.sample("leg-top-screw", 0, init_state, speed=None)
        assert start.order == ORDER and start.instruction == "pack the leg then the top then the screw"
        queues.add(tuple(sorted(PARTS, key=lambda part: -start.poses[part][1])))
    assert len(queues) == 6


def test_fixing_the_speed_changes_nothing_else_that_is_sampled():
    free, fixed = (task.sample("top-leg-screw", 3, 4, speed=speed) for speed in (None, 7.0))
    assert (fixed.poses, fixed.headlight, fixed.tool_yaw) == (free.poses, free.headlight, free.tool_yaw)
    assert fixed.speed == 7.0 != free.speed


def test_the_state_tells_which_parts_were_placed(make):
    env = make(speed=4.0)
    env.reset(seed=0, options={"task": "leg-top-screw", "init_state": 0})
    assert env.get_state()[-3:].tolist() == [-1, -1, -1]
    while not env._placed:
        env.step(env.expert_chunk(1)[0])
    assert env.get_state()[-3:].tolist() == [0, -1, -1]


def test_all_parts_and_the_tray_are_visible(make):
    env = make(speed=4.0, render_mode="rgb_array")
    env.cameras_on = True
    observation, _ = env.reset(seed=0, options=CELL)
    red, green, blue = np.moveaxis(env.render().astype(int), 2, 0)
    assert ((red > green + 60) & (green > blue + 20)).sum() > 500  # leg and its slot
    assert ((green > red + 60) & (green > blue + 40)).sum() > 300  # screw and its slot
    assert (np.minimum(np.minimum(red, green), blue) > 200).sum() > 50  # top
    assert observation["third"].std() > 20 and observation["wrist"].std() > 20


def test_the_conveyors_scene_is_not_changed_by_the_packing_scene():
    digest = hashlib.sha256(conveyor.model_xml(("brush", "dog")).encode()).hexdigest()[:16]
    assert digest == "7f0759ebdcaab171"
