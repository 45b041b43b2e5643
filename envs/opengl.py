"""Which OpenGL MuJoCo draws with where the user did not say: it reads ``MUJOCO_GL`` once, when it is imported."""

from __future__ import annotations

import ctypes.util
import os
import sys
from pathlib import Path

chosen: str | None = None  # what choose() set, None where the user did


def choose() -> None:
    """Sets ``MUJOCO_GL`` on Linux, unless it is set: MuJoCo's own choice there needs a display.

    Without a GPU, EGL and OSMesa draw the same in software; EGL is noisy at exit, and OSMesa is no longer in every
    system.
    """
    global chosen
    if sys.platform == "linux" and "MUJOCO_GL" not in os.environ:
        gpu = Path("/dev/nvidiactl").exists()
        chosen = os.environ["MUJOCO_GL"] = "egl" if gpu or not ctypes.util.find_library("OSMesa") else "osmesa"
