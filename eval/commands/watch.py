"""``replan watch``: whether a run that is still going on has already shown enough."""

from __future__ import annotations

from typing import Any

import click

from ...results.escaping import counted
from . import json_option, margin_option, show


@click.command()
@click.argument("directory", metavar="RUN")
@margin_option
@click.option("--block", type=click.IntRange(min=1), default=20, show_default=True, help="Cells between two looks.")
@json_option
def watch(directory: str, margin: float, block: int) -> dict[str, Any]:
    """Say whether a run may stop: after any look, at 5 % in all.

    Only whole blocks of cells count, in the order in which they are played, so that episodes that take long are not
    left out. `replan gate` and its p-values are for runs whose size was set before.
    """
    from ...results.store import Store
    from ...results.watching import watched
    from ..cells import make_cells
    from ..registry import Registry
    from ..spec import make_spec

    with Store.open(directory) as store:
        suites = Registry().suites()
        spec = make_spec({**store.run.spec, "out": directory}, suites)
        order: dict[Any, list[str]] = {}
        for cell in make_cells(spec, suites):
            order.setdefault((cell.suite, tuple(sorted(cell.settings.items()))), []).append(cell.key)
        found = watched(store, order, margin, block)
    for each in found:
        where = ", ".join([each.suite, *(f"{name} {value}" for name, value in each.settings.items()), each.method])
        show(
            f"{where}: {each.wealth.verdict} after {counted(each.n, 'cell')} ({each.lost} lost, {each.gained} "
            f"gained; evidence {each.wealth.against_loss:.3g} and {each.wealth.against_none:.3g}, of {each.enough:g})"
        )
    return {"watch": [each._asdict() | {"wealth": each.wealth._asdict()} for each in found], "margin": margin}
