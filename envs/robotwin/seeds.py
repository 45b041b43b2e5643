"""The stored scenes of each task, on which policies are evaluated: the first that upstream's expert solves.

Upstream searches for them during the evaluation, so that a policy's episodes depend on a planner. Here they are a file,
with a fingerprint of everything that decides which scenes those are. ``find_scenes.py`` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SuiteUnavailable
from .tasks import STORED


def cached(cache: Path, key: Mapping[str, str]) -> Path:
    """Returns the file for the scenes found on this machine, whether it exists or not."""
    short = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache / "robotwin" / f"seeds-{short}.json"


def load(key: Mapping[str, str], cache: Path, task: str) -> list[tuple[int, dict[str, str] | None]]:
    """Returns the scenes of a task: those that came with the package, or those found on this machine.

    Returns:
        For each its seed, and the objects and arms that its instruction names where only upstream's expert knows them.

    Raises:
        SuiteUnavailable: Neither were found with these assets and versions.
    """
    for stored in (read(STORED), read(cached(cache, key))):
        if stored["fingerprint"] == dict(key) and task in stored["tasks"]:
            entries = stored["tasks"][task]
            return [(entry, None) if isinstance(entry, int) else (entry[0], entry[1]) for entry in entries]
    theirs = read(STORED)["fingerprint"]
    differing = ", ".join(f"{name} {value}" for name, value in key.items() if theirs.get(name) != value)
    fix = f"find them with `python -m {__package__}.find_scenes {'--real ' if 'config' in key else ''}{task}`"
    if "assets" in differing and "config" not in key:
        fix = f"run `replan setup robotwin`, or {fix}"
    raise SuiteUnavailable(f"no evaluation scenes of {task} are stored for {differing or 'these assets'}; {fix}")


def read(path: Path) -> dict[str, Any]:
    """Returns the content of a file of scenes, ``fingerprint`` and ``tasks``; both empty if there is no file."""
    if not path.is_file():
        return {"fingerprint": {}, "tasks": {}}
    return json.loads(path.read_text(encoding="utf-8"))
