"""Runs as plain tables, for pandas and its kin: one of episodes, one of rounds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from .store import Store

Record = dict[str, Any]


class Exported(NamedTuple):
    """The tables. A field that is a table itself, such as ``settings``, has a column per entry: ``settings.speed``.

    Attributes:
        episodes: The fields of :class:`.schema.EpisodeRow` but its rounds, with the ``run`` directory in front.
        rounds: Those of :class:`.schema.RoundRow` behind the episode's ``run``, ``key``, ``cell`` and ``method``.
    """

    episodes: list[Record]
    rounds: list[Record]


def export(runs: Iterable[tuple[str, Store]]) -> Exported:
    """Reads everything of some runs.

    Args:
        runs: Names, as they go into the column ``run``, and stores.
    """
    result = Exported([], [])
    for name, store in runs:
        for episode in store.episodes():
            result.episodes.append({"run": name, **_flat({**vars(episode), "rounds": None})})
            whose = {"run": name, "key": episode.key, "cell": episode.cell, "method": episode.method}
            result.rounds.extend({**whose, **_flat(asdict(each))} for each in episode.rounds)
    return result


def columns(records: Sequence[Record]) -> list[str]:
    """Returns the columns of all records: a method's own counters are not every method's."""
    return list(dict.fromkeys(key for record in records for key in record))


def to_csv(records: Sequence[Record]) -> str:
    """Returns RFC 4180 text; what a record lacks is empty."""
    page = io.StringIO()
    writer = csv.DictWriter(page, columns(records))
    writer.writeheader()
    writer.writerows(records)
    return page.getvalue()


def _flat(fields: Record) -> Record:
    flat: Record = {}
    for key, value in fields.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": each for name, each in value.items()}
        elif key not in ("rounds", "actions"):
            flat[key] = value
    return flat
