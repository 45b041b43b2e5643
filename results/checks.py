"""Checks of rows as they are read: one that contradicts itself, or is not what it is known by, counts nowhere.

Whoever changes a row and computes its addresses anew is not found out; a row that was edited, or came from other code
than the reader's, is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .addresses import address, cell_address, files_digest, in_chain, measurement
from .rounds import ABSENT, STAGE, RoundTable
from .schema import INVALID_ACTION, RAISED, TIMEOUT, EpisodeRow, Run

MOST_FILES = 3  # of a method, that are looked for among those of a run


def check_addresses(rows: Iterable[EpisodeRow], run: Run) -> None:
    """Makes sure that rows are known by what they are. Rows that do not say which code played them are left alone.

    The key of an episode in a chain contains that of the one before it, which the row does not say; of a chain, the
    first key is computed again. No key is where the run does not say what its latency or its files were.

    Raises:
        ValueError: A row has another address than its content.
    """
    files: dict[tuple[str, str, str], tuple[str, ...] | None] = {}
    others: dict[tuple[str, str, str], list[tuple[EpisodeRow, list[Any]]]] = {}
    cell: tuple[Any, ...] = ()
    for row in rows:
        if not row.code:
            continue
        own_cell = row.cell, row.suite, row.task, row.init_state, row.seed, row.settings
        if own_cell != cell and row.cell != cell_address(*own_cell[1:]):  # methods of one cell follow each other
            raise ValueError(f"{_name(row)} has another suite, task, initial state, seed or settings than its cell")
        cell = own_cell
        who = row.suite, row.method, row.weights
        if who not in files:
            files[who] = _files_of(row, run)
        own = files[who]
        if own is None or run.identity.latency is None:
            continue
        what = row.method, row.code, row.clock, run.identity.latency, row.dtype, row.device_kind
        content = measurement(row.cell, row.weights, own, *what)
        if row.key != address(content):
            others.setdefault((row.suite, row.method, address(row.code)), []).append((row, content))
    for chain in others.values():
        if not any(row.key == address(in_chain(content, None)) for row, content in chain):
            row, _ = chain[0]
            raise ValueError(f"{_name(row)} has another method, policy, code, clock, latency or precision than its key")


def _files_of(row: EpisodeRow, run: Run) -> tuple[str, ...] | None:
    """Returns the digests of the method's files; None where the run does not say."""
    recorded = run.identity.files.get(row.suite)
    if recorded is None:
        return None
    if row.method not in recorded:
        raise ValueError(f"{_name(row)} is of a method that is none of the run's")
    known = sorted(set(run.checkpoints.values()))
    for count in range(MOST_FILES + 1):
        for files in itertools.combinations(known, count):
            if files_digest(row.weights, files) == recorded[row.method]:
                return files
    return None


def _name(row: EpisodeRow) -> str:
    return f"the episode {row.key[:12]} ({row.method} on {row.suite}, {row.task} {row.init_state})"


def check_rounds(rows: Sequence[EpisodeRow], table: RoundTable) -> None:
    """Makes sure that the rounds of episodes can be theirs. Some agents make none.

    Args:
        rows: The episodes.
        table: Their rounds.

    Raises:
        ValueError: Rounds are missing or impossible.
    """
    first = np.repeat(table.starts[:-1], np.diff(table.starts))

    def refuse(rounds: np.ndarray, what: str) -> None:
        if rounds.any():
            raise ValueError(what.format(rows[table.episode[np.argmax(rounds)]].key))

    refuse(table["index"] != np.arange(len(table)) - first, "rounds of the episode {} are missing")
    ends = np.array([row.steps if row.status == "done" else -1 for row in rows], np.int64)[table.episode]
    follow = np.append(table["control_step"], 0)[1:]
    last = np.isin(np.arange(len(table)), table.starts[1:] - 1)
    apart = table["control_step"] + table["executed"] != np.where(last, ends, follow)
    refuse(apart & (ends >= 0), "the rounds of the episode {} do not follow each other to its last step")
    for name in ("host_ns", "cpu_ns", "latency_ns", *(each for each in table.columns if each.startswith(STAGE))):
        negative = (table[name] < 0) & (table[name] != ABSENT)
        refuse(negative, "a round of the episode {} took less than no time")
    accepted, drafted = (np.where(table[name] == ABSENT, 0, table[name]) for name in ("accepted", "drafted"))
    for at in np.flatnonzero((accepted < 0) | (accepted > drafted))[:1]:
        count = None if table["accepted"][at] == ABSENT else accepted[at]
        refuse(np.arange(len(table)) == at, f"a round of the episode {{}} accepted {count} of {drafted[at]} positions")


def check_result(row: EpisodeRow, sessions: int) -> None:
    """Makes sure that a result does not contradict itself. Older versions of replan did not say which code played.

    Args:
        row: The episode.
        sessions: Starts of the run.

    Raises:
        ValueError: It does.
    """
    if not 0 <= row.session <= sessions:
        raise ValueError(f"the episode {row.key} was measured at start {row.session} of {sessions} of the run")
    if row.code and row.success and (row.failure is not None or row.outcome in (INVALID_ACTION, RAISED, TIMEOUT)):
        raise ValueError(f"the episode {row.key} is a success and {row.outcome!r}, {row.failure!r}")
