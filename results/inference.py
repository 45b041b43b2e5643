"""What measured episodes prove: retention, several methods at once, clusters and blocks.

Arrays in, named tuples out, as in :mod:`.stats`; the test of a margin is in :mod:`.noninferiority`. How often these
intervals cover the truth is in ``docs/statistics.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, stdtrit

from . import stats
from .noninferiority import ALPHA, Interval

FEWEST_CLUSTERS = 5  # below this, tasks say too little about how much tasks differ


class Retention(NamedTuple):
    """What a method keeps of the cells that the baseline solves, and what it solves of the others.

    Attributes:
        kept: Cells that both solved.
        solved: Cells that the baseline solved.
        rate: ``kept / solved``; NaN without any.
        low: One-sided 95 % Clopper-Pearson lower bound of the rate; NaN without any.
        high: One-sided 95 % upper bound.
        rescued: Cells that only the method solved.
        unsolved: Cells that the baseline did not solve.
        rescue_rate: ``rescued / unsolved``; NaN without any.
        rescue_low: One-sided 95 % lower bound of that rate.
    """

    kept: int
    solved: int
    rate: float
    low: float
    high: float
    rescued: int
    unsolved: int
    rescue_rate: float
    rescue_low: float


class RetentionByTask(NamedTuple):
    """Retention over all cells and by task.

    Attributes:
        overall: Over all cells.
        tasks: By task.
        worst_task: The task with the lowest rate, of equal ones that with the lower bound; None where there is one task
            only, or none of which the baseline solved a cell.
    """

    overall: Retention
    tasks: dict[str, Retention]
    worst_task: str | None


class Percentiles(NamedTuple):
    """95 % intervals of percentiles of durations; NaN below ``stats.FEWEST_CELLS`` episodes."""

    p50: Interval
    p90: Interval


def clopper_pearson(successes: int, n: int, alpha: float = ALPHA) -> Interval:
    """Two exact one-sided bounds of a rate, each with confidence 1 - alpha.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika
    26, 1934. Zero failures need 59 cells to show 95 %, and 299 to show 99 %.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} cells are no rate; give 0 to {n}")
    if not n:
        return Interval(np.nan, np.nan)
    low = float(betaincinv(successes, n - successes + 1, alpha)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - alpha)) if successes < n else 1.0
    return Interval(low, high)


def retention(method: ArrayLike, baseline: ArrayLike) -> Retention:
    """Retention and its mirror (rescued) over cells.

    Args:
        method: bool [n], by cell.
        baseline: bool [n], the same cells in the same order.

    Raises:
        ValueError: The lengths differ.
    """
    method, baseline = np.asarray(method, dtype=bool), np.asarray(baseline, dtype=bool)
    if method.shape != baseline.shape:
        raise ValueError(f"{method.size} and {baseline.size} episodes cannot be paired; give the same cells")
    kept, solved = int((method & baseline).sum()), int(baseline.sum())
    rescued, unsolved = int((method & ~baseline).sum()), int((~baseline).sum())
    bounds, rescue = clopper_pearson(kept, solved), clopper_pearson(rescued, unsolved)
    return Retention(
        kept,
        solved,
        kept / solved if solved else np.nan,
        bounds.low,
        bounds.high,
        rescued,
        unsolved,
        rescued / unsolved if unsolved else np.nan,
        rescue.low,
    )


def retention_by_task(method: ArrayLike, baseline: ArrayLike, tasks: Sequence[str]) -> RetentionByTask:
    """Retention over all cells and by task, with the worst task named.

    Args:
        method: bool [n], by cell.
        baseline: bool [n], the same cells in the same order.
        tasks: Task of each cell.

    Raises:
        ValueError: The lengths differ.
    """
    method, baseline = np.asarray(method, dtype=bool), np.asarray(baseline, dtype=bool)
    overall = retention(method, baseline)
    names = np.asarray(tasks, dtype=str)
    if names.shape != method.shape:
        raise ValueError(f"{names.size} tasks for {method.size} cells; give one for each")
    by_task = {str(name): retention(method[names == name], baseline[names == name]) for name in np.unique(names)}
    known = [name for name in by_task if by_task[name].solved]
    worst = min(known, key=lambda name: by_task[name][2:4]) if len(known) > 1 else None
    return RetentionByTask(overall, by_task, worst)


def holm(p_values: ArrayLike) -> np.ndarray:
    """Adjusted p-values [n] of several tests: below a level, the chance of any false one is below it, too.

    Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6, 1979.

    Args:
        p_values: [n].
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * np.arange(p_values.size, 0, -1)), 1)
    return adjusted


def cannot_be_told_from_best(successes: ArrayLike, alpha: float = ALPHA) -> np.ndarray:
    """Which methods may be the best one: bool [methods], False for those that another method beats.

    Every two methods are compared by McNemar's exact test, with Holm's adjustment over all of them. The best method is
    left out with a probability of at most ``alpha``.

    Args:
        successes: bool [methods, cells], the same cells in the same order for each.
        alpha: Level over all comparisons together.
    """
    successes = np.asarray(successes, dtype=bool)
    both = list(combinations(range(len(successes)), 2))
    found = [stats.paired(successes[one], successes[other]) for one, other in both]
    beaten = np.zeros(len(successes), dtype=bool)
    for (one, other), pair, p in zip(both, found, holm([pair.p for pair in found]), strict=True):
        if p <= alpha:
            beaten[one if pair.lost > pair.gained else other] = True
    return ~beaten


def clustered(successes: ArrayLike, clusters: Sequence[str]) -> stats.Proportion:
    """Success rate with a 95 % interval for other tasks of the same kind: tasks are the sample, not cells.

    Cells of one task resemble each other, so that 500 cells of 10 tasks say less than 500 tasks would. The interval is
    that of a ratio of two totals over clusters (Cochran, Sampling Techniques, section 6.3), with Student's t for one
    degree of freedom fewer than there are clusters. NaN below ``FEWEST_CLUSTERS``.

    Args:
        successes: bool [n], by cell.
        clusters: Cluster of each cell, such as its task.
    """
    successes = np.asarray(successes, dtype=float)
    names, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    if not successes.size:
        return stats.Proportion(np.nan, np.nan, np.nan, 0)
    rate, count = float(successes.mean()), len(names)
    if count < FEWEST_CLUSTERS:
        return stats.Proportion(rate, np.nan, np.nan, successes.size)
    residuals = np.bincount(index, successes - rate, count)
    error = np.sqrt(count / (count - 1) * (residuals**2).sum()) / successes.size
    half = stdtrit(count - 1, (1 + stats.CONFIDENCE) / 2) * error
    return stats.Proportion(rate, max(0.0, float(rate - half)), min(1.0, float(rate + half)), successes.size)


def percentile_intervals(ns: ArrayLike, episodes: Sequence[int]) -> Percentiles:
    """95 % intervals of p50 and p90, from a bootstrap of whole episodes: rounds of one episode resemble each other.

    The samples are the same each time.

    Args:
        ns: [n], duration of each round.
        episodes: Episode of each round, as any number.
    """
    ns = np.asarray(ns, dtype=float)
    _, index = np.unique(np.asarray(episodes), return_inverse=True)
    count = int(index.max()) + 1 if ns.size else 0
    if count < stats.FEWEST_CELLS:
        return Percentiles(Interval(np.nan, np.nan), Interval(np.nan, np.nan))
    order = np.argsort(ns, kind="stable")
    ns, index = ns[order], index[order]
    random = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        weights = np.cumsum(random.multinomial(count, np.full(count, 1 / count))[index])
        found.append(ns[np.searchsorted(weights, np.array([0.5, 0.9]) * weights[-1])])
    low, high = np.quantile(found, [(1 - stats.CONFIDENCE) / 2, (1 + stats.CONFIDENCE) / 2], axis=0)
    return Percentiles(*(Interval(float(a), float(b)) for a, b in zip(low, high, strict=True)))
