"""What speed buys: how fast a world, or how long a delay, each method bears, and which methods no other one beats."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from . import stats
from .groups import Group, groups
from .inference import clopper_pearson
from .store import Store

DELAY = "delay"
MEASURED = "measured"


class NoSweep(ValueError):
    """The runs do not vary what they were to be compared over."""


class Critical(NamedTuple):
    """The highest level at which success stays at or above a rate, where success can only fall from level to level.

    Attributes:
        value: Estimate: where success crosses the rate, linearly between two levels; NaN outside the levels.
        low: Every level up to this one is proven to hold the rate; NaN where none is.
        high: Every level from this one on is proven to miss it; NaN where none is.
        first: Lowest level that was measured.
        last: Highest one.
        holds: Whether the rate is held at the lowest level.
    """

    value: float
    low: float
    high: float
    first: float
    last: float
    holds: bool


@dataclass(frozen=True)
class Point:
    """Success of a method under one condition, and its latency there.

    Attributes:
        method: Method, with its version where that is needed.
        name: Method as the user wrote it.
        condition: What it was measured under, in words.
        success: Success rate.
        delay_ns: Mean latency of a round as the world saw it; 0 where the world waited.
        action_ns: Latency per executed action: as the world saw it, or wall time where the world waited.
        best: Whether no other method under the same condition is as fast and succeeds more, or succeeds as often and is
            faster.
    """

    method: str
    name: str
    condition: dict[str, str]
    success: stats.Proportion
    delay_ns: float
    action_ns: float
    best: bool


@dataclass(frozen=True)
class Limit:
    """How far a method goes along a sweep.

    Attributes:
        method: Method, with its version where that is needed.
        condition: What all levels have in common, in words.
        over: What was varied: the name of a setting, or :data:`DELAY`, in milliseconds of a mean round.
        critical: How far.
    """

    method: str
    condition: dict[str, str]
    over: str
    critical: Critical


def critical(levels: ArrayLike, solved: ArrayLike, played: ArrayLike, least: float) -> Critical:
    """Finds the highest level at which success stays at or above a rate.

    The estimate is the crossing of the antitonic (nowhere rising) least-squares fit. The interval is exact (95 %) under
    the assumption that success does not rise with the level: from the easiest level on, as many as a one-sided exact
    test at 2.5 % proves to hold the rate, stopping at the first that it does not; and so from the hardest level. Tests
    in a fixed order that stop need no correction (Maurer, Hothorn and Lehmacher, 1995). Its ends are levels, because
    the cells say nothing between them.

    Args:
        levels: [k], different, in any order.
        solved: int [k], cells that were solved at each level.
        played: int [k], cells that were played at each level.
        least: The rate.

    Raises:
        ValueError: Fewer than two levels, or one without cells.
    """
    order = np.argsort(np.asarray(levels, dtype=float))
    x, k, n = (np.asarray(each, dtype=float)[order] for each in (levels, solved, played))
    if x.size < 2 or not n.all():
        raise ValueError(f"{x.size} levels with {n.tolist()} cells are no sweep; give two or more with cells")
    fit = isotonic_regression(k / n, weights=n, increasing=False).x
    bounds = [clopper_pearson(int(a), int(b), (1 - stats.CONFIDENCE) / 2) for a, b in zip(k, n, strict=True)]
    holding = _first([bound.low < least for bound in bounds])
    missing = _first([bound.high >= least for bound in bounds[::-1]])
    held = int((fit >= least).sum())
    value = math.nan
    if 0 < held < x.size:
        above, below = fit[held - 1], fit[held]
        value = float(x[held - 1] + (above - least) / (above - below) * (x[held] - x[held - 1]))
    return Critical(
        value,
        low=float(x[holding - 1]) if holding else math.nan,
        high=float(x[x.size - missing]) if missing else math.nan,
        first=float(x[0]),
        last=float(x[-1]),
        holds=held > 0,
    )


def points(stores: Iterable[Store]) -> list[tuple[Group, Point]]:
    """Returns every method and condition of some runs with its group.

    Raises:
        ManifestMismatch: A cell is not the same episode everywhere.
        MeasurementMismatch: A latency's name stands for different durations.
    """
    found = [(group, _point(group)) for group in groups(stores) if group.done]
    rivals: dict[Any, list[Point]] = {}
    for group, point in found:
        rivals.setdefault(group.condition, []).append(point)
    return [(group, _marked(point, rivals[group.condition])) for group, point in found]


def limits(found: Sequence[tuple[Group, Point]], over: Sequence[str], least: float) -> list[Limit]:
    """Returns how far each method goes along the named settings, and along the delay where it was varied.

    A sweep over the delay holds latencies of one kind: fixed ones, or one source at several scales.

    Args:
        found: What :func:`points` returns.
        over: Numeric settings of which a higher value makes the task harder.
        least: Success rate that has to be held.

    Raises:
        NoSweep: There are no two values of a setting.
    """
    every = []
    for name in over:
        having = [each for each in found if _is_number(each[0].settings.get(name))]
        every += _limits(having, name, lambda group, _, name=name: float(group.settings[name]), least)
        if not any(limit.over == name for limit in every):
            raise NoSweep(
                f"no method was measured at two values of the setting {name!r}; measure with --set {name}=A,B"
            )
    given = [(group, point) for group, point in found if group.clock == "realtime"]
    return every + _limits(given, DELAY, lambda _, point: point.delay_ns / 1e6, least)


def varying(conditions: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the parts in which conditions differ."""
    names = dict.fromkeys(name for each in conditions for name in each)
    return [name for name in names if len({each.get(name) for each in conditions}) > 1]


def world(group: Group) -> tuple[Any, ...]:
    """Returns what the points of one panel share: the task, and whether latencies were measured or given.

    Neither of the two kinds is set against the other.
    """
    settings = tuple(sorted((name, str(value)) for name, value in group.settings.items()))
    return (group.suite, group.policy, group.clock, group.latency == MEASURED, settings)


def _limits(
    found: Iterable[tuple[Group, Point]], over: str, level: Callable[[Group, Point], float], least: float
) -> list[Limit]:
    sweeps: dict[Any, dict[float, list[Point]]] = {}
    conditions: dict[Any, dict[str, str]] = {}
    for group, point in found:
        shared = {name: value for name, value in point.condition.items() if name != over}
        if over == DELAY:
            shared["latency"] = _kind(group.latency)
        line = (point.method, tuple(shared.items()))
        sweeps.setdefault(line, {}).setdefault(level(group, point), []).append(point)
        conditions[line] = shared
    return [
        Limit(line[0], conditions[line], over, critical(list(levels), *_counts(levels.values()), least))
        for line, levels in sweeps.items()
        if len(levels) > 1
    ]


def _counts(levels: Iterable[list[Point]]) -> tuple[list[int], list[int]]:
    rates = [[point.success for point in level] for level in levels]
    solved = [sum(round(each.rate * each.n) for each in level) for level in rates]
    return solved, [sum(each.n for each in level) for level in rates]


def _kind(latency: str) -> str:
    """Returns what latencies have in common that differ in length alone."""
    unscaled = re.sub(r"\s*:\s*scale\s*=[^:]*", "", latency)
    return re.sub(r"^(zero|fixed\s*:[^:]*)", "fixed", unscaled)


def _point(group: Group) -> Point:
    settings = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in group.settings.items()
    }
    rounds = group.rounds
    waits = group.clock == "sync"
    own, delay = rounds["host_ns"], rounds["latency_ns"]
    return Point(
        method=group.label,
        name=group.method,
        condition={
            "suite": group.suite,
            "policy": group.policy,
            "clock": group.clock,
            "latency": group.latency,
            **settings,
            "precision": group.dtype,
            "device": group.device,
        },
        success=stats.proportion([bool(row.success) for row in group.done.values()]),
        delay_ns=0.0 if waits or not len(rounds) else float(delay.mean()),
        action_ns=stats.per_action(own if waits else delay, rounds["executed"]),
        best=False,
    )


def _marked(point: Point, others: Sequence[Point]) -> Point:
    return replace(point, best=not any(_beats(other, point) for other in others))


def _beats(one: Point, other: Point) -> bool:
    """Whether a point is at least as good in both, and better in one."""
    gains = (one.success.rate - other.success.rate, other.action_ns - one.action_ns)
    return min(gains) >= 0 and max(gains) > 0


def _first(wanted: Sequence[bool]) -> int:
    """Returns the position of the first True; the length where there is none."""
    return next((i for i, each in enumerate(wanted) if each), len(wanted))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
