"""The leaderboard: one row per method and condition, computed from stores alone, with marks for what limits it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from . import stats
from .groups import BASELINE, Group, groups
from .schema import EpisodeRow, Mark, RoundRow, Run
from .store import Store

SMALL_N = 0.05  # half width of the success interval above which a row is marked
NOT_ACTIVE = "NOT ACTIVE"
SHARED_CORE = 1.1  # wall time over processor time above which a row is marked


class Flip(NamedTuple):
    """A cell that the baseline and the method ended differently."""

    direction: str  # "lost": the baseline succeeded, the method failed; "gained": the reverse
    cell: str
    task: str
    init_state: int
    seed: int
    baseline_outcome: str
    outcome: str


@dataclass(frozen=True)
class Row:
    """One method under one condition. Durations are in nanoseconds of wall time; NaN means that n is too small.

    Attributes:
        suite: Suite name.
        policy: Policy name.
        method: Method as the user wrote it.
        clock: ``sync`` or ``realtime``.
        latency: Latency source as the user wrote it.
        settings: Suite settings that the user fixed.
        dtype: Precision of the policy.
        devices: Where the policy ran: ``cpu`` or names of CUDA devices.
        machines: Digests of the machines that played the episodes; see ``Run.machines``.
        success: Success rate over the measured episodes; harness errors are not counted.
        at_end: Success rate after the end, when the suite looked again; NaN where it did not in every episode.
        errors: Episodes that the harness could not measure.
        retries: Times that a worker died or hung and its cell was run again.
        paired: Comparison with the baseline on shared cells; None for the baseline itself and where no cell is shared.
        rounds: Mean rounds per episode.
        round_ns: Durations of one round, without warm-up.
        action_ns: Duration of the rounds per executed action.
        latency_ns: Mean latency of a round as the environment saw it.
        routes: Share and durations by route.
        speed_up: Over the baseline, on shared cells, failures included; None where ``paired`` is None.
        acceptance: Accepted draft positions, over the rounds that verified a draft.
        action_error: Distance to the dense actions under the same noise.
        contention: Wall time over processor time of the rounds.
        marks: What limits this row.
        run_marks: What the runs behind it say about themselves.
        flips: Cells that ended differently than with the baseline.
    """

    suite: str
    policy: str
    method: str
    clock: str
    latency: str
    settings: dict[str, Any]
    dtype: str
    devices: tuple[str, ...]
    machines: tuple[str, ...]
    success: stats.Proportion
    at_end: float
    errors: int
    retries: int
    paired: stats.Paired | None
    rounds: stats.RoundsPerEpisode
    round_ns: stats.Durations
    action_ns: float
    latency_ns: float
    routes: dict[str, stats.Route]
    speed_up: stats.SpeedUp | None
    acceptance: stats.Acceptance
    action_error: stats.Error
    contention: float
    marks: tuple[Mark, ...]
    run_marks: tuple[Mark, ...]
    flips: tuple[Flip, ...]

    @property
    def active(self) -> bool:
        """False where a counter that proves that the method acted stayed at zero."""
        return all(mark.badge != NOT_ACTIVE for mark in self.marks)


def board(stores: Iterable[Store]) -> list[Row]:
    """Rows by condition; under each condition the baseline first, then by speed-up per action.

    Raises:
        ManifestMismatch: A cell is not the same episode everywhere (see :mod:`.groups`).
        CheckpointMismatch: A policy name stands for different weights in different runs.
        MeasurementMismatch: A latency stands for different durations in different runs.
    """
    return rows_of(groups(stores))


def rows_of(gathered: list[Group]) -> list[Row]:
    """Rows of groups that :func:`.groups.groups` gathered."""
    by_condition: dict[tuple[Any, ...], list[Group]] = {}
    for group in gathered:
        by_condition.setdefault(group.condition, []).append(group)
    rows = []
    for members in by_condition.values():
        baseline = next((group for group in members if group.method == BASELINE), None)
        unsorted = [_row(group, baseline) for group in members]
        rows += sorted(unsorted, key=lambda row: (row.method != BASELINE, -_or_zero(row.speed_up)))
    return rows


def _or_zero(speed_up: stats.SpeedUp | None) -> float:
    return 0.0 if speed_up is None or math.isnan(speed_up.action) else speed_up.action


def measured_rounds(episodes: Iterable[EpisodeRow]) -> list[RoundRow]:
    """Rounds whose durations count: those after warm-up."""
    return [round for episode in episodes for round in episode.rounds if not round.warmup]


def _row(group: Group, baseline: Group | None) -> Row:
    episodes = list(group.done.values())
    every = [round for episode in episodes for round in episode.rounds]
    timed = measured_rounds(episodes)
    durations = [round.host_ns for round in timed]
    pairs: list[tuple[EpisodeRow, EpisodeRow]] = []
    if baseline is not None and baseline is not group:
        pairs = [(row, baseline.done[cell]) for cell, row in group.done.items() if cell in baseline.done]
    success = stats.proportion(_successes(episodes))
    contention = stats.contention(durations, [round.cpu_ns for round in timed])
    return Row(
        suite=group.suite,
        policy=group.policy,
        method=group.method,
        clock=group.clock,
        latency=group.latency,
        settings=group.settings,
        dtype=group.dtype,
        devices=tuple(sorted({row.device for row in (*episodes, *group.errors)})),
        machines=tuple(sorted({row.machine for row in episodes})),
        success=success,
        at_end=_at_end(episodes),
        errors=len(group.errors),
        retries=sum(row.retries for row in (*episodes, *group.errors)),
        paired=stats.paired(_successes(a for a, _ in pairs), _successes(b for _, b in pairs)) if pairs else None,
        rounds=stats.rounds_per_episode([len(row.rounds) for row in episodes], _successes(episodes)),
        round_ns=stats.durations(durations),
        action_ns=stats.per_action(durations, [round.executed for round in timed]),
        latency_ns=float(np.mean([round.latency_ns for round in every])) if every else float("nan"),
        routes=stats.by_route(
            [round.route for round in every], [round.host_ns for round in every], [round.warmup for round in every]
        ),
        speed_up=_speed_up(pairs) if pairs else None,
        acceptance=stats.acceptance(
            _or_nan(round.accepted for round in every), _or_nan(round.drafted for round in every)
        ),
        action_error=stats.action_error(_or_nan(round.action_error for round in every)),
        contention=contention,
        marks=tuple(_marks(group, baseline, pairs, success, contention)),
        run_marks=tuple(dict.fromkeys(mark for run in group.runs for mark in run.marks)),
        flips=tuple(_flip(row, base) for row, base in pairs if row.success != base.success),
    )


def _successes(episodes: Iterable[EpisodeRow]) -> list[bool]:
    return [bool(row.success) for row in episodes]


def _at_end(episodes: list[EpisodeRow]) -> float:
    seen = [row.success_at_end for row in episodes if row.failure is None]  # the policy's own failure counts as one
    return sum(map(bool, seen)) / len(episodes) if seen and None not in seen else math.nan


def _or_nan(values: Iterable[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _speed_up(pairs: list[tuple[EpisodeRow, EpisodeRow]]) -> stats.SpeedUp:
    own, base = measured_rounds(row for row, _ in pairs), measured_rounds(row for _, row in pairs)
    return stats.speed_up(
        [round.host_ns for round in own],
        [round.executed for round in own],
        [round.host_ns for round in base],
        [round.executed for round in base],
    )


def _flip(row: EpisodeRow, base: EpisodeRow) -> Flip:
    direction = "gained" if row.success else "lost"
    return Flip(direction, row.cell, row.task, row.init_state, row.seed, base.outcome, row.outcome)


def _marks(
    group: Group,
    baseline: Group | None,
    pairs: list[tuple[EpisodeRow, EpisodeRow]],
    success: stats.Proportion,
    contention: float,
) -> Iterable[Mark]:
    yield from dict.fromkeys(mark for run in group.runs for mark in run.suite_marks.get(group.suite, ()))
    idle = _idle_counters(group)
    if idle:
        yield Mark(NOT_ACTIVE, f"{', '.join(idle)} should have moved and stayed at 0 in every episode")
    if group.errors:
        yield Mark("errors", "episodes that the harness could not measure are left out")
    half = (success.high - success.low) / 2
    if success.n and half > SMALL_N:
        yield Mark("small n", f"the 95 % interval of success is wider than ±{100 * SMALL_N:.0f} points")
    if group.method != BASELINE and not pairs:
        yield Mark("unpaired", f"no {BASELINE} episode on these cells, so there is no comparison")
    elif pairs and len(pairs) < len(group.done):
        yield Mark("part paired", f"compared on the {len(pairs)} of {len(group.done)} cells that {BASELINE} ran too")
    if contention > SHARED_CORE:
        yield Mark("core shared", f"wall time is {contention:.2f} × processor time: latency was not measured alone")
    elif math.isnan(contention) and any(row.rounds for row in group.done.values()):
        yield Mark("latency unknown", "no round after warm-up has a processor time")
    if pairs and all(a.trajectory_hash == b.trajectory_hash for a, b in pairs):
        yield Mark(f"same as {BASELINE}", f"every episode equals {BASELINE} action by action")
    if group.repeats:
        yield Mark(
            "repeats", f"{group.repeats} measured twice, {group.contradictions} of them differently; the first counts"
        )
    yield from _mixed(group, baseline if baseline and pairs else None, pairs)


def _mixed(group: Group, baseline: Group | None, pairs: list[tuple[EpisodeRow, EpisodeRow]]) -> Iterable[Mark]:
    """Marks of a row whose episodes, or those that they are compared with, were not measured in one place."""
    episodes = [*group.done.values(), *(row for _, row in pairs)]
    runs: list[Run] = [*group.runs, *(baseline.runs if baseline else ())]
    machines = {row.machine for row in episodes}
    if "" in machines:  # an old run that was resumed: its episodes may come from any of its machines
        machines = machines - {""} | {machine for run in runs for machine in run.machines}
    for name, values in (
        ("machines", machines),
        ("devices", {row.device for row in episodes}),
        ("commits", {run.commit for run in runs}),
        ("packages", {str(sorted(run.packages.items())) for run in runs}),
        ("fingerprints", {str(sorted(run.identity.fingerprints.get(group.suite, {}).items())) for run in runs}),
    ):
        if len(values) > 1:
            yield Mark(f"mixed {name}", f"this row and its comparison come from {len(values)} {name}")


def _idle_counters(group: Group) -> list[str]:
    """Counters that the method promised to move and that stand at zero."""
    promised = {name for run in group.runs for name in run.activity_counters.get(group.method, ())}
    moved = {name for row in group.done.values() for name, count in row.counters.items() if count}
    return sorted(promised - moved) if group.done else []


def to_json(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows as plain values for JSON: named tuples become objects, NaN becomes null."""
    return [_plain(row) for row in rows]


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    named = getattr(value, "_asdict", None)
    if named is not None:
        return _plain(named())
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
