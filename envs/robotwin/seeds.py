"""Which scenes a task is evaluated on: the first that upstream's expert solves, found once and stored.

Upstream looks for them during the evaluation, so that a policy's episodes depend on a planner. Here they are a file,
with a fingerprint of everything that decides which scenes those are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import SuiteUnavailable
from .tasks import COUNT, STORED

if TYPE_CHECKING:
    from .bridge import RemoteWorld
    from .world import World

FIRST = 100_000  # where the search starts, as upstream's does
TRAINING = 1_000_000  # scenes from here on are for training; no evaluated scene lies there
MEND = "run `replan setup robotwin`; if that does not help, `replan setup robotwin --seeds` finds them again"


def cached(cache: Path, key: Mapping[str, str]) -> Path:
    """Returns where scenes are stored that were found on this machine, whether they are there or not."""
    short = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache / "robotwin" / f"seeds-{short}.json"


def load(key: Mapping[str, str], cache: Path, task: str) -> list[int]:
    """Returns the scenes of a task: those that came with the package, or those found on this machine.

    Raises:
        SuiteUnavailable: Neither were found with these assets and versions.
    """
    stored = _read(STORED)
    for found in (stored, _read(cached(cache, key))):
        if found["fingerprint"] == dict(key) and task in found["tasks"]:
            return found["tasks"][task]
    theirs = stored["fingerprint"]
    differing = [
        f"{name} {value} (stored: {theirs.get(name)})" for name, value in key.items() if theirs.get(name) != value
    ]
    raise SuiteUnavailable(f"no scenes of {task} are stored for {', '.join(differing) or 'these assets'}; {MEND}")


def search(world: World | RemoteWorld, task: str, count: int = COUNT, first: int = FIRST) -> list[int]:
    """Returns the first ``count`` scenes from ``first`` on that upstream's expert solves.

    Raises:
        RuntimeError: It solves hardly any.
    """
    from .world import UnstableScene

    solved: list[int] = []
    for seed in range(first, first + 10 * count):
        try:
            world.reset(task, seed)
        except UnstableScene:
            continue
        if world.demonstrate(every=0):
            solved.append(seed)
        if len(solved) == count:
            return solved
    raise RuntimeError(f"{task}: the expert solves only {len(solved)} of {10 * count} scenes")


def compute(
    world: World | RemoteWorld,
    key: Mapping[str, str],
    tasks: Iterable[str],
    path: Path,
    say: Callable[[str], None] = print,
) -> None:
    """Finds the scenes of each task and stores them; tasks that the file has for the same fingerprint are kept."""
    stored = _read(path)
    if stored["fingerprint"] != dict(key):
        stored = {"fingerprint": dict(key), "tasks": {}}
    for task in tasks:
        if len(stored["tasks"].get(task, [])) >= COUNT:
            continue
        try:
            stored["tasks"][task] = search(world, task)
        except RuntimeError as error:
            say(str(error))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        ordered = {name: stored["tasks"][name] for name in sorted(stored["tasks"])}
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(seeds)}" for name, seeds in ordered.items())
        draft.write_text(f'{{\n "fingerprint": {json.dumps(dict(key))},\n "tasks": {{\n{rows}\n }}\n}}\n')
        draft.replace(path)
        found = stored["tasks"][task]
        say(f"{task}: {len(found)} scenes, {found[-1] - FIRST + 1} tried")


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"fingerprint": {}, "tasks": {}}
    return json.loads(path.read_text(encoding="utf-8"))
