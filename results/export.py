"""Runs as plain tables, for pandas and its kin: one of episodes, one of rounds."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

from .rounds import STAGE, RoundTable, gathered
from .schema import EpisodeRow, RoundRow
from .store import EPISODE_COLUMNS, Store

Record = dict[str, Any]
AT_ONCE = 10_000  # records that are turned into text at once


class Table(NamedTuple):
    """A table that is read record by record.

    Attributes:
        columns: All columns: a method's own counters are not every method's.
        rows: How many records there are.
        records: Begins to read; what a record lacks is missing in it.
    """

    columns: list[str]
    rows: int
    records: Callable[[], Iterator[Record]]


class Exported(NamedTuple):
    """The tables. A field that is a table itself, such as ``settings``, has a column per entry: ``settings.speed``.

    Attributes:
        episodes: The fields of :class:`.schema.EpisodeRow` but its rounds, with the ``run`` directory in front.
        rounds: Those of :class:`.schema.RoundRow` behind the episode's ``run``, ``key``, ``cell`` and ``method``.
    """

    episodes: Table
    rounds: Table


def export(runs: Iterable[tuple[str, Store]]) -> Exported:
    """Reads everything of some runs.

    Args:
        runs: Names, as they go into the column ``run``, and stores.
    """
    episodes = [(name, row) for name, store in runs for row in store.episodes()]

    def of_episodes() -> Iterator[Record]:
        return (_episode(name, row) for name, row in episodes)

    def of_rounds() -> Iterator[Record]:
        for name, row in episodes:
            whose = {"run": name, "key": row.key, "cell": row.cell, "method": row.method}
            yield from ({**whose, **_flat(vars(each))} for each in row.rounds)

    rounds = gathered(row.rounds for _, row in episodes)
    return Exported(
        Table(list(dict.fromkeys(column for record in of_episodes() for column in record)), len(episodes), of_episodes),
        Table(_round_columns(rounds), len(rounds), of_rounds),
    )


def episode_records(runs: Iterable[tuple[str, Store]]) -> list[Record]:
    """Returns the records of the table of episodes; see :func:`export`."""
    return [_episode(name, row) for name, store in runs for row in store.episodes()]


def _episode(name: str, row: EpisodeRow) -> Record:
    return {"run": name, **_flat({column: getattr(row, column) for column in EPISODE_COLUMNS})}


def _round_columns(table: RoundTable) -> list[str]:
    parts = {
        "stages_ns": [name.removeprefix(STAGE) for name in table.columns if name.startswith(STAGE)],
        "extra": list(dict.fromkeys(name for each in table.extra.values() for name in each)),
    }
    columns = ["run", "key", "cell", "method"]
    for field in fields(RoundRow):
        columns += [f"{field.name}.{name}" for name in parts[field.name]] if field.name in parts else [field.name]
    return columns


def to_csv(table: Table) -> Iterator[str]:
    """Yields RFC 4180 text piece by piece; what a record lacks is empty."""
    page = io.StringIO()
    writer = csv.DictWriter(page, table.columns)
    writer.writeheader()
    records = table.records()
    while True:
        yield page.getvalue()
        page.seek(0)
        page.truncate()
        if not (some := list(islice(records, AT_ONCE))):
            return
        writer.writerows(some)


def _flat(fields: Record) -> Record:
    flat: Record = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            flat.update((f"{key}.{name}", each) for name, each in value.items())
        else:
            flat[key] = value
    return flat
