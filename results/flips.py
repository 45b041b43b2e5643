"""Which cells two methods of a run ended differently, and where these cells are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .groups import Group, groups
from .pairs import pair
from .schema import EpisodeRow
from .store import Store


class Flipped(NamedTuple):
    """Two episodes of one cell, of which one is a success.

    Attributes:
        against: The episode of the method that is compared with.
        row: The episode of the method.
    """

    against: EpisodeRow
    row: EpisodeRow

    @property
    def lost(self) -> bool:
        """Whether the method lost what the other one solved."""
        return bool(self.against.success)


@dataclass(frozen=True)
class Pattern:
    """How the cells of one task came out. Counts are cells.

    Attributes:
        suite: Suite name.
        task: Task name.
        settings: Suite settings that the user fixed.
        lost: Solved by the other method alone.
        gained: Solved by the method alone.
        both: Solved by both.
        neither: Solved by neither.
    """

    suite: str
    task: str
    settings: dict[str, Any]
    lost: int
    gained: int
    both: int
    neither: int

    @property
    def cells(self) -> int:
        """All of them."""
        return self.lost + self.gained + self.both + self.neither

    @property
    def label(self) -> str:
        """Suite, task and settings."""
        return ", ".join([f"{self.suite} {self.task}", *(f"{name} {value}" for name, value in self.settings.items())])


@dataclass(frozen=True)
class Flips:
    """The comparison of two methods, cell by cell.

    Attributes:
        method: Method as the user wrote it.
        against: The one that it is compared with.
        patterns: One per suite, settings and task, those with most losses first.
        flipped: The cells that came out differently: losses first, in the order of the patterns.
    """

    method: str
    against: str
    patterns: list[Pattern]
    flipped: list[Flipped]

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        lost, gained, cells = (
            sum(getattr(each, name) for each in self.patterns) for name in ("lost", "gained", "cells")
        )
        return (
            f"{_cells(lost)} that {self.against} solved and {self.method} lost, "
            f"{_cells(gained)} that {self.method} solved and {self.against} lost, of {cells}"
        )


def flips(store: Store, method: str, against: str) -> Flips:
    """Compares two methods of a run on all cells that both measured under the same condition.

    Args:
        store: The run.
        method: Method as the user wrote it.
        against: The one to compare with.

    Raises:
        ManifestMismatch: A cell is not the same episode for both.
    """
    pairs = list(_pairs(groups([store]), method, against))
    kinds: dict[tuple[str, str, str], list[Flipped]] = {}
    for each in pairs:
        kinds.setdefault((each.row.suite, repr(sorted(each.row.settings.items())), each.row.task), []).append(each)
    patterns = sorted(map(_pattern, kinds.values()), key=lambda p: (p.suite, -p.lost, -p.gained))
    rank = {(p.suite, repr(sorted(p.settings.items())), p.task): place for place, p in enumerate(patterns)}

    def order(each: Flipped) -> tuple[bool, int, int, int]:
        row = each.row
        return (not each.lost, rank[row.suite, repr(sorted(row.settings.items())), row.task], row.init_state, row.seed)

    return Flips(method, against, patterns, sorted((p for p in pairs if p.against.success != p.row.success), key=order))


def _pairs(gathered: Sequence[Group], method: str, against: str) -> Iterable[Flipped]:
    for group in gathered:
        if group.method != method:
            continue
        others = [each for each in gathered if each.method == against and each.condition == group.condition]
        best = max(others, key=lambda other: (other.world == group.world, other.started), default=None)
        if best is not None:
            yield from (Flipped(other, row) for row, other in pair(group, best).done)


def _pattern(pairs: Sequence[Flipped]) -> Pattern:
    row = pairs[0].row
    count = Counter((bool(each.against.success), bool(each.row.success)) for each in pairs)
    return Pattern(
        row.suite,
        row.task,
        row.settings,
        lost=count[True, False],
        gained=count[False, True],
        both=count[True, True],
        neither=count[False, False],
    )


def _cells(count: int) -> str:
    return f"{count} cell{'s' * (count != 1)}"
