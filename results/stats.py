"""Statistics of measured episodes: arrays in, named tuples out. Nothing here reads a store or draws.

Durations keep the unit they come in (nanoseconds everywhere else in the package). A number that the data cannot
support is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import binomtest, norm

CONFIDENCE = 0.95
PERCENTILE_CONFIDENCE = 0.99


class Proportion(NamedTuple):
    """A share of successes with its interval."""

    rate: float
    low: float
    high: float
    n: int


class Paired(NamedTuple):
    """What a method changed on the cells that the baseline ran too.

    Attributes:
        difference: Success of the method minus success of the baseline.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p: Two-sided exact McNemar p-value of "no difference".
        lost: Cells where the baseline succeeded and the method failed.
        gained: Cells where the method succeeded and the baseline failed.
        n: Cells.
    """

    difference: float
    low: float
    high: float
    p: float
    lost: int
    gained: int
    n: int


class Latency(NamedTuple):
    """A distribution of durations; a percentile is NaN where ``n`` is below :func:`minimum_samples`."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float


class Route(NamedTuple):
    """How often a route was taken, and how long it took.

    Attributes:
        share: Share of all policy calls.
        calls: Policy calls, warm-up ones included.
        latency: Durations of the calls that were not warm-up.
    """

    share: float
    calls: int
    latency: Latency


class SpeedUp(NamedTuple):
    """How many times less a method took than the baseline.

    Attributes:
        round: Ratio of the mean durations of one policy call.
        action: Ratio of the durations per executed action; below ``round`` where a method executes less of each chunk.
    """

    round: float
    action: float


class Calls(NamedTuple):
    """Mean policy calls an episode: over all of them, and over the successful ones (NaN without any)."""

    all: float
    successful: float


class Error(NamedTuple):
    """Distances between executed and dense actions, over the rounds in which they were measured."""

    n: int
    mean: float
    p90: float
    worst: float


def proportion(successes: ArrayLike) -> Proportion:
    """Success rate with its Wilson score interval (95 %).

    Args:
        successes: bool [n].
    """
    successes = np.asarray(successes, dtype=bool)
    if not successes.size:
        return Proportion(np.nan, np.nan, np.nan, 0)
    low, high = binomtest(int(successes.sum()), successes.size).proportion_ci(CONFIDENCE, method="wilson")
    return Proportion(float(successes.mean()), float(low), float(high), successes.size)


def paired(method: ArrayLike, baseline: ArrayLike) -> Paired:
    """Difference of two success rates on the same cells.

    The interval is the adjusted Wald interval of Bonett and Price ("Adjusted Wald confidence interval for a difference
    of binomial proportions based on paired data", J. Educ. Behav. Stat. 37(4), 2012): one is added to each of the two
    discordant counts. It stays honest where no cell flipped; the unadjusted interval has no width there.

    Args:
        method: bool [n], by cell.
        baseline: bool [n], the same cells in the same order.

    Raises:
        ValueError: The lengths differ.
    """
    method, baseline = np.asarray(method, dtype=bool), np.asarray(baseline, dtype=bool)
    if method.shape != baseline.shape:
        raise ValueError(f"{method.size} and {baseline.size} episodes cannot be paired; give the same cells")
    n = method.size
    if not n:
        return Paired(np.nan, np.nan, np.nan, np.nan, 0, 0, 0)
    lost, gained = int((baseline & ~method).sum()), int((method & ~baseline).sum())
    p_lost, p_gained = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    centre = p_gained - p_lost
    half = norm.ppf((1 + CONFIDENCE) / 2) * np.sqrt((p_lost + p_gained - centre**2) / (n + 2))
    p = binomtest(min(lost, gained), lost + gained).pvalue if lost + gained else 1.0
    return Paired(
        (gained - lost) / n, float(max(centre - half, -1)), float(min(centre + half, 1)), float(p), lost, gained, n
    )


def minimum_samples(percentile: float) -> int:
    """Samples below which a percentile is not shown.

    The largest of n samples lies above the true q-quantile with probability 1 - q**n; we ask for 99 %, as the early
    stopping rule of MLPerf Inference does. Hence 7 samples for p50, 44 for p90, 459 for p99.

    Args:
        percentile: In percent, between 0 and 100.
    """
    return int(np.ceil(np.log(1 - PERCENTILE_CONFIDENCE) / np.log(percentile / 100)))


def _percentile(values: np.ndarray, percentile: float) -> float:
    return float(np.percentile(values, percentile)) if values.size >= minimum_samples(percentile) else float("nan")


def latency(durations: ArrayLike) -> Latency:
    """Mean and percentiles of durations.

    Args:
        durations: [n], warm-up calls left out.
    """
    durations = np.asarray(durations, dtype=float)
    mean = float(durations.mean()) if durations.size else float("nan")
    return Latency(durations.size, mean, *(_percentile(durations, q) for q in (50, 90, 99)))


def by_route(routes: ArrayLike, durations: ArrayLike, warmup: ArrayLike) -> dict[str, Route]:
    """Shares and durations of each route, the most frequent first. One mean over routes describes no round.

    Args:
        routes: str [n], by policy call.
        durations: [n].
        warmup: bool [n]; such calls count in the shares and not in the durations.
    """
    routes, durations = np.asarray(routes, dtype=str), np.asarray(durations, dtype=float)
    measured = ~np.asarray(warmup, dtype=bool)
    names, counts = np.unique(routes, return_counts=True)
    order = sorted(zip(-counts, names, strict=True))
    return {
        str(name): Route(float(-count / routes.size), int(-count), latency(durations[measured & (routes == name)]))
        for count, name in order
    }


def per_action(durations: ArrayLike, executed: ArrayLike) -> float:
    """Duration of policy calls per action that reached the environment.

    Args:
        durations: [n], by policy call.
        executed: int [n], actions of its chunk that were executed.
    """
    durations, executed = np.asarray(durations, dtype=float), np.asarray(executed, dtype=float)
    return float(durations.sum() / executed.sum()) if executed.sum() else float("nan")


def speed_up(
    durations: ArrayLike, executed: ArrayLike, baseline_durations: ArrayLike, baseline_executed: ArrayLike
) -> SpeedUp:
    """Speed-up over a baseline. Give the calls of the same cells on both sides, failed episodes included.

    A method often takes its slow route in the episodes that it loses, so that a mean over successes flatters it.

    Args:
        durations: [n], the method's calls without warm-up.
        executed: int [n].
        baseline_durations: [m].
        baseline_executed: int [m].
    """
    durations, baseline_durations = np.asarray(durations, dtype=float), np.asarray(baseline_durations, dtype=float)
    if not baseline_durations.size or not durations.sum():
        return SpeedUp(np.nan, np.nan)
    return SpeedUp(
        float(baseline_durations.mean() / durations.mean()),
        per_action(baseline_durations, baseline_executed) / per_action(durations, executed),
    )


def policy_calls(calls: ArrayLike, successes: ArrayLike) -> Calls:
    """Mean policy calls an episode.

    Args:
        calls: int [n], by episode.
        successes: bool [n].
    """
    calls, successes = np.asarray(calls, dtype=float), np.asarray(successes, dtype=bool)
    return Calls(*(float(part.mean()) if part.size else float("nan") for part in (calls, calls[successes])))


def accepted_share(routes: ArrayLike, accepted: ArrayLike, window: ArrayLike) -> float:
    """Accepted draft actions over the replan window, in rounds that took the flash route ("Acc." in FLASH, table 2).

    How many rounds do is another figure ("FR.", see :func:`by_route`); rejected drafts count there, and not here.

    Args:
        routes: str [n], by policy call.
        accepted: [n]; NaN where nothing was drafted.
        window: int [n], replan window of the call.
    """
    accepted, window = np.asarray(accepted, dtype=float), np.asarray(window, dtype=float)
    drafted = (np.asarray(routes, dtype=str) == "flash") & ~np.isnan(accepted)
    return float(accepted[drafted].sum() / window[drafted].sum()) if drafted.any() else float("nan")


def contention(host: ArrayLike, cpu: ArrayLike) -> float:
    """Wall time over processor time of the calls: near 1 alone on a core, 2 where the core was halved.

    Several threads in one call pull it below 1, waiting for an accelerator pushes it above.

    Args:
        host: [n], wall time by policy call.
        cpu: [n], processor time by policy call.
    """
    host, cpu = np.asarray(host, dtype=float), np.asarray(cpu, dtype=float)
    return float(host.sum() / cpu.sum()) if cpu.sum() else float("nan")


def action_error(errors: ArrayLike) -> Error:
    """Distances to the dense policy's actions under the same observation and noise.

    Args:
        errors: [n], by policy call; NaN where it was not measured.
    """
    errors = np.asarray(errors, dtype=float)
    errors = errors[~np.isnan(errors)]
    if not errors.size:
        return Error(0, np.nan, np.nan, np.nan)
    return Error(errors.size, float(errors.mean()), _percentile(errors, 90), float(errors.max()))
