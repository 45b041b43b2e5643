"""RoboTwin on the stand-in assets: one cell is one episode, upstream's expert solves it, and nothing leaks out."""

from __future__ import annotations

import hashlib
import json
import os
import random  # noqa: TID251 - whether the global streams are left as found is what is tested
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from replan.envs import SUITES, SuiteUnavailable
from replan.envs.realtime import RealTime
from replan.envs.robotwin.env import RoboTwin
from replan.envs.robotwin.source import open_standin

SCENE = 1_000_000  # a scene for training: needs no stored ones
CAMERAS = SUITES["robotwin"].cameras


@pytest.fixture(scope="module", autouse=True)
def installed():
    try:
        open_standin().world.close()
    except SuiteUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def env(installed):
    made = gymnasium.make("replan/RoboTwin-v0", disable_env_checker=True).unwrapped
    yield made
    made.close()


@pytest.fixture(autouse=True)
def black(request):
    """Drawing takes most of the time, so tests say when they look."""
    if "env" in request.fixturenames:
        request.getfixturevalue("env").cameras_on = False


def start(env, task="click_bell", scene=SCENE, seed=7):
    return env.reset(seed=seed, options={"task": task, "init_state": scene})


def fingerprint(env, observation):
    digest = hashlib.sha1(env.get_state().tobytes() + observation["instruction"].encode())
    for key in (*CAMERAS, "state"):
        digest.update(observation[key].tobytes())
    return digest.hexdigest()


def first_look(env, *cell):
    env.cameras_on = True
    observation, _ = start(env, *cell)
    return fingerprint(env, observation)


def demonstrate(env, every=25):
    looks = []
    solved = env.demonstrate(every, lambda observation, target: looks.append((observation, target)))
    return solved, looks


def test_a_cell_looks_the_same_whatever_came_before_it(env):  # in another process: test_check.py
    first = first_look(env, "click_bell", SCENE + 1)
    start(env, "place_container_plate")
    demonstrate(env)
    assert first_look(env, "click_bell", SCENE) != first
    assert first_look(env, "click_bell", SCENE + 1) == first


def test_images_show_the_scene_only_if_requested(env):
    env.cameras_on = True
    seen, _ = start(env)
    for camera in CAMERAS:
        assert seen[camera].std() > 5
    env.cameras_on = False
    unseen, _ = start(env)
    assert not any(unseen[camera].any() for camera in CAMERAS)
    np.testing.assert_array_equal(seen["state"], unseen["state"])


def test_rendering_does_not_move_the_world(env):
    states = []
    for drawn in (True, False):
        observation, _ = start(env)
        env.cameras_on = drawn
        env.step(observation["state"] + np.float32(0.05))
        states.append(env.get_state())
    np.testing.assert_array_equal(*states)


def test_the_generators_of_the_caller_are_left_as_found(env):
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)  # noqa: TID251
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    drawn = []
    observation, _ = start(env)
    env.step(observation["state"] + np.float32(0.01))
    env.demonstrate(200, lambda seen, target: drawn.append(np.random.random()))  # noqa: NPY002 - the caller's own draw
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert drawn == [np.random.random() for _ in drawn]  # noqa: NPY002
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_nothing_is_printed(env, capfd):
    observation, _ = start(env)
    env.step(observation["state"])
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("task", ["click_bell", "place_container_plate", "grab_roller"])
def test_actions_from_a_demonstration_solve_the_task(env, task):
    """One arm, one object on another, both arms at once. An action is the joint targets at the next look."""
    start(env, task)
    solved, looks = demonstrate(env)
    assert solved
    for observation, target in looks:
        np.testing.assert_allclose(observation["state"], target, atol=1e-6)
    start(env, task)
    for _, target in looks[1:]:
        _, reward, terminated, truncated, info = env.step(target.astype(np.float32))
        if terminated or truncated:
            break
    assert terminated and not truncated and reward == 1
    assert info["success"] and info["success_at_end"] and info["outcome"] == "success"


def test_a_demonstration_goes_on_from_where_a_policy_left_the_arm(env):
    observation, _ = start(env)
    rng = np.random.default_rng(0)
    for _ in range(4):
        shaken = observation["state"] + rng.normal(0, 0.1, 14) * np.tile([1, 1, 1, 1, 1, 1, 0], 2)
        observation, *_ = env.step(shaken)
    solved, looks = demonstrate(env)
    assert solved
    np.testing.assert_allclose(looks[0][1], observation["state"], atol=1e-6)


def test_an_error_of_the_watcher_reaches_its_owner(env):
    start(env)
    with pytest.raises(ZeroDivisionError):
        env.demonstrate(25, lambda observation, target: 1 / 0)
    with pytest.raises(ValueError, match="at least 1"):
        env.demonstrate(0, lambda observation, target: None)


def test_an_episode_ends_after_upstreams_limit_and_says_so(env):
    observation, info = start(env)
    assert info["manifest"]["step_budget"] == "400 actions"
    for step in range(400):
        observation, reward, terminated, truncated, info = env.step(observation["state"])
        assert truncated == (step == 399)
    assert (reward, terminated, info["success"], info["success_at_end"], info["outcome"]) == (
        0,
        False,
        False,
        False,
        "time",
    )
    time_ns, state = env.time_ns, env.get_state()
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step(observation["state"])
    assert env.time_ns == time_ns == 400 * 50 * env.tick_ns  # an arm that goes nowhere waits 50 ticks
    np.testing.assert_array_equal(env.get_state(), state)


def test_the_world_moves_on_while_a_policy_thinks(env):
    realtime = RealTime(env)
    observation, _ = realtime.reset(seed=0, options={"task": "click_bell", "init_state": SCENE})
    assert realtime.think(10_000_001) == 12_000_000 == env.time_ns
    before = env.get_state()
    env.hold(25)
    assert env.time_ns == 112_000_000
    np.testing.assert_allclose(env.get_state(), before, atol=2e-3)  # the arms hold their place against gravity
    with pytest.raises(ValueError, match="at least 0, got -1"):
        env.hold(-1)


def test_targets_beyond_the_joints_are_clipped(env):
    start(env)
    observation, *_ = env.step(np.full(14, 1e6, np.float32))
    np.testing.assert_allclose(observation["state"], env.action_space.high, atol=1e-6)


def test_the_instruction_depends_on_the_seed_and_on_its_kind():
    seen, unseen = (gymnasium.make("replan/RoboTwin-v0", instructions=kind).unwrapped for kind in ("seen", "unseen"))
    said = {}
    for kind, env in (("seen", seen), ("unseen", unseen)):
        env.cameras_on = False
        said[kind] = [start(env, seed=seed)[0]["instruction"] for seed in (0, 0, 1, 2, 3, 4)]
        assert said[kind][0] == said[kind][1]
        assert len(set(said[kind])) > 2
        assert not any(mark in sentence for sentence in said[kind] for mark in "{}")
        env.close()
    assert not set(said["seen"]) & set(said["unseen"])


def test_hands_are_led_to_poses():
    env = gymnasium.make("replan/RoboTwin-v0", action="ee", disable_env_checker=True).unwrapped
    env.cameras_on = False
    observation, _ = start(env)
    assert env.observation_space.contains(observation)
    goal = observation["endpose"] + np.float32([0, 0, 0.05, 0, 0, 0, 0, -0.5] * 2)
    observation, *_, info = env.step(goal)
    assert info["reached"]
    np.testing.assert_allclose(observation["endpose"], goal, atol=0.01)
    goal[:3] = 1.9  # out of reach
    after, *_, info = env.step(goal)
    assert not info["reached"]
    np.testing.assert_allclose(after["endpose"][:7], observation["endpose"][:7], atol=0.01)
    env.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "juggle"}, "juggle"),
        ({"task": "click_bell", "init_state": 50}, "50"),
        ({"task": "click_bell", "init_state": -1}, "-1"),
        ({"task": "click_bell", "init_state": 999_999}, "999999"),
        ({"task": "click_bell", "init_state": 2**32}, "4294967296"),
        ({"task": "click_bell", "init_state": 1.5}, "1.5"),
        ({"task": "click_bell", "scene": 1}, "scene"),
    ],
)
def test_what_cannot_be_reset_to_is_named(env, options, named):
    with pytest.raises(ValueError, match=named):
        env.reset(seed=0, options=options)


def test_what_it_is_made_of_is_known_without_opening_it(env):
    assert SUITES["robotwin"].fingerprint({"action": "ee"}) == env._opened.fingerprint


@pytest.mark.parametrize("setting", ["action", "instructions", "render_mode"])
def test_an_unknown_setting_is_named(setting):
    with pytest.raises(ValueError, match="nonsense"):
        RoboTwin(**{setting: "nonsense"})


def test_without_assets_it_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLAN_CACHE", str(tmp_path))
    with pytest.raises(SuiteUnavailable, match="replan setup robotwin"):
        RoboTwin()


NO_DRIVER = """
import replan.envs, gymnasium
try:
    gymnasium.make("replan/RoboTwin-v0")
except replan.envs.SuiteUnavailable as error:
    print(error)
"""


def test_without_vulkan_it_says_what_to_run(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": "none.so", "api_version": "1.3.0"}})
    )
    environment = {**os.environ, "VK_ICD_FILENAMES": str(broken)}  # the user's choice goes before the unpacked driver
    run = subprocess.run([sys.executable, "-c", NO_DRIVER], env=environment, capture_output=True, text=True)
    assert "no Vulkan device" in run.stdout and "replan setup robotwin" in run.stdout, run.stderr


@pytest.mark.slow
@pytest.mark.long
def test_several_run_side_by_side(env):
    """Processes have to be spawned: a fork of one that has drawn hangs."""
    many = gymnasium.make_vec(
        "replan.envs:replan/RoboTwin-v0",
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={
            "context": "spawn",
            "autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED,
            "shared_memory": False,  # Gymnasium 1.4 hands blanks back for text in shared memory
        },
    )
    seen, _ = many.reset(seed=[7, 7], options={"task": "click_bell", "init_state": SCENE + 1})
    alone = first_look(env, "click_bell", SCENE + 1)
    observation = {key: seen[key][1] for key in (*CAMERAS, "state", "instruction")}
    assert fingerprint(env, observation) == alone
    assert fingerprint(env, {key: seen[key][0] for key in observation}) == alone
    many.close()
