"""Statistics of measured episodes: arrays in, named tuples out. Nothing here reads a store or plots.

Durations keep the unit they come in (nanoseconds everywhere else in the package). A number that the data cannot
support is NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, bdtrik, ndtr, ndtri, stdtrit  # scipy.stats has these too, and takes a second to import

CONFIDENCE = 0.95
PERCENTILE_CONFIDENCE = 0.99
PERCENTILES = (50, 90, 99)
RESAMPLES = 4000
MANY_CELLS = 1000  # above this, sums over resampled cells are as good as normal, and drawing cells would take seconds
FEWEST_CELLS = 8  # below this, resampled cells say too little about cells that were not played


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


class Durations(NamedTuple):
    """A distribution of durations; a percentile is NaN where ``n`` is below :func:`minimum_samples`.

    Attributes:
        n: Durations.
        mean: Their mean.
        p50: Median of these durations, an estimate.
        p90: 90th percentile.
        p99: 99th percentile.
        p50_high: With 99 % confidence the true percentile is not above this (see :func:`percentile_bound`).
        p90_high: The same for the 90th percentile.
        p99_high: The same for the 99th percentile.
    """

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    p50_high: float
    p90_high: float
    p99_high: float


class Route(NamedTuple):
    """How often a route was taken, and how long it took.

    Attributes:
        share: Share of all rounds.
        rounds: Rounds, warm-up included.
        durations: Durations of the rounds that were not warm-up.
    """

    share: float
    rounds: int
    durations: Durations


class Timing(NamedTuple):
    """What the rounds of each cell took; warm-up is left out.

    Attributes:
        ns: [n], by cell: duration of its rounds together.
        rounds: int [n], how many these are.
        executed: int [n], actions of their chunks that were executed.
    """

    ns: ArrayLike
    rounds: ArrayLike
    executed: ArrayLike


class Ratio(NamedTuple):
    """A ratio with its 95 % interval, which is NaN below ``FEWEST_CELLS`` cells."""

    value: float
    low: float
    high: float


class SpeedUp(NamedTuple):
    """How many times less a method took than the baseline.

    Attributes:
        round: Ratio of the mean durations of one round.
        action: Ratio of the durations per executed action; below ``round`` where a method executes less of each chunk.
    """

    round: Ratio
    action: Ratio


class RoundsPerEpisode(NamedTuple):
    """Mean rounds per episode: over all episodes, and over the successful ones (NaN without any)."""

    all: float
    successful: float


class Acceptance(NamedTuple):
    """How much of the drafts was accepted, as vLLM's ``SpecDecodingStats`` counts it.

    There is no bonus token here: a draft of which nothing is accepted has an acceptance length of 0, not 1.

    Attributes:
        drafts: Rounds in which a draft was verified.
        rate: Accepted positions over drafted ones.
        length: Mean acceptance length: accepted positions per draft.
        rate_if_any: The rate over the drafts of which at least one position was accepted ("Acc." in FLASH, table 2).
        per_position: Share of the drafts whose accepted count exceeds i, for each position i of the longest draft.
    """

    drafts: int
    rate: float
    length: float
    rate_if_any: float
    per_position: tuple[float, ...]


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
    n, rate, z = successes.size, float(successes.mean()), float(ndtri((1 + CONFIDENCE) / 2))
    half = z * np.sqrt(4 * n * rate * (1 - rate) + z**2)
    low, high = ((2 * n * rate + z**2 + side) / (2 * (n + z**2)) for side in (-half, half))
    return Proportion(rate, float(low) if rate > 0 else 0.0, float(high) if rate < 1 else 1.0, n)


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
    half = ndtri((1 + CONFIDENCE) / 2) * np.sqrt((p_lost + p_gained - centre**2) / (n + 2))
    low, high = float(max(centre - half, -1)), float(min(centre + half, 1))
    return Paired((gained - lost) / n, low, high, mcnemar(lost, gained), lost, gained, n)


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact p-value of McNemar's test of "no difference": flips go either way like the sides of a coin."""
    return min(1.0, 2 * float(bdtr(min(lost, gained), lost + gained, 0.5)))


def minimum_samples(percentile: float) -> int:
    """Samples below which a percentile is not shown: with fewer, :func:`percentile_bound` has no bound for it.

    The largest of n samples lies above the true q-quantile with probability 1 - q**n; 99 % is required. Hence 7 samples
    for p50, 44 for p90, 459 for p99. MLPerf's LoadGen requires the same confidence of the second largest sample, which
    takes 64 for p90 and 662 for p99.

    Args:
        percentile: In percent, between 0 and 100.
    """
    return int(np.ceil(np.log(1 - PERCENTILE_CONFIDENCE) / np.log(percentile / 100)))


def percentile_bound(values: ArrayLike, percentile: float) -> float:
    """Upper 99 % confidence bound of a percentile, whatever the distribution; NaN where the samples are too few.

    It is the order statistic with the least rank k for which P(Binomial(n, q) < k) reaches 99 % (Hahn and Meeker,
    Statistical Intervals, section 5.2). Samples are taken as independent.

    Args:
        values: [n].
        percentile: In percent, between 0 and 100.
    """
    values = np.sort(np.asarray(values, dtype=float))
    rank = _binomial_quantile(PERCENTILE_CONFIDENCE, values.size, percentile / 100) + 1 if values.size else 1
    return float(values[rank - 1]) if rank <= values.size else float("nan")


def _binomial_quantile(share: float, n: int, p: float) -> int:
    """Returns the least number of successes whose probability, or a lower one's, reaches ``share``."""
    near = int(np.ceil(bdtrik(share, n, p)))  # rounding may have taken it one too far
    return near - 1 if near and bdtr(near - 1, n, p) >= share else near


def _percentile(values: np.ndarray, percentile: float) -> float:
    return float(np.percentile(values, percentile)) if values.size >= minimum_samples(percentile) else float("nan")


def durations(ns: ArrayLike) -> Durations:
    """Mean and percentiles of durations.

    Args:
        ns: [n], warm-up rounds left out.
    """
    ns = np.asarray(ns, dtype=float)
    mean = float(ns.mean()) if ns.size else float("nan")
    estimates = [_percentile(ns, q) for q in PERCENTILES]
    return Durations(ns.size, mean, *estimates, *(percentile_bound(ns, q) for q in PERCENTILES))


def by_route(routes: ArrayLike, ns: ArrayLike, warmup: ArrayLike) -> dict[str, Route]:
    """Shares and durations of each route, the most frequent first. One mean over routes describes no round.

    Args:
        routes: str [n], by round.
        ns: [n], duration of each round.
        warmup: bool [n]; such rounds count in the shares and not in the durations.
    """
    routes, ns = np.asarray(routes, dtype=str), np.asarray(ns, dtype=float)
    measured = ~np.asarray(warmup, dtype=bool)
    names, counts = np.unique(routes, return_counts=True)
    order = sorted(zip(-counts, names, strict=True))
    return {
        str(name): Route(float(-count / routes.size), int(-count), durations(ns[measured & (routes == name)]))
        for count, name in order
    }


def per_action(ns: ArrayLike, executed: ArrayLike) -> float:
    """Duration of the rounds per action that reached the environment.

    Args:
        ns: [n], duration of each round.
        executed: int [n], actions of its chunk that were executed.
    """
    ns, executed = np.asarray(ns, dtype=float), np.asarray(executed, dtype=float)
    return float(ns.sum() / executed.sum()) if executed.sum() else float("nan")


def speed_up(method: Timing, baseline: Timing) -> SpeedUp:
    """Speed-up over a baseline, with an interval. Give the same cells on both sides, failed episodes included.

    A method often takes its slow route in the episodes that it loses, so a mean over successes favours it. The interval
    comes from a block bootstrap: whole cells are drawn, with both sides of each, since rounds of one episode resemble
    each other and the two sides of a cell do too. Above ``MANY_CELLS``, the sums over drawn cells are taken from their
    limit, a normal distribution. Its percentiles are widened for few cells as in Hesterberg ("What
    Teachers Should Know About the Bootstrap", The American Statistician 69(4), 2015). The draws are the same each time.

    Args:
        method: By cell.
        baseline: The same cells in the same order.

    Raises:
        ValueError: The numbers of cells differ.
    """
    own, base = (np.asarray([side.ns, side.rounds, side.executed], dtype=float) for side in (method, baseline))
    if own.shape != base.shape:
        raise ValueError(f"{own.shape[1]} and {base.shape[1]} cells cannot be paired; give the same cells")
    cells = own.shape[1]
    value = _ratios(own.sum(axis=1), base.sum(axis=1))
    low = high = np.full(2, np.nan)
    if cells >= FEWEST_CELLS and not np.isnan(value).any():
        random = np.random.default_rng(0)
        if cells > MANY_CELLS:
            sides = np.concatenate([own, base])
            spread = cells * np.cov(sides, ddof=0)
            sums = random.multivariate_normal(sides.sum(axis=1), spread, RESAMPLES, check_valid="ignore").T
        else:
            sums = np.concatenate([own, base]) @ random.multinomial(cells, np.full(cells, 1 / cells), RESAMPLES).T
        drawn = _ratios(sums[:3], sums[3:])
        tail = ndtr(-np.sqrt(cells / (cells - 1)) * stdtrit(cells - 1, (1 + CONFIDENCE) / 2))
        low, high = np.nanquantile(drawn, [tail, 1 - tail], axis=1)
    round, action = (Ratio(*map(float, each)) for each in zip(value, low, high, strict=True))
    return SpeedUp(round, action)


def _ratios(own: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Ratios of durations per round and per action [2, ...] from sums of ns, rounds and actions [3, ...]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (base[0] / base[1:]) / (own[0] / own[1:])
    return np.where(np.isfinite(ratios), ratios, np.nan)


def rounds_per_episode(rounds: ArrayLike, successes: ArrayLike) -> RoundsPerEpisode:
    """Mean rounds per episode.

    Args:
        rounds: int [n], by episode.
        successes: bool [n].
    """
    rounds, successes = np.asarray(rounds, dtype=float), np.asarray(successes, dtype=bool)
    parts = (rounds, rounds[successes])
    return RoundsPerEpisode(*(float(part.mean()) if part.size else float("nan") for part in parts))


def acceptance(accepted: ArrayLike, drafted: ArrayLike) -> Acceptance:
    """Accepted draft positions, over the rounds that verified a draft.

    How many rounds do is another figure (see :func:`by_route`).

    Args:
        accepted: [n], by round; NaN where nothing was drafted.
        drafted: [n], positions of the draft that were verified; NaN where nothing was drafted.
    """
    accepted, drafted = np.asarray(accepted, dtype=float), np.asarray(drafted, dtype=float)
    verified = ~np.isnan(accepted)
    accepted, drafted = accepted[verified], drafted[verified]
    if not drafted.sum():
        return Acceptance(accepted.size, np.nan, np.nan, np.nan, ())
    some = accepted > 0
    return Acceptance(
        drafts=accepted.size,
        rate=float(accepted.sum() / drafted.sum()),
        length=float(accepted.mean()),
        rate_if_any=float(accepted[some].sum() / drafted[some].sum()) if some.any() else float("nan"),
        per_position=tuple(float((accepted > i).mean()) for i in range(int(drafted.max()))),
    )


def contention(host: ArrayLike, cpu: ArrayLike) -> float:
    """Wall time over processor time of the rounds: near 1 alone on a core, 2 where the core was halved.

    Several threads in one round pull it below 1, waiting for an accelerator pushes it above.

    Args:
        host: [n], wall time by round.
        cpu: [n], processor time by round.
    """
    host, cpu = np.asarray(host, dtype=float), np.asarray(cpu, dtype=float)
    return float(host.sum() / cpu.sum()) if cpu.sum() else float("nan")


def action_error(errors: ArrayLike) -> Error:
    """Distances to the dense policy's actions under the same observation and noise.

    Args:
        errors: [n], by round; NaN where it was not measured.
    """
    errors = np.asarray(errors, dtype=float)
    errors = errors[~np.isnan(errors)]
    if not errors.size:
        return Error(0, np.nan, np.nan, np.nan)
    return Error(errors.size, float(errors.mean()), _percentile(errors, 90), float(errors.max()))
