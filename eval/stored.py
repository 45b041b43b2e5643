"""Episodes of a run as a user names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .spec import BadInput, unknown

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow

NAMED = 3  # cells that a message names


def find_cell(rows: Sequence[EpisodeRow], name: str) -> list[EpisodeRow]:
    """Returns the episodes of one cell.

    Args:
        rows: Episodes of a run.
        name: ``TASK:STATE``, ``SUITE:TASK:STATE``, or the beginning of the cell's address.

    Raises:
        BadInput: There is no such cell, or several.
    """
    fitting = [row for row in rows if name and (row.cell.startswith(name) or name in _names(row))]
    cells = {row.cell: row for row in fitting}
    if len(cells) > 1:
        several = "; ".join(f"{cell[:12]} is {_name(row)}" for cell, row in list(cells.items())[:NAMED])
        raise BadInput(f"{name!r} names {len(cells)} cells; give an address: {several}{' ...' * (len(cells) > NAMED)}")
    if not fitting:
        raise unknown("cell", name, {f"{row.task}:{row.init_state}" for row in rows})
    return fitting


def of_method(rows: Sequence[EpisodeRow], method: str) -> EpisodeRow:
    """Returns the episode of a method on the one cell that the rows are of.

    Raises:
        BadInput: There is none, or there are several: of other code, or under other latencies.
    """
    fitting = [row for row in rows if row.method == method]
    if not fitting:
        raise unknown("method on this cell", method, {row.method for row in rows})
    if len(fitting) > 1:
        raise BadInput(f"the run holds {len(fitting)} versions of {method!r} on this cell; show a run with one of them")
    return fitting[0]


def _names(row: EpisodeRow) -> tuple[str, str]:
    short = f"{row.task}:{row.init_state}"
    return short, f"{row.suite}:{short}"


def _name(row: EpisodeRow) -> str:
    settings = "".join(f", {name} {value}" for name, value in row.settings.items())
    return f"{row.suite} {row.task} {row.init_state}, seed {row.seed}{settings}"
