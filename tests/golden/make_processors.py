"""Writes processors.safetensors: what lerobot's processors make of observations and of chunks, for test_processors.py.

The reference needs the environment of make_xvla.py, with ``draccus==0.11.6``. Of Python 3.12 it needs one line of
syntax, which is rewritten here. The file holds, for each of ``x_vla``, ``fast_wam`` and ``pi05``:

* ``NAME/inputs/...``: what the simulator gives, images uint8 [2, 96, 96, 3] as LIBERO renders them, upside down;
* ``NAME/expected/...``: images and state as the model reads them, and actions as the simulator takes them, of a chunk;
* ``NAME/statistics/...``: those that the steps were given, by lerobot's names;
* metadata ``prompt``: the text of pi0.5.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

ROOT = Path(str(importlib.metadata.distribution("lerobot").locate_file("lerobot")))
SIDE, NATIVE = 64, 96
