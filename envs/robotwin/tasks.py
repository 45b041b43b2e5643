"""Names of the tasks. Needs no simulator."""

from __future__ import annotations

import functools
import json
from pathlib import Path

STORED = Path(__file__).with_name("seeds.json")  # written by tools/robotwin_seeds.py
COUNT = 50  # evaluated scenes of a task


@functools.cache
def standin_tasks() -> tuple[str, ...]:
    """Returns the tasks that upstream's expert solves on the stand-in assets: those with stored scenes."""
    return tuple(sorted(json.loads(STORED.read_text(encoding="utf-8"))["tasks"]))
