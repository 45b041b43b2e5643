"""Looks at a run that is still going on, at the ends of blocks of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from .betting import Wealth, wealth
from .compare import NothingToCompare
from .groups import BASELINE, groups
from .noninferiority import ALPHA
from .pairs import baseline_of, pair
from .store import Store

Condition = tuple[str, tuple[tuple[str, Any], ...]]
"""Suite, and settings by name."""


class Look(NamedTuple):
    """What the whole blocks of one method show.

    Attributes:
        suite: Suite name.
        method: Method with its version.
        settings: Suite settings that the user fixed.
        n: Cells of whole blocks.
        lost: Of these, cells that only the baseline solved.
        gained: Cells that only the method solved.
        wealth: The evidence.
        enough: Wealth that refutes a hypothesis: 20, times the number of methods that are looked at.
    """

    suite: str
    method: str
    settings: dict[str, Any]
    n: int
    lost: int
    gained: int
    wealth: Wealth
    enough: float


def watched(store: Store, order: Mapping[Condition, Sequence[str]], margin: float, block: int) -> list[Look]:
    """A look at each method, at the end of the last block of which every cell was measured with both.

    The cells have to be in an order that was fixed before: which blocks are whole must not depend on what came out.
    A cell that could not be measured ends the blocks.

    Args:
        store: The run.
        order: Addresses of all its cells in the order in which they are played, by suite and settings.
        margin: Loss that is tolerated, as a share.
        block: Cells of a block.

    Raises:
        NothingToCompare: The run has no method next to dense yet.
    """
    gathered = groups([store])
    pairs = []
    for group in gathered:
        baseline = baseline_of(
            group, [each for each in gathered if each.condition == group.condition], allow_mixed=False
        )
        if baseline:
            pairs.append((group, pair(group, baseline)))
    if not pairs:
        raise NothingToCompare(f"{store.path.parent} has no method next to {BASELINE} yet; wait for the first cells")
    planned = len(store.run.spec.get("method", [])) - 1
    methods = max(len(pairs), planned * len(order))  # planned: a method without episodes yet has its share as well
    looks = []
    for group, found in pairs:
        both = {row.cell: (bool(row.success), bool(base.success)) for row, base in found.done}
        own = order.get((group.suite, tuple(sorted(group.settings.items()))), ())
        measured = [both[cell] for cell in takewhile(both.__contains__, own)]
        seen = measured[: len(measured) // block * block]
        lost = sum(base and not success for success, base in seen)
        gained = sum(success and not base for success, base in seen)
        alpha = ALPHA / methods
        found_wealth = wealth(lost, gained, len(seen), margin, alpha)
        looks.append(Look(group.suite, group.label, group.settings, len(seen), lost, gained, found_wealth, 1 / alpha))
    return looks
