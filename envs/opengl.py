"""Graphics of a process: which OpenGL MuJoCo renders with, and no graphics after a fork.

MuJoCo reads ``MUJOCO_GL`` once, when it is imported.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

_BACKENDS = frozenset("egl osmesa glfw on enable true 1 off disable false 0".split()) | {""}  # that MuJoCo knows
# MuJoCo is imported first: it tells PyOpenGL which platform to use.
_ASK = """
from replan.envs.rendering import mujoco
from OpenGL import GL

context = mujoco.GLContext(8, 8)
context.make_current()
print(*(GL.glGetString(name).decode() for name in (GL.GL_RENDERER, GL.GL_VERSION)))
"""
chosen: str | None = None  # what choose() set, None where the user did
_owner: int | None = None  # process that first used graphics; a fork inherits it


class ForkedGraphics(RuntimeError):
    """A fork of a process that has used graphics would render: drivers then wait for ever for threads that are gone."""


def choose() -> None:
    """Sets ``MUJOCO_GL`` on Linux, unless it is set to something: MuJoCo's own choice there needs a display.

    Without a GPU, EGL and OSMesa render the same in software; EGL is noisy at exit, and OSMesa is no longer in every
    system.

    Raises:
        ValueError: It is set to something that MuJoCo does not know.
    """
    global chosen
    given = os.environ.get("MUJOCO_GL", "")
    if given.lower().strip() not in _BACKENDS:
        raise ValueError(f"MUJOCO_GL is {given!r}; set it to egl, osmesa or glfw, or not at all")
    if sys.platform == "linux" and not given.strip():
        gpu = Path("/dev/nvidiactl").exists()
        chosen = os.environ["MUJOCO_GL"] = "egl" if gpu or not ctypes.util.find_library("OSMesa") else "osmesa"


def backend() -> str:
    """Returns the backend and where it comes from, for messages."""
    name = os.environ.get("MUJOCO_GL") or "unset"
    return f"MUJOCO_GL={name} (chosen by replan)" if name == chosen else f"MUJOCO_GL={name}"


@cache
def renderer() -> str:
    """Returns what renders, such as ``llvmpipe (LLVM 15.0.6, 256 bits) 4.5 Mesa 22.3.6``; ``none`` where nothing does.

    Pixels depend on it. Another process is asked: a context in this one would disturb what is loaded later (Triton).
    """
    try:
        done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=60)
    except (subprocess.TimeoutExpired, OSError):  # no answer, or no process to ask
        return "none"
    return " ".join(done.stdout.split()) or "none"


def claim() -> None:
    """Notes that this process uses graphics. Every use of them calls it first.

    Raises:
        ForkedGraphics: A process that this one was forked from has used them.
    """
    global _owner
    if _owner is None:
        _owner = os.getpid()
    if _owner != os.getpid():
        raise ForkedGraphics(
            "this process is a fork of one that has rendered, and rendering here would wait for ever; start it with "
            "'spawn' (in Gymnasium: vector_kwargs={'context': 'spawn', 'shared_memory': False})"
        )
