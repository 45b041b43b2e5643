from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MuJoCo needs no choice elsewhere")
DRAW = """
import os, gymnasium, replan.envs
env = gymnasium.make("replan/ConveyorSorting-v0", render_mode="rgb_array")
env.reset(seed=0)
assert env.render().any()
print(os.environ["MUJOCO_GL"])
"""


def test_a_script_that_sets_nothing_draws_without_a_display():
    bare = {name: value for name, value in os.environ.items() if name not in ("MUJOCO_GL", "DISPLAY")}
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
