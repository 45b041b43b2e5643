"""Runs an evaluation of the fake suite; a script of its own, so that a test can kill it."""

from __future__ import annotations

import sys
from typing import Any

from fake import FakeBench
from replan.eval.cells import Job, make_cells, make_jobs
from replan.eval.clock import parse_latency
from replan.eval.provenance import make_run
from replan.eval.runner import run
from replan.eval.spec import Spec, make_spec
from replan.results.schema import EpisodeRow
from replan.results.store import Store


def jobs_of(spec: Spec) -> list[Job]:
    bench = FakeBench()
    checkpoints = bench.checkpoints(spec.policy.values(), spec.method)
    return make_jobs(spec, make_cells(spec, bench.suites()), checkpoints, parse_latency(spec.latency).identity())


def play(out: Any, *, backwards: bool = False, **fields: Any) -> dict[tuple[str, str], EpisodeRow]:
    """Runs an evaluation and returns all episodes of its directory by (cell, method)."""
    bench = FakeBench()
    plain = {"suite": "belt", "episodes": 6, "timeout": 60, "out": str(out), **fields}
    spec = make_spec(plain, bench.suites())
    checkpoints = bench.checkpoints(spec.policy.values(), spec.method)
    record = make_run(spec, bench, checkpoints, parse_latency(spec.latency), command="test", started="2026-01-01")
    run(spec, jobs_of(spec)[:: -1 if backwards else 1], record, bench, progress=False)
    with Store.open(out) as store:
        return {(row.cell, row.method): row for row in store.episodes()}


if __name__ == "__main__":
    play(sys.argv[1], episodes=int(sys.argv[2]), method=sys.argv[3])
