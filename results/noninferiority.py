"""Non-inferiority of paired successes: does a method lose at most a margin of what the baseline solves?

Counts in, numbers out. Of n cells that both ran, ``lost`` are those that the baseline solved and the method did not,
``gained`` the reverse; the difference is (gained - lost) / n. The null hypothesis is a loss of the margin or more.

The ordering is the score statistic of Tango ("Equivalence test and confidence interval for the difference in
proportions for the paired-sample design", Statistics in Medicine 17, 1998). Its normal approximation rejects too often
where few cells flip: 88 cells without a flip exclude a loss of 3 points at a nominal 5 %, which happens in 6.9 % of the
experiments with such a loss. So the p-value is the exact unconditional one of Hsueh, Liu and Chen ("Unconditional exact
tests for equivalence or noninferiority for paired binary endpoints", Biometrics 57, 2001): the largest probability of a
statistic as high as this one, over the rates of flips with a loss of exactly the margin. Rates that are far above what
the gained cells show are not searched, and what they could add is added instead (Berger and Boos, "P values maximized
over a confidence set for the nuisance parameter", J. Amer. Statist. Assoc. 89, 1994).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtr, betaincinv, gammaln, ndtri, xlog1py, xlogy

ALPHA = 0.05
NUISANCE = np.concatenate([[0.0], np.geomspace(5e-5, 0.5, 20)])  # rates of gained cells that are searched
OUTSIDE = 1e-4  # probability of a higher rate of gained cells than those that are searched, added to each p-value
NEGLIGIBLE = 6.0  # standard deviations beyond which counts are not summed: fewer than one in 10^7
MOST = 1_000_000  # pairs above which a plan says that there is none


class Interval(NamedTuple):
    """Ends of a confidence interval."""

    low: float
    high: float


def score(lost: np.ndarray | float, gained: np.ndarray | float, n: int, difference: float) -> np.ndarray:
    """Tango's score statistic of a difference: standard normal for large n if that is the true one, high above it.

    Args:
        lost: Counts, of any shape.
        gained: Counts, of the same shape.
        n: Pairs.
        difference: Method minus baseline, between -1 and 1.
    """
    lost, gained = np.asarray(lost, dtype=float), np.asarray(gained, dtype=float)
    b = (2 * n - gained + lost) * difference - lost - gained
    c = -lost * difference * (1 - difference)
    rate = (np.sqrt(np.maximum(b * b - 8 * n * c, 0)) - b) / (4 * n)  # of lost cells, most likely at this difference
    variance = n * np.maximum(2 * rate + difference * (1 - difference), 0)
    above = gained - lost - n * difference
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variance > 0, above / np.sqrt(variance), np.where(above == 0, 0, np.copysign(np.inf, above)))


def score_interval(lost: int, gained: int, n: int, confidence: float = 0.95) -> Interval:
    """Tango's two-sided interval of the difference: the values that the score statistic does not reject.

    Raises:
        ValueError: There are no pairs, or more flips than pairs.
    """
    _check(lost, gained, n)
    z = float(ndtri((1 + confidence) / 2))
    estimate, edge = (gained - lost) / n, 1 - 1e-12

    def end(sign: int) -> float:
        def beyond(difference: float) -> float:
            return float(np.clip(score(lost, gained, n, difference), -1e9, 1e9)) - sign * z

        far = -sign * edge
        if beyond(far) * sign < 0:
            return float(-sign)
        if abs(estimate) >= edge:
            return float(estimate)
        least, most = sorted((far, estimate))
        return float(brentq(beyond, least, most, xtol=1e-10))  # pyright: ignore[reportArgumentType]: not full output

    return Interval(end(1), end(-1))


def p_value(lost: int, gained: int, n: int, margin: float) -> float:
    """Exact p-value of "the method loses ``margin`` or more".

    Args:
        lost: Cells that only the baseline solved.
        gained: Cells that only the method solved.
        n: Cells.
        margin: Largest loss that is tolerated, as a share: 0.03 is three points.

    Raises:
        ValueError: There are no pairs, more flips than pairs, or a margin that is none.
    """
    _check(lost, gained, n)
    _check_margin(margin)
    return _largest(float(score(lost, gained, n, -margin)), n, margin, int(_cap(gained, n)))


@lru_cache(maxsize=4096)
def largest_loss(lost: int, gained: int, n: int, alpha: float = ALPHA) -> float:
    """Loss that is excluded with confidence 1 - alpha (one-sided): the least margin whose test rejects.

    Returns:
        A share, at least 0: a gain that is shown is a loss of at most 0. 1 where nothing is excluded.
    """
    _check(lost, gained, n)
    guess = -score_interval(lost, gained, n, 1 - 2 * alpha).low  # the normal approximation of it
    least, most = max(1e-6, 0.8 * guess), min(1 - 1e-6, max(0.0, 1.2 * guess) + 0.01)
    if p_value(lost, gained, n, most) > alpha:
        most = 1 - 1e-6
        if p_value(lost, gained, n, most) > alpha:
            return 1.0
    if p_value(lost, gained, n, least) <= alpha:
        if p_value(lost, gained, n, 1e-6) <= alpha:
            return 0.0
        least = 1e-6
    while most - least > 1e-4:
        middle = (least + most) / 2
        least, most = (middle, most) if p_value(lost, gained, n, middle) > alpha else (least, middle)
    return most


def smallest_loss(lost: int, gained: int, n: int, alpha: float = ALPHA) -> float:
    """Loss that is shown with confidence 1 - alpha (one-sided); 0 where none is.

    It is the same test with the sides exchanged: a gain of the baseline over the method.
    """
    _check(lost, gained, n)
    found = score_interval(lost, gained, n, 1 - 2 * alpha).high
    return max(0.0, -found)


@lru_cache(maxsize=4096)
def power(n: int, margin: float, lost: float, gained: float, alpha: float = ALPHA) -> float:
    """Probability that the test excludes a loss of ``margin``, computed through the test itself.

    Args:
        n: Pairs.
        margin: As in :func:`p_value`.
        lost: True rate of lost cells.
        gained: True rate of gained cells.
        alpha: One-sided level of the test.
    """
    _check_margin(margin)

    def least_score(gained: np.ndarray) -> np.ndarray:
        caps, which = np.unique(_cap(gained, n), return_inverse=True)
        return np.array([_critical(n, margin, alpha, int(cap)) for cap in caps])[which]

    return float(_reaches(least_score, n, margin, np.array([lost]), np.array([gained]))[0])


@lru_cache(maxsize=1024)
def pairs_needed(margin: float, lost: float, gained: float, power_wanted: float = 0.8, alpha: float = ALPHA) -> int:
    """Pairs that show the absence of a loss of ``margin`` with the wanted power, to two digits, rounded up.

    Args:
        margin: As in :func:`p_value`.
        lost: True rate of lost cells.
        gained: True rate of gained cells.
        power_wanted: Probability of the proof, if these are the rates.
        alpha: One-sided level of the test.

    Returns:
        Pairs; 0 where no number of them would do, since the method loses the margin.
    """
    pairs = pairs_about(margin, lost, gained, power_wanted, alpha)
    while 0 < pairs <= MOST and power(pairs, margin, lost, gained, alpha) < power_wanted:
        pairs = two_digits(1.05 * pairs)
    return pairs if pairs <= MOST else 0


def pairs_about(margin: float, lost: float, gained: float, power_wanted: float = 0.8, alpha: float = ALPHA) -> int:
    """The same by the normal approximation: within a tenth of the exact number, and at once."""
    _check_margin(margin)
    room = margin - (lost - gained)
    if room <= 0:
        return 0
    many = 10**7  # pairs, at which a score shows the spread that it divides by
    null_spread = room * many / float(score(lost * many, gained * many, many, -margin)) / many**0.5
    spread = (lost + gained - (gained - lost) ** 2) ** 0.5
    pairs = ((ndtri(1 - alpha) * null_spread + ndtri(power_wanted) * spread) / room) ** 2
    return two_digits(pairs) if pairs <= MOST else 0


def two_digits(value: float) -> int:
    """A count of pairs rounded up to two significant digits."""
    step = 10 ** max(0, len(str(int(value))) - 2)
    return int(-(-value // step)) * step


def _cap(gained: np.ndarray | int, n: int) -> np.ndarray:
    """Index in ``NUISANCE`` of the largest rate of gained cells that is searched, by count of gained cells."""
    highest = np.where(np.asarray(gained) < n, betaincinv(gained + 1, np.maximum(n - gained, 1), 1 - OUTSIDE), 1.0)
    return np.minimum(np.searchsorted(NUISANCE, highest), NUISANCE.size - 1)


@lru_cache(maxsize=4096)
def _critical(n: int, margin: float, alpha: float, cap: int) -> float:
    """Score from which the exact test rejects."""
    z = float(ndtri(1 - alpha))
    low, high = z - 0.2, z + 0.6
    if _largest(low, n, margin, cap) <= alpha or _largest(high, n, margin, cap) > alpha:  # few pairs
        low, high = 0.0, 40.0
    while high - low > 4e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if _largest(middle, n, margin, cap) <= alpha else (middle, high)
    return high


def _largest(statistic: float, n: int, margin: float, cap: int) -> float:
    """The p-value: the largest probability of a score as high as this one at a loss of exactly the margin."""
    rates = NUISANCE[: cap + 1]
    rates = rates[rates <= (1 - margin) / 2]

    def chances(gained: np.ndarray) -> np.ndarray:
        return _reaches(lambda counts: np.full(counts.shape, statistic), n, margin, gained + margin, gained)

    found = chances(rates)
    at = int(found.argmax())
    finer = np.linspace(rates[max(at - 1, 0)], rates[min(at + 1, rates.size - 1)], 9)[1:-1]
    return float(min(1.0, max(found[at], chances(finer).max()) + OUTSIDE))


def _reaches(
    least_score: Callable[[np.ndarray], np.ndarray], n: int, margin: float, lost: np.ndarray, gained: np.ndarray
) -> np.ndarray:
    """Probabilities of a score that is high enough at these rates of lost and gained cells.

    For each count of gained cells the score falls with the lost ones, so there is a largest count that reaches it.
    """
    widths = NEGLIGIBLE * np.sqrt(n * gained * (1 - gained)) + NEGLIGIBLE**2 / 3  # Bernstein's inequality
    firsts = np.maximum(np.floor(n * gained - widths), 0).astype(int)
    lasts = np.where(gained > 0, np.minimum(np.ceil(n * gained + widths), n), 0).astype(int)
    start = int(firsts.min())
    all_counts = np.arange(start, lasts.max() + 1)
    most = _most_lost(least_score(all_counts), all_counts, n, margin)
    ways = gammaln(n + 1) - gammaln(all_counts + 1) - gammaln(n - all_counts + 1)
    reached = []
    for first, last, p_lost, p_gained in zip(firsts - start, lasts - start, lost, gained, strict=True):
        counts, allowed = all_counts[first : last + 1], most[first : last + 1]
        share = min(1.0, p_lost / (1 - p_gained))
        below = np.where(allowed >= 0, bdtr(np.maximum(allowed, 0), n - counts, share), 0.0)
        reached.append(
            np.exp(ways[first : last + 1] + xlogy(counts, p_gained) + xlog1py(n - counts, -p_gained)) @ below
        )
    return np.asarray(reached)


def _most_lost(least_score: np.ndarray, gained: np.ndarray, n: int, margin: float) -> np.ndarray:
    """Largest count of lost cells at which the score reaches ``least_score``, by count of gained ones; -1 for none."""
    low, high = np.full(gained.shape, -1), n - gained + 1
    while (high - low).max() > 1:
        middle = (low + high) // 2
        reached = score(np.clip(middle, 0, n - gained), gained, n, -margin) >= least_score - 1e-9
        open = high - low > 1
        low, high = np.where(open & reached, middle, low), np.where(open & ~reached, middle, high)
    return low


def _check(lost: int, gained: int, n: int) -> None:
    if n < 1 or min(lost, gained) < 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained of {n} pairs are no comparison; give at least one pair")


def _check_margin(margin: float) -> None:
    if not 0 < margin < 1:
        raise ValueError(f"the margin {margin!r} is no share between 0 and 1; 0.03 is three points")
