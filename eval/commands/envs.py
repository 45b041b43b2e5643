"""``replan envs``: the suites, and what can be asked of them."""

from __future__ import annotations

from typing import Any

import click

from . import json_option


@click.command()
@json_option
def envs() -> dict[str, Any]:
    """List suites, their tasks and their settings."""
    from tabulate import tabulate

    from ..bench import Bench

    suites = [
        {
            "suite": suite.name,
            "env_id": suite.env_id,
            "tasks": list(suite.tasks),
            "init_states": suite.init_states,
            "settings": {name: kind.__name__ for name, kind in suite.settings.items()},
        }
        for suite in Bench().suites().values()
    ]
    rows = [
        {
            **suite,
            "tasks": "\n".join(suite["tasks"]),
            "init_states": suite["init_states"] or "drawn",
            "settings": "\n".join(f"{name}: {kind}" for name, kind in suite["settings"].items()),
        }
        for suite in suites
    ]
    click.echo(tabulate(rows, headers="keys", tablefmt="simple_grid"))
    return {"suites": suites}
