"""The 130 tasks: names, cameras, instructions, and digests of what defines them. Needs no simulator."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
TABLE = Path(__file__).with_name("tasks.json")  # written by tools/libero_manifest.py
INIT_STATES = 50
CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}  # observation key: name in the model


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        suite: Its suite, such as ``libero_spatial``; also the name of the folder of its files.
        name: Upstream's name, which is that of its BDDL file.
        language: The instruction that evaluators give. (The one in the BDDL file is another.)
        bddl: SHA-256 of the BDDL file.
        init_states: :func:`array_digest` of the 50 standard initial states.
    """

    suite: str
    name: str
    language: str
    bddl: str
    init_states: str


@functools.cache
def tasks_of(suite: str) -> dict[str, Task]:
    """Returns the tasks of a suite by name, in upstream's order.

    Raises:
        ValueError: There is no such suite.
    """
    if suite not in SUITES:
        raise ValueError(f"unknown LIBERO suite {suite!r}; the suites are {', '.join(SUITES)}")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {row["name"]: Task(suite, **row) for row in table[suite]}


def array_digest(array: np.ndarray) -> str:
    """Returns the SHA-256 of an array's type, shape and values, whatever file format it came from."""
    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()
