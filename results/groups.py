"""Episodes gathered by what they measure, after making sure that they may be compared at all.

What is measured is known by content: digests of code and weights, the durations behind a latency's name. Names of
policies and latencies are labels.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from .rounds import RoundTable, gathered
from .schema import BASELINE, EpisodeRow, Run
from .store import Store

CODE = ("suite", "policy", "method")  # parts of the code that decide an episode
SAME = attrgetter("suite", "policy", "weights", "method", "clock", "latency", "dtype", "device")
SHOWN = 6  # hex digits of a digest in a label


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


Session = tuple[str, int]  # run directory, and the row of its table ``runs``; 0 where that is not known


@dataclass(frozen=True)
class Group:
    """All episodes of one version of a method under one condition.

    Attributes:
        suite: Suite name.
        policy: Policy name: the first one of these weights, with their digest where the name stands for several.
        family: Model family of the policy; empty where no run says it.
        weights: Digest of the policy's files; empty where it is not known.
        clock: ``sync`` or ``realtime``.
        latency: Latency source: the first name for these durations.
        settings: Suite settings that the user fixed.
        dtype: Precision of the policy.
        device: ``cpu`` or ``cuda``; names of devices are in the rows.
        method: Method as the user wrote it.
        code: Digests of the source code behind the episodes, by part; empty unless all parts were recorded.
        files: Digest of the files of policy and method, such as a draft; empty where it was not recorded.
        version: What tells this version from others of the method under the same condition; empty where there is one.
        condition: Content of everything but method and code.
        world: Content of suite and policy code, or the run directory where code was not recorded. Rows are compared
            with the baseline of the same world.
        done: Measured episodes by cell.
        errors: Episodes that the harness could not measure.
        held: What each run directory holds, errors included, by directory and then by cell. Of a repeat, ``done`` has
            the first one.
        runs: What produced them, resumptions included.
        repeats: Measurements that count once although several runs hold them, less the one that counts.
        contradictions: Repeats whose trajectory differs from that of the episode that counts.
    """

    suite: str
    policy: str
    family: str
    weights: str
    clock: str
    latency: str
    settings: dict[str, Any]
    dtype: str
    device: str
    method: str
    code: dict[str, str]
    files: str
    version: str
    condition: tuple[Any, ...]
    world: tuple[str, str]
    done: dict[str, EpisodeRow]
    errors: tuple[EpisodeRow, ...]
    held: dict[str, dict[str, EpisodeRow]]
    runs: tuple[Run, ...]
    repeats: int
    contradictions: int

    @cached_property
    def rounds(self) -> RoundTable:
        """Rounds of the measured episodes, in the order of ``done``."""
        return gathered(row.rounds for row in self.done.values())

    @property
    def label(self) -> str:
        """The method with its version."""
        return f"{self.method} {self.version}".strip()

    @property
    def started(self) -> str:
        """Time at which the first of its runs started."""
        return min(run.started for run in self.runs)

    def copies(self, cell: str) -> dict[Session, EpisodeRow]:
        """Returns the copies of an episode by session, the first one first; errors only where it was never measured."""
        found = ((directory, rows[cell]) for directory, rows in self.held.items() if cell in rows)
        return {(place, row.session): row for place, row in found if row.status == "done" or cell not in self.done}

    @property
    def sessions(self) -> set[Session]:
        """Sessions that hold any of its episodes, errors included."""
        return {session for cell in self.cells for session in self.copies(cell)}

    @property
    def cells(self) -> set[str]:
        """Cells that were played or tried."""
        return self.done.keys() | {row.cell for row in self.errors}


def groups(stores: Iterable[Store]) -> list[Group]:
    """Merges runs and gathers their episodes, in a natural order of conditions; then older worlds and dense first.

    A measurement that several runs hold counts once: that of the run that started first. The order in which the stores
    are given changes nothing.

    Raises:
        ManifestMismatch: A cell is not the same episode everywhere, though the suite's code is the same.
        MeasurementMismatch: A latency's name stands for different durations.
        ValueError: A run is given twice.
    """
    measurements: dict[tuple[Any, ...], dict[Store, list[EpisodeRow]]] = {}
    latencies: dict[tuple[str, str], Any] = {}
    for store in by_start(stores):
        known: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # rows in their thousands are measured alike
        for row in store.episodes():
            latency = store.run.identity.latency
            first = latencies.setdefault((row.clock, row.latency), latency)
            if first != latency:
                raise MeasurementMismatch(row, "identity.latency", (first, latency))
            same = (*SAME(row), *row.settings.values(), *row.code.values())
            if same not in known:
                known[same] = (_condition(row, store), _world(row, store), row.method, *_version(row, store))
            measured = known[same]
            measurements.setdefault(measured, {}).setdefault(store, []).append(row)
    # Also those of repeats, which are left out below: a repeat has to be the same episode.
    by_suite_code: dict[str, list[EpisodeRow]] = {}
    for (_, world, *_), held in measurements.items():
        by_suite_code.setdefault(world[0], []).extend(row for rows in held.values() for row in rows)
    for rows in by_suite_code.values():
        check_manifests(row for row in rows if row.status == "done")
    return sorted(_labelled([_group(*each) for each in measurements.items()]), key=_order)


def by_start(stores: Iterable[Store]) -> list[Store]:
    """Stores by when their runs started first; of equally old ones, such as copies, by path.

    Raises:
        ValueError: One is given twice.
    """
    stores, seen = list(stores), set[str]()
    for store in stores:
        if (real := os.path.realpath(store.path)) in seen:
            raise ValueError(f"{store.path.parent} is given twice; give it once")
        seen.add(real)
    return sorted(stores, key=lambda store: (store.run.started, os.path.realpath(store.path)))


def _condition(row: EpisodeRow, store: Store) -> tuple[Any, ...]:
    identity = store.run.identity
    # The oldest runs do not say what their latency's name stands for.
    latency = row.latency if identity.latency is None else json.dumps(identity.latency, sort_keys=True)
    settings = tuple(sorted(row.settings.items()))
    return (row.suite, row.weights or row.policy, row.clock, latency, settings, row.dtype, row.device_kind)


def _world(row: EpisodeRow, store: Store) -> tuple[str, str]:
    if not _recorded(row):
        return ("", str(store.path.parent))
    made_of = dict(store.run.identity.fingerprints.get(row.suite, {}))
    made_of.pop("code", None)  # of the run's first start; the row knows its own
    suite = row.code["suite"]
    if made_of:
        suite = hashlib.sha256(json.dumps([suite, made_of], sort_keys=True).encode()).hexdigest()
    return (suite, row.code["policy"])


def _version(row: EpisodeRow, store: Store) -> tuple[str, str]:
    """Digests of the method's code, and of the files of policy and method; empty where not recorded."""
    files = store.run.identity.files.get(row.suite, {}).get(row.method, "")
    return (row.code["method"], files) if _recorded(row) else ("", "")


def _recorded(row: EpisodeRow) -> bool:
    """Whether the row says which code played it. A digest is empty where the source could not be read."""
    return all(row.code.get(part) for part in CODE)


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
        if other.manifest != row.manifest:
            raise _mismatch(other, row)
        other = first_of_policy.setdefault((row.cell, row.weights or row.policy), row)
        if other.observation_hash != row.observation_hash:
            raise ManifestMismatch(other, row, "observation_hash", (other.observation_hash, row.observation_hash))


def _mismatch(one: EpisodeRow, other: EpisodeRow) -> ManifestMismatch:
    names = sorted(one.manifest.keys() | other.manifest.keys())
    values = {name: (one.manifest.get(name), other.manifest.get(name)) for name in names}
    name = next(name for name, (a, b) in values.items() if a != b)
    return ManifestMismatch(one, other, name, values[name])


def natural(text: str) -> list[str | float]:
    """Sort key that puts ``fixed:20ms`` before ``fixed:100ms``: text and numbers in turn, beginning with text."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [float(part) if i % 2 else part for i, part in enumerate(parts)]


def _group(measured: tuple[Any, ...], stores: dict[Store, list[EpisodeRow]]) -> Group:
    condition, world, _, _, files = measured
    done: dict[str, EpisodeRow] = {}
    failed: dict[str, EpisodeRow] = {}
    keys: dict[str, EpisodeRow] = {}
    repeats = contradictions = 0
    for rows in stores.values():
        for row in rows:
            first = keys.setdefault(row.cell, row)
            if first.key != row.key:
                raise MeasurementMismatch(row, "key", (first.key, row.key))
            if row.status != "done":
                failed.setdefault(row.cell, row)
            elif row.cell not in done:
                done[row.cell] = row
            else:
                repeats += 1
                contradictions += row.trajectory_hash != done[row.cell].trajectory_hash
    held = {str(store.path.parent): {row.cell: row for row in rows} for store, rows in stores.items()}
    errors = {cell: row for cell, row in failed.items() if cell not in done}
    used = [store for store, rows in stores.items() if _counts(rows, done, errors)]
    runs = tuple(run for store in used for run in store.runs)
    any_row = next(iter(keys.values()))
    return Group(
        suite=any_row.suite,
        policy=any_row.policy,
        family=next((run.families[any_row.policy] for run in runs if any_row.policy in run.families), ""),
        weights=any_row.weights,
        clock=any_row.clock,
        latency=any_row.latency,
        settings=any_row.settings,
        dtype=any_row.dtype,
        device=any_row.device_kind,
        method=any_row.method,
        code=any_row.code if _recorded(any_row) else {},
        files=files,
        version="",
        condition=condition,
        world=world,
        done=done,
        errors=tuple(errors.values()),
        held=held,
        runs=runs,
        repeats=repeats,
        contradictions=contradictions,
    )


def _counts(rows: list[EpisodeRow], done: dict[str, EpisodeRow], errors: dict[str, EpisodeRow]) -> bool:
    """Whether any of a store's rows is the one that counts."""
    return any(done.get(row.cell) is row or errors.get(row.cell) is row for row in rows)


def _labelled(gathered: list[Group]) -> list[Group]:
    """Gives groups the first name of their policy and latency, and a version where only code tells them apart."""
    policies: dict[tuple[str, str], str] = {}
    latencies: dict[str, str] = {}
    versions: dict[tuple[Any, ...], list[Group]] = {}
    for group in gathered:
        policies.setdefault(group.condition[:2], group.policy)
        latencies.setdefault(group.condition[3], group.latency)
        versions.setdefault((group.condition, group.method), []).append(group)
    labelled = []
    for group in gathered:
        policy = policies[group.condition[:2]]
        if sum(suite == group.suite and name == policy for (suite, _), name in policies.items()) > 1:
            policy += f" @{group.weights[:SHOWN]}"
        version = _version_label(group, versions[group.condition, group.method])
        labelled.append(replace(group, policy=policy, latency=latencies[group.condition[3]], version=version))
    return labelled


def _version_label(group: Group, versions: list[Group]) -> str:
    """Beginnings of the digests that tell a version from others: of the method's code, or of what is named."""
    if len(versions) == 1:
        return ""
    if not group.code:
        return f"in {Path(group.world[1]).name}"
    names = ("", "files", "suite", "policy")
    digests = [(each.code["method"], each.files, *each.world) for each in versions if each.code]
    own = (group.code["method"], group.files, *group.world)
    differing = [i for i, values in enumerate(zip(*digests, strict=True)) if len(set(values)) > 1] or [0]
    return " ".join(f"{names[i]}@{own[i][:SHOWN]}" for i in differing)


def _order(group: Group) -> Any:
    condition = [natural(str(part)) for part in (group.suite, group.policy, group.clock, group.latency)]
    condition += [natural(group.dtype), natural(group.device)]
    settings = [natural(f"{name}={value}") for name, value in sorted(group.settings.items())]
    return (condition, settings, group.method != BASELINE, natural(group.method), group.started, group.version)
