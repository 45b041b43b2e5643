"""What every test may rely on."""

from __future__ import annotations

import os
from ctypes.util import find_library

# Before anything imports MuJoCo or torch. Both software renderers draw the same pixels; tools/setup.sh provides one.
os.environ.setdefault("MUJOCO_GL", "osmesa" if find_library("OSMesa") else "egl")
os.environ.setdefault("OMP_NUM_THREADS", "1")
