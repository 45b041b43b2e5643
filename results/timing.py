"""Time of episodes: their rounds, and the charge for one whose own time says nothing: cold, or without a return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from . import stats
from .groups import Group
from .schema import EpisodeRow, RoundRow

Charges = Mapping[tuple[str, int], float]
"""Nanoseconds by the key of an episode and the index of a round in it."""


class Span(NamedTuple):
    """The time of one round, and the actions of it that reached the environment."""

    ns: float
    executed: int


def measured_rounds(episodes: Iterable[EpisodeRow]) -> list[RoundRow]:
    """Rounds whose own durations say how long a round takes: all but cold ones."""
    return [round for episode in episodes for round in episode.rounds if not round.warmup]


def contention(episodes: Iterable[EpisodeRow]) -> float:
    """Wall time over processor time of the rounds after warm-up; NaN without one."""
    rounds = measured_rounds(episodes)
    return stats.contention([round.host_ns for round in rounds], [round.cpu_ns for round in rounds])


def charges(group: Group, baseline: Group | None) -> Charges:
    """What rounds are charged whose own time says nothing.

    A cold round took its route for the first time in a process, which pays for caches and compilation. It is charged
    the median of the group's warm rounds of that route. Without such a round it has no charge and counts as it was: a
    route of its own for every expensive round hides none of them.

    How long a round took that did not return is not known, and a method must not look fast because it raises early. So
    it is charged the baseline's mean round on the same cell, or its median round where it has none there, and at least
    the method's own median round. An episode has no charge where there is no round to go by.

    Args:
        group: The method.
        baseline: What it is compared with; None for nothing.
    """
    by_route = _by_route(group)
    cold = [(row, *each) for row in group.done.values() for each in _cold(row, by_route)]
    charged = {(row.key, round.index): warm for row, round, warm in cold}
    own = _median(measured_rounds(group.done.values()))
    base = baseline.done if baseline else {}
    median = _median(measured_rounds(base.values()))
    for cell, row in group.done.items():
        paired = [round.host_ns for round in measured_rounds([base[cell]])] if cell in base else []
        charge = float(np.fmax(np.mean(paired) if paired else median, own))
        if row.broke_off and not np.isnan(charge):
            charged[row.key, len(row.rounds)] = charge
    return charged


def spans(episode: EpisodeRow, charged: Charges) -> list[Span]:
    """Times of the rounds of an episode, the charge included where its last one did not return.

    Args:
        episode: The episode.
        charged: What :func:`charges` says of its group.
    """
    rounds = episode.rounds
    times = [Span(charged.get((episode.key, round.index), round.host_ns), round.executed) for round in rounds]
    if (episode.key, len(rounds)) in charged:
        times.append(Span(charged[episode.key, len(rounds)], 0))
    return times


def timing(episodes: Iterable[EpisodeRow], charged: Charges) -> stats.Timing:
    """Returns time, rounds and executed actions of each episode, with what :func:`charges` says of its rounds."""
    cells = [spans(row, charged) for row in episodes]
    return stats.Timing(
        ns=[sum(span.ns for span in times) for times in cells],
        rounds=[len(times) for times in cells],
        executed=[sum(span.executed for span in times) for times in cells],
    )


class LeftOut(NamedTuple):
    """What cold rounds took beyond their charge.

    Attributes:
        rounds: Cold rounds that have a charge.
        share: Time beyond the charge, as a share of the time of all rounds.
    """

    rounds: int
    share: float


def left_out(group: Group) -> LeftOut:
    """Returns what a group's cold rounds took beyond their charge."""
    by_route = _by_route(group)
    cold = [(round.host_ns, warm) for row in group.done.values() for round, warm in _cold(row, by_route)]
    total = sum(round.host_ns for row in group.done.values() for round in row.rounds)
    return LeftOut(len(cold), sum(max(ns - warm, 0) for ns, warm in cold) / total if total else 0.0)


def _cold(episode: EpisodeRow, by_route: Mapping[str, float]) -> list[tuple[RoundRow, float]]:
    """Returns the cold rounds of an episode whose route has warm ones, with the median of these."""
    return [(round, by_route[round.route]) for round in episode.rounds if round.warmup and round.route in by_route]


def _by_route(group: Group) -> dict[str, float]:
    """Returns the median warm round of each route."""
    routes: dict[str, list[RoundRow]] = {}
    for round in measured_rounds(group.done.values()):
        routes.setdefault(round.route, []).append(round)
    return {route: _median(rounds) for route, rounds in routes.items()}


def _median(rounds: Iterable[RoundRow]) -> float:
    durations = [round.host_ns for round in rounds]
    return float(np.median(durations)) if durations else float("nan")
