"""What a suite needs from this machine, tried out.

Graphics drivers and simulators take their process down when they fail, so every trial runs in a process of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..envs import Suite

TIMEOUT = 600  # seconds; the first picture of a software driver takes a minute where the machine is busy


@dataclass(frozen=True)
class Trial:
    """Something that has to work.

    Attributes:
        code: Python that ends with exit code 0 if it does.
        per_suite: Whether it depends on the suite, which is the code's argument.
        packages: Packages of Debian and Ubuntu that mend it: the first set that the distribution has. Where there are
            none, the code itself says what to do.
    """

    code: str
    per_suite: bool = False
    packages: tuple[tuple[str, ...], ...] = ()


_EGL = ("libegl1", "libopengl0", "libgl1-mesa-dri")
# What replan.envs.opengl chooses. Distributions with Mesa 25.1 or newer have no OSMesa any more.
_OPENGL = (_EGL,) if Path("/dev/nvidiactl").exists() else (("libosmesa6",), _EGL)
IMAGES = Trial("import cv2", packages=(("libgl1", "libglib2.0-0"), ("libgl1", "libglib2.0-0t64")))
DRAWING = Trial(
    """
import replan.envs
import mujoco

model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light/><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().any(), "MuJoCo draws black pictures"
renderer.close()
""",
    packages=_OPENGL,
)
_TOLD = """
import importlib.util, os, sys

if importlib.util.find_spec("triton"):
    import triton  # as in a worker: triton does not survive being loaded after an OpenGL context
import gymnasium
import replan.envs

try:
    {}
except replan.envs.SuiteUnavailable as error:
    print(error, file=sys.stderr, flush=True)
    os._exit(1)  # a graphics driver that found no device may crash in a regular exit
"""
PLAYING = Trial(
    _TOLD.format("""
    suite = replan.envs.SUITES[sys.argv[1]]
    env = gymnasium.make(suite.env_id, disable_env_checker=True)
    observation, _ = env.reset(seed=0, options={"task": suite.tasks[0], "init_state": 0})
    for camera in suite.cameras:
        assert observation[camera].any(), f"camera {camera} is black"
"""),
    per_suite=True,
)
LIBERO_FILES = Trial(
    _TOLD.format("""
    from replan.envs.libero import upstream, verify

    problems = verify.verify(upstream.load())
    if problems:
        sys.exit(f"{problems[0]} ({len(problems)} such files); uninstall LIBERO, then run `replan setup libero`")
""")
)
ROBOTWIN_FILES = Trial(
    _TOLD.format("""
    from replan.envs.cache import cache_folder
    from replan.envs.robotwin.standin import build

    if sys.argv[1] == "robotwin":  # the other suite has the user's own
        build.verify(build.tree(cache_folder()))
"""),
    per_suite=True,
)
TRIALS = {
    "conveyor": (DRAWING, PLAYING),
    "libero": (IMAGES, DRAWING, PLAYING, LIBERO_FILES),
    "robotwin": (IMAGES, PLAYING, ROBOTWIN_FILES),
}


def family(suite: Suite) -> str:
    """Returns the folder of ``envs`` that a suite comes from: what suites of one family need is the same."""
    import gymnasium

    entry = gymnasium.spec(suite.env_id).entry_point
    assert isinstance(entry, str)
    return entry.split(".")[2]


def attempt(trial: Trial, suite: str = "") -> str | None:
    """Tries something in a process of its own.

    Args:
        trial: What has to work.
        suite: Suite that it is tried for, if it depends on that.

    Returns:
        None if it works, else the last thing that was said, or the signal that ended the process.
    """
    from ..envs import opengl

    command = [sys.executable, "-c", trial.code, suite]
    environment = dict(os.environ)
    if environment.get("MUJOCO_GL") == opengl.chosen:  # to be chosen again: something may just have been installed
        environment.pop("MUJOCO_GL", None)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"the process was killed by {signal.Signals(-done.returncode).name}"
    return (done.stderr.strip().splitlines() or [f"the process ended with exit code {done.returncode}"])[-1]
