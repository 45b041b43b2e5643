"""``replan frontier``: how much speed and delay methods bear, and what latency buys."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..spec import BadInput, unknown
from . import FiniteRange, check_output, json_option, show

if TYPE_CHECKING:
    from ...results.frontier import Critical


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="RUN...")
@click.option("--over", metavar="NAME,...", help="Settings that make the task harder as they grow, such as speed.")
@click.option(
    "--least",
    type=FiniteRange(0, 100, min_open=True, max_open=True),
    default=80.0,
    show_default=True,
    help="Success in % that has to be held.",
)
@click.option("--plot", metavar="FILE", help="Also write the figure: .svg, .png or .pdf.")
@json_option
def frontier(directories: tuple[str, ...], over: str | None, least: float, plot: str | None) -> dict[str, Any]:
    """Show how much speed and delay each method bears.

    Runs are a sweep: a setting at several values (--over), or several latencies, as `replan replay` makes them.
    """
    from tabulate import tabulate

    from ...results import frontier as found
    from ...results import frontier_plot
    from ...results.leaderboard import to_json
    from ...results.store import Store

    if plot is not None:
        kind = Path(plot).suffix.removeprefix(".")
        if kind not in frontier_plot.FORMATS:
            raise unknown("format of --plot:", kind, frontier_plot.FORMATS)
        check_output("--plot", plot, "figure", b"<?xml", b"<svg", b"\x89png", b"%pdf")
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(directory)) for directory in directories]
        points = found.points(stores)
    if not points:
        raise BadInput(f"{', '.join(directories)}: no episode has been measured; `replan frontier` needs some")
    settings = [name.strip() for name in over.split(",")] if over else []
    limits = found.limits(points, settings, least / 100)
    names = found.varying([point.condition for _, point in points])
    show(
        tabulate(
            [
                {name: point.condition.get(name, "any") for name in names}
                | {
                    "method": point.method,
                    "success": f"{100 * point.success.rate:.1f} %",
                    "95 %": f"[{100 * point.success.low:.1f}, {100 * point.success.high:.1f}]",
                    "n": point.success.n,
                    "ms per round": f"{point.delay_ns / 1e6:.1f}",
                    "ms per action": f"{point.action_ns / 1e6:.2f}",
                    "unbeaten": "yes" if point.best else "",
                }
                for _, point in points
            ],
            headers="keys",
            disable_numparse=True,
        )
    )
    if limits:
        names = found.varying([limit.condition for limit in limits])
        lines = [
            {name: limit.condition.get(name, "any") for name in names}
            | {
                "method": limit.method,
                "over": f"{limit.over}{' ms' * (limit.over == found.DELAY)}",
                f"{least:g} % up to": _value(limit.critical),
                "95 %": _interval(limit.critical),
            }
            for limit in limits
        ]
        show(f"\n{tabulate(lines, headers='keys', disable_numparse=True)}")
    if plot:
        worlds: dict[Any, list[Any]] = {}
        for group, point in points:
            worlds.setdefault(found.world(group), []).append((group, point))
        frontier_plot.write(plot, list(worlds.values()))
        show(f"wrote {plot}")
    return {"points": to_json([p for _, p in points]), "limits": to_json(limits), "least": least / 100, "plot": plot}


def _value(critical: Critical) -> str:
    if not math.isnan(critical.value):
        return _number(critical.value)
    return f"above {_number(critical.last)}" if critical.holds else f"below {_number(critical.first)}"


def _interval(critical: Critical) -> str:
    """What is proven, in words: the ends are levels that were measured."""
    low, high = critical.low, critical.high
    if math.isnan(low) and math.isnan(high):
        return "not established"
    if math.isnan(high):
        return f"at least {_number(low)}"
    return f"below {_number(high)}" if math.isnan(low) else f"{_number(low)} to {_number(high)}"


def _number(level: float) -> str:
    return f"{level:.0f}" if level >= 100 else f"{level:.3g}"
