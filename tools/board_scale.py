"""Writes a synthetic run of many episodes, and says what `replan board` and `replan export` take for it.

Usage: .venv/bin/python tools/board_scale.py [--episodes 200000] [FOLDER]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time  # noqa: TID251 - this measures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from replan.results import Run, RunIdentity, Store
from replan.results.addresses import address, cell_address, files_digest, measurement
from replan.results.store import EPISODE_COLUMNS, FILE, ROUND_COLUMNS

METHODS = ("dense", "few_step", "dp_cache", "stale_prefix")
ROUNDS = 6
WEIGHTS = "b80e8226c03c0c878feabf8e6ccfdde613a46fcdae48e011ee9c07326e90bda5"
CODE = {"method": "03a5a7b1e574f108", "policy": "0350be0beca30011", "suite": "18064ed3f90ef649"}
RULE = "the named object rests (< 0.05 m/s) in the named bin, released, before it rides past y = 0.5 m"


def run() -> Run:
    """The record of the run."""
    return Run(
        spec={"suite": ["conveyor"], "method": list(METHODS)},
        identity=RunIdentity({"fixed": 0}, files={"conveyor": dict.fromkeys(METHODS, files_digest(WEIGHTS, ()))}),
        activity_counters={"few_step": ("steps_skipped",)},
        command="tools/board_scale.py",
        started="2026-01-01T00:00:00+00:00",
        commit="unknown",
        packages={},
        machines={"81103c73f01c": {"processor": "one core"}},
        checkpoints={"pi0-tiny": WEIGHTS},
    )


def episodes(count: int) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yields episodes with their rounds, as the columns of the store: the methods of a cell side by side."""
    random = np.random.default_rng(0)
    for number in range(count // len(METHODS)):
        where = {"suite": "conveyor", "task": f"dog-{number % 4}", "init_state": number, "seed": 0}
        cell = cell_address(**where, settings={})
        manifest = {"init_state": cell[:16], "step_budget": "10 s", "success_rule": RULE, "headline": RULE}
        for method in METHODS:
            content = measurement(cell, WEIGHTS, (), method, CODE, "sync", {"fixed": 0}, "float32", "cpu")
            key, success = address(content), bool(random.random() < 0.95)
            episode = {
                **where,
                "key": key,
                "cell": cell,
                "settings": "{}",
                "policy": "pi0-tiny",
                "method": method,
                "clock": "sync",
                "latency": "zero",
                "status": "done",
                "success": success,
                "steps": 10 * ROUNDS,
                "sim_ns": 50_000_000 * 10 * ROUNDS,
                "outcome": "success" if success else "lost",
                "manifest": json.dumps(manifest, sort_keys=True),
                "observation_hash": cell[::-1],
                "trajectory_hash": key[::-1],
                "counters": json.dumps({"steps_skipped": float(random.integers(1, 60))}),
                "success_at_end": success,
                "dtype": "float32",
                "device": "cpu",
                "machine": "81103c73f01c",
                "code": json.dumps(CODE),
                "weights": WEIGHTS,
                "session": 1,
                "retries": 0,
            }
            rounds = []
            for index, host in enumerate(random.integers(20_000_000, 60_000_000, ROUNDS).tolist()):
                stages = {"denoise": host // 2, "encode": host // 4, "prefill": host // 4}
                rounds.append(
                    {
                        "index": index,
                        "control_step": 10 * index,
                        "route": "full",
                        "host_ns": host,
                        "cpu_ns": host - 5,
                        "latency_ns": 0,
                        "stages_ns": json.dumps(stages),
                        "executed": 10,
                        "window": 10,
                        "warmup": False,
                        "action_error": float(random.random()) if index == 2 else None,
                        "extra": "{}",
                    }
                )
            yield episode, rounds


def write(folder: Path, count: int) -> None:
    """Writes the run."""
    Store.start(folder, run()).close()
    with sqlite3.connect(folder / FILE) as connection:
        for episode, rounds in episodes(count):
            connection.execute(_insert("episodes", EPISODE_COLUMNS), [episode.get(name) for name in EPISODE_COLUMNS])
            connection.executemany(
                _insert("rounds", ["episode", *ROUND_COLUMNS]),
                ([episode["key"], *(each.get(name) for name in ROUND_COLUMNS)] for each in rounds),
            )


def _insert(table: str, columns: list[str]) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"


@dataclasses.dataclass
class Cost:
    """What a command took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def cost(*command: str) -> Cost:
    """Runs a command in a process of its own."""
    code = f"from replan.eval.cli import main; main({list(command)!r})"
    report = (
        "import atexit, resource, sys; "
        "atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)); "
    )
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - start, cpu, int(done.stderr.split()[-1]) / 1024)


def main() -> None:
    """Writes the run, unless the folder holds one, and prints what the commands take."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--episodes", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "run"
        if not (folder / FILE).exists():
            write(folder, arguments.episodes)
        for command in (["board", str(folder)], ["export", str(folder), "--out", f"{temporary}/tables"]):
            found = cost(*command)
            print(f"{command[0]}: {found.wall_s:.1f} s, {found.cpu_s:.1f} s of processor, {found.peak_mb:.0f} MB")


if __name__ == "__main__":
    main()
