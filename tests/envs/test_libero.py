"""LIBERO's environments: one cell is one episode, whatever came before it, and it is upstream's."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from replan.envs import SUITES
from replan.envs.libero.simulator import CAMERAS
from replan.envs.realtime import RealTime

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None, reason="LIBERO is not installed; run `replan setup libero`"
)
STAY = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
MIXED = np.random.default_rng(0).uniform(-1, 1, (12, 7)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    """One environment a suite and setting: each holds 2 GB, and only one at a time is kept."""
    kept = {}

    def get(suite="libero_object", **settings):
        key = (suite, tuple(settings.items()))
        if key not in kept:
            close()
            kept[key] = gymnasium.make(SUITES[suite].env_id, **settings)
        kept[key].unwrapped.cameras_on = True
        return kept[key]

    def close():
        while kept:
            kept.popitem()[1].close()

    yield get
    close()


def cell(suite, task=0, init_state=0):
    return {"task": SUITES[suite].tasks[task], "init_state": init_state}


def play(env, actions, cameras=False):
    """Returns the states after each action."""
    env.unwrapped.cameras_on = cameras
    states = []
    for action in actions:
        env.step(action)
        states.append(env.unwrapped.get_state())
    env.unwrapped.cameras_on = True
    return states


def digest(observation):
    parts = (np.ascontiguousarray(observation[key]).tobytes() for key in ("agentview", "wrist", "state"))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def elsewhere(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FRESH = """
import hashlib, json, sys
import gymnasium, numpy as np, replan.envs
env_id, seed, cell = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
env = gymnasium.make(env_id)
observation, info = env.reset(seed=seed, options=cell)
parts = (np.ascontiguousarray(observation[key]).tobytes() for key in ("agentview", "wrist", "state"))
seen = hashlib.sha256(b"".join(parts)).hexdigest()
print(json.dumps([seen, hashlib.sha256(env.unwrapped.get_state()).hexdigest(), info["manifest"]]))
"""


# Spatial's drawer has a state of its own, libero_10's kitchen has a drawer and a stove. Other suites take long as well.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "tasks"),
    [("libero_spatial", (4, 0)), ("libero_10", (2, 5))],
)
def test_a_cell_is_the_same_after_others_and_in_another_process(world, suite, tasks):
    env, wanted = world(suite), cell(suite, tasks[0], 11)
    first, info = env.reset(seed=3, options=wanted)
    state = env.unwrapped.get_state()
    play(env, [np.array([1, 0.3, -1, 0.2, 0, 0.5, 1], np.float32)] * 12)  # ends with a closing gripper
    env.reset(seed=8, options=cell(suite, tasks[0], 12))
    soft, soft_info = env.reset(seed=3, options=wanted)  # the same simulator
    assert np.array_equal(env.unwrapped.get_state(), state)
    env.reset(seed=3, options=cell(suite, tasks[1], 11))
    hard, hard_info = env.reset(seed=3, options=wanted)  # a new simulator
    assert np.array_equal(env.unwrapped.get_state(), state)
    assert digest(first) == digest(soft) == digest(hard) and info == soft_info == hard_info
    fresh = elsewhere(FRESH, SUITES[suite].env_id, "3", json.dumps(wanted))
    assert fresh == [digest(first), hashlib.sha256(state).hexdigest(), info["manifest"]]


UPSTREAM = """
import hashlib, json, sys
import numpy as np
from replan.envs.libero import upstream
from replan.envs.libero.tasks import tasks_of
libero, task = upstream.load(), tasks_of("libero_spatial")[sys.argv[1]]
from libero.libero.envs import OffScreenRenderEnv
# A hard reset would put the drawer's sampler into its list once more, and draw other places.
env = OffScreenRenderEnv(
    bddl_file_name=str(libero.bddl_file(task)), camera_heights=256, camera_widths=256, hard_reset=False
)
np.random.seed(3)
env.reset()
env.set_init_state(libero.init_states(task)[11])
env.sim.data.qacc_warmstart[:] = 0
env.sim.forward()
seen = []
for action in json.loads(sys.argv[2]):
    raw, *_ = env.step(np.array(action))
    images = (np.ascontiguousarray(raw[key][::-1]) for key in ("agentview_image", "robot0_eye_in_hand_image"))
    seen.append([hashlib.sha256(image).hexdigest() for image in images])
    seen[-1] += [raw["robot0_eef_pos"].tolist(), raw["robot0_gripper_qpos"].tolist(), env.sim.data.qpos.tolist()]
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_images_states_and_physics_are_upstreams_to_the_bit(world):
    wanted = cell("libero_spatial", 4, 11)
    actions = np.concatenate([np.tile(STAY, (10, 1)), MIXED]).astype(np.float64).tolist()
    theirs = elsewhere(UPSTREAM, wanted["task"], json.dumps(actions))[9:]
    env, ours = world("libero_spatial"), []
    observations = [env.reset(seed=3, options=wanted)[0]]
    for action in [*MIXED, None]:
        seen, data = observations[-1], env.unwrapped._simulator.data
        images = [hashlib.sha256(np.ascontiguousarray(seen[key])).hexdigest() for key in ("agentview", "wrist")]
        ours.append((images, seen["state"], data.qpos.tolist()))
        if action is not None:
            observations.append(env.step(action)[0])
    for (images, state, qpos), row in zip(ours, theirs, strict=True):
        assert images == row[:2] and qpos == row[4]
        assert np.array_equal(state[[0, 1, 2, 6, 7]], np.array([*row[2], *row[3]], np.float32))


def magenta(image):
    """Mean row and column of what is painted magenta."""
    red, green, blue = image.astype(int).transpose(2, 0, 1)
    rows, columns = np.nonzero((red > green + 60) & (blue > green + 60))
    assert len(rows) > 5
    return rows.mean(), columns.mean()


@pytest.mark.parametrize(("camera", "distance"), [("agentview", 0.5), ("wrist", 0.2)])
def test_images_are_upright_and_not_mirrored(world, camera, distance):
    env = world("libero_object")
    env.reset(seed=0, options=cell("libero_object", 1))
    simulator = env.unwrapped._simulator
    model, data = simulator.model, simulator.data
    body = model.body("milk_1_main").id
    start = model.jnt_qposadr[model.body_jntadr[body]]
    geoms = np.isin(model.geom_bodyid, [i for i in range(model.nbody) if model.body_rootid[i] == body])
    painted = model.geom_matid.copy(), model.geom_rgba.copy()
    model.geom_matid[geoms], model.geom_rgba[geoms] = -1, (1, 0, 1, 1)
    frame = data.cam(CAMERAS[camera])
    right, up, back = frame.xmat.reshape(3, 3).T  # of a camera that looks along its -z axis
    seen = {}
    for name, shift in {"middle": 0 * up, "up": 0.03 * up, "right": 0.03 * right}.items():
        data.qpos[start : start + 3] = frame.xpos - distance * back + shift
        mujoco.mj_forward(model, data)
        seen[name] = magenta(simulator.render(camera, 256))
    model.geom_matid[:], model.geom_rgba[:] = painted
    assert seen["up"][0] < seen["middle"][0] - 5 and abs(seen["up"][1] - seen["middle"][1]) < 3
    assert seen["right"][1] > seen["middle"][1] + 5 and abs(seen["right"][0] - seen["middle"][0]) < 3
    if camera == "agentview":  # so "up" in the picture is up in the world
        assert up[2] > 0.5


def test_rendering_only_what_is_read_changes_neither_images_nor_physics(world):
    env = world("libero_goal")
    runs = []
    for lazy in (False, True):
        env.reset(seed=1, options=cell("libero_goal", 2, 4))
        for step, action in enumerate(MIXED):
            env.unwrapped.cameras_on = not lazy or step == len(MIXED) - 1
            observation, *_ = env.step(action)
            assert observation["wrist"].any() == env.unwrapped.cameras_on
        runs.append((digest(observation), env.unwrapped.get_state()))
    assert runs[0][0] == runs[1][0] and np.array_equal(runs[0][1], runs[1][1])


def test_two_environments_of_a_process_do_not_render_into_each_others_images(world):
    env = world("libero_goal")
    options = cell("libero_goal", 2, 4)
    env.reset(seed=1, options=options)
    alone, *_ = env.step(STAY)
    env.reset(seed=1, options=options)
    other = gymnasium.make(SUITES["libero_object"].env_id)
    other.reset(seed=0, options=cell("libero_object"))
    beside, *_ = env.step(STAY)
    other.close()
    env.reset(seed=1, options=options)
    after, *_ = env.step(STAY)
    assert digest(alone) == digest(beside) == digest(after)


def test_global_generators_are_left_as_they_were_and_change_nothing(world):
    env = world("libero_goal")
    manifests = []
    for noise in (1, 2):
        np.random.seed(noise)  # noqa: NPY002
        torch.manual_seed(noise)  # noqa: TID251
        before = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        manifests.append(env.reset(seed=noise // 2, options=cell("libero_goal"))[1]["manifest"])
        env.reset(seed=0, options=cell("libero_goal", noise))  # builds a simulator
        env.step(STAY)
        assert str(np.random.get_state()) == str(before[0])  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before[1])
    assert manifests[0]["fixtures"] != manifests[1]["fixtures"]  # seeds 0 and 1


def test_the_seed_moves_the_fixtures_and_nothing_else(world):
    env = world("libero_goal")
    (_, one), (_, other) = (env.reset(seed=seed, options=cell("libero_goal", 2, 4)) for seed in (0, 1))
    assert one["manifest"].pop("fixtures") != other["manifest"].pop("fixtures")
    assert one == other
    env, runs = world("libero_object"), []  # a suite without fixtures
    for seed in (0, 1):
        _, info = env.reset(seed=seed, options=cell("libero_object", 3, 4))
        runs.append((info, play(env, MIXED)))
    assert runs[0][0] == runs[1][0] and np.array_equal(runs[0][1], runs[1][1])


def test_a_stove_that_was_on_is_cold_in_the_next_episode(world):
    env = world("libero_goal")
    options = {"task": "turn_on_the_stove", "init_state": 0}
    cold, before = env.reset(seed=0, options=options)
    data = env.unwrapped._simulator.data
    data.joint("flat_stove_1_button").qpos[:] = 1.0  # the knob
    _, reward, terminated, truncated, info = env.step(STAY)
    hot = env.unwrapped._simulator.render("agentview", 256)
    assert (reward, terminated, truncated, info["outcome"]) == (1.0, True, False, "success")
    assert info["success_at_end"] is True  # the knob stays where it is
    assert np.abs(hot.astype(int) - cold["agentview"]).max() > 60  # the burner glows
    again, after = env.reset(seed=0, options=options)
    assert digest(again) == digest(cold) and before == after


def test_looking_ahead_with_the_expert_changes_nothing(world):
    env = world("libero_object")
    env.unwrapped.cameras_on = False
    runs = []
    for ahead in (1, 6):
        env.reset(seed=0, options=cell("libero_object", 3))
        env.unwrapped.cameras_on = False
        states = []
        for _ in range(20):
            before = env.unwrapped.get_state()
            chunk = env.unwrapped.expert_chunk(ahead)
            assert chunk.shape == (ahead, 7) and np.array_equal(env.unwrapped.get_state(), before)
            assert np.array_equal(env.unwrapped.expert_chunk(1)[0], chunk[0])  # it sees what it saw before
            env.step(chunk[0])
            states.append(env.unwrapped.get_state())
        runs.append(states)
    assert all(np.array_equal(*pair) for pair in zip(*runs, strict=True))


def test_a_chunk_of_the_expert_is_what_it_does_step_by_step(world):
    env = world("libero_object")
    env.unwrapped.cameras_on = False
    env.reset(seed=0, options=cell("libero_object", 3))
    chunk = env.unwrapped.expert_chunk(12)
    for planned in chunk:
        assert np.array_equal(env.unwrapped.expert_chunk(1)[0], planned)
        env.step(planned)


def test_positive_gripper_closes_and_negative_opens(world):
    env = world("libero_object")
    width = []
    for gripper in (-1, 1):
        env.reset(seed=0, options=cell("libero_object", 3))
        env.unwrapped.cameras_on = False
        for _ in range(10):
            observation, *_ = env.step(np.array([0, 0, 0, 0, 0, 0, gripper], np.float32))
        width.append(observation["state"][6] - observation["state"][7])
        env.unwrapped.cameras_on = True
    assert width[0] > 0.07 and width[1] < 0.02  # metres


def test_absolute_poses_lead_where_differences_led(world):
    env = world("libero_object")
    env.reset(seed=0, options=cell("libero_object", 3))
    play(env, [np.array([0.3, -0.2, -0.2, 0, 0, 0.1, -1], np.float32)] * 15 + [STAY] * 10)
    led = env.unwrapped._simulator.robot.controller
    position, orientation = led.ee_pos.copy(), led.ee_ori_mat.copy()
    first, _ = env.reset(seed=0, options=cell("libero_object", 3))
    absolute = world("libero_object", controller="absolute")
    same, _ = absolute.reset(seed=0, options=cell("libero_object", 3))
    assert digest(same) == digest(first)
    quaternion, turn = np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quaternion, orientation.ravel())
    mujoco.mju_quat2Vel(turn, quaternion, 1.0)
    play(absolute, [np.array([*position, *turn, -1], np.float32)] * 60)
    reached = absolute.unwrapped._simulator.robot.controller
    assert np.allclose(reached.ee_pos, position, atol=0.003)
    assert np.allclose(reached.ee_ori_mat, orientation, atol=0.02)


@pytest.mark.parametrize(("protocol", "limit"), [("openpi", 220), ("lerobot", 280)])
def test_the_protocol_sets_the_step_limit(world, protocol, limit):
    env = world("libero_spatial", protocol=protocol)
    _, start = env.reset(seed=0, options=cell("libero_spatial"))
    assert str(limit) in start["manifest"]["step_budget"]
    env.unwrapped.cameras_on = False
    for step in range(1, limit + 1):
        _, reward, terminated, truncated, info = env.step(STAY)
        assert truncated == (step == limit) and not terminated and reward == 0
    assert (info["success"], info["outcome"], env.unwrapped.time_ns) == (False, "time", limit * 50_000_000)


def test_the_world_moves_while_the_policy_thinks(world):
    env = RealTime(world("libero_object"))
    env.reset(seed=0, options=cell("libero_object", 3))
    base = env.unwrapped
    play(env, [np.array([0, 1, 0, 0, 0, 0, -1], np.float32)] * 3)
    before, time = base._simulator.proprioception(), base.time_ns
    assert env.think(9_000_001) == 10_000_000 and base.time_ns == time + 10_000_000
    moved = base._simulator.proprioception()[1] - before[1]
    assert 0.0005 < moved < 0.05  # towards its last goal, which was at most 50 mm away
    env.think(1_000_000_000)
    still = base._simulator.proprioception()
    env.think(100_000_000)
    assert np.allclose(base._simulator.proprioception()[:3], still[:3], atol=1e-3)
    with pytest.raises(ValueError, match="-1"):
        base.hold(-1)


def test_seeds_beyond_32_bits_are_cells_of_their_own(world):
    env = world("libero_goal")
    fixtures = {
        seed: env.reset(seed=seed, options=cell("libero_goal"))[1]["manifest"]["fixtures"]
        for seed in (5, 2**32 + 5, 2**53)
    }
    assert len(set(fixtures.values())) == 3


def test_a_success_in_the_air_is_looked_at_again_as_the_gripper_is(world):
    """The rule holds with the plate in the closed gripper, and still does a second later: the robot holds it there."""
    env = world("libero_goal").unwrapped
    env.cameras_on = False
    task = "push_the_plate_to_the_front_of_the_stove"
    ends = {}
    for gripper in ("closed", "carried off"):
        env.reset(seed=0, options={"task": task, "init_state": 0})
        info, advance = {}, type(env)._advance

        def carried(ticks, advance=advance):
            for _ in range(30):
                env._simulator.advance(25, np.array([0, 0, 0.6, 0, 0, 0, 1.0]))
            advance(env, ticks)

        if gripper == "carried off":
            env._advance = carried
        while "outcome" not in info:
            *_, info = env.step(env.expert_chunk(1)[0])
        env.__dict__.pop("_advance", None)
        ends[gripper] = info["success"], info["success_at_end"]
    assert ends == {"closed": (True, True), "carried off": (True, False)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"controller": "joint"}, "joint"),
        ({"protocol": "mine"}, "mine"),
        ({"image_size": 8}, "8"),
        ({"render_mode": "ansi"}, "ansi"),
        ({"suite": "libero_11"}, "libero_11"),
    ],
)
def test_bad_settings_are_refused_by_value(settings, message):
    with pytest.raises(ValueError, match=message):
        gymnasium.make(SUITES["libero_object"].env_id, disable_env_checker=True, **settings)


@pytest.mark.slow
def test_vectorised_environments_in_their_own_processes_give_the_same_cells(world):
    options = cell("libero_object", 3, 2)
    vector = gymnasium.make_vec(
        SUITES["libero_object"].env_id, 2, "async", vector_kwargs={"context": "spawn", "shared_memory": False}
    )
    together, _ = vector.reset(seed=[0, 1], options=options)
    vector.close()
    for index in range(2):
        alone, _ = world("libero_object").reset(seed=index, options=options)
        assert digest({key: together[key][index] for key in ("agentview", "wrist", "state")}) == digest(alone)
