"""Verification of a run: some of its cells are played again here, and compared with what it stored.

Two processors round differently, so a closed loop of a policy and a simulator repeats bit for bit on one machine alone.
What another machine can repeat is the cell (first observation and manifest) and, for most cells, the outcome.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.store import Store
from .cells import Cell
from .evaluate import make_plan
from .runner import run
from .spec import BadInput, make_spec

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow
    from .registry import Registry


@dataclass(frozen=True)
class Replay:
    """How the episodes of one method on one suite came out again. Counts are episodes.

    Attributes:
        suite: Suite name.
        method: Method as the user wrote it.
        played: Played again.
        same_cell: First observation and manifest are equal.
        same_outcome: Of these, success and outcome are equal.
        bit_equal: Of these, every action and state is equal, and so is every round's step and route.
        same_code: Measured by the code that is here now.
        same_machine: Measured on this machine.
        broken: Came out as they must not: by the same code another cell, or on this machine another trajectory.
        failed: Could not be played here.
    """

    suite: str
    method: str
    played: int
    same_cell: int
    same_outcome: int
    bit_equal: int
    same_code: int
    same_machine: int
    broken: int
    failed: int

    @property
    def level(self) -> str:
        """The strongest claim that holds for all episodes."""
        for count, level in (
            (self.bit_equal, "bit-equal"),
            (self.same_outcome, "same outcome"),
            (self.same_cell, "same cell"),
        ):
            if self.played and count == self.played:
                return level
        return "differs"


def verify(directory: str, registry: Registry, *, cells: int, workers: int = 1, progress: bool = True) -> list[Replay]:
    """Plays some cells of a run again, with all methods that it measured on them.

    Left out are methods that learn across episodes (one episode says nothing without those before it), and episodes
    under measured latency (the durations are others each time).

    Args:
        directory: Run directory.
        registry: Where suites, policies and methods come from.
        cells: Cells per suite and condition, drawn at random, the same ones every time.
        workers: Worker processes.
        progress: Whether to show a progress bar on stderr.

    Raises:
        BadInput: The run holds nothing that can be played again, or its policy is not here.
        StoreError: The run directory cannot be read.
    """
    with Store.open(directory) as store:
        latency = store.run.identity.latency
        measured = [row for row in store.episodes() if row.status == "done" and row.latency != "measured"]
    conditions: dict[tuple[str, ...], list[EpisodeRow]] = {}
    for row in measured:
        condition = (row.suite, row.policy, row.clock, row.latency, row.dtype, row.device_kind)
        conditions.setdefault(condition, []).append(row)
    replays = []
    for rows in conditions.values():
        keys = sorted({row.cell for row in rows})
        chosen = set(np.random.default_rng(0).permutation(keys)[:cells])
        replays += _replay([row for row in rows if row.cell in chosen], latency, registry, workers, progress)
    if not replays:
        raise BadInput(f"{directory} holds no episode that can be played again; `replan verify` needs one")
    return replays


def _replay(rows: list[EpisodeRow], latency: Any, registry: Registry, workers: int, progress: bool) -> list[Replay]:
    """Plays the cells of rows of one condition again."""
    one = rows[0]
    methods = [m for m in dict.fromkeys(row.method for row in rows) if not registry.method(m, one.policy).ordered]
    if not methods:
        return []
    with tempfile.TemporaryDirectory() as folder:
        plain = {
            "out": str(Path(folder) / "again"),
            "suite": one.suite,
            "policy": one.policy,
            "method": methods,
            "clock": one.clock,
            "latency": one.latency,
            "dtype": one.dtype,
            "device": one.device_kind,
            "workers": workers,
        }
        cells = {row.cell: Cell(row.suite, row.task, row.init_state, row.seed, row.settings) for row in rows}
        plan = make_plan(
            make_spec(plain, registry.suites()),
            registry,
            command="replan verify",
            started="",
            cells=list(cells.values()),
        )
        _check_names(one, plan.jobs[0].weights, latency, plan.record.identity.latency)
        run(*plan, registry, progress=progress)
        with Store.open(plan.spec.out) as store:
            again = {(row.cell, row.method): row for row in store.episodes()}
    return [_compare([row for row in rows if row.method == method], again, plan.host.machine) for method in methods]


def check_weights(row: EpisodeRow, weights: str) -> None:
    """Makes sure that the policy of a row is what its name stands for here.

    Raises:
        BadInput: It is not.
    """
    if row.weights and row.weights != weights:
        raise BadInput(
            f"policy {row.policy!r} has weights {weights[:12]} here and had {row.weights[:12]} in the run; "
            "put the run's policy back at this path"
        )


def _check_names(row: EpisodeRow, weights: str, latency: Any, latency_here: Any) -> None:
    """Raises BadInput where the names of policy and latency stand for something else than in the run."""
    check_weights(row, weights)
    if latency is not None and latency != latency_here:
        raise BadInput(
            f"latency {row.latency!r} stands for other durations here than in the run; put the run's file back at this "
            "path"
        )


def _compare(rows: Iterable[EpisodeRow], again: dict[tuple[str, str], EpisodeRow], machine: str) -> Replay:
    """Counts what came out equal, of the rows of one method."""
    pairs = [(row, again[row.cell, row.method]) for row in rows if (row.cell, row.method) in again]
    played = [(old, new) for old, new in pairs if new.status == "done"]
    same_cell = [(a, b) for a, b in played if _is_same_cell(a, b)]
    same_outcome = [(a, b) for a, b in same_cell if (a.success, a.outcome) == (b.success, b.outcome)]
    return Replay(
        suite=pairs[0][0].suite,
        method=pairs[0][0].method,
        played=len(played),
        same_cell=len(same_cell),
        same_outcome=len(same_outcome),
        bit_equal=sum(_came_again(a, b) for a, b in same_outcome),
        same_code=sum(a.code == b.code for a, b in played),
        same_machine=sum(a.machine == machine for a, _ in played),
        broken=sum(_is_broken(a, b, machine) for a, b in played),
        failed=len(pairs) - len(played),
    )


def _is_broken(old: EpisodeRow, new: EpisodeRow, machine: str) -> bool:
    """Whether the same code made another cell, or another trajectory on the same machine."""
    if old.code != new.code:
        return False
    return not _is_same_cell(old, new) or (old.machine == machine and not _came_again(old, new))


def _came_again(old: EpisodeRow, new: EpisodeRow) -> bool:
    """Whether all actions and states are equal, and made by the same rounds: as many, at the same steps and routes."""
    rounds = [[(each.control_step, each.route) for each in row.rounds] for row in (old, new)]
    return old.trajectory_hash == new.trajectory_hash and rounds[0] == rounds[1]


def _is_same_cell(old: EpisodeRow, new: EpisodeRow) -> bool:
    """Whether first observation and manifest are equal."""
    return (old.observation_hash, old.manifest) == (new.observation_hash, new.manifest)
