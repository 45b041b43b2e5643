"""Time of episodes: their rounds after warm-up, and the charge for a round that did not return."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from . import stats
from .groups import Group
from .schema import EpisodeRow, RoundRow


class Span(NamedTuple):
    """The time of one round, and the actions of it that reached the environment."""

    ns: float
    executed: int


def measured_rounds(episodes: Iterable[EpisodeRow]) -> list[RoundRow]:
    """Rounds whose durations count: those after warm-up."""
    return [round for episode in episodes for round in episode.rounds if not round.warmup]


def contention(episodes: Iterable[EpisodeRow]) -> float:
    """Wall time over processor time of the rounds after warm-up; NaN without one."""
    rounds = measured_rounds(episodes)
    return stats.contention([round.host_ns for round in rounds], [round.cpu_ns for round in rounds])


def charges(group: Group, baseline: Group | None) -> dict[str, float]:
    """What a round that did not return is charged, in nanoseconds, by the key of its episode.

    How long it took is not known, and a method must not look fast because it raises early. So it is charged the
    baseline's mean round on the same cell, or its median round where it has none there, and at least the method's own
    median round. An episode has no charge where there is no round to go by.

    Args:
        group: The method.
        baseline: What it is compared with; None for nothing.
    """
    own = _median(group.done.values())
    base = baseline.done if baseline else {}
    median = _median(base.values())
    charged = {}
    for cell, row in group.done.items():
        paired = [round.host_ns for round in measured_rounds([base[cell]])] if cell in base else []
        charge = float(np.fmax(np.mean(paired) if paired else median, own))
        if not np.isnan(charge):
            charged[row.key] = charge
    return charged


def spans(episode: EpisodeRow, charged: dict[str, float]) -> list[Span]:
    """Times of the rounds of an episode after warm-up, the charge included where its last one did not return.

    Args:
        episode: The episode.
        charged: What :func:`charges` says of its group.
    """
    times = [Span(round.host_ns, round.executed) for round in measured_rounds([episode])]
    if episode.broke_off and episode.key in charged:
        times.append(Span(charged[episode.key], 0))
    return times


def _median(episodes: Iterable[EpisodeRow]) -> float:
    durations = [round.host_ns for round in measured_rounds(episodes)]
    return float(np.median(durations)) if durations else float("nan")
