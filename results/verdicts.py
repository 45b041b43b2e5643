"""A verdict per comparison: costs success, no loss beyond so many points, or cannot tell.

Each one is proven at 95 % for all methods that are compared with one baseline together: what is claimed of any of them
is false in at most 5 % of such experiments. McNemar's test shares the level by Holm's rule and bounds share it evenly
(Bonferroni), since Holm's rule has no bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from .inference import holm
from .noninferiority import ALPHA, largest_loss, pairs_about, score_interval
from .stats import Paired

MARGIN = 0.10  # loss above which a bound says too little to be a verdict, and that a rank has to exclude
HEADLINE = 0.02  # loss that the headline's method may have
POWER = 0.8  # with which the number of cells in "cannot tell" would exclude the margin


class Kind(str, Enum):
    """What a verdict says."""

    COSTS = "costs success"
    NO_LOSS = "no loss beyond"
    CANNOT_TELL = "cannot tell"


class Verdict(NamedTuple):
    """What the cells prove about one method.

    Attributes:
        kind: What it says.
        text: The verdict in words.
        loss: Largest loss that is not excluded, as a share; 1 where nothing is excluded.
        p: McNemar's p-value after Holm's adjustment.
        pairs: About how many cells would exclude the margin with a power of 80 %, if the method loses nothing and as
            many cells flip as did here; 0 where the verdict does not need them, or no such number is known.
        methods: Methods that share the level.
    """

    kind: Kind
    text: str
    loss: float
    p: float
    pairs: int
    methods: int


def judge(compared: Sequence[Paired], alpha: float = ALPHA) -> list[Verdict]:
    """Verdicts on methods that were compared with one baseline.

    Args:
        compared: A comparison per method, in the worst case where cells could not be measured; each with at least one
            cell.
        alpha: Level of all verdicts together.
    """
    adjusted = holm([each.p for each in compared])
    return [_verdict(each, float(p), alpha, len(compared)) for each, p in zip(compared, adjusted, strict=True)]


def flip_rate(paired: Paired) -> float:
    """Share of cells that flip, as one more flip in one more cell says: a pilot without flips does not promise none."""
    return (paired.lost + paired.gained + 1) / (paired.n + 1)


def headline(candidates: Iterable[tuple[str, float, Verdict | None]]) -> str:
    """The fastest method that loses at most 2 points, in words.

    Args:
        candidates: Name, speed-up per action, and verdict of each method; a speed-up that is NaN is none.
    """
    most = f"Fastest that loses at most {100 * HEADLINE:.0f} points"
    proven = [
        (speed_up, name)
        for name, speed_up, verdict in candidates
        if verdict and verdict.kind is Kind.NO_LOSS and verdict.loss <= HEADLINE and speed_up > 1
    ]
    if not proven:
        return f"{most}: none that these cells prove"
    speed_up, name = max(proven)
    return f"{most}: {name}, {speed_up:.2f}× per action"


def _verdict(paired: Paired, p: float, alpha: float, methods: int) -> Verdict:
    share = alpha / methods
    loss = largest_loss(paired.lost, paired.gained, paired.n, share)
    if p <= alpha and paired.lost > paired.gained:
        low, high = score_interval(paired.lost, paired.gained, paired.n, 1 - 2 * share)
        text = f"costs success: {100 * max(0.0, -high):.1f} to {-100 * low:.1f} points"
        return Verdict(Kind.COSTS, text, loss, p, 0, methods)
    if loss <= MARGIN:
        return Verdict(Kind.NO_LOSS, f"no loss beyond {100 * loss:.1f} points", loss, p, 0, methods)
    flips = flip_rate(paired)
    pairs = pairs_about(MARGIN, flips / 2, flips / 2, POWER, share)
    if pairs > paired.n:
        text = f"cannot tell, n too small (n = {pairs} would)"
    else:  # so many cells would have done for a method that loses nothing
        text, pairs = f"cannot tell, {paired.lost} of {paired.n} cells lost and {paired.gained} gained", 0
    return Verdict(Kind.CANNOT_TELL, text, loss, p, pairs, methods)
