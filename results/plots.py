"""Plots of rows and groups as SVG fragments that take their colours from the page's style sheet.

Figures are plotted in stand-in colours that become CSS variables, so one figure serves light and dark pages; text
stays text. Nothing here computes a statistic.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from .groups import BASELINE, Group
from .leaderboard import Row
from .stats import Ratio
from .timing import measured_rounds

SERIES = 8  # distinct series colours in the style sheet; dense has its own
INK, MUTED, LINE, BASE = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", BASE: "--base"} | {
    f"#0501{i:02x}": f"--c{i}" for i in range(SERIES)
}
MARKERS = "osD^vPX*"
STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.size": 8.5,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a method's name is not a formula
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}

PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.0f} %")
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def palette(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method; the baseline is grey."""
    others = sorted(set(methods) - {BASELINE})
    return {BASELINE: BASE} | {method: f"#0501{i % SERIES:02x}" for i, method in enumerate(others)}


def success(rows: Sequence[Row], labels: Sequence[str], colours: dict[str, str]) -> str:
    """Success rate and its interval, one line per row; the baseline's interval as a band where there is just one."""

    def plot(axes: Axes) -> None:
        shown = [(row, label) for row, label in zip(rows, labels, strict=True) if row.success.n]
        baselines = [row for row, _ in shown if row.method == BASELINE]
        if len(baselines) == 1:
            axes.axvspan(baselines[0].success.low, baselines[0].success.high, color=BASE, alpha=0.12, lw=0)
        for y, (row, _) in enumerate(shown):
            colour, rate = colours[row.method], row.success
            axes.plot([rate.low, rate.high], [y, y], color=colour, lw=2.5)
            axes.plot([rate.rate], [y], "o", color=colour, ms=7)
            axes.annotate(f"{100 * rate.rate:.1f} %", (rate.rate, y), (0, 8), textcoords="offset points", ha="center")
        axes.set_yticks(range(len(shown)), [label for _, label in shown], color=INK)
        axes.set_ylim(len(shown) - 0.5, -0.7)
        axes.set_xlim(max(0.0, min(row.success.low for row, _ in shown) - 0.03), 1.01)
        axes.xaxis.set_major_formatter(PERCENT)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("success, 95 % interval")

    return _svg("success", plot, height=0.9 + 0.38 * len(rows))


def latency(groups: Sequence[Group], colours: dict[str, str]) -> str:
    """Histogram of the duration of a round for each method and route, each scaled to its own highest bar."""
    durations: dict[tuple[str, str], list[float]] = {}
    for group in groups:
        for round in measured_rounds(group.done.values()):
            durations.setdefault((group.label, round.route), []).append(max(round.host_ns, 1) / 1e6)
    if not durations:
        return ""
    every = [(group.label, round.route) for group in groups for row in group.done.values() for round in row.rounds]
    rounds, by_method = Counter(every), Counter(method for method, _ in every)
    colours = {group.label: colours[group.method] for group in groups}
    low = min(min(values) for values in durations.values()) / 1.15
    high = max(max(values) for values in durations.values()) * 1.15
    bins = np.geomspace(low, high, 90)

    def plot(axes: Axes) -> None:
        for y, ((method, route), values) in enumerate(durations.items()):
            heights = np.histogram(values, bins)[0]
            axes.stairs(
                y - 0.78 * heights / heights.max(), bins, baseline=y, fill=True, color=colours[method], alpha=0.85, lw=0
            )
            axes.plot([np.median(values)] * 2, [y, y + 0.12], color=INK, lw=1.2)
            share = rounds[method, route] / by_method[method]
            axes.text(
                1.0, y - 0.06, f"{100 * share:.0f} %", ha="right", transform=axes.get_yaxis_transform(), color=MUTED
            )
        axes.set_xscale("log")
        axes.set_xlim(low, high * (high / low) ** 0.12)  # room for the shares
        axes.set_ylim(len(durations) - 0.6, -1.05)
        methods = [method for method, _ in durations]
        names = [method if methods.count(method) == 1 else f"{method} · {route}" for method, route in durations]
        axes.set_yticks(range(len(durations)), names, color=INK)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(PLAIN)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("one round, ms (log scale)")

    return _svg("latency", plot, height=0.9 + 0.42 * len(durations))


def tradeoff(rows: Sequence[Row], colours: dict[str, str]) -> str:
    """Success against speed-up per action, with the Pareto frontier where all rows share one condition.

    A method that was not active has a hollow point and belongs to no frontier.
    """
    one = Ratio(1.0, 1.0, 1.0)
    points = [
        (one if row.speed_up is None else row.speed_up.action, row)
        for row in rows
        if row.success.n and (row.method == BASELINE or row.speed_up is not None)
    ]
    points = [(ratio, row) for ratio, row in points if not math.isnan(ratio.value)]
    if len(points) < 2:
        return ""
    single = len({row.label for _, row in points}) == len(points)

    def plot(axes: Axes) -> None:
        if single:
            frontier = _frontier([(ratio.value, row.success.rate) for ratio, row in points if row.active])
            axes.plot(*zip(*frontier, strict=True), color=MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
        seen = set()
        for i, (ratio, row) in enumerate(sorted(points, key=lambda point: point[0])):
            x, colour, rate = ratio.value, colours[row.method], row.success
            axes.plot([ratio.low, ratio.high], [rate.rate] * 2, color=colour, lw=1.5, alpha=0.6)
            axes.plot([x, x], [rate.low, rate.high], color=colour, lw=1.5, alpha=0.6)
            label = None if single or row.method in seen else row.method
            fill = colour if row.active else "none"
            axes.plot([x], [rate.rate], "o", color=colour, mfc=fill, ms=8 if single else 5, label=label)
            seen.add(row.method)
            if single:
                place = rate.high if i % 2 == 0 else rate.low
                shift, anchor = ((0, 5), "bottom") if i % 2 == 0 else ((0, -5), "top")
                axes.annotate(
                    row.label, (x, place), shift, textcoords="offset points", ha="center", va=anchor, color=colour
                )
        axes.axvline(1, color=LINE, lw=1, zorder=0)
        axes.margins(x=0.18, y=0.14)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel(f"speed-up per executed action over {BASELINE}")
        axes.set_ylabel("success")
        if not single:
            _legend(axes)

    return _svg("tradeoff", plot, height=3.3)


def _frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other point beats in both coordinates, from left to right."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best[::-1]


def sweep(rows: Sequence[Row], setting: str, line_of: Callable[[Row], tuple[str, str]], colours: dict[str, str]) -> str:
    """Success against a numeric setting. Each line is named at its end, in the order in which the lines end.

    Args:
        rows: Rows that have the setting.
        setting: Its name.
        line_of: The method and the rest of the condition of a row: what one line shares.
        colours: By method.
    """
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.success.n:
            lines.setdefault(line_of(row), []).append(row)
    if not lines:
        return ""
    rests = list(dict.fromkeys(rest for _, rest in lines))
    values = sorted({float(row.settings[setting]) for row in rows})
    step = (values[-1] - values[0]) / 100
    label_height, frame = 0.33, 0.75  # inches: a label of two lines; what the figure has above and below its axes
    height = frame + max(2.6, label_height * len(lines))

    def plot(axes: Axes) -> None:
        ends = []
        for i, ((method, rest), members) in enumerate(lines.items()):
            members = sorted(members, key=lambda row: float(row.settings[setting]))
            shift = step * (i - (len(lines) - 1) / 2)  # so that intervals do not hide each other
            x = [float(row.settings[setting]) + shift for row in members]
            for at, row in zip(x, members, strict=True):
                axes.plot([at, at], [row.success.low, row.success.high], color=colours[method], lw=1, alpha=0.45)
            axes.plot(
                x,
                [row.success.rate for row in members],
                color=colours[method],
                ls=["-", "--", ":", "-."][rests.index(rest) % 4],
                marker=MARKERS[rests.index(rest) % len(MARKERS)],
                ms=4.5,
                lw=1.6,
            )
            ends.append((x[-1], members[-1].success.rate, f"{method}\n{rest}".strip(), colours[method]))
        low, high = axes.get_ylim()
        ends.sort(key=lambda end: end[1])
        places = spread([end[1] for end in ends], (high - low) * label_height / (height - frame), low, high)
        for (x_end, rate, label, colour), place in zip(ends, places, strict=True):
            axes.annotate(
                label,
                (x_end, rate),
                (1.06, place),
                textcoords=axes.get_yaxis_transform(),
                va="center",
                color=colour,
                arrowprops={
                    "arrowstyle": "-",
                    "color": colour,
                    "lw": 0.6,
                    "relpos": (0, 0.5),
                    "shrinkA": 2,
                    "shrinkB": 4,
                },
            )
        axes.set_ylim(low, high)
        axes.set_xticks(values)
        axes.xaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.set_xlabel(setting)
        axes.set_ylabel("success, 95 % interval")

    return _svg(f"sweep-{setting}", plot, height)


def spread(places: ArrayLike, gap: float, low: float, high: float) -> np.ndarray:
    """Moves labels apart, each as little as possible.

    Args:
        places: [n], where the labels should be, ascending.
        gap: Least distance of two neighbours.
        low: Where the room for labels begins.
        high: Where it ends; it should hold n gaps.

    Returns:
        Places [n], ascending, at least ``gap`` apart and half a gap from the ends of the room.
    """
    steps = gap * np.arange(np.size(places))
    moved = isotonic_regression(np.asarray(places, dtype=float) - steps).x
    return np.clip(moved, low + gap / 2, max(low + gap / 2, high - gap / 2 - steps[-1])) + steps


def action_error(groups: Sequence[Group], colours: dict[str, str]) -> str:
    """Share of rounds whose action error is at most x, for each method but the baseline."""
    errors: dict[str, list[float]] = {}
    for group in groups:
        for episode in group.done.values() if group.method != BASELINE else ():
            measured = [round.action_error for round in episode.rounds if round.action_error is not None]
            errors.setdefault(group.label, []).extend(measured)
    errors = {method: values for method, values in errors.items() if values}
    colours = {group.label: colours[group.method] for group in groups}
    if not errors:
        return ""
    right = max(float(np.percentile(values, 99)) for values in errors.values()) * 1.05 or 1e-6

    def plot(axes: Axes) -> None:
        for method, values in errors.items():
            # A few hundred points give the same curve as all of them.
            share = np.linspace(0, 1, min(len(values), 300) + 1)
            axes.step([0, *np.quantile(values, share)], [0, *share], where="post", color=colours[method], label=method)
        axes.set_xlim(-0.015 * right, right)
        axes.set_ylim(-0.02, 1.03)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.set_xlabel("action error, RMS in normalised action units")
        axes.set_ylabel("share of rounds")
        _legend(axes)

    return _svg("error", plot, height=3.3)


def _legend(axes: Axes) -> None:
    columns = 2 if len(axes.get_legend_handles_labels()[0]) > 1 else 1
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, borderaxespad=0.3, handlelength=1.8)


def _svg(name: str, plot: Callable[[Axes], None], height: float) -> str:
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        page = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    svg = page.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML needs none, and the page then holds no URL
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # identifiers would repeat from figure to figure
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
    return re.sub("|".join(VARIABLES), lambda match: f"var({VARIABLES[match[0]]})", svg)
