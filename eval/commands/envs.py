"""``replan envs``: the suites with their tasks and settings."""

from __future__ import annotations

from typing import Any

import click

from ..spec import unknown
from . import json_option, show


@click.command()
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@json_option
def envs(names: tuple[str, ...]) -> dict[str, Any]:
    """List suites and their settings; with names, their tasks too."""
    from tabulate import tabulate

    from ...envs import UNAVAILABLE
    from ..registry import Registry

    known = Registry().suites()
    for name in names:
        if name not in known and name not in UNAVAILABLE:
            raise unknown("suite", name, [*known, *UNAVAILABLE])
    suites = [
        {
            "suite": suite.name,
            "env_id": suite.env_id,
            "tasks": list(suite.tasks),
            "init_states": suite.init_states,
            "settings": {name: kind.__name__ for name, kind in suite.settings.items()},
            "policy": suite.policy,
            "demonstrations": suite.demonstrations is not None,
            "marks": list(suite.marks),
        }
        for suite in known.values()
        if suite.name in names or not names
    ]
    rows = [
        {
            **{key: suite[key] for key in ("suite", "env_id")},
            "tasks": len(suite["tasks"]),
            "init_states": suite["init_states"] or "unlimited",
            "settings": ", ".join(f"{name}: {kind}" for name, kind in suite["settings"].items()),
            "policy": suite["policy"] or "none",
        }
        for suite in suites
    ]
    unavailable = {name: reason for name, reason in UNAVAILABLE.items() if name in names or not names}
    if rows:
        show(tabulate(rows, headers="keys"))
    for suite in suites:
        for mark in suite["marks"]:
            show(f"  {suite['suite']}, {mark}")
        if names:
            show("\n".join([f"\nTasks of {suite['suite']}:", *suite["tasks"]]))
    for name, reason in unavailable.items():
        show(f"  {name}, unavailable: {reason}")
    return {"suites": suites, "unavailable": unavailable}
