"""``replan envs``: the suites, and what can be asked of them."""

from __future__ import annotations

from typing import Any

import click

from ..spec import unknown
from . import json_option


@click.command()
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@json_option
def envs(names: tuple[str, ...]) -> dict[str, Any]:
    """List suites and their settings; of the suites that are named, the tasks."""
    from tabulate import tabulate

    from ..registry import Registry

    known = Registry().suites()
    for name in names:
        if name not in known:
            raise unknown("suite", name, known)
    suites = [
        {
            "suite": suite.name,
            "env_id": suite.env_id,
            "tasks": list(suite.tasks),
            "init_states": suite.init_states,
            "settings": {name: kind.__name__ for name, kind in suite.settings.items()},
            "policy": suite.policy,
            "expert": suite.expert,
            "marks": list(suite.marks),
        }
        for suite in known.values()
        if suite.name in names or not names
    ]
    rows = [
        {
            **{key: suite[key] for key in ("suite", "env_id")},
            "tasks": len(suite["tasks"]),
            "init_states": suite["init_states"] or "drawn",
            "settings": ", ".join(f"{name}: {kind}" for name, kind in suite["settings"].items()),
            "policy": suite["policy"] or "none",
        }
        for suite in suites
    ]
    click.echo(tabulate(rows, headers="keys"))
    for suite in suites:
        for mark in suite["marks"]:
            click.echo(f"  {suite['suite']}, {mark}")
        if names:
            click.echo("\n".join([f"\nTasks of {suite['suite']}:", *suite["tasks"]]))
    return {"suites": suites}
