"""Non-inferiority of paired successes: does a method lose at most a margin of what the baseline solves?

Counts in, numbers out. Of n cells that both ran, ``lost`` are those that the baseline solved and the method did not,
``gained`` the reverse; the difference is (gained - lost) / n. The null hypothesis is a loss of the margin or more.

The ordering is the score statistic of Tango ("Equivalence test and confidence interval for the difference in
proportions for the paired-sample design", Statistics in Medicine 17, 1998). Its normal approximation rejects too often
where few cells flip: 88 cells without a flip exclude a loss of 3 points at a nominal 5 %, which happens in 6.9 % of the
experiments with such a loss. So the p-value is the exact unconditional one of Hsueh, Liu and Chen ("Unconditional exact
tests for equivalence or noninferiority for paired binary endpoints", Biometrics 57, 2001): the largest probability of a
statistic as high as this one, over every rate of flips that has a loss of exactly the margin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import bdtrc
from scipy.stats import binom, norm

ALPHA = 0.05
NUISANCE = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 20)])  # rates of gained cells, as shares of the largest one
NEGLIGIBLE = 1e-9  # probability of counts that are not summed, on each side
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
    z = norm.ppf((1 + confidence) / 2)
    estimate, edge = (gained - lost) / n, 1 - 1e-12

    def end(sign: int) -> float:
        def beyond(difference: float) -> float:
            return float(np.clip(score(lost, gained, n, difference), -1e9, 1e9)) - sign * z

        far = -sign * edge
        if beyond(far) * sign < 0:
            return float(-sign)
        return float(brentq(beyond, *sorted((far, estimate)), xtol=1e-10)) if abs(estimate) < edge else estimate

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
    return _size(float(score(lost, gained, n, -margin)), n, margin)


@lru_cache(maxsize=4096)
def largest_loss(lost: int, gained: int, n: int, alpha: float = ALPHA) -> float:
    """Loss that is excluded with confidence 1 - alpha (one-sided): the least margin whose test rejects.

    Returns:
        A share, at least 0: a gain that is shown is a loss of at most 0. 1 where nothing is excluded.
    """
    _check(lost, gained, n)
    least, most = 1e-6, 1 - 1e-6
    if p_value(lost, gained, n, most) > alpha:
        return 1.0
    if p_value(lost, gained, n, least) <= alpha:
        return 0.0
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
    return float(_reaches(_critical(n, margin, alpha), n, margin, np.array([lost]), np.array([gained]))[0])


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
    _check_margin(margin)
    room = margin - (lost - gained)
    if room <= 0:
        return 0
    spread = (lost + gained) + margin  # a variance, a little too large
    reach = norm.ppf(1 - alpha) + norm.ppf(power_wanted)
    guess = spread * (reach / room) ** 2 + 3 / margin
    if guess > MOST:
        return 0

    def enough(pairs: int) -> bool:
        return power(pairs, margin, lost, gained, alpha) >= power_wanted

    most = two_digits(guess)
    while not enough(most):
        most = two_digits(most * 1.3)
    least = most // 8
    while most - least > max(1, most // 25):
        middle = two_digits((least + most) / 2)
        if middle in (least, most):
            break
        least, most = (least, middle) if enough(middle) else (middle, most)
    return most


def two_digits(value: float) -> int:
    """A count of pairs rounded up to two significant digits."""
    step = 10 ** max(0, len(str(int(value))) - 2)
    return int(-(-value // step)) * step


@lru_cache(maxsize=4096)
def _critical(n: int, margin: float, alpha: float) -> float:
    """Score from which the exact test rejects."""
    z = float(norm.ppf(1 - alpha))
    low, high = z - 0.2, z + 0.6
    if _size(low, n, margin) <= alpha or _size(high, n, margin) > alpha:  # few pairs
        low, high = 0.0, 40.0
    while high - low > 4e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if _size(middle, n, margin) <= alpha else (middle, high)
    return high


def _size(statistic: float, n: int, margin: float) -> float:
    """Largest probability of a score as high as this one at a loss of exactly the margin."""
    gained = NUISANCE * (1 - margin) / 2
    sizes = _reaches(statistic, n, margin, gained + margin, gained)
    at = int(sizes.argmax())
    between = np.linspace(*gained[[max(at - 1, 0), min(at + 1, gained.size - 1)]], 9)[1:-1]
    finer = _reaches(statistic, n, margin, between + margin, between)
    return float(min(1.0, max(sizes[at], finer.max())))


def _reaches(statistic: float, n: int, margin: float, lost: np.ndarray, gained: np.ndarray) -> np.ndarray:
    """Probabilities of a score of at least ``statistic`` at these rates of lost and gained cells.

    For each count of lost cells the score rises with the gained ones, so there is a least count that reaches it.
    """
    firsts, lasts = (binom.ppf(tail, n, lost).astype(int) for tail in (NEGLIGIBLE, 1 - NEGLIGIBLE))
    least = _least_gained(statistic, np.arange(lasts.max() + 1), n, margin)
    reached = []
    for first, last, p_lost, p_gained in zip(firsts, lasts, lost, gained, strict=True):
        counts = np.arange(first, last + 1)
        wanted = least[first : last + 1]
        share = min(1.0, p_gained / (1 - p_lost)) if p_lost < 1 else 0.0
        tail = np.where(wanted > 0, bdtrc(np.maximum(wanted - 1, 0), n - counts, share), 1.0)
        tail = np.where(wanted > n - counts, 0.0, tail)
        reached.append(binom.pmf(counts, n, p_lost) @ tail)
    return np.asarray(reached)


def _least_gained(statistic: float, lost: np.ndarray, n: int, margin: float) -> np.ndarray:
    """Least count of gained cells at which the score reaches ``statistic``, by count of lost ones; n + 1 for none."""
    low, high = np.full(lost.shape, -1), n - lost + 1
    while (high - low).max() > 1:
        middle = (low + high) // 2
        reached = score(lost, np.maximum(middle, 0), n, -margin) >= statistic - 1e-9
        open = high - low > 1
        high, low = np.where(open & reached, middle, high), np.where(open & ~reached, middle, low)
    return np.where(high > n - lost, n + 1, high)


def _check(lost: int, gained: int, n: int) -> None:
    if n < 1 or min(lost, gained) < 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained of {n} pairs are no comparison; give at least one pair")


def _check_margin(margin: float) -> None:
    if not 0 < margin < 1:
        raise ValueError(f"the margin {margin!r} is no share between 0 and 1; 0.03 is three points")
