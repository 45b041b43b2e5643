"""From a pilot run to a plan: cells and hours that the gate's test takes, and what a budget can show."""

from __future__ import annotations

from typing import NamedTuple

from .compare import NothingToCompare
from .groups import BASELINE, groups
from .noninferiority import ALPHA, pairs_about, pairs_needed
from .pairs import baseline_of, pair
from .schema import EpisodeRow
from .store import Store
from .verdicts import POWER, flip_rate

GATE = 0.03  # the margin of `replan gate` and `replan plan` unless they are given another
LISTED = 4  # methods that a sentence names
LADDER = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)  # margins that a budget is tried for


class Plan(NamedTuple):
    """What one method's verdict takes.

    Attributes:
        suite: Suite name.
        method: Method with its version.
        lost: Cells of the pilot that only the baseline solved.
        gained: Cells of the pilot that only the method solved.
        n: Cells of the pilot.
        cells: Cells that the verdict takes; 0 where a million do not do.
        hours: Time of the rounds of the baseline and of the method on these cells.
        certified: Least margin, of a few, that the budget can exclude; 0 for none, or without a budget.
    """

    suite: str
    method: str
    lost: int
    gained: int
    n: int
    cells: int
    hours: float
    certified: float


def plans(store: Store, margin: float, power: float, budget: float | None = None) -> list[Plan]:
    """A plan for each method of a pilot run, on the level that they share, as in :mod:`.gate`.

    Args:
        store: The pilot.
        margin: Loss to exclude, as a share.
        power: Chance that the proof succeeds, for a method that loses nothing.
        budget: Hours for one method and its baseline; None for none.

    Raises:
        NothingToCompare: The pilot has no method next to dense.
    """
    gathered = groups([store])
    found = []
    for group in gathered:
        baseline = baseline_of(
            group, [each for each in gathered if each.condition == group.condition], allow_mixed=False
        )
        if baseline and (pairs := pair(group, baseline)).difference:
            found.append((group, pairs, pairs.difference))
    if not found:
        raise NothingToCompare(
            f"{store.path.parent} has no method next to {BASELINE}; a pilot takes some cells of both"
        )
    alpha = ALPHA / len(found)
    made = []
    for group, pairs, paired in found:
        flips = flip_rate(paired) / 2
        cells = pairs_needed(margin, flips, flips, power, alpha)
        seconds = sum(_seconds(row) + _seconds(base) for row, base in pairs.done) / len(pairs.done)
        hours = cells * seconds / 3600
        certified = 0.0
        if budget is not None:
            needed = {each: pairs_about(each, flips, flips, power, alpha) for each in LADDER}
            certified = min((each for each, n in needed.items() if 0 < n * seconds / 3600 <= budget), default=0.0)
        made.append(Plan(group.suite, group.label, paired.lost, paired.gained, paired.n, cells, hours, certified))
    return made


def closing(store: Store, margin: float = GATE) -> str:
    """A sentence on the cells that a proof takes, by the flips of a run; empty without a comparison."""
    try:
        found = plans(store, margin, POWER)
    except NothingToCompare:
        return ""
    words = [f"{each.method} {each.cells or 'no number of them'} (has {each.n})" for each in found[:LISTED]]
    more = f", and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return f"Cells to exclude a loss of {100 * margin:g} points, by the flips seen here: {', '.join(words)}{more}"


def _seconds(row: EpisodeRow) -> float:
    return sum(round.host_ns for round in row.rounds) / 1e9
