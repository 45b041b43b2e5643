"""``replan plan``: how many cells a verdict takes, from the flips of a pilot run."""

from __future__ import annotations

from typing import Any

import click

from . import FiniteRange, json_option, margin_option, show


@click.command()
@click.argument("directory", metavar="RUN")
@margin_option
@click.option(
    "--power", type=FiniteRange(0.05, 0.99), default=0.8, show_default=True, help="Chance that the proof succeeds."
)
@click.option("--hours", type=FiniteRange(min=0, min_open=True), help="Budget: also say what it can certify.")
@json_option
def plan(directory: str, margin: float, power: float, hours: float | None) -> dict[str, Any]:
    """Say how many cells the gate needs, from a pilot run.

    For methods that lose nothing and flip as many cells as the pilot did. Hours are those of the rounds on the machine
    of the pilot; the simulator's come on top.
    """
    from tabulate import tabulate

    from ...results.planning import plans
    from ...results.store import Store

    with Store.open(directory) as store:
        found = plans(store, margin, power, hours)
    rows = [
        {
            "suite": each.suite,
            "method": each.method,
            "pilot": f"{each.lost} lost, {each.gained} gained of {each.n}",
            "cells": each.cells or "none would do",
            "hours": f"{each.hours:.2g}" if each.cells else "–",
        }
        | ({f"in {hours:g} h": f"{100 * each.certified:.1f} points" if each.certified else "none"} if hours else {})
        for each in found
    ]
    show(tabulate(rows, headers="keys"))
    points = f"{100 * margin:g} points"
    show(f"cells: to exclude a loss of {points} with power {power:g}, through the test of `replan gate`")
    return {"plan": [each._asdict() for each in found], "margin": margin, "power": power}
