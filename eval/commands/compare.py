"""``replan compare``: what changed between two runs, or between two values of a setting."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from ..spec import BadInput
from . import CommandFailed, json_option, mixed_option, show


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="OLD [NEW]")
@click.option("--across", metavar="NAME", help="Compare values of a setting or of policy, method, latency ... instead.")
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Exit with 1 where this holds, such as 'success<-2' (points) or 'lost>3' (cells). May be repeated.",
)
@mixed_option
@json_option
def compare(
    directories: tuple[str, ...], across: str | None, conditions: tuple[str, ...], allow_mixed: bool
) -> dict[str, Any]:
    """Compare two runs, or two settings, cell by cell."""
    from ...results import compare as comparisons
    from ...results import leaderboard, tables, thresholds
    from ...results.store import Store

    if len(directories) > 2 or (len(directories) == 1 and across is None):
        raise BadInput(f"compare takes OLD and NEW, or one directory with --across; got {', '.join(directories)}")
    parsed = [thresholds.parse(condition) for condition in conditions]
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(directory)) for directory in directories]
        if across is None:
            found = comparisons.compare_runs(*stores, allow_mixed=allow_mixed)
        else:
            found = comparisons.compare_across(stores, across, allow_mixed=allow_mixed)
    show(tables.comparison_text(found))
    result = {"compare": leaderboard.to_json(found), "failed": thresholds.broken(found, parsed)}
    if result["failed"]:
        raise CommandFailed("; ".join(result["failed"]), result)
    return result
