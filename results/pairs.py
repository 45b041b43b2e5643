"""Pairs of episodes: which baseline a row is compared with, on which cells, and what the comparison says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from . import stats
from .groups import BASELINE, SHOWN, Group, Session, check_manifests
from .schema import EpisodeRow

MIXED = "mixed code"
REMEDY = "measure both with one version of the code, or pair them all the same with --allow-mixed, which marks the row"


class CodeMismatch(ValueError):
    """A row and the only baseline on its cells were played by different code of the suite or the policy.

    Attributes:
        digests: Digests of suite and policy code of the row, and of the baseline; empty where not recorded.
    """

    def __init__(self, row: Group, baseline: Group):
        self.digests = (row.code, baseline.code)
        super().__init__(
            f"{row.method} ({_origin(row)}) and {baseline.method} ({_origin(baseline)}) on {row.suite} were not played"
            f" by the same code of suite and policy; {REMEDY}"
        )


class Flip(NamedTuple):
    """A cell that the baseline and the method ended differently."""

    direction: str  # "lost": the baseline succeeded, the method failed; "gained": the reverse
    cell: str
    task: str
    init_state: int
    seed: int
    baseline_outcome: str
    outcome: str


class Pairs(NamedTuple):
    """Cells of a method and its baseline.

    Attributes:
        done: Episodes of the method and of the baseline on cells that both measured.
        together: Those of ``done`` that one session measured both of, in that session's copies: two sessions, also of
            one run directory, may have had different company on the machine, so their durations are not compared.
        lost_method: Episodes of the baseline on cells where the method could not be measured.
        lost_baseline: Episodes of the method on cells where the baseline could not be measured.
        mixed: Whether different code played them, or code that was not recorded in runs of different directories.
    """

    done: list[tuple[EpisodeRow, EpisodeRow]]
    together: list[tuple[EpisodeRow, EpisodeRow]]
    lost_method: list[EpisodeRow]
    lost_baseline: list[EpisodeRow]
    mixed: bool

    @property
    def difference(self) -> stats.Paired | None:
        """The comparison on cells that both measured; None without one."""
        if not self.done:
            return None
        return stats.paired([bool(row.success) for row, _ in self.done], [bool(row.success) for _, row in self.done])

    @property
    def worst(self) -> stats.Paired | None:
        """The same if the method had failed, and the baseline succeeded, wherever they could not be measured.

        None where both were measured on every cell. Cells that neither measured are no comparison.
        """
        if not (self.lost_method or self.lost_baseline):
            return None
        method = [bool(row.success) for row, _ in self.done] + [False] * len(self.lost_method)
        method += [bool(row.success) for row in self.lost_baseline]
        baseline = [bool(row.success) for _, row in self.done] + [bool(row.success) for row in self.lost_method]
        baseline += [True] * len(self.lost_baseline)
        return stats.paired(method, baseline)

    @property
    def equal(self) -> bool:
        """Whether every episode equals its pair action by action; one whose process was lost has no trajectory."""
        return bool(self.done) and all(a.trajectory_hash == b.trajectory_hash != "" for a, b in self.done)

    @property
    def flips(self) -> tuple[Flip, ...]:
        """Cells that ended differently."""
        return tuple(
            Flip(
                "gained" if row.success else "lost",
                row.cell,
                row.task,
                row.init_state,
                row.seed,
                base.outcome,
                row.outcome,
            )
            for row, base in self.done
            if row.success != base.success
        )


def baseline_of(group: Group, gathered: Iterable[Group], *, allow_mixed: bool) -> Group | None:
    """The baseline that a group is compared with: of the same world, and of the same session where there is one.

    Args:
        group: A group.
        gathered: All groups under its condition.
        allow_mixed: Whether a baseline of another world will do where there is no other.

    Returns:
        A group of the baseline's; None for a baseline itself, and where none was tried on the group's cells.

    Raises:
        CodeMismatch: The only baseline on these cells is of another world.
    """
    if group.method == BASELINE:
        return None

    def preference(baseline: Group) -> tuple[bool, bool, str]:
        return (baseline.world == group.world, not group.sessions.isdisjoint(baseline.sessions), baseline.started)

    candidates = [each for each in gathered if each.method == BASELINE and each.cells & group.cells]
    best = max(candidates, key=preference, default=None)
    if best is not None and best.world != group.world and not allow_mixed:
        raise CodeMismatch(group, best)
    return best


def pair(
    group: Group,
    baseline: Group,
    cell_of: Callable[[EpisodeRow], Hashable] = lambda row: row.cell,
    *,
    same: bool = True,
) -> Pairs:
    """Pairs the episodes of two groups by cell.

    Args:
        group: The method.
        baseline: What it is compared with.
        cell_of: What two episodes of one pair have in common.
        same: Whether paired episodes have to be the same episode of the world.

    Raises:
        ManifestMismatch: They are not.
    """
    done, base = _by_cell(group.done.values(), cell_of), _by_cell(baseline.done.values(), cell_of)
    pairs = [(row, base[cell]) for cell, row in done.items() if cell in base]
    if same:
        for both in pairs:
            check_manifests(both)
    failed, base_failed = _by_cell(group.errors, cell_of), _by_cell(baseline.errors, cell_of)
    return Pairs(
        pairs,
        [both for pair in pairs if (both := _together(group.copies(pair[0].cell), baseline.copies(pair[1].cell)))],
        lost_method=[base[cell] for cell in failed if cell in base],
        lost_baseline=[done[cell] for cell in base_failed if cell in done],
        mixed=group.world != baseline.world,
    )


def _together(
    copies: dict[Session, EpisodeRow], base: dict[Session, EpisodeRow]
) -> tuple[EpisodeRow, EpisodeRow] | None:
    """The copies of the first session that measured both sides of a pair; None where none is known to have."""
    return next(((row, base[at]) for at, row in copies.items() if at in base and row.session), None)


def _by_cell(rows: Iterable[EpisodeRow], cell_of: Callable[[EpisodeRow], Hashable]) -> dict[Hashable, EpisodeRow]:
    return {cell_of(row): row for row in rows}


def _origin(group: Group) -> str:
    if not group.code:
        return f"code not recorded, in {group.world[1]}"
    suite, policy = group.world
    return f"suite code {suite[:SHOWN]}, policy code {policy[:SHOWN]}"
