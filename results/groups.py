"""Episodes gathered by what they measure, after making sure that they may be compared at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .schema import EpisodeRow, Run
from .store import Store

BASELINE = "dense"
MEANING = ("latency",)  # fields of Run.identity: what a row's clock and latency stand for


class ManifestMismatch(ValueError):
    """Two episodes carry the same cell and are not the same episode.

    Attributes:
        cell: The cell.
        field: The field in which they differ.
    """

    def __init__(self, one: EpisodeRow, other: EpisodeRow, field: str, values: tuple[Any, Any]):
        self.cell = one.cell
        self.field = field
        super().__init__(
            f"cell {one.cell} ({one.suite}, {one.task}, init state {one.init_state}, seed {one.seed}) is not the same"
            f" episode in all runs: {field} is {values[0]!r} for {one.method} and {values[1]!r} for {other.method}."
            " Measure both with the same version of the suite."
        )


class CheckpointMismatch(ValueError):
    """One policy name stands for different weights in different runs.

    Attributes:
        policy: The name.
    """

    def __init__(self, policy: str, hashes: Iterable[str]):
        self.policy = policy
        listed = " and ".join(sorted(hashes))
        super().__init__(f"policy {policy!r} has weights {listed} in these runs; compare runs of the same weights")


class MeasurementMismatch(ValueError):
    """Two runs use one name for two kinds of measurement.

    Attributes:
        field: What differs, such as ``identity.latency``: the latencies behind the name of a profile or trace.
    """

    def __init__(self, row: EpisodeRow, field: str, values: tuple[Any, Any]):
        self.field = field
        super().__init__(
            f"{row.method} on cell {row.cell} under {row.clock} {row.latency} is not the same measurement in all runs:"
            f" {field} is {values[0]!r} in one and {values[1]!r} in another."
            " Measure both in the same way, or show them on two boards."
        )


@dataclass(frozen=True)
class Group:
    """All episodes of one method under one condition.

    Attributes:
        suite: Suite name.
        policy: Policy name.
        clock: ``sync`` or ``realtime``.
        latency: Latency source as the user wrote it.
        settings: Suite settings that the user fixed.
        dtype: Precision of the policy.
        device: ``cpu`` or ``cuda``; names of devices are in the rows.
        method: Method as the user wrote it.
        done: Measured episodes by cell.
        errors: Episodes that the harness could not measure.
        runs: What produced them, resumptions included.
        repeats: Episodes left out because an earlier run holds the same measurement.
        contradictions: Repeats whose trajectory differs from that of the episode that counts.
    """

    suite: str
    policy: str
    clock: str
    latency: str
    settings: dict[str, Any]
    dtype: str
    device: str
    method: str
    done: dict[str, EpisodeRow]
    errors: tuple[EpisodeRow, ...]
    runs: tuple[Run, ...]
    repeats: int
    contradictions: int

    @property
    def condition(self) -> tuple[Any, ...]:
        """Everything but the method: groups are compared with the baseline under the same condition."""
        settings = tuple(sorted(self.settings.items()))
        return (self.suite, self.policy, self.clock, self.latency, settings, self.dtype, self.device)


def groups(stores: Iterable[Store]) -> list[Group]:
    """Merges runs and gathers their episodes, in a natural order of conditions with the baseline first.

    A measurement that several runs hold counts once: that of the first run.

    Raises:
        ManifestMismatch: A cell is not the same episode everywhere.
        CheckpointMismatch: A policy name stands for different weights.
        MeasurementMismatch: A latency stands for different durations, or the harness has changed between runs.
    """
    stores = list(stores)
    _check_checkpoints(run for store in stores for run in store.runs)
    gathered: dict[tuple[Any, ...], dict[str, list[tuple[EpisodeRow, Store]]]] = {}
    meanings: dict[tuple[str, str, str], Any] = {}
    for store in stores:
        for row in store.episodes():
            for name in MEANING:
                value = getattr(store.run.identity, name)
                first = meanings.setdefault((row.clock, row.latency, name), value)
                if first != value:
                    raise MeasurementMismatch(row, f"identity.{name}", (first, value))
            settings = tuple(sorted(row.settings.items()))
            where = (row.suite, row.policy, row.clock, row.latency, settings, row.dtype, row.device_kind)
            gathered.setdefault((*where, row.method), {}).setdefault(row.key, []).append((row, store))
    # Also those of repeats, which are left out below: a repeat has to be the same episode.
    every = (row for measurements in gathered.values() for rows in measurements.values() for row, _ in rows)
    check_manifests(row for row in every if row.status == "done")
    return sorted((_group(measurements) for measurements in gathered.values()), key=_order)


def check_manifests(rows: Iterable[EpisodeRow]) -> None:
    """Makes sure that rows with the same cell are the same episode.

    First observations are compared between rows of one policy only, since policies may ask for different image sizes.

    Raises:
        ManifestMismatch: They are not.
    """
    first_of_cell: dict[str, EpisodeRow] = {}
    first_of_policy: dict[tuple[str, str], EpisodeRow] = {}
    for row in rows:
        other = first_of_cell.setdefault(row.cell, row)
        for name in sorted(other.manifest.keys() | row.manifest.keys()):
            values = (other.manifest.get(name), row.manifest.get(name))
            if values[0] != values[1]:
                raise ManifestMismatch(other, row, name, values)
        other = first_of_policy.setdefault((row.cell, row.policy), row)
        if other.observation_hash != row.observation_hash:
            raise ManifestMismatch(other, row, "observation_hash", (other.observation_hash, row.observation_hash))


def natural(text: str) -> list[tuple[int, float, str]]:
    """Sort key that puts ``fixed:20ms`` before ``fixed:100ms``."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if i % 2 else (1, 0.0, part) for i, part in enumerate(parts)]


def _group(measurements: dict[str, list[tuple[EpisodeRow, Store]]]) -> Group:
    done: dict[str, EpisodeRow] = {}
    keys: dict[str, str] = {}
    errors = []
    sources: dict[int, Store] = {}
    repeats = contradictions = 0
    for copies in measurements.values():
        measured = [(row, store) for row, store in copies if row.status == "done"]
        first, source = (measured or copies)[0]
        sources[id(source)] = source
        key = keys.setdefault(first.cell, first.key)
        if key != first.key:
            raise MeasurementMismatch(first, "key", (key, first.key))
        if measured:
            done[first.cell] = first
        else:
            errors.append(first)
        repeats += len(measured[1:])
        contradictions += sum(row.trajectory_hash != first.trajectory_hash for row, _ in measured[1:])
    any_row = next(iter(measurements.values()))[0][0]
    return Group(
        suite=any_row.suite,
        policy=any_row.policy,
        clock=any_row.clock,
        latency=any_row.latency,
        settings=any_row.settings,
        dtype=any_row.dtype,
        device=any_row.device_kind,
        method=any_row.method,
        done=done,
        errors=tuple(errors),
        runs=tuple(run for store in sources.values() for run in store.runs),
        repeats=repeats,
        contradictions=contradictions,
    )


def _check_checkpoints(runs: Iterable[Run]) -> None:
    first: dict[str, str] = {}
    for run in runs:
        for policy, sha256 in run.checkpoints.items():
            if first.setdefault(policy, sha256) != sha256:
                raise CheckpointMismatch(policy, {first[policy], sha256})


def _order(group: Group) -> Any:
    condition = [natural(str(part)) for part in (group.suite, group.policy, group.clock, group.latency)]
    condition += [natural(group.dtype), natural(group.device)]
    settings = [natural(f"{name}={value}") for name, value in sorted(group.settings.items())]
    return (condition, settings, group.method != BASELINE, natural(group.method))
