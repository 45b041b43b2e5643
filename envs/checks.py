"""Checks that a suite works on this machine, as code for a process of its own.

Graphics drivers and simulators take their process down when they fail, so a check is run in a child process
(:func:`replan.eval.probes.run_check`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NOT_SET_UP = 3


@dataclass(frozen=True)
class Check:
    """Something that has to work on this machine.

    Attributes:
        code: Python that ends with exit code 0 if it works. Otherwise the last line of stderr is the problem; with exit
            code ``NOT_SET_UP`` it is only that the user has not installed or configured the suite.
        per_suite: Whether the result depends on the suite, whose name is then ``sys.argv[1]``.
        packages: Debian and Ubuntu packages that fix it: the first set that the distribution has is installed. Without
            any, the code's own message says what to do.
    """

    code: str
    per_suite: bool = False
    packages: tuple[tuple[str, ...], ...] = ()


def reporting(body: str, code: int = 1) -> str:
    """Returns code that runs ``body``, indented by four spaces, and prints a ``SuiteUnavailable`` as one line.

    Args:
        body: The check.
        code: Exit code after a ``SuiteUnavailable``.
    """
    return f"""
import importlib.util, os, sys

if importlib.util.find_spec("triton"):
    import triton  # as in a worker: triton crashes if it is loaded after an OpenGL context
import gymnasium
import replan.envs

try:
{body.strip(chr(10))}
except replan.envs.SuiteUnavailable as error:
    print(error, file=sys.stderr, flush=True)
    os._exit({code})  # a graphics driver without a device may crash in a regular exit
"""


_EGL = ("libegl1", "libopengl0", "libgl1-mesa-dri")
# Follows the choice of replan.envs.opengl. Distributions with Mesa 25.1 or newer no longer have OSMesa.
_OPENGL = (_EGL,) if Path("/dev/nvidiactl").exists() else (("libosmesa6",), _EGL)

OPENCV = Check("import cv2", packages=(("libgl1", "libglib2.0-0"), ("libgl1", "libglib2.0-0t64")))
MUJOCO_RENDERING = Check(
    reporting("""
    from replan.envs.rendering import Renderers, mujoco

    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light/><geom size='1'/></worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderers = Renderers()
    renderer = renderers.get(model, 16, 16)
    renderer.update_scene(data)
    assert renderer.render().any(), "MuJoCo renders black images"
    renderers.close()
"""),
    packages=_OPENGL,
)
FIRST_OBSERVATION = Check(
    reporting(
        """
    suite = replan.envs.SUITES[sys.argv[1]]
    env = gymnasium.make(suite.env_id, disable_env_checker=True)
    observation, _ = env.reset(seed=0, options={"task": suite.tasks[0], "init_state": 0})
    for camera in suite.cameras:
        assert observation[camera].any(), f"camera {camera} is black"
""",
        NOT_SET_UP,
    ),
    per_suite=True,
)
