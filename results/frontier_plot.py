"""The frontier as a figure of its own: success against the latency of an action, a panel per world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .frontier import MEASURED, Point, varying
from .groups import Group
from .plots import BASE, PERCENT, VARIABLES, palette

# What the page's variables stand for on white paper.
PAPER = ("#1f6fd1", "#d9660b", "#0f8a74", "#b5379a", "#8a7a00", "#6a4bd1", "#c5344b", "#3f7f1d")
GREY = "#7b8087"
COLUMNS = 3
FORMATS = ("svg", "png", "pdf")


def write(path: str | Path, worlds: Sequence[Sequence[tuple[Group, Point]]]) -> None:
    """Writes the figure; its format follows from the file's name.

    Args:
        path: The file, of one of :data:`FORMATS`. It appears whole or not at all.
        worlds: The points of each panel.

    Raises:
        OSError: The file cannot be written.
    """
    columns = min(COLUMNS, len(worlds))
    rows = math.ceil(len(worlds) / columns)
    colours = {
        name: GREY if colour == BASE else PAPER[int(VARIABLES[colour].removeprefix("--c"))]
        for name, colour in palette(point.name for world in worlds for _, point in world).items()
    }
    titles = _titles([world[0] for world in worlds])
    path = Path(path)
    unfinished = path.with_name(f".{path.stem}.part{path.suffix}")
    with matplotlib.rc_context({"font.size": 8.5, "text.parse_math": False, "svg.hashsalt": "frontier"}):
        figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.5), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes in list(panels)[len(worlds) :]:
            axes.set_axis_off()
        for axes, world, title in zip(figure.axes, worlds, titles, strict=False):
            _panel(axes, [point for _, point in world], colours)
            axes.set_title(title, fontsize=8.5)
        names = list(dict.fromkeys((point.method, point.name) for world in worlds for _, point in world))
        lines = [Line2D([], [], color=colours[name]) for _, name in names]
        figure.legend(lines, [method for method, _ in names], loc="outside upper center", ncols=4, frameon=False)
        try:
            figure.savefig(unfinished, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _panel(axes: Axes, points: Sequence[Point], colours: dict[str, str]) -> None:
    """One line per method, from its fastest condition to its slowest; hollow where another method is better there."""
    for method in dict.fromkeys(point.method for point in points):
        own = sorted((point for point in points if point.method == method), key=lambda point: point.action_ns)
        colour, x = colours[own[0].name], [point.action_ns / 1e6 for point in own]
        for at, point in zip(x, own, strict=True):
            axes.plot([at, at], [point.success.low, point.success.high], color=colour, lw=1.2, alpha=0.5)
            fill = colour if point.best else "white"
            axes.plot([at], [point.success.rate], "o", color=colour, mfc=fill, ms=5, zorder=3)
        axes.plot(x, [point.success.rate for point in own], color=colour, lw=1.2)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylim(-0.03, 1.03)
    axes.margins(x=0.08)
    axes.grid(color="#dfe0dd", lw=0.5)
    axes.spines[["right", "top"]].set_visible(False)
    axes.set_xlabel("latency per executed action, ms")
    axes.set_ylabel("success, 95 % interval")


def _titles(firsts: Sequence[tuple[Group, Point]]) -> list[str]:
    """A title per panel: in what the panels differ, or the suite where there is one."""
    latency = "latency"  # of which a panel holds several, of one kind
    conditions = [
        {**point.condition, latency: MEASURED if group.latency == MEASURED else "given"} for group, point in firsts
    ]
    names = varying(conditions) or ["suite"]
    return [", ".join(f"{name} {each.get(name, 'any')}" for name in names) for each in conditions]
