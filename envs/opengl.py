"""Chooses the OpenGL that MuJoCo renders with. It reads ``MUJOCO_GL`` once, when it is imported."""

from __future__ import annotations

import ctypes.util
import os
import sys
from pathlib import Path

_BACKENDS = frozenset("egl osmesa glfw on enable true 1 off disable false 0".split()) | {""}  # that MuJoCo knows
chosen: str | None = None  # what choose() set, None where the user did


def choose() -> None:
    """Sets ``MUJOCO_GL`` on Linux, unless it is set: MuJoCo's own choice there needs a display.

    Without a GPU, EGL and OSMesa render the same in software; EGL is noisy at exit, and OSMesa is no longer in every
    system.

    Raises:
        ValueError: It is set to something that MuJoCo does not know.
    """
    global chosen
    if (given := os.environ.get("MUJOCO_GL", "")).lower().strip() not in _BACKENDS:
        raise ValueError(f"MUJOCO_GL is {given!r}; set it to egl, osmesa or glfw, or not at all")
    if sys.platform == "linux" and "MUJOCO_GL" not in os.environ:
        gpu = Path("/dev/nvidiactl").exists()
        chosen = os.environ["MUJOCO_GL"] = "egl" if gpu or not ctypes.util.find_library("OSMesa") else "osmesa"
