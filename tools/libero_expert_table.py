"""Writes docs/libero_experts.md: how often the scripted experts solve LIBERO's tasks within the standard step limits.

Usage: python tools/libero_expert_table.py --kept FILE > docs/libero_experts.md
FILE (JSON) keeps what was played, task by task, and the page shows all that it has of the suites asked for; so a run
that was stopped, or was about fewer states, is continued. Delete it when the experts have changed. Progress, with the
initial states that were not solved, goes to the standard error. ``--suite``, ``--task`` (part of a name) and
``--states`` make it a look at some of the tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
from replan.envs import SUITES

SHOWN = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
HEAD = """# How often LIBERO's experts succeed

Written by `tools/libero_expert_table.py`; see [LIBERO](libero.md). The scripted experts see the simulator's state and
act on the first of the standard initial states of each task, as many as the tables say (seed 0, `delta` controller,
protocol `openpi`). *Solved* counts LIBERO's own rule within the standard step limit, *steps* is the median of those
solved."""


def main() -> None:
    """Plays what is not played yet and prints the page."""
    parser = argparse.ArgumentParser(description="Writes docs/libero_experts.md.")
    parser.add_argument("--suite", nargs="*", default=list(SHOWN), choices=[*SHOWN, "libero_90"])
    parser.add_argument("--task", default="", help="only tasks with this in their names")
    parser.add_argument("--states", type=int, default=20, help="initial states a task, from 0 on")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--kept", type=Path, help="file that keeps what was played")
    asked = parser.parse_args()
    cells = [(suite, task) for suite in asked.suite for task in SUITES[suite].tasks if asked.task in task]
    lengths: dict[str, list[int]] = json.loads(asked.kept.read_text()) if asked.kept and asked.kept.exists() else {}
    with ProcessPoolExecutor(asked.workers, get_context("spawn"), max_tasks_per_child=1) as pool:
        missing = {cell: range(len(lengths.get("/".join(cell), [])), asked.states) for cell in cells}
        playing = {cell: pool.submit(play, *cell, states) for cell, states in missing.items() if states}
        for cell, played in playing.items():
            lengths["/".join(cell)] = lengths.get("/".join(cell), []) + played.result()
            if asked.kept:
                asked.kept.write_text(json.dumps(lengths, indent=0))
    print(HEAD)
    for suite in asked.suite:
        rows = {task: lengths["/".join((of, task))] for of, task in cells if of == suite}
        print("\n" + "\n".join(section(suite, rows)))


def section(suite: str, rows: dict[str, list[int]]) -> list[str]:
    """The lines about a suite; ``rows`` has the lengths of each task's episodes, 0 for one that was not solved."""
    total, solved = sum(map(len, rows.values())), sum(length > 0 for row in rows.values() for length in row)
    lines = [f"## {suite}", "", f"{solved} of {total} solved ({solved / max(total, 1):.1%}).", ""]
    lines += ["| task | solved | steps |", "|---|---|---|"]
    for task, row in rows.items():
        done = [length for length in row if length]
        lines.append(f"| `{task}` | {len(done)} of {len(row)} | {f'{median(done):.0f}' if done else '-'} |")
    return lines


def play(suite: str, task: str, states: range) -> list[int]:
    """The control steps until success from each initial state, 0 where the expert does not succeed."""
    env: Any = gymnasium.make(SUITES[suite].env_id, disable_env_checker=True).unwrapped
    env.cameras_on = False
    lengths = []
    for state in states:
        env.reset(seed=0, options={"task": task, "init_state": state})
        success, over, step = False, False, 0
        while not over:
            _, _, success, truncated, _ = env.step(env.expert_chunk(1)[0])
            over, step = success or truncated, step + 1
        lengths.append(step if success else 0)
    env.close()
    failed = [state for state, length in zip(states, lengths, strict=True) if not length]
    print(f"{suite} {task}: {len(states) - len(failed)} of {len(states)}, not {failed}", file=sys.stderr, flush=True)
    return lengths


if __name__ == "__main__":
    main()
