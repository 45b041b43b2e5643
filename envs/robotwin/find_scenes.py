"""Finds the scenes that upstream's expert solves, and stores them for evaluations.

``python -m replan.envs.robotwin.find_scenes [--real] TASK...`` finds them for the assets and versions of this machine.
Tasks that are stored for the same fingerprint are kept.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...files import write_file
from .bridge import RemoteWorld
from .seeds import cached, read
from .source import open_real, open_standin
from .tasks import COUNT, STORED
from .world import UnstableScene, World

FIRST = 100_000  # where the search starts, as upstream's does
MOST = 62  # scenes of a task that are tried: one that the expert solves less often than 80 % of the time is left out


def search(world: World | RemoteWorld, task: str, most: int = MOST) -> list[int | list[Any]]:
    """Returns the first scenes that upstream's expert solves: seeds, with what only it knows of them.

    Raises:
        RuntimeError: It cannot solve enough of the first ``most``.
    """
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
    stored = read(path)
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
        rows = ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(scenes)}" for name, scenes in sorted(stored["tasks"].items())
        )
        write_file(path, f'{{\n "fingerprint": {json.dumps(dict(key))},\n "tasks": {{\n{rows}\n }}\n}}\n')
        print(f"{task}: {COUNT} scenes", flush=True)


def main() -> None:
    """Finds scenes and stores them in the cache folder, or in the package."""
    parser = argparse.ArgumentParser(description="Find the scenes that upstream's expert solves, for evaluation.")
    parser.add_argument("task", nargs="+")
    parser.add_argument("--real", action="store_true", help="on the user's own assets (REPLAN_ROBOTWIN_ROOT)")
    parser.add_argument("--planner", default="upstream", help="with --real: upstream or cpu")
    parser.add_argument("--config", default="demo_clean", help="with --real: upstream's task configuration")
    parser.add_argument("--tries", type=int, default=10 * COUNT, help="scenes per task that are tried")
    parser.add_argument("--bundled", action="store_true", help="store them in the package itself, not in the cache")
    arguments = parser.parse_args()
    if arguments.real:
        opened = open_real(None, None, arguments.planner, arguments.config)
    else:
        opened = open_standin()
    path = STORED if arguments.bundled else cached(opened.cache, opened.fingerprint)
    compute(opened.world, opened.fingerprint, arguments.task, path, arguments.tries)


if __name__ == "__main__":
    main()
