"""Checks of rows as they are read: one that contradicts itself, or is not what it is known by, counts nowhere.

Whoever changes a row and computes its addresses anew is not found out; a row that was edited, or came from other code
than the reader's, is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from .addresses import address, cell_address, files_digest, in_chain, measurement
from .schema import INVALID_ACTION, RAISED, TIMEOUT, EpisodeRow, Run

MOST_FILES = 3  # of a method, that are looked for among those of a run


def check_row(row: EpisodeRow, sessions: int) -> None:
    """Makes sure that a row can be what an episode came to.

    Args:
        row: The row.
        sessions: Starts of the run.

    Raises:
        ValueError: Rounds are missing or impossible, or the result contradicts itself.
    """
    _check_rounds(row)
    _check_result(row, sessions)


def check_addresses(rows: Iterable[EpisodeRow], run: Run) -> None:
    """Makes sure that rows are known by what they are. Rows that do not say which code played them are left alone.

    The key of an episode in a chain contains that of the one before it, which the row does not say; of a chain, the
    first key is computed again. No key is where the run does not say what its latency or its files were.

    Raises:
        ValueError: A row has another address than its content.
    """
    files: dict[tuple[str, str, str], tuple[str, ...] | None] = {}
    others: dict[tuple[str, str, str], list[tuple[EpisodeRow, list[Any]]]] = {}
    for row in rows:
        if not row.code:
            continue
        if row.cell != cell_address(row.suite, row.task, row.init_state, row.seed, row.settings):
            raise ValueError(f"{_name(row)} has another suite, task, initial state, seed or settings than its cell")
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


def _check_rounds(row: EpisodeRow) -> None:
    """Raises ValueError where rounds of an episode are missing, unless all of them are: some agents make none."""
    if [each.index for each in row.rounds] != list(range(len(row.rounds))):
        raise ValueError(f"rounds of the episode {row.key} are missing")
    starts = [each.control_step for each in row.rounds[1:]] + [row.steps]
    ends = [each.control_step + each.executed for each in row.rounds]
    if row.status == "done" and row.rounds and ends != starts:
        raise ValueError(f"the rounds of the episode {row.key} do not follow each other to its last step")
    for each in row.rounds:
        drafted = each.drafted or 0
        if min(each.host_ns, each.cpu_ns, each.latency_ns, *each.stages_ns.values()) < 0:
            raise ValueError(f"a round of the episode {row.key} took less than no time")
        if not 0 <= (each.accepted or 0) <= drafted:
            raise ValueError(f"a round of the episode {row.key} accepted {each.accepted} of {drafted} positions")


def _check_result(row: EpisodeRow, sessions: int) -> None:
    """Raises ValueError where a result contradicts itself. Older versions of replan did not say which code played."""
    if not 0 <= row.session <= sessions:
        raise ValueError(f"the episode {row.key} was measured at start {row.session} of {sessions} of the run")
    if row.code and row.success and (row.failure is not None or row.outcome in (INVALID_ACTION, RAISED, TIMEOUT)):
        raise ValueError(f"the episode {row.key} is a success and {row.outcome!r}, {row.failure!r}")
