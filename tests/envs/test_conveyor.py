"""The conveyor: a real simulation, the same for everybody, that an expert can solve and a late action cannot."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
import replan.envs
from replan.envs.conveyor import physics, task
from replan.envs.conveyor.physics import ConveyorPhysics
from replan.envs.conveyor.suite import EITHER_TASKS

CELL = {"task": "brush-blue", "init_state": 5}


@pytest.fixture
def make():
    made = []

    def build(variant="", **settings):
        made.append(gymnasium.make(f"replan/ConveyorSorting{variant}-v0", **settings))
        return made[-1]

    yield build
    for env in made:
        env.close()


def run_expert(env, task_name, init_state, *, seed=77, latency=0, window=1):
    """Lets the expert act ``window`` actions at a time, each chunk ``latency`` ticks late."""
    world = env.unwrapped
    world.cameras_on = False
    env.reset(seed=seed, options={"task": task_name, "init_state": init_state})
    while True:
        chunk = world.expert_chunk(window)
        world.hold(latency)
        for action in chunk:
            *_, terminated, truncated, info = env.step(action.astype(np.float32))
            if terminated or truncated:
                return info["outcome"]


def images(observation):
    return {name: value for name, value in observation.items() if name in ("third", "wrist")}


@pytest.mark.parametrize("other", [{"init_state": 6}, {"task": "dog-red"}])
def test_another_cell_is_another_initial_state(make, other):
    env = make()
    _, info = env.reset(seed=0, options=CELL)
    _, changed = env.reset(seed=0, options={**CELL, **other})
    assert info["manifest"]["init_state"] != changed["manifest"]["init_state"]


def test_fixing_the_speed_changes_nothing_else_that_is_sampled():
    free = task.sample("dog-red", 3, 4, distractor=True, speed=None)
    fixed = task.sample("dog-red", 3, 4, distractor=True, speed=7.0)
    assert (fixed.poses, fixed.headlight, fixed.tool_yaw) == (free.poses, free.headlight, free.tool_yaw)
    assert fixed.speed == 7.0 and free.speed != 7.0


def test_the_distractor_does_not_move_the_target():
    plain = task.sample("dog-red", 3, 4, distractor=False, speed=None)
    hard = task.sample("dog-red", 3, 4, distractor=True, speed=None)
    assert hard.poses["dog"] == plain.poses["dog"] and set(hard.poses) == {"dog", "brush"}


def test_the_same_actions_give_the_same_trajectory_whether_or_not_cameras_render(make):
    states = []
    for on in (True, False):
        env = make(speed=12)
        env.reset(seed=1, options=CELL)
        env.unwrapped.cameras_on = on
        rng = np.random.default_rng(0)
        for _ in range(30):
            env.step(rng.uniform(-1, 1, 7).astype(np.float32))
        states.append(env.unwrapped.get_state())
    assert np.array_equal(*states)


def test_cameras_off_gives_black_images_and_on_gives_a_view_of_the_bins(make):
    env = make()
    observation, _ = env.reset(seed=0, options=CELL)
    red, blue = (observation["third"][..., channel].astype(int) for channel in (0, 2))
    assert (red - blue > 60).sum() > 20 and (blue - red > 60).sum() > 20
    env.unwrapped.cameras_on = False
    observation, *_ = env.step(np.zeros(7, np.float32))
    assert not observation["third"].any() and not observation["wrist"].any()


@pytest.mark.parametrize("speed", [6.0, 15.0])
def test_the_belt_carries_by_friction_at_its_speed(speed):
    world = ConveyorPhysics(("dog",), speed / 60, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.5, 0.3)})
    start = world.object_position("dog")
    world.advance(1000)  # 2 s
    assert world.object_position("dog")[1] - start[1] == pytest.approx(speed / 60 * 2, rel=0.01)


def test_an_object_next_to_the_belt_is_not_carried():
    world = ConveyorPhysics(("dog",), 0.25, physics.TOOL_HOME, 0.0, {"dog": (1.2, -0.5, 0.0)})
    world.advance(1000)
    assert world.object_position("dog")[1] < -0.5 + 0.25  # slides a little, with the speed it was placed with


def test_the_tool_follows_its_target():
    world = ConveyorPhysics(("dog",), 0.1, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.5, 0.0)})
    for _ in range(10):
        world.control(np.array([0.5, 0.5, 0, 0, 0, 0.5, -1]))
    world.control(np.array([0, 0, 0, 0, 0, 0, -1.0]))
    world.advance(100)
    assert np.allclose(world.tool_position, physics.TOOL_HOME + [0.15, 0.15, 0], atol=0.003)
    assert world.tool_yaw == pytest.approx(1.0, abs=0.01)


def test_the_expert_solves_cells_at_every_speed_and_replanning_late_makes_it_miss(make):
    for speed in (6.0, 10.0, 15.0):
        env = make(speed=speed)
        assert [run_expert(env, task.TASKS[i % 4], i) for i in range(8)] == ["success"] * 8
    late = [run_expert(env, task.TASKS[i % 4], i, latency=50, window=10) for i in range(8)]  # 100 ms at 15 m/min
    assert late.count("success") < 8


def test_the_expert_solves_the_hard_variant(make):
    env = make("Hard", speed=10)
    assert [run_expert(env, task.TASKS[i % 4], i) for i in range(8)].count("success") >= 7


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("speed", [6.0, 10.0, 15.0])
@pytest.mark.parametrize(("variant", "wanted"), [("", 0.98), ("Hard", 0.95)], ids=["standard", "hard"])
def test_the_experts_rate_over_100_cells(make, variant, wanted, speed):
    env = make(variant, speed=speed)
    outcomes = [run_expert(env, task.TASKS[i % 4], i) for i in range(100)]
    assert outcomes.count("success") / 100 >= wanted


def test_where_either_bin_is_right_the_expert_uses_both_from_like_states(make):
    env = make("Either", speed=10)
    ends = {"red": [], "blue": []}
    for cell in range(24):
        assert run_expert(env, EITHER_TASKS[cell % 2], cell) == "success"
        start, physics = env.unwrapped._start, env.unwrapped._physics
        ends[task._bin_of(physics.object_position(start.target))].append(start.poses[start.target][1])
    assert min(len(ends["red"]), len(ends["blue"])) >= 6
    # Not because they began elsewhere: the starts of the two overlap over most of their range.
    assert min(map(max, ends.values())) - max(map(min, ends.values())) > 0.05


def test_the_expert_goes_on_to_the_bin_that_the_tool_is_on_its_way_to():
    start = task.sample("dog-either", 1, 2, distractor=False, speed=None)
    above = {task.bin_of_the_expert(np.array([0.5, y, 0.3]), start) for y in (-0.4, 0.4)}
    assert len(above) == 1
    assert [task.bin_of_the_expert(np.array([0.3, y, 0.3]), start) for y in (-0.1, 0.1)] == ["blue", "red"]
    named = task.sample("dog-red", 1, 2, distractor=False, speed=None)
    assert task.bin_of_the_expert(np.array([0.3, -0.4, 0.3]), named) == "red"


def test_the_expert_recovers_from_a_state_that_is_not_its_own(make):
    env = make(speed=8)
    env.unwrapped.cameras_on = False
    env.reset(seed=2, options={"task": "dog-blue", "init_state": 0})
    for _ in range(6):
        env.step(np.array([1, 1, 0.5, 0, 0, 0.5, 1], np.float32))  # away from the belt, gripper closed
    info = {}
    while "outcome" not in info:
        *_, info = env.step(env.unwrapped.expert_chunk(1)[0].astype(np.float32))
    assert info["outcome"] == "success"


def test_doing_nothing_loses_the_object(make):
    env = make(speed=15)
    env.unwrapped.cameras_on = False
    env.reset(seed=0, options=CELL)
    info = {}
    while "outcome" not in info:
        *_, reward, terminated, truncated, info = env.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32))
    assert (info["outcome"], info["success"], reward, terminated, truncated) == ("lost", False, 0.0, True, False)


def place(target_xyz, *, gripper=-1.0, bin_name="red", width=physics.OPENING, speed=0.0):
    """A cell whose dog is at a place, moving up with a speed, gripper far away with its fingers so far open."""
    world = ConveyorPhysics(("dog",), 0.1, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.3, 0.0)})
    start = world._object_q["dog"]
    world.data.qpos[start : start + 3] = target_xyz
    world.data.qvel[world._object_v["dog"] : world._object_v["dog"] + 6] = [0, 0, speed, 0, 0, 0]
    world.data.qpos[world._finger_q] = width / 2
    world.gripper = gripper
    mujoco.mj_forward(world.model, world.data)
    start = task.Draw("dog", bin_name, 6.0, {}, (0.5, 0.0, 0.4), 0.0, (0.4, 0.4), (0.0, 0.0, 0.0))
    outcome = task.outcome(world, start, 0)
    assert task.solved(world, start) == (outcome == "success")
    return outcome


def test_outcomes():
    red, blue = physics.BINS["red"], physics.BINS["blue"]
    assert place((*red, 0.01)) == "success"
    assert place((*red, 0.01), gripper=1.0) is None  # still held
    assert place((*blue, 0.01)) == "wrong_bin"
    assert {place((*at, 0.01), bin_name=task.EITHER) for at in (red, blue)} == {"success"}
    assert place((0.8, 0.0, 0.01)) == place((0.8, 0.0, 0.01), bin_name=task.EITHER) == "dropped"
    assert place((physics.BELT_X, 0.51, physics.BELT_TOP)) == "lost"
    assert place((physics.BELT_X, 0.51, physics.BELT_TOP + 0.2)) is None  # carried, not lost
    assert place((physics.BELT_X, 0.0, physics.BELT_TOP)) is None


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ({"speed": 0.04}, "success"),
        ({"speed": 0.06}, None),  # still falling, or bouncing
        ({"speed": 0.4}, None),
        ({"width": 0.055}, "success"),
        ({"width": 0.050}, None),  # told to open, and still around the object
        ({"width": 0.0}, None),
        ({"gripper": 1.0}, None),
    ],
    ids=repr,
)
def test_success_is_at_rest_with_open_fingers(state, outcome):
    assert place((*physics.BINS["red"], 0.01), **state) == outcome


def test_the_manifest_says_by_which_numbers_it_is_judged_and_moved(make):
    _, info = make().reset(seed=0, options=CELL)
    rule, action = info["manifest"]["success_rule"], info["manifest"]["action"]
    assert all(part in rule for part in ("< 0.05 m/s", "wider than 52 mm", "y = 0.5 m", "below 0.09 m"))
    assert action == "1 is 30 mm and 0.2 rad; 50 ms" and info["manifest"]["step_budget"] == "10 s"


CONSTANTS = """
import sys, gymnasium
from replan.envs.conveyor import physics
setattr(physics, sys.argv[1], float(sys.argv[2]))
from replan.envs.conveyor import task
import replan.envs
env = gymnasium.make("replan/ConveyorSorting-v0").unwrapped
env.cameras_on = False
print(env.reset(seed=0, options={"task": "brush-blue"})[1]["manifest"])
"""


@pytest.mark.parametrize(("name", "value", "said"), [("TRANSLATION", 0.02, "20 mm"), ("OPENING", 0.07, "56 mm")])
def test_the_manifest_follows_the_constants(name, value, said):
    done = subprocess.run([sys.executable, "-c", CONSTANTS, name, str(value)], capture_output=True, text=True)
    assert said in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("command", "closed"), [(-1.0, False), (-1e-6, False), (0.0, False), (1e-6, True), (1.0, True)]
)
def test_the_gripper_closes_above_zero(command, closed):
    world = ConveyorPhysics(("dog",), 0.1, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.5, 0.0)})
    for _ in range(10):
        world.control(np.array([0, 0, 0, 0, 0, 0, command]))
    assert (world.gripper, world.width < 0.01) == ((1.0, True) if closed else (-1.0, False))


def test_the_belt_keeps_its_speed_whatever_holds_it_back():
    world = ConveyorPhysics(("dog",), 0.2, physics.TOOL_HOME, 0.0, {"dog": (physics.BELT_X, -0.5, 0.0)})
    start = world.data.qpos[world._belt_q]
    for _ in range(100):
        world.data.qvel[world._belt_v] = 0.0  # as a jam would
        world.advance(1)
    assert world.data.qpos[world._belt_q] - start == pytest.approx(100 * 0.002 * 0.2, rel=1e-3)


def test_an_object_that_leaves_the_bin_after_the_episode_was_no_lasting_success(make):
    env = make(speed=10).unwrapped
    env.cameras_on = False
    ends = {}
    for leaves in (False, True):
        env.reset(seed=2, options={"task": "dog-blue", "init_state": 0})
        info, advance = {}, type(env)._advance

        def thrown(ticks, advance=advance):
            start = env._physics._object_q["dog"]
            env._physics.data.qpos[start : start + 3] = [0.8, 0.0, 0.05]  # next to everything
            advance(env, ticks)

        while "outcome" not in info:
            if leaves:
                env._advance = thrown
            *_, info = env.step(env.expert_chunk(1)[0].astype(np.float32))
        env.__dict__.pop("_advance", None)
        ends[leaves] = info["success"], info["success_at_end"]
    assert ends == {False: (True, True), True: (True, False)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: gymnasium.make("replan/ConveyorSorting-v0", speed=-1), "-1"),
        (lambda: gymnasium.make("replan/ConveyorSorting-v0", speed=float("nan")), "nan"),
        (lambda: gymnasium.make("replan/ConveyorSorting-v0", image_size=7), "7"),
        (lambda: gymnasium.make("replan/ConveyorSorting-v0", render_mode="ansi"), "ansi"),
    ],
)
def test_bad_arguments_are_refused_by_value(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_missing_meshes_name_the_package(monkeypatch):
    monkeypatch.setattr(physics.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="robosuite==1.4.0"):
        physics.mesh_folder()


def test_an_episode_can_be_filmed(make, tmp_path):
    pytest.importorskip("moviepy")
    env = gymnasium.wrappers.RecordVideo(make(render_mode="rgb_array", speed=10), str(tmp_path), disable_logger=True)
    env.reset(seed=0, options=CELL)
    for _ in range(5):
        env.step(np.zeros(7, np.float32))
    env.close()
    (film,) = tmp_path.glob("*.mp4")
    assert film.stat().st_size > 1000


def test_suites_name_the_tasks_of_their_environments():
    for name, tasks in (("conveyor", task.TASKS), ("conveyor-hard", task.TASKS), ("conveyor-either", EITHER_TASKS)):
        suite = replan.envs.SUITES[name]
        assert suite.tasks == tasks
        env = gymnasium.make(suite.env_id)
        observation, _ = env.reset(seed=0, options={"task": tasks[-1], "init_state": 0})
        assert observation["instruction"].endswith("either bin" if name == "conveyor-either" else "the blue bin")
        env.close()


def test_lighting_changes_between_cells_and_is_restored(make):
    env = make()
    first, _ = env.reset(seed=0, options=CELL)
    env.reset(seed=0, options={**CELL, "init_state": 9})
    again, _ = env.reset(seed=0, options=CELL)
    assert np.array_equal(first["third"], again["third"])


def test_two_environments_of_a_process_do_not_share_their_light(make):
    alone, other = make(), make()
    alone.reset(seed=0, options=CELL)
    undisturbed, *_ = alone.step(np.zeros(7, np.float32))
    alone.reset(seed=0, options=CELL)
    other.reset(seed=0, options={**CELL, "init_state": 9})
    disturbed, *_ = alone.step(np.zeros(7, np.float32))
    assert np.array_equal(undisturbed["third"], disturbed["third"])


def test_the_manifest_names_any_change_of_the_cell(make, monkeypatch):
    env = make()
    _, before = env.reset(seed=0, options=CELL)
    for old, new in (('friction="1.5', 'friction="1.4'), ('fovy="80"', 'fovy="81"'), ('impratio="10"', 'impratio="9"')):
        changed = physics.model_xml(("brush",)).replace(old, new)
        assert changed != physics.model_xml(("brush",))
        monkeypatch.setattr("replan.envs.conveyor.env.model_xml", lambda objects, changed=changed: changed)
        _, after = env.reset(seed=0, options=CELL)
        assert after["manifest"]["fixtures"] != before["manifest"]["fixtures"]


@pytest.mark.slow
def test_20_and_60_milliseconds_differ_at_15_metres_a_minute(make):
    env = make(speed=15)
    counts = [
        [run_expert(env, task.TASKS[i % 4], i, latency=ticks, window=10) for i in range(100)].count("success")
        for ticks in (10, 30)
    ]
    assert counts[0] > counts[1]
