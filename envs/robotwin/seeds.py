"""Which scenes a task is evaluated on: the first that upstream's expert solves, found once and stored.

Upstream looks for them during the evaluation, so that a policy's episodes depend on a planner. Here they are a file,
with a fingerprint of everything that decides which scenes those are.

``python -m replan.envs.robotwin.seeds [--real] TASK...`` finds them for the assets and versions of this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SuiteUnavailable
from .tasks import COUNT, STORED

if TYPE_CHECKING:
    from .bridge import RemoteWorld
    from .world import World

FIRST = 100_000  # where the search starts, as upstream's does
MOST = 62  # scenes of a task that are tried: one that the expert solves less often than 80 % of the time is left out


def cached(cache: Path, key: Mapping[str, str]) -> Path:
    """Returns where scenes are stored that were found on this machine, whether they are there or not."""
    short = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:16]
    return cache / "robotwin" / f"seeds-{short}.json"


def load(key: Mapping[str, str], cache: Path, task: str) -> list[tuple[int, dict[str, str] | None]]:
    """Returns the scenes of a task: those that came with the package, or those found on this machine.

    Returns:
        For each its seed, and what it is about where only upstream's expert can tell.

    Raises:
        SuiteUnavailable: Neither were found with these assets and versions.
    """
    for stored in (_read(STORED), _read(cached(cache, key))):
        if stored["fingerprint"] == dict(key) and task in stored["tasks"]:
            entries = stored["tasks"][task]
            return [(entry, None) if isinstance(entry, int) else (entry[0], entry[1]) for entry in entries]
    theirs = _read(STORED)["fingerprint"]
    differing = ", ".join(f"{name} {value}" for name, value in key.items() if theirs.get(name) != value)
    mend = f"find them with `python -m {__package__}.seeds {'--real ' if 'config' in key else ''}{task}`"
    if "assets" in differing and "config" not in key:
        mend = f"run `replan setup robotwin`, or {mend}"
    raise SuiteUnavailable(f"no evaluation scenes of {task} are stored for {differing or 'these assets'}; {mend}")


def search(world: World | RemoteWorld, task: str, most: int = MOST) -> list[int | list[Any]]:
    """Returns the first scenes that upstream's expert solves: seeds, with what they are about if only it can tell.

    Raises:
        RuntimeError: It cannot solve enough of the first ``most`` any more.
    """
    from .world import UnstableScene

    solved: list[int | list[Any]] = []
    failed = 0
    while failed <= most - COUNT:
        seed = FIRST + len(solved) + failed
        try:
            world.reset(task, seed, about={})
            success = world.demonstrate(every=0)
        except UnstableScene:
            success = False
        if not success:
            failed += 1
            continue
        played = world.played_about()
        solved.append(seed if played is None else [seed, played])
        if len(solved) == COUNT:
            return solved
    raise RuntimeError(
        f"{task}: upstream's expert solves only {len(solved)} of {len(solved) + failed} scenes; "
        f"it last gave up with {world.failure}"
    )


def compute(
    world: World | RemoteWorld, key: Mapping[str, str], tasks: Iterable[str], path: Path, most: int = MOST
) -> None:
    """Finds the scenes of each task and stores them; tasks that the file has for the same fingerprint are kept."""
    stored = _read(path)
    if stored["fingerprint"] != dict(key):
        stored = {"fingerprint": dict(key), "tasks": {}}
    for task in tasks:
        if len(stored["tasks"].get(task, [])) >= COUNT:
            continue
        try:
            stored["tasks"][task] = search(world, task, most)
        except RuntimeError as error:
            print(error, flush=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        found = sorted(stored["tasks"].items())
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(scenes)}" for name, scenes in found)
        draft.write_text(f'{{\n "fingerprint": {json.dumps(dict(key))},\n "tasks": {{\n{rows}\n }}\n}}\n')
        draft.replace(path)
        print(f"{task}: {COUNT} scenes", flush=True)


def main() -> None:
    """Finds scenes and stores them in the cache folder."""
    from .source import open_real, open_standin

    parser = argparse.ArgumentParser(description="Find the scenes that upstream's expert solves, for evaluation.")
    parser.add_argument("task", nargs="+")
    parser.add_argument("--real", action="store_true", help="on the user's own assets (REPLAN_ROBOTWIN_ROOT)")
    parser.add_argument("--planner", default="upstream", help="with --real: upstream or cpu")
    parser.add_argument("--config", default="demo_clean", help="with --real: upstream's task configuration")
    parser.add_argument("--tries", type=int, default=10 * COUNT, help="scenes of a task that are tried")
    asked = parser.parse_args()
    opened = open_real(None, None, asked.planner, asked.config) if asked.real else open_standin()
    compute(opened.world, opened.fingerprint, asked.task, cached(opened.cache, opened.fingerprint), asked.tries)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"fingerprint": {}, "tasks": {}}
    return json.loads(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
