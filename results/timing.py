"""Time of episodes: their rounds, and the charge for one whose own time says nothing: cold, or without a return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from . import stats
from .groups import Group
from .rounds import RoundTable, gathered
from .schema import EpisodeRow, RoundRow

Charges = Mapping[tuple[str, int], float]
"""Nanoseconds by the key of an episode and the index of a round in it."""


class Spans(NamedTuple):
    """Times of the rounds of some episodes, the charge included where the last one did not return.

    Attributes:
        ns: float [n].
        executed: int [n], actions of the round that reached the environment.
        episode: int [n], position of the round's episode.
    """

    ns: np.ndarray
    executed: np.ndarray
    episode: np.ndarray


def measured_rounds(episodes: Iterable[EpisodeRow]) -> list[RoundRow]:
    """Rounds whose own durations say how long a round takes: all but cold ones."""
    return [round for episode in episodes for round in episode.rounds if not round.warmup]


def contention(rounds: RoundTable) -> float:
    """Wall time over processor time of the rounds after warm-up; NaN without one."""
    warm = rounds.measured
    return stats.contention(rounds["host_ns"][warm], rounds["cpu_ns"][warm])


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
    rounds, episodes = group.rounds, list(group.done.values())
    whose = rounds.episode
    charged = {
        (episodes[whose[at]].key, int(rounds["index"][at])): warm for at, warm in _cold(rounds, _by_route(rounds))
    }
    broken = [row for row in episodes if row.broke_off]
    if broken:
        own = _median(rounds)
        base = baseline.done if baseline else {}
        median = _median(baseline.rounds) if baseline else math.nan
        for row in broken:
            paired = [r.host_ns for r in base[row.cell].rounds if not r.warmup] if row.cell in base else []
            charge = float(np.fmax(np.mean(paired) if paired else median, own))
            if not math.isnan(charge):
                charged[row.key, len(row.rounds)] = charge
    return charged


def spans(episodes: Sequence[EpisodeRow], charged: Charges) -> Spans:
    """Times of the rounds of episodes.

    Args:
        episodes: The episodes.
        charged: What :func:`charges` says of their groups.
    """
    rounds = gathered(row.rounds for row in episodes)
    ns, executed, whose = rounds["host_ns"].astype(float), rounds["executed"], rounds.episode
    places = {row.key: place for place, row in enumerate(episodes)} if charged else {}
    ends: list[tuple[int, int, float]] = []  # of episodes whose last round did not return: where, whose, how long
    for (key, index), charge in charged.items():
        if (place := places.get(key)) is None:
            continue
        if index < len(episodes[place].rounds):
            ns[rounds.starts[place] + index] = charge
        else:
            ends.append((int(rounds.starts[place + 1]), place, charge))
    at = [end for end, _, _ in ends]
    return Spans(
        np.insert(ns, at, [charge for _, _, charge in ends]),
        np.insert(executed, at, 0),
        np.insert(whose, at, [place for _, place, _ in ends]),
    )


def timing(episodes: Sequence[EpisodeRow], charged: Charges) -> stats.Timing:
    """Returns time, rounds and executed actions of each episode, with what :func:`charges` says of its rounds."""
    found = spans(episodes, charged)
    ns, executed = (np.bincount(found.episode, each, len(episodes)) for each in (found.ns, found.executed))
    return stats.Timing(ns, np.bincount(found.episode, minlength=len(episodes)), executed)


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
    rounds = group.rounds
    beyond = [max(int(rounds["host_ns"][at]) - warm, 0) for at, warm in _cold(rounds, _by_route(rounds))]
    total = int(rounds["host_ns"].sum(dtype=np.int64))
    return LeftOut(len(beyond), sum(beyond) / total if total else 0.0)


def _cold(rounds: RoundTable, by_route: Mapping[int, float]) -> list[tuple[int, float]]:
    """Returns positions of the cold rounds whose route has warm ones, with the median of these."""
    cold = np.flatnonzero(rounds["warmup"]).tolist()
    return [(at, by_route[route]) for at in cold if (route := int(rounds["route"][at])) in by_route]


def _by_route(rounds: RoundTable) -> dict[int, float]:
    """Returns the median warm round of each route that has one."""
    ns, routes = rounds["host_ns"][rounds.measured], rounds["route"][rounds.measured]
    return {int(route): float(np.median(ns[routes == route])) for route in np.unique(routes)}


def _median(rounds: RoundTable) -> float:
    durations = rounds["host_ns"][rounds.measured]
    return float(np.median(durations)) if durations.size else math.nan
