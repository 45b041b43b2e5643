"""Anytime-valid verdicts: a bettor's wealth on the pairs seen so far, which may be looked at after every block.

A bettor who stakes a share of their wealth on each pair at odds that are fair under a hypothesis multiplies it by 20
with a probability of at most 5 %, whenever they stop (Ville's inequality). So wealth of 20 refutes the hypothesis, and
stopping at the first such look is allowed, unlike with a p-value. The stakes are many constant shares at once, whose
wealth is averaged: a product, so that the order of the pairs does not matter. See Waudby-Smith and Ramdas, "Estimating
means of bounded random variables by betting", J. R. Stat. Soc. B 86, 2024.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import xlog1py

from .noninferiority import ALPHA

STAKES = np.geomspace(0.01, 0.99, 40)  # shares of the largest stake that cannot ruin the bettor
MOST = 700.0  # logarithm of a wealth that is still a number

CERTIFIED = "no loss beyond the margin"
COSTS = "costs success"
OPEN = "open"


class Wealth(NamedTuple):
    """Wealth against two hypotheses, from 1.

    Attributes:
        against_loss: Against "the method loses the margin or more".
        against_none: Against "the method loses nothing".
        verdict: ``CERTIFIED``, ``COSTS``, or ``OPEN``.
    """

    against_loss: float
    against_none: float
    verdict: str


def wealth(lost: int, gained: int, n: int, margin: float, alpha: float = ALPHA) -> Wealth:
    """Wealth after n pairs.

    Against a loss of the margin, a pair is worth margin + 1 where it was gained, margin - 1 where it was lost and
    margin where it came out equal, which is a fair or losing bet on average if the loss is the margin or more. Against
    no loss, only flips count: a lost cell is worth 1 and a gained one -1.

    Args:
        lost: Cells that only the baseline solved.
        gained: Cells that only the method solved.
        n: Cells.
        margin: Largest loss that is tolerated, as a share.
        alpha: Level: a hypothesis is refuted by wealth of 1 / alpha.

    Raises:
        ValueError: More flips than pairs, or a margin that is none.
    """
    if min(lost, gained) < 0 or lost + gained > n:
        raise ValueError(f"{lost} lost and {gained} gained of {n} pairs are no comparison; give at least as many pairs")
    if not 0 < margin < 1:
        raise ValueError(f"the margin {margin!r} is no share between 0 and 1; 0.03 is three points")
    stakes = STAKES / (1 - margin)
    against_loss = (
        xlog1py(lost, stakes * (margin - 1))
        + xlog1py(gained, stakes * (margin + 1))
        + xlog1py(n - lost - gained, stakes * margin)
    )
    against_none = xlog1py(lost, STAKES) + xlog1py(gained, -STAKES)
    loss, none = (float(np.exp(np.minimum(each, MOST)).mean()) for each in (against_loss, against_none))
    verdict = COSTS if none >= 1 / alpha else CERTIFIED if loss >= 1 / alpha else OPEN
    return Wealth(loss, none, verdict)
