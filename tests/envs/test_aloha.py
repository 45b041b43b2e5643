"""ALOHA: gym-aloha's scene, states and reward without its code, and an expert that hands the cube over."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
import replan.envs
from replan.envs import SUITES, SuiteUnavailable

pytestmark = pytest.mark.skipif(importlib.util.find_spec("gym_aloha") is None, reason="gym-aloha is not installed")
CELL = {"task": "transfer-cube", "init_state": 3}


@pytest.fixture
def env():
    env = gymnasium.make("replan/AlohaTransferCube-v0", render_mode="rgb_array").unwrapped
    env.cameras_on = False
    yield env
    env.close()


@pytest.fixture
def upstream():
    pytest.importorskip("dm_control", reason="gym-aloha's own environment needs dm_control")
    gym_aloha = pytest.importorskip("gym_aloha.env")
    return gym_aloha.AlohaEnv("transfer_cube", obs_type="pixels_agent_pos")


def run_expert(env, init_state, seed=77):
    env.reset(seed=seed, options={"task": "transfer-cube", "init_state": init_state})
    stages = []
    for action in env.expert_plan():
        *_, terminated, truncated, info = env.step(action.astype(np.float32))
        stages.append(info["stage"])
        if terminated or truncated:
            return info["outcome"], stages
    return None, stages


def test_the_expert_hands_the_cube_over_and_passes_through_all_stages(env):
    for init_state in range(4):
        outcome, stages = run_expert(env, init_state)
        assert outcome == "success" and stages[-1] == 4 and {0, 2} < set(stages)


@pytest.mark.slow
@pytest.mark.long
def test_the_experts_rate_over_50_cells(env):
    assert [run_expert(env, i)[0] for i in range(50)].count("success") >= 45


def test_without_a_handover_the_episode_runs_out_of_time_after_400_steps(env):
    env.reset(seed=0, options=CELL)
    action, info, steps = env._physics.joints, {}, 0
    while "outcome" not in info:
        *_, terminated, truncated, info = env.step(action)
        steps += 1
    assert (info["outcome"], steps, terminated, truncated, info["success"]) == ("time", 400, False, True, False)


def place_between(env, hand):
    """Puts the cube between a hand's fingers, closed on it, in the air."""
    physics = env._physics
    link = physics.model.body(f"vx300s_{hand}/gripper_link").id
    place = physics.data.xpos[link] + 0.125 * physics.data.xmat[link].reshape(3, 3)[:, 0]
    first = 6 if hand == "left" else 14
    physics.data.qpos[first : first + 2] = physics.data.ctrl[first : first + 2] = [0.0335, -0.0335]
    physics.data.qpos[16:23] = [*place, 1, 0, 0, 0]
    mujoco.mj_forward(physics.model, physics.data)


def test_a_cube_that_the_left_hand_only_touches_on_the_table_is_no_success(env, monkeypatch):
    from replan.envs.aloha import task

    env.reset(seed=0, options=CELL)
    cases = {(): 0, ("right", "table"): 1, ("right",): 2, ("left", "table"): 3, ("left", "right", "table"): 3}
    for touched, reward in {**cases, ("left",): 4, ("left", "right"): 4}.items():
        monkeypatch.setattr(type(env._physics), "touched", lambda self, touched=touched: set(touched))
        assert task.reward(env._physics) == reward
        assert task.outcome(task.reward(env._physics), 1) == ("success" if reward == 4 else None)


def test_a_cube_in_the_left_hand_is_a_success_and_one_in_the_right_hand_is_not(env):
    outcomes = {}
    for hand in ("left", "right"):
        env.reset(seed=0, options=CELL)
        place_between(env, hand)
        *_, info = env.step(env._physics.joints)
        outcomes[hand] = info["stage"], info["success"]
    assert outcomes == {"left": (4, True), "right": (2, False)}


def test_a_cube_that_falls_after_the_episode_was_no_lasting_success(env):
    ends = {}
    for fingers in ("closed", "open"):
        env.reset(seed=0, options=CELL)
        place_between(env, "left")
        if fingers == "open":  # the cube still touches a finger on its way down
            env._physics.data.ctrl[6:8] = [0.058, -0.058]
        action = env._physics.joints
        action[6] = 1.0 if fingers == "open" else action[6]
        *_, info = env.step(action)
        ends[fingers] = info["success"], info["success_at_end"]
    assert ends == {"closed": (True, True), "open": (True, False)}


def test_cells_are_sampled_from_upstreams_range_and_differ():
    from replan.envs.aloha.task import sample

    cubes = np.array([sample("transfer-cube", 0, i).cube for i in range(200)])
    assert (cubes >= [0, 0.4, 0.05]).all() and (cubes <= [0.2, 0.6, 0.05]).all()
    assert np.ptp(cubes[:, 0]) > 0.18 and np.ptp(cubes[:, 1]) > 0.18
    assert sample("transfer-cube", 1, 0) != sample("transfer-cube", 0, 0) != sample("transfer-cube", 0, 1)


def test_the_cube_and_both_arms_are_visible_from_above(env):
    env.cameras_on = True
    observation, _ = env.reset(seed=0, options=CELL)
    image = observation["top"].astype(int)
    red = image[..., 0] - image[..., 1:].max(axis=-1) > 60
    assert 3 < red.sum() < 200
    for camera in SUITES["aloha"].cameras:
        assert observation[camera].std() > 5
    assert env.render().shape == (480, 640, 3)


def test_other_scene_files_and_a_missing_package_are_refused_with_the_remedy(tmp_path, monkeypatch):
    from replan.envs.aloha import assets

    monkeypatch.setattr(assets, "DIGEST", "another")
    with pytest.raises(SuiteUnavailable, match="uninstall gym-aloha, then run `replan setup aloha`"):
        assets.folder()
    assert assets.digest(tmp_path) == "incomplete"
    monkeypatch.setattr(assets.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SuiteUnavailable, match="gym-aloha is not installed; run `replan setup aloha`"):
        assets.folder()


def test_the_lock_pins_gym_aloha_alone_by_hash():
    lock = (Path(replan.envs.__file__).parent / "aloha/requirements.lock").read_text()
    pins = [line.split()[0] for line in lock.splitlines() if "==" in line]
    assert pins == ["gym-aloha==0.1.5"] and "--hash=sha256:" in lock


def test_model_states_rewards_and_images_are_upstreams(env, upstream, monkeypatch):
    """The same actions from the same cube, through upstream's own environment on dm_control."""
    env.reset(seed=77, options={"task": "transfer-cube", "init_state": 0})
    physics = upstream._env.physics
    ours, theirs = env._physics.model, physics.model
    assert (ours.nq, ours.nv, ours.nu, ours.ngeom) == (theirs.nq, theirs.nv, theirs.nu, theirs.ngeom)
    for name in ("geom_size", "geom_pos", "geom_friction", "body_mass", "dof_frictionloss", "actuator_gainprm"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name

    cube = [*env._physics.cube_position, 1, 0, 0, 0]
    monkeypatch.setattr("gym_aloha.env.sample_box_pose", lambda seed=None: np.array(cube))
    observation, _ = upstream.reset(seed=0)
    assert np.array_equal(observation["agent_pos"], env._physics.joints)
    assert np.abs(observation["pixels"]["top"].astype(int) - env.render()).mean() < 1
    seen = set()
    plan = env.expert_plan()
    for action in plan:
        # float64 through both: the environments' float32 is not what is compared
        _, reward, terminated, _, _ = upstream.step(action)
        *_, done, _, info = env.step(action)
        assert (reward, terminated) == (info["stage"], done)
        joints = env.get_state()[1 : 1 + ours.nq]  # after the time; the world has moved on where the episode is over
        assert np.array_equal(physics.data.qpos, joints)
        seen.add(reward)
        if done:
            break
    assert done and seen >= {0, 2, 4}
