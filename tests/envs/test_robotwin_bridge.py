"""RoboTwin in the user's own interpreter.

There are no real assets here, so the checkouts are made up: upstream's code from its wheel, rearranged as its
repository has it in both layouts, on the stand-in assets. What the bridge and the layouts do is tested; what the real
meshes do is not.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from replan.envs import SUITES, SuiteUnavailable
from replan.envs.cache import cache_folder
from replan.envs.demonstrations import TRAINING_SEED
from replan.envs.robotwin import find_scenes, seeds
from replan.envs.robotwin.bridge import SimulatorError
from replan.envs.robotwin.source import PYTHON, ROOT
from replan.envs.robotwin.standin import build
from replan.envs.robotwin.standin.embodiment import NAME

SCENE = 1_000_000
LAYOUTS = {"new": ("env_cfg/task_config", "scripts"), "old": ("task_config", "script")}
GLOBALS = """
import os
import yaml
ROOT_PATH = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/"
CONFIGS_PATH = ROOT_PATH + "{layout}/"
ROTATE_NUM = 10


def load_task_config(name):
    with open(CONFIGS_PATH + name + ".yml") as file:
        return yaml.safe_load(file)
"""


@pytest.fixture(scope="module")
def assets():
    pytest.importorskip("sapien", reason="SAPIEN is not installed; run `replan setup robotwin`")
    pytest.importorskip("robotwin", reason="RoboTwin's task code is not installed; run `replan setup robotwin`")
    place = build.tree(cache_folder())
    try:
        build.digest(place)
    except SuiteUnavailable as error:
        pytest.skip(str(error))
    return place / "assets"


def make_checkout(root: Path, layout: str, assets: Path) -> Path:
    """Writes what upstream's repository looks like. Its tasks have no ``get_info``, and its code knows no wheel."""
    wheel = Path(str(files("robotwin")))
    configs, scripts = LAYOUTS[layout]
    (root / scripts).mkdir(parents=True)
    shutil.copytree(wheel / "envs", root / "envs", ignore=shutil.ignore_patterns("__pycache__", "vector_env.py"))
    for path in (root / "envs").rglob("*.py"):
        text = path.read_text()
        text = text.replace("from robotwin.config import", "from envs._GLOBAL_CONFIGS import")
        text = text.replace("from robotwin.assets import load_curobo_config", "").replace("robotwin.envs", "envs")
        path.write_text(re.sub(r"def get_info\b", "def _get_info", text))
    constants = (wheel / "envs" / "_GLOBAL_CONFIGS.py").read_text()
    directions = constants[constants.index("GRASP_DIRECTION_DIC") :]
    (root / "envs" / "_GLOBAL_CONFIGS.py").write_text(GLOBALS.format(layout=configs) + directions)
    for kind in ("objects_description", "task_instruction"):
        shutil.copytree(wheel / "description" / kind, root / "description" / kind)
    writer = (wheel / "description" / "instructions.py").read_text()
    writer = writer.replace('files("robotwin.description")', "__import__('pathlib').Path(__file__).parents[1]")
    (root / "description" / "utils").mkdir()
    (root / "description" / "utils" / "generate_episode_instructions.py").write_text(writer)
    shutil.copytree(wheel / "configs" / "task", root / configs)
    clean = root / configs / "demo_clean.yml"
    clean.write_text(clean.read_text().replace("embodiment: [aloha-agilex]", f"embodiment: [{NAME}]"))
    (root / "assets").symlink_to(assets)
    return root


@pytest.fixture(scope="module", params=LAYOUTS)
def checkout(request, tmp_path_factory, assets):
    return make_checkout(tmp_path_factory.mktemp("robotwin") / "checkout", request.param, assets)


@pytest.fixture(scope="module")
def env(checkout):
    made = gymnasium.make(
        "replan/RoboTwinReal-v0", root=str(checkout), planner="cpu", disable_env_checker=True
    ).unwrapped
    made.cameras_on = False
    yield made
    made.close()


def start(env, scene=SCENE):
    return env.reset(seed=3, options={"task": "click_bell", "init_state": scene})


def test_a_checkout_of_either_layout_plays_its_task(env):
    observation, info = start(env)
    assert "bell" in observation["instruction"] and "{" not in observation["instruction"]
    assert info["manifest"]["assets"].startswith("real ")
    assert info["manifest"]["step_budget"] == "400 actions"  # from upstream's file
    looks = []
    assert env.demonstrate(25, lambda seen, target: looks.append((seen, target)))
    assert looks[0][0]["instruction"] == observation["instruction"]
    start(env)
    for _, target in looks[1:]:
        *_, terminated, _, info = env.step(target)
        if terminated:
            break
    assert info["success"] and info["success_at_end"]


def test_what_it_is_made_of_is_known_without_starting_it(env, checkout):
    settings = {"root": str(checkout), "planner": "cpu", "action": "qpos"}
    world = SUITES["robotwin-real"].fingerprint
    assert world(settings) == env._opened.fingerprint
    assert world({**settings, "planner": "upstream"})["planner"] == "upstream"
    with pytest.raises(SuiteUnavailable, match=r"false cannot run RoboTwin \(exit status 1\).*--set python="):
        world({**settings, "python": shutil.which("false")})


def test_the_bridge_changes_nothing(env, assets):
    """The same scene in this process, from the wheel's code."""
    start(env)
    here = gymnasium.make("replan/RoboTwin-v0", disable_env_checker=True).unwrapped
    here.cameras_on = False
    observation, _ = start(here)
    np.testing.assert_array_equal(env.get_state(), here.get_state())
    action = observation["state"] + np.float32(0.05)
    ours, theirs = env.step(action), here.step(action)
    np.testing.assert_array_equal(ours[0]["state"], theirs[0]["state"])
    np.testing.assert_array_equal(env.get_state(), here.get_state())
    assert env.time_ns == here.time_ns
    here.close()


def test_an_error_of_the_watcher_stops_the_demonstration_and_nothing_else(env):
    start(env)

    def refuse(seen, target):
        raise ZeroDivisionError("enough")

    with pytest.raises(ZeroDivisionError, match="enough"):
        env.demonstrate(25, refuse)
    before = env.time_ns
    env.hold(5)
    assert env.time_ns == before + 5 * env.tick_ns


def test_a_simulator_that_dies_is_reported_and_started_again(env):
    first, _ = start(env)
    os.kill(env._world._process.pid, signal.SIGKILL)
    with pytest.raises(SimulatorError, match="signal 9"):
        env.step(first["state"])
    with pytest.raises(SimulatorError, match="reset"):
        env.step(first["state"])
    again, _ = start(env)
    np.testing.assert_array_equal(first["state"], again["state"])


def test_scenes_of_these_assets_are_found_once_and_then_evaluated(env, tmp_path, monkeypatch):
    opened = replace(env._opened, cache=tmp_path)
    monkeypatch.setattr(env, "_opened", opened)
    with pytest.raises(SuiteUnavailable, match="find_scenes --real click_bell"):
        start(env, scene=0)
    monkeypatch.setattr(find_scenes, "COUNT", 2)
    find_scenes.compute(opened.world, opened.fingerprint, ["click_bell"], seeds.cached(tmp_path, opened.fingerprint))
    seed, about = opened.scene("click_bell", 1)
    assert find_scenes.FIRST <= seed < TRAINING_SEED
    assert about["{A}"].startswith("050_bell/")  # a checkout's task tells it only when it is played
    observation, _ = start(env, scene=1)
    assert "bell" in observation["instruction"]


@pytest.mark.slow
@pytest.mark.long
def test_what_it_draws_is_what_the_stand_in_draws(checkout, env):
    env.cameras_on = True
    theirs, _ = start(env)
    env.cameras_on = False
    here = gymnasium.make("replan/RoboTwin-v0", disable_env_checker=True).unwrapped
    ours, _ = start(here)
    for camera in ("head", "left_wrist", "right_wrist"):
        assert ours[camera].any()
        np.testing.assert_array_equal(theirs[camera], ours[camera])
    here.close()


def make(**settings):
    return gymnasium.make("replan/RoboTwinReal-v0", **settings)


def test_without_a_folder_it_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv(ROOT, raising=False)
    with pytest.raises(SuiteUnavailable, match=ROOT):
        make()


def test_a_checkout_without_assets_is_reported(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "_base_task.py").touch()
    with pytest.raises(SuiteUnavailable, match="has no folder objects"):
        make(root=str(tmp_path))


def test_an_unknown_configuration_is_reported(checkout):
    with pytest.raises(ValueError, match="demo_dirty"):
        make(root=str(checkout), config="demo_dirty")
    with pytest.raises(ValueError, match="guess"):
        make(root=str(checkout), planner="guess")


def test_an_interpreter_without_upstreams_packages_is_reported(checkout, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')  # no site-packages
    bare.chmod(0o755)
    monkeypatch.setenv(PYTHON, str(bare))
    with pytest.raises(SuiteUnavailable, match=f"cannot run RoboTwin.*{PYTHON}"):
        make(root=str(checkout))
    with pytest.raises(SuiteUnavailable, match="none cannot be started"):
        make(root=str(checkout), python=str(tmp_path / "none"))
