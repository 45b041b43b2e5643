"""Runs an evaluation of the fake suite; a script of its own, so that a test can kill it."""

from __future__ import annotations

import sys
from typing import Any

from fake import FakeRegistry
from replan.eval.evaluate import Plan, make_plan
from replan.eval.registry import Registry
from replan.eval.runner import run
from replan.eval.spec import make_spec
from replan.results.schema import EpisodeRow
from replan.results.store import Store


def plan(out: Any = "unused", *, registry: Registry | None = None, **fields: Any) -> Plan:
    """What is to be run, with the fake suite's defaults."""
    registry = registry or FakeRegistry()
    plain = {"suite": "belt", "episodes": 6, "timeout": 60, "device": "cpu", "out": str(out), **fields}
    return make_plan(make_spec(plain, registry.suites()), registry, command="test", started="2026-01-01")


def play(
    out: Any, *, registry: Registry | None = None, backwards: bool = False, **fields: Any
) -> dict[tuple[str, str], EpisodeRow]:
    """Runs an evaluation and returns all episodes of its directory by (cell, method)."""
    prepared = plan(out, registry=registry, **fields)
    if backwards:
        prepared = prepared._replace(jobs=prepared.jobs[::-1])
    run(*prepared, registry or FakeRegistry(), progress=False)
    with Store.open(out) as store:
        return {(row.cell, row.method): row for row in store.episodes()}


if __name__ == "__main__":
    play(sys.argv[1], episodes=int(sys.argv[2]), method=sys.argv[3])
