"""The frontier as a figure of its own: success against the latency of an action, a panel per world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .frontier import Point
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
    varying = _varying([world[0][1] for world in worlds])
    path = Path(path)
    unfinished = path.with_name(f".{path.stem}.part{path.suffix}")
    with matplotlib.rc_context({"font.size": 8.5, "text.parse_math": False, "svg.hashsalt": "frontier"}):
        figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.5), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axes in list(panels)[len(worlds) :]:
            axes.set_axis_off()
        for axes, world in zip(figure.axes, worlds, strict=False):
            _panel(axes, [point for _, point in world], colours)
            axes.set_title(", ".join(f"{name} {world[0][1].condition[name]}" for name in varying), fontsize=8.5)
        handles = {label: handle for axes in figure.axes for handle, label in zip(*_legend(axes), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, frameon=False)
        try:
            figure.savefig(unfinished, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=160)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def _panel(axes: Axes, points: Sequence[Point], colours: dict[str, str]) -> None:
    """One line per method, from its fastest condition to its slowest; what nothing beats is joined by dashes."""
    best = sorted((point.action_ns / 1e6, point.success.rate) for point in points if point.best)
    axes.plot(*zip(*best, strict=True), color="#63686f", lw=1, ls=(0, (4, 3)), zorder=1)
    for method in dict.fromkeys(point.method for point in points):
        own = sorted((point for point in points if point.method == method), key=lambda point: point.action_ns)
        colour, x = colours[own[0].name], [point.action_ns / 1e6 for point in own]
        for at, point in zip(x, own, strict=True):
            axes.plot([at, at], [point.success.low, point.success.high], color=colour, lw=1.2, alpha=0.5)
        axes.plot(x, [point.success.rate for point in own], "o-", color=colour, ms=5, lw=1.2, label=method)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.set_ylim(-0.03, 1.03)
    axes.margins(x=0.08)
    axes.grid(color="#dfe0dd", lw=0.5)
    axes.spines[["right", "top"]].set_visible(False)
    axes.set_xlabel("latency per executed action, ms")
    axes.set_ylabel("success, 95 % interval")


def _legend(axes: Axes) -> tuple[list[object], list[str]]:
    handles, labels = axes.get_legend_handles_labels()
    return list(handles), [str(label) for label in labels]


def _varying(points: Sequence[Point]) -> list[str]:
    """Parts of the condition in which panels differ, or the suite where there is one panel."""
    names = dict.fromkeys(name for point in points for name in point.condition)
    differing = [name for name in names if len({point.condition.get(name) for point in points}) > 1]
    return differing or ["suite"]
