"""Plots of rows and groups, as fragments for a page (see :mod:`.svg`). Nothing here computes a statistic.

Rows come with their numbers on the page, so that every part of a plot says which rows it shows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from .groups import BASELINE, Group
from .leaderboard import Row
from .svg import BASE, INK, MUTED, fragment, tag
from .tables import milliseconds, percent
from .timing import measured_rounds

Rows = Mapping[int, Row]  # by number on the page

MARKERS = "osD^vPX*"
LABEL, FRAME = 0.33, 0.75  # inches: a label of two lines; what a figure has above and below its axes

PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g} %")
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


def success(rows: Rows, labels: Mapping[int, str], colours: dict[str, str]) -> str:
    """Success rate and its interval, one line per row; the baseline's interval as a band where there is just one."""
    shown = {number: row for number, row in rows.items() if row.success.n}

    def plot(axes: Axes) -> None:
        baselines = [row for row in shown.values() if row.method == BASELINE]
        if len(baselines) == 1:
            axes.axvspan(baselines[0].success.low, baselines[0].success.high, color=BASE, alpha=0.12, lw=0)
        for y, (number, row) in enumerate(shown.items()):
            colour, rate = colours[row.method], row.success
            part = tag([number], _says(row, labels[number]))
            axes.plot([rate.low, rate.high], [y, y], color=colour, lw=2.5, gid=tag([number]))
            axes.plot([rate.rate], [y], "o", color=colour, ms=7, gid=tag([number]))
            axes.annotate(
                f"{100 * rate.rate:.1f} %",
                (rate.rate, y),
                (0, 8),
                textcoords="offset points",
                ha="center",
                gid=tag([number]),
            )
            _pointed_at(axes, [rate.low, rate.high], [y, y], part)
        _name_ticks(axes, [labels[number] for number in shown], [[number] for number in shown])
        axes.set_ylim(len(shown) - 0.5, -0.7)
        axes.set_xlim(max(0.0, min(row.success.low for row in shown.values()) - 0.03), 1.01)
        axes.xaxis.set_major_formatter(PERCENT)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("success, 95 % interval")

    return fragment("success", plot, height=0.9 + 0.38 * len(rows)) if shown else ""


def latency(groups: Sequence[Group], rows: Rows, colours: dict[str, str]) -> str:
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
            middle, numbers = float(np.median(values)), _numbers(rows, method)
            share = f"{100 * rounds[method, route] / by_method[method]:.0f} %"
            median = f"median {milliseconds(1e6 * middle)} ms of {len(values)}"
            says = f"{method}, route {route}\n{share} of its rounds\n{median}"
            axes.stairs(
                y - 0.78 * heights / heights.max(),
                bins,
                baseline=y,
                fill=True,
                color=colours[method],
                alpha=0.85,
                lw=0,
                gid=tag(numbers, says),
            )
            axes.plot([middle] * 2, [y, y + 0.12], color=INK, lw=1.2, gid=tag(numbers))
            place = axes.get_yaxis_transform()
            axes.text(1.0, y - 0.06, share, ha="right", transform=place, color=MUTED, gid=tag(numbers))
        axes.set_xscale("log")
        axes.set_xlim(low, high * (high / low) ** 0.12)  # room for the shares
        axes.set_ylim(len(durations) - 0.6, -1.05)
        methods = [method for method, _ in durations]
        names = [method if methods.count(method) == 1 else f"{method} · {route}" for method, route in durations]
        _name_ticks(axes, names, [_numbers(rows, method) for method in methods])
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(PLAIN)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("one round, ms (log scale)")

    return fragment("latency", plot, height=0.9 + 0.42 * len(durations))


def pareto(rows: Rows, labels: Mapping[int, str], colours: dict[str, str]) -> str:
    """Retention against time per action, with the Pareto frontier where all rows share one condition.

    The baseline keeps all that it solves, by definition. A method that was not active has a hollow point and belongs to
    no frontier.
    """
    points = {number: point for number, row in rows.items() if (point := _kept_and_time(row))}
    if len(points) < 2 or all(rows[number].method == BASELINE for number in points):
        return ""
    single = len({rows[number].label for number in points}) == len(points)
    height = FRAME + max(2.6, LABEL / 2 * len(points) if single else 0)

    def plot(axes: Axes) -> None:
        if single:
            active = [(-ms, kept) for number, (ms, kept) in points.items() if rows[number].active]
            frontier = [(-minus, kept) for minus, kept in _frontier(active)]
            axes.plot(*zip(*frontier, strict=True), color=MUTED, lw=1, ls=(0, (4, 3)), zorder=1)
        seen, ends = set(), []
        for number, (ms, kept) in points.items():
            row, colour = rows[number], colours[rows[number].method]
            part = tag([number], _says(row, labels[number]))
            if row.retention:
                bounds = row.retention.overall
                axes.plot([ms, ms], [bounds.low, bounds.high], color=colour, lw=1.5, alpha=0.6, gid=tag([number]))
                _pointed_at(axes, [ms, ms], [bounds.low, bounds.high], part)
            if row.speed_up and not math.isnan(row.speed_up.action.low):
                ratio = row.speed_up.action
                across = [ms * ratio.value / ratio.high, ms * ratio.value / ratio.low]
                axes.plot(across, [kept] * 2, color=colour, lw=1.5, alpha=0.6, gid=tag([number]))
                _pointed_at(axes, across, [kept] * 2, part)
            label = None if single or row.method in seen else row.method
            fill = colour if row.active else "none"
            axes.plot([ms], [kept], "o", color=colour, mfc=fill, ms=8 if single else 5, label=label, gid=part)
            seen.add(row.method)
            ends.append((ms, kept, row.label, colour, number))
        axes.margins(x=0.1, y=0.12)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(PLAIN)
        axes.set_xlabel("ms per action")
        axes.set_ylabel(f"kept of what {BASELINE} solves")
        if single:
            _name_at_the_right(axes, ends, LABEL / 2 / (height - FRAME))
        else:
            _legend(axes)

    return fragment("pareto", plot, height)


def _kept_and_time(row: Row) -> tuple[float, float] | None:
    """Milliseconds per action and retention; None where one of them is not known."""
    if math.isnan(row.action_ns) or not (row.method == BASELINE or row.retention):
        return None
    kept = row.retention.overall.rate if row.retention else 1.0
    return None if math.isnan(kept) else (row.action_ns / 1e6, kept)


def _frontier(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points that no other point beats in both coordinates, from left to right."""
    best: list[tuple[float, float]] = []
    for x, y in sorted(points, reverse=True):
        if not best or y > best[-1][1]:
            best.append((x, y))
    return best[::-1]


def sweep(
    rows: Rows,
    labels: Mapping[int, str],
    setting: str,
    line_of: Callable[[Row], tuple[str, str]],
    colours: dict[str, str],
) -> str:
    """Success against a numeric setting. Each line is named at its end, in the order in which the lines end.

    Args:
        rows: Rows that have the setting.
        labels: Their names.
        setting: Its name.
        line_of: The method and the rest of the condition of a row: what one line shares.
        colours: By method.
    """
    lines: dict[tuple[str, str], dict[int, Row]] = {}
    for number, row in rows.items():
        if row.success.n:
            lines.setdefault(line_of(row), {})[number] = row
    if not lines:
        return ""
    rests = list(dict.fromkeys(rest for _, rest in lines))
    values = sorted({float(row.settings[setting]) for row in rows.values()})
    step = (values[-1] - values[0]) / 100
    height = FRAME + max(2.6, LABEL * len(lines))

    def plot(axes: Axes) -> None:
        ends = []
        for i, ((method, rest), line) in enumerate(lines.items()):
            members = dict(sorted(line.items(), key=lambda each: float(each[1].settings[setting])))
            shift = step * (i - (len(lines) - 1) / 2)  # so that intervals do not hide each other
            x = [float(row.settings[setting]) + shift for row in members.values()]
            y = [row.success.rate for row in members.values()]
            for at, (number, row) in zip(x, members.items(), strict=True):
                bar = [row.success.low, row.success.high]
                axes.plot([at, at], bar, color=colours[method], lw=1, alpha=0.45, gid=tag([number]))
                _pointed_at(axes, [at, at], bar, tag([number], _says(row, labels[number])))
            axes.plot(
                x,
                y,
                color=colours[method],
                ls=["-", "--", ":", "-."][rests.index(rest) % 4],
                marker=MARKERS[rests.index(rest) % len(MARKERS)],
                ms=4.5,
                lw=1.6,
                gid=tag(members),
            )
            ends.append((x[-1], y[-1], f"{method}\n{rest}".strip(), colours[method], *members))
        limits = axes.get_ylim()
        _name_at_the_right(axes, ends, LABEL / (height - FRAME))
        axes.set_ylim(limits)
        axes.set_xticks(values)
        axes.xaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.set_xlabel(setting)
        axes.set_ylabel("success, 95 % interval")

    return fragment(f"sweep-{setting}", plot, height)


def _name_at_the_right(axes: Axes, ends: list[tuple[Any, ...]], gap: float) -> None:
    """Names points at the right edge, in their order, a thin line from each name to its point.

    Args:
        axes: Where.
        ends: x, y, name, colour and numbers of rows of each.
        gap: Height of a name, as a share of that of the axes.
    """
    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[1])
    places = spread([y for _, y, *_ in ends], (high - low) * gap, low, high)
    for (x, y, name, colour, *numbers), place in zip(ends, places, strict=True):
        line = {"arrowstyle": "-", "color": colour, "lw": 0.6, "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 4}
        axes.annotate(
            name,
            (x, y),
            (1.06, place),
            textcoords=axes.get_yaxis_transform(),
            va="center",
            color=INK,
            arrowprops=line | {"gid": tag(numbers)},
            gid=tag(numbers),
        )


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


def action_error(groups: Sequence[Group], rows: Rows, colours: dict[str, str]) -> str:
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
            x, y = [0, *np.quantile(values, share)], [0, *share]
            numbers, (middle, most) = _numbers(rows, method), np.quantile(values, (0.5, 0.9))
            says = f"{method}\nhalf of {len(values)} rounds at most {middle:.2g}\n90 % at most {most:.2g}"
            axes.step(x, y, where="post", color=colours[method], label=method, gid=tag(numbers))
            _pointed_at(axes, x, y, tag(numbers, says))
        axes.set_xlim(-0.015 * right, right)
        axes.set_ylim(-0.02, 1.03)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.set_xlabel("action error, RMS in normalised action units")
        axes.set_ylabel("share of rounds")
        _legend(axes)

    return fragment("error", plot, height=3.3)


def _says(row: Row, label: str) -> str:
    """What a point says where it is pointed at."""
    success = row.success
    interval = f"[{100 * success.low:.1f}, {100 * success.high:.1f}]"
    lines = [label, f"success {percent(success.rate)} {interval}, n {success.n}"]
    if row.retention and row.retention.overall.solved:
        kept = row.retention.overall
        lines.append(f"keeps {percent(kept.rate)}, at least {percent(kept.low)}")
    if not math.isnan(row.action_ns):
        lines.append(f"{milliseconds(row.action_ns)} ms per action")
    if row.speed_up and not math.isnan(row.speed_up.action.value):
        lines.append(f"{row.speed_up.action.value:.2f}× as fast as {BASELINE}")
    if row.verdict:
        lines.append(row.verdict.text)
    return "\n".join(lines)


def _numbers(rows: Rows, label: str) -> list[int]:
    return [number for number, row in rows.items() if row.label == label]


def _name_ticks(axes: Axes, names: Sequence[str], numbers: Sequence[Sequence[int]]) -> None:
    axes.set_yticks(range(len(names)), names, color=INK)
    for text, of in zip(axes.get_yticklabels(), numbers, strict=True):
        text.set_gid(tag(of))


def _pointed_at(axes: Axes, x: Sequence[float], y: Sequence[float], part: str) -> None:
    """A wide line that nobody sees and a pointer finds."""
    axes.plot(x, y, color=INK, alpha=0, lw=9, gid=part, label="_")


def _legend(axes: Axes) -> None:
    columns = 2 if len(axes.get_legend_handles_labels()[0]) > 1 else 1
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, borderaxespad=0.3, handlelength=1.8)
