"""MuJoCo's OpenGL: chosen where the user names none, and one sentence where it is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import replan.envs
from replan.envs.checks import FIRST_OBSERVATION, MUJOCO_RENDERING
from replan.eval.probes import run_check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MuJoCo needs no choice elsewhere")
DRAW = """
import os, gymnasium, replan.envs
env = gymnasium.make("replan/ConveyorSorting-v0", render_mode="rgb_array")
env.reset(seed=0)
assert env.render().any()
print(os.environ["MUJOCO_GL"])
"""


@pytest.mark.parametrize("given", [{}, {"MUJOCO_GL": ""}, {"MUJOCO_GL": " "}], ids=["unset", "empty", "blank"])
def test_a_script_that_sets_nothing_draws_without_a_display(given):
    bare = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")} | given
    done = subprocess.run([sys.executable, "-c", DRAW], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("egl", "osmesa")


def test_what_the_user_set_is_left(monkeypatch):
    from replan.envs import opengl

    monkeypatch.setenv("MUJOCO_GL", "glfw")
    opengl.choose()
    assert os.environ["MUJOCO_GL"] == "glfw"


def test_what_mujoco_does_not_know_is_refused_with_its_name(monkeypatch):
    from replan.envs import opengl

    monkeypatch.setenv("MUJOCO_GL", "opengl")
    with pytest.raises(ValueError, match="MUJOCO_GL is 'opengl'; set it to egl"):
        opengl.choose()


NEEDED = {"aloha": "gym_aloha", "libero_object": "libero"}
# PyOpenGL refuses the first when it is imported, on every machine; the second has no display to open a window on.
ABSENT = ({"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, {"MUJOCO_GL": "glfw"})
MAKE = """
import sys, gymnasium, replan.envs
env = None
try:
    env = gymnasium.make(replan.envs.SUITES[sys.argv[1]].env_id, disable_env_checker=True)
    env.reset(seed=0, options={"task": replan.envs.SUITES[sys.argv[1]].tasks[0]})
except replan.envs.SuiteUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize("suite", ["conveyor", "packing", "aloha", "libero_object"])
@pytest.mark.parametrize("absent", ABSENT, ids=["import", "context"])
def test_a_backend_that_is_absent_is_one_sentence_in_every_suite(suite, absent):
    if suite in NEEDED and importlib.util.find_spec(NEEDED[suite]) is None:
        pytest.skip(f"{NEEDED[suite]} is not installed")
    bare = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | absent
    done = subprocess.run([sys.executable, "-c", MAKE, suite], env=bare, capture_output=True, text=True)
    sentence = rf"MuJoCo cannot render with MUJOCO_GL={absent['MUJOCO_GL']} \(.*\); unset MUJOCO_GL, or .*\n"
    assert re.fullmatch(sentence, done.stdout), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("absent", ABSENT, ids=["import", "context"])
def test_doctor_says_the_same(monkeypatch, absent):
    for name, value in absent.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if "DISPLAY" in name]:
        monkeypatch.delenv(name)
    for check in (MUJOCO_RENDERING, FIRST_OBSERVATION):
        problem = run_check(check, "conveyor") or ""
        assert problem.startswith(f"MuJoCo cannot render with MUJOCO_GL={absent['MUJOCO_GL']} ("), problem


def test_mujoco_is_imported_in_one_place():
    folder = Path(replan.envs.__file__).parent
    importing = [path.name for path in folder.rglob("*.py") if re.search(r"^\s*import mujoco", path.read_text(), re.M)]
    assert importing == ["rendering.py"]
