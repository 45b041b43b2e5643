"""Rounds of many episodes by column: a run has a million of them, and as objects they would fill the memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, overload

import numpy as np

from .schema import RoundRow

ABSENT = int(np.iinfo(np.int32).min)  # in a column of integers: nothing was measured
COUNTS = ("index", "control_step", "host_ns", "cpu_ns", "latency_ns", "executed", "window", "accepted", "drafted")
OPTIONAL = ("accepted", "drafted")
STAGE = "stage "  # what the name of a stage's column begins with


class RoundTable:
    """Rounds of many episodes, one after another.

    Attributes:
        columns: Arrays [rounds] by the names of :class:`.schema.RoundRow`: integers (``ABSENT`` where there is no
            value), ``warmup`` bool, ``action_error`` float with NaN for none, ``route`` as a position in ``routes``; a
            stage has its own column, named ``stage NAME``.
        routes: Names of routes.
        extra: Further numbers of a round, where there are any, by its position.
        starts: int [episodes + 1]: where the rounds of each episode begin, and where the last one's end.
    """

    def __init__(
        self, columns: dict[str, np.ndarray], routes: Sequence[str], extra: dict[int, dict[str, float]], starts: Any
    ) -> None:
        self.columns, self.routes, self.extra = columns, tuple(routes), extra
        self.starts = np.asarray(starts, dtype=np.int64)

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a column, or that of a stage which no round has."""
        if name not in self.columns and name.startswith(STAGE):
            return np.full(len(self), ABSENT)
        return self.columns[name]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def numbers(self, name: str) -> np.ndarray:
        """Returns a column of integers as float [rounds], with NaN where there is no value."""
        return np.where(self[name] == ABSENT, np.nan, self[name])

    @property
    def episode(self) -> np.ndarray:
        """Position of each round's episode, int [rounds]."""
        return np.repeat(np.arange(self.starts.size - 1), np.diff(self.starts))

    @property
    def measured(self) -> np.ndarray:
        """Rounds whose own durations say how long a round takes, bool [rounds]: all but cold ones."""
        return ~self["warmup"]

    def row(self, position: int) -> RoundRow:
        """Returns one round."""
        values: dict[str, Any] = {name: int(self.columns[name][position]) for name in COUNTS}
        for name in OPTIONAL:
            values[name] = None if values[name] == ABSENT else values[name]
        error = float(self.columns["action_error"][position])
        stages = ((name, int(array[position])) for name, array in self.columns.items() if name.startswith(STAGE))
        return RoundRow(
            route=self.routes[self.columns["route"][position]],
            stages_ns={name.removeprefix(STAGE): ns for name, ns in stages if ns != ABSENT},
            warmup=bool(self.columns["warmup"][position]),
            action_error=None if np.isnan(error) else error,
            extra=dict(self.extra.get(position, {})),
            **values,
        )

    def take(self, episodes: Sequence[int]) -> RoundTable:
        """Returns the rounds of some episodes, in the order given."""
        which = np.asarray(episodes, dtype=np.int64)
        counts = self.starts[which + 1] - self.starts[which]
        starts = np.concatenate([[0], np.cumsum(counts)])
        positions = np.arange(starts[-1]) + np.repeat(self.starts[which] - starts[:-1], counts)
        extra = (
            {new: self.extra[old] for new, old in enumerate(positions.tolist()) if old in self.extra}
            if self.extra
            else {}
        )
        return RoundTable({name: array[positions] for name, array in self.columns.items()}, self.routes, extra, starts)


class Rounds(Sequence[RoundRow]):
    """The rounds of one episode in a table: equal to a tuple of rows, which are made when they are asked for."""

    __slots__ = ("episode", "table")

    def __init__(self, table: RoundTable, episode: int) -> None:
        self.table, self.episode = table, episode

    def __len__(self) -> int:
        return int(self.table.starts[self.episode + 1] - self.table.starts[self.episode])

    @overload
    def __getitem__(self, index: int) -> RoundRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RoundRow, ...]: ...
    def __getitem__(self, index: int | slice) -> RoundRow | tuple[RoundRow, ...]:
        positions = range(self.table.starts[self.episode], self.table.starts[self.episode + 1])[index]
        return self.table.row(positions) if isinstance(positions, int) else tuple(map(self.table.row, positions))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rounds) and (other.table, other.episode) == (self.table, self.episode):
            return True
        return isinstance(other, (Rounds, tuple)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def gathered(rounds: Iterable[Sequence[RoundRow]]) -> RoundTable:
    """Returns one table of the rounds of some episodes.

    Args:
        rounds: By episode.
    """
    episodes = list(rounds)
    tables = {id(each.table): each.table for each in episodes if isinstance(each, Rounds)}
    if len(tables) == 1 and all(isinstance(each, Rounds) for each in episodes):
        return next(iter(tables.values())).take([each.episode for each in episodes if isinstance(each, Rounds)])
    builder = Builder()
    for each in episodes:
        builder.add([[getattr(round, name) for name in NAMES] for round in each])
    return builder.table([len(each) for each in episodes])


NAMES = [field.name for field in fields(RoundRow)]
"""Columns of rows that a :class:`Builder` takes, in order."""


class Builder:
    """Packs rows into columns, some thousands at a time."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self._routes: dict[str, int] = {}
        self._extra: dict[int, dict[str, float]] = {}
        self._rows = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Takes rows, each with the values of ``NAMES``; stages and extra are dictionaries, or their JSON.

        Raises:
            ValueError: A value is of another type than the schema's.
            TypeError: As ValueError.
        """
        if not rows:
            return
        found = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
        for name in COUNTS:
            values = found[name]
            if name in OPTIONAL:
                values = [ABSENT if value is None else value for value in values]
            self._put(name, _packed(_integers(name, values)))
        routes = self._routes
        self._put("route", np.array([routes.setdefault(each, len(routes)) for each in found["route"]], np.int32))
        if wrong := [each for each in found["warmup"] if each not in (0, 1)]:
            raise ValueError(f"warmup is {wrong[0]!r}")
        self._put("warmup", np.array(found["warmup"], bool))
        errors = [np.nan if value is None else value for value in found["action_error"]]
        self._put("action_error", np.array(errors, np.float64))
        stages = _objects("stages_ns", found["stages_ns"], (int,))
        for name in dict.fromkeys(name for each in stages for name in each):
            values = [each.get(name, ABSENT) for each in stages]
            self._put(f"{STAGE}{name}", _packed(np.array(values, np.int64)))
        for position, each in enumerate(_objects("extra", found["extra"], (int, float)), self._rows):
            if each:
                self._extra[position] = each
        self._rows += len(rows)

    def table(self, counts: Iterable[int]) -> RoundTable:
        """Returns all rows.

        Args:
            counts: Rounds of each episode.
        """
        columns = {name: np.concatenate(self._padded(parts)) for name, parts in self._parts.items()}
        for name in (*COUNTS, "route"):
            columns.setdefault(name, np.zeros(0, np.int64))
        columns.setdefault("warmup", np.zeros(0, bool))
        columns.setdefault("action_error", np.zeros(0))
        return RoundTable(columns, list(self._routes), self._extra, np.cumsum([0, *counts]))

    def _put(self, name: str, values: np.ndarray) -> None:
        parts = self._parts.setdefault(name, [])
        before = self._rows - sum(part.size for part in parts)
        if before:  # of a stage that no round had until now
            parts.append(np.full(before, ABSENT))
        parts.append(values)

    def _padded(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        missing = self._rows - sum(part.size for part in parts)
        return [*parts, np.full(missing, ABSENT)] if missing else parts


def _integers(name: str, values: Sequence[Any]) -> np.ndarray:
    if not set(map(type, values)) <= {int}:
        raise ValueError(f"{name} is {next(value for value in values if type(value) is not int)!r}")
    return np.array(values, np.int64)


def _packed(values: np.ndarray) -> np.ndarray:
    """Returns the values in half of the memory, if they fit."""
    limits = np.iinfo(np.int32)
    return values.astype(np.int32) if values.min() >= limits.min and values.max() <= limits.max else values


def _objects(name: str, values: Sequence[Any], kinds: tuple[type, ...]) -> list[dict[str, Any]]:
    """Returns objects, of which all values are numbers; their JSON is read all at once, which takes half the time."""
    if isinstance(values[0], str):
        read = json.loads(f"[{','.join(values)}]", parse_constant=_refuse)
        if len(read) != len(values):
            raise ValueError(f"{name} is not one object per round")
    else:
        read = list(values)
    for each in read:
        if type(each) is not dict or not set(map(type, each.values())) <= set(kinds):
            raise ValueError(f"{name} is {each!r}")
    return read


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")
