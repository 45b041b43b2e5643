"""Conditions on a comparison that fail a build: ``success<-2``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .compare import Comparison
from .stats import Paired

FIGURES: dict[str, Callable[[Paired], float]] = {
    "success": lambda paired: 100 * paired.difference,
    "low": lambda paired: 100 * paired.low,
    "high": lambda paired: 100 * paired.high,
    "lost": lambda paired: paired.lost,
    "gained": lambda paired: paired.gained,
    "p": lambda paired: paired.p,
}
"""What a condition may be about. Of success and the ends of its interval the difference, new minus old, in points."""

_RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CONDITION = re.compile(rf"\s*({'|'.join(FIGURES)})\s*(<=|>=|<|>)\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*")


class Threshold(NamedTuple):
    """A condition as it was written, and its parts."""

    text: str
    figure: str
    relation: str
    limit: float

    def broken_by(self, paired: Paired) -> float | None:
        """Returns the figure where the condition holds, None where it does not."""
        value = FIGURES[self.figure](paired)
        return value if _RELATIONS[self.relation](value, self.limit) else None


def parse(text: str) -> Threshold:
    """Reads a condition.

    Raises:
        ValueError: It is none.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is no condition; write one of {', '.join(FIGURES)}, then <, <=, > or >=, and a number, in "
            "quotes: 'success<-2'"
        )
    figure, relation, limit = found.groups()
    return Threshold(text.strip(), figure, relation, float(limit))


def broken(found: Iterable[Comparison], thresholds: Iterable[Threshold]) -> list[str]:
    """Returns a sentence for each condition that holds for a comparison.

    Cells that could not be measured count in the worst case, and arms without a shared cell break every condition: what
    was not measured must not pass.
    """
    thresholds, sentences = list(thresholds), []
    for each in found:
        paired = each.paired_worst or each.paired
        for threshold in thresholds:
            if paired is None:
                sentences.append(f"{each.new.method} on {each.suite}: no shared cell, so {threshold.text} is not known")
                continue
            value = threshold.broken_by(paired)
            if value is not None and not math.isnan(value):
                sentences.append(f"{each.new.method} on {each.suite}: {threshold.figure} is {value:.3g}")
    return sentences
