"""The leaderboard: one row per version of a method and condition, computed from stores alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from . import stats
from .groups import BASELINE, Group, groups
from .inference import RetentionByTask, retention_by_task
from .marks import LOSS, NONE_FINISHED, NOT_ACTIVE, NOT_WARM, activity, marks
from .pairs import Flip, Pairs, baseline_of, pair
from .schema import EpisodeRow, Mark
from .store import Store
from .timing import Charges, charges, contention, spans, timing
from .verdicts import MARGIN, Verdict, judge


@dataclass(frozen=True)
class Row:
    """One method under one condition. Durations are in nanoseconds of wall time; NaN means that n is too small.

    Attributes:
        suite: Suite name.
        policy: Policy name, a label; see ``weights``.
        family: Model family of the policy; empty where it was not recorded, or is none.
        weights: Digest of the policy's files; empty where it is not known.
        method: Method as the user wrote it.
        version: What tells it from rows of the same method and condition that other code measured; else empty.
        code: Digests of the source code of suite, policy and method; empty where it was not recorded.
        clock: ``sync`` or ``realtime``.
        latency: Latency source as the user wrote it.
        settings: Suite settings that the user fixed.
        dtype: Precision of the policy.
        devices: Where the policy ran: ``cpu`` or names of CUDA devices.
        machines: Digests of the machines that played the episodes; see ``Run.machines``.
        rank: Position by speed-up per action among the rows of its condition and code, from 1; None for the baseline,
            where there is no speed-up, and where a mark says so (the rule is :data:`.marks.RANK`).
        success: Success rate over the measured episodes.
        worst: The same if every episode that could not be measured had failed; None where there is none.
        at_end: Success rate after the end, when the suite looked again; NaN where it did not in every episode.
        tasks: Success rate by task.
        worst_task: The task with the lowest rate; None where there is one task only.
        errors: Episodes that the harness could not measure.
        retries: Times that a worker died or hung and its cell was run again.
        activity: For each counter that proves that the method acted, the share of episodes in which it moved.
        paired: Comparison with the baseline on shared cells; None for the baseline itself and where no cell is shared.
        paired_worst: The same in the worst case (:attr:`.pairs.Pairs.worst`); None where every cell was measured.
        retention: What the method keeps of the shared cells that the baseline solves; None where no cell is shared.
        verdict: What the cells prove about success, in the worst case, for all rows of one condition and code together;
            None where no cell is shared.
        rounds: Mean rounds per episode.
        round_ns: Durations of one round; one that was cold or did not return has its charge
            (:func:`.timing.charges`).
        action_ns: Duration of these rounds per executed action.
        latency_ns: Mean latency of a round as the environment saw it.
        routes: Share and durations by route.
        speed_up: Over the baseline, on shared cells of one session, failures included; None without such cells. Charges
            count here, too.
        acceptance: Accepted draft positions, over the rounds that verified a draft.
        action_error: Distance to the dense actions under the same noise.
        contention: Wall time over processor time of the rounds.
        marks: What limits this row.
        run_marks: What the runs behind it say about themselves.
        flips: Cells that ended differently than with the baseline.
    """

    suite: str
    policy: str
    family: str
    weights: str
    method: str
    version: str
    code: dict[str, str]
    clock: str
    latency: str
    settings: dict[str, Any]
    dtype: str
    devices: tuple[str, ...]
    machines: tuple[str, ...]
    rank: int | None
    success: stats.Proportion
    worst: stats.Proportion | None
    at_end: float
    tasks: dict[str, stats.Proportion]
    worst_task: str | None
    errors: int
    retries: int
    activity: dict[str, float]
    paired: stats.Paired | None
    paired_worst: stats.Paired | None
    retention: RetentionByTask | None
    verdict: Verdict | None
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
    def label(self) -> str:
        """The method with its version."""
        return f"{self.method} {self.version}".strip()

    @property
    def active(self) -> bool:
        """False where a counter that proves that the method acted did not move in enough episodes."""
        return NOT_ACTIVE not in self.badges

    @property
    def badges(self) -> set[str]:
        """Badges of its marks."""
        return {mark.badge for mark in self.marks}


def board(stores: Iterable[Store], *, allow_mixed: bool = False) -> list[Row]:
    """Rows by condition and by the code of suite and policy; in each, the baseline first, then by rank.

    Methods without a rank come after the others: those of which a loss of success is not excluded, those without a
    speed-up, and last those that were not active, not warm or never finished an episode.

    Args:
        stores: Runs.
        allow_mixed: Compare a row with a baseline that other code played where there is no other, and give speed-ups
            over baselines of other runs; such rows are marked.

    Raises:
        ManifestMismatch: A cell is not the same episode everywhere (see :mod:`.groups`).
        MeasurementMismatch: A latency stands for different durations in different runs.
        CodeMismatch: The only baseline on a row's cells was played by other code (see :mod:`.pairs`).
    """
    return rows_of(groups(stores), allow_mixed=allow_mixed)


def rows_of(gathered: list[Group], *, allow_mixed: bool = False) -> list[Row]:
    """Rows of groups that :func:`.groups.groups` gathered."""
    by_condition: dict[tuple[Any, ...], list[Group]] = {}
    for group in gathered:
        by_condition.setdefault(group.condition, []).append(group)
    rows = []
    for members in by_condition.values():
        worlds: dict[tuple[str, str], list[Group]] = {}
        for group in sorted(members, key=lambda group: group.started):
            worlds.setdefault(group.world, []).append(group)
        for world in worlds.values():
            rows += _ranked(_judged([_compared(group, members, allow_mixed) for group in world]))
    return rows


def _judged(rows: list[tuple[Row, float]]) -> list[tuple[Row, float]]:
    """Rows of one world with their verdicts."""
    worst = [row.paired_worst or row.paired for row, _ in rows]
    verdicts = iter(judge([each for each in worst if each]))
    return [
        (_with_verdict(row, next(verdicts)) if each else row, ns) for (row, ns), each in zip(rows, worst, strict=True)
    ]


def _with_verdict(row: Row, verdict: Verdict) -> Row:
    if verdict.loss <= MARGIN:
        return replace(row, verdict=verdict)
    where = " in the worst case" if row.paired_worst else ""
    text = f"a loss of {100 * verdict.loss:.1f} points is not excluded{where}; a rank takes {100 * MARGIN:.0f} at most"
    return replace(row, verdict=verdict, marks=(*row.marks, Mark(LOSS, text)))


def _ranked(rows: list[tuple[Row, float]]) -> list[Row]:
    """Rows of one world with their ranks: the baseline, then by speed-up, then those that have no rank."""
    ordered, rank = [], 0
    for row, speed_up in sorted(rows, key=lambda each: _place(*each)):
        ranked = _place(row, speed_up)[:4] == (True, False, False, False)
        rank += ranked
        ordered.append(replace(row, rank=rank if ranked else None))
    return ordered


def _place(row: Row, speed_up: float) -> tuple[bool, bool, bool, bool, float]:
    out = not row.active or bool(row.badges & {NONE_FINISHED, NOT_WARM})
    return (row.method != BASELINE, out, math.isnan(speed_up), LOSS in row.badges, -speed_up)


def _compared(group: Group, members: list[Group], allow_mixed: bool) -> tuple[Row, float]:
    """A row without its rank, and the speed-up per action by which it is ranked, in the worst case."""
    baseline = baseline_of(group, members, allow_mixed=allow_mixed)
    pairs = pair(group, baseline) if baseline else Pairs([], [], [], [], mixed=False)
    timed = pairs.done if allow_mixed else pairs.together
    charged = {**charges(group, baseline), **(charges(baseline, None) if baseline else {})}
    row = _row(group, baseline, pairs, timed, charged)
    if row.speed_up is None:
        return row, math.nan
    if not pairs.lost_method:
        return row, row.speed_up.action.value
    # A method gains nothing in an episode that could not be measured: it is charged the baseline's rounds.
    return row, _speed_up([*timed, *((base, base) for base in pairs.lost_method)], charged).action.value


def _row(
    group: Group,
    baseline: Group | None,
    pairs: Pairs,
    timed: list[tuple[EpisodeRow, EpisodeRow]],
    charged: Charges,
) -> Row:
    episodes = list(group.done.values())
    every, times = group.rounds, spans(episodes, charged)
    successes = [bool(row.success) for row in episodes]
    success = stats.proportion(successes)
    moved = activity(group)
    tasks = _by_task(episodes)
    return Row(
        suite=group.suite,
        policy=group.policy,
        family=group.family,
        weights=group.weights,
        method=group.method,
        version=group.version,
        code=group.code,
        clock=group.clock,
        latency=group.latency,
        settings=group.settings,
        dtype=group.dtype,
        devices=tuple(sorted({row.device for row in (*episodes, *group.errors)})),
        machines=tuple(sorted({row.machine for row in episodes})),
        rank=None,
        success=success,
        worst=stats.proportion([*successes, *(False for _ in group.errors)]) if group.errors else None,
        at_end=_at_end(episodes),
        tasks=tasks,
        worst_task=min(tasks, key=lambda task: tasks[task].rate) if len(tasks) > 1 else None,
        errors=len(group.errors),
        retries=sum(row.retries for row in (*episodes, *group.errors)),
        activity=moved,
        paired=pairs.difference,
        paired_worst=pairs.worst,
        retention=_retention(pairs),
        verdict=None,
        rounds=stats.rounds_per_episode(np.diff(every.starts), successes),
        round_ns=stats.durations(times.ns),
        action_ns=stats.per_action(times.ns, times.executed),
        latency_ns=float(every["latency_ns"].mean()) if len(every) else float("nan"),
        routes=stats.by_route(np.array(every.routes, dtype=str)[every["route"]], every["host_ns"], every["warmup"]),
        speed_up=_speed_up(timed, charged) if timed else None,
        acceptance=stats.acceptance(every.numbers("accepted"), every.numbers("drafted")),
        action_error=stats.action_error(every["action_error"]),
        contention=contention(every),
        marks=tuple(marks(group, baseline, pairs, timed, success, moved)),
        run_marks=tuple(dict.fromkeys(mark for run in group.runs for mark in run.marks)),
        flips=pairs.flips,
    )


def _retention(pairs: Pairs) -> RetentionByTask | None:
    if not pairs.done:
        return None
    own, base = ([bool(row.success) for row in side] for side in zip(*pairs.done, strict=True))
    return retention_by_task(own, base, [row.task for row, _ in pairs.done])


def _by_task(episodes: list[EpisodeRow]) -> dict[str, stats.Proportion]:
    tasks: dict[str, list[bool]] = {}
    for row in episodes:
        tasks.setdefault(row.task, []).append(bool(row.success))
    return {task: stats.proportion(tasks[task]) for task in sorted(tasks)}


def _at_end(episodes: list[EpisodeRow]) -> float:
    seen = [row.success_at_end for row in episodes if row.failure is None]  # the policy's own failure counts as one
    return sum(map(bool, seen)) / len(episodes) if seen and None not in seen else math.nan


def _speed_up(pairs: list[tuple[EpisodeRow, EpisodeRow]], charged: Charges) -> stats.SpeedUp:
    return stats.speed_up(*(timing(side, charged) for side in zip(*pairs, strict=True)))


def to_json(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows, or comparisons, as plain values for JSON: named tuples become objects, NaN becomes null."""
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
