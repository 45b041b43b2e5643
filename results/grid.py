"""Tables of text as the page needs them: which rows a line shows, what it is sorted by, which marks explain it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from .groups import BASELINE
from .leaderboard import Row
from .tables import Table

HIGH_FIRST = {"success", f"vs {BASELINE}", "keeps", "n", "speed-up", "accepted", "share", "drafts", "rate"}
_NUMBER = re.compile(r"(?:p50 )?([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: %|×.*| \(.*)?$")


class Cell(NamedTuple):
    """A cell of the page.

    Attributes:
        lines: Its text, the most important line first.
        value: Number by which it is sorted; None where it is sorted by its text.
        badges: Badges under it.
    """

    lines: list[str]
    value: float | None
    badges: tuple[str, ...] = ()


class Grid(NamedTuple):
    """A table of the page.

    Attributes:
        columns: Heading, numbers of the rows that it shows where they are not those of the line, and whether the
            highest value comes first when it is sorted.
        lines: Numbers of the rows that a line shows (none: of all), and its cells.
        name: Position of the column that names a line.
        notes: Sentences that belong under it.
    """

    columns: list[tuple[str, Sequence[int], bool]]
    lines: list[tuple[Sequence[int], list[Cell]]]
    name: int
    notes: list[str]


def grid(table: Table, of_line: Iterable[int]) -> Grid:
    """A table in which each line shows one row, by its number."""
    columns: list[tuple[str, Sequence[int], bool]] = [
        (heading.replace("\n", " "), (), heading in HIGH_FIRST) for heading in table.columns
    ]
    lines = [([number], list(map(_cell, cells))) for number, cells in zip(of_line, table.cells, strict=True)]
    return Grid(columns, lines, table.columns.index("method"), table.notes)


def methods_grid(table: Table, rows: dict[int, Row], notes: list[str], shared: Collection[str]) -> Grid:
    """The table of methods: verdicts are sorted by the loss that they leave open, and marks stand under the method.

    Args:
        table: All of it.
        rows: Its rows, by number.
        notes: Sentences that belong under it.
        shared: Badges of all rows, which are shown once.
    """
    found = grid(table, rows)
    verdict, marks = table.columns.index("verdict"), table.columns.index("marks")
    lines = []
    for (numbers, cells), row in zip(found.lines, rows.values(), strict=True):
        cells[verdict] = cells[verdict]._replace(value=row.verdict.loss if row.verdict else None)
        badges = tuple(badge for badge in cells[marks].lines if row.marks and badge not in shared)
        cells[found.name] = cells[found.name]._replace(badges=badges)
        lines.append((numbers, cells[:marks]))
    return Grid(found.columns[:marks], lines, found.name, notes)


def tasks_grid(table: Table, numbers: Sequence[int]) -> Grid:
    """The table of tasks, which has a column per row of the board."""
    columns: list[tuple[str, Sequence[int], bool]] = [
        (heading.replace("\n", " "), [number], True) for number, heading in zip(numbers, table.columns[1:], strict=True)
    ]
    lines: list[tuple[Sequence[int], list[Cell]]] = [((), list(map(_cell, cells))) for cells in table.cells]
    return Grid([("task", (), False), *columns], lines, 0, table.notes)


def flips_grid(row: Row) -> Grid:
    """The cells that a row and the baseline ended differently."""
    names = ("", "task", "init state", "seed", BASELINE, row.label, "cell")
    lines: list[tuple[Sequence[int], list[Cell]]] = []
    for flip in row.flips:
        ended = (flip.baseline_outcome, flip.outcome, flip.cell)
        words = (flip.direction, flip.task, str(flip.init_state), str(flip.seed), *ended)
        lines.append(((), list(map(_cell, words))))
    return Grid([(name, (), False) for name in names], lines, 1, [])


def _cell(text: str) -> Cell:
    lines = text.split("\n")
    number = _NUMBER.match(lines[0])
    return Cell(lines, float(number[1]) if number else None)
