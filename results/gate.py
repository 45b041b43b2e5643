"""The gate: may this be merged? Every check passes, fails, or says that the data are too few or not comparable."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from . import stats
from .compare import NothingToCompare, matched
from .escaping import counted
from .groups import BASELINE, Group, groups
from .inference import clopper_pearson
from .marks import ACTIVE_SHARE, activity
from .noninferiority import ALPHA, p_value, pairs_about, score_interval
from .pairs import CodeMismatch, Pairs, baseline_of, pair
from .schema import EpisodeRow
from .stats import Paired, Ratio
from .store import Store
from .timing import charges, timing
from .verdicts import POWER, flip_rate


class Outcome(str, Enum):
    """What a check, or the gate, says; the worst outcome of the checks comes first."""

    FAIL = "FAIL"
    NOT_COMPARABLE = "NOT COMPARABLE"
    INSUFFICIENT = "INSUFFICIENT"
    PASS = "PASS"


@dataclass(frozen=True)
class Limits:
    """What the gate takes. Shares: 0.03 is three points, or 3 %.

    Attributes:
        margin: Loss of success that is tolerated.
        retention: Share of the cells that the reference solves which has to be kept; None to check the margin instead.
        slower: How much longer a round of each route may take; None for any time.
        error: Largest mean action error; None for any.
    """

    margin: float = 0.03
    retention: float | None = None
    slower: float | None = None
    error: float | None = None


class Check(NamedTuple):
    """One check of one method.

    Attributes:
        subject: Suite, condition and method.
        name: What was checked.
        outcome: What came out.
        text: The figures in words.
    """

    subject: str
    name: str
    outcome: Outcome
    text: str


class Result(NamedTuple):
    """The gate's outcome, its checks, and the pre-registration."""

    outcome: Outcome
    checks: tuple[Check, ...]
    registration: str


def gate(run: Store, against: Store | None, limits: Limits) -> Result:
    """Checks every method of a run against dense in the same run, or against the same method of an older run.

    Args:
        run: The run.
        against: The older run; None to compare with dense.
        limits: What is tolerated.

    Raises:
        StoreError: A run cannot be read.
    """
    try:
        gathered = groups([run])
        before = groups([against]) if against else []
        compared = list(_to_dense(gathered) if against is None else _to_older(gathered, before))
    except ValueError as error:
        return _result([Check(run.path.parent.name, "cells", Outcome.NOT_COMPARABLE, str(error))], run, limits)
    alpha = ALPHA / max(1, len(compared))
    planned = run.run.spec.get("episodes", 0)
    checks = [check for each in compared for check in _checks(each, limits, alpha, planned)]
    checks += _unmatched(gathered, before) if against else []
    if not checks:
        text = f"there is no method besides {BASELINE}" if against is None else "there is no method"
        checks = [Check(run.path.parent.name, "cells", Outcome.NOT_COMPARABLE, f"{text} to check")]
    return _result(checks, run, limits)


def registration(run: Store, limits: Limits) -> str:
    """Twelve hex digits of specification, what its names stand for, and limits: known before the first result.

    The specification decides the cells, so whoever writes this down first cannot choose either afterwards.
    """
    spec = {name: value for name, value in run.run.spec.items() if name not in ("out", "workers", "timeout")}
    identity = run.run.identity
    said = [spec, identity.latency, identity.fingerprints, identity.files, vars(limits)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


class _Compared(NamedTuple):
    subject: str
    group: Group
    reference: Group
    pairs: Pairs
    dense: Pairs | None  # with dense of the same run; None where there is none
    times: dict[str, Ratio | None]  # how many times longer a round of a route, or an action, took; None: not known


def _to_dense(gathered: list[Group]) -> Iterable[_Compared]:
    for group in gathered:
        baseline = _own_baseline(group, gathered)
        if group.method == BASELINE:
            continue
        if baseline is None:
            raise NothingToCompare(f"{group.label} has no {BASELINE} on its cells; add dense to --method")
        pairs = pair(group, baseline)
        yield _Compared(_subject(group), group, baseline, pairs, pairs, {**_against_dense(group, baseline, pairs)})


def _to_older(now: list[Group], before: list[Group]) -> Iterable[_Compared]:
    for old, new in matched(before, now):
        if old.world[0] != new.world[0] or not old.code or not new.code:
            raise CodeMismatch(new, old)
        baselines = [_own_baseline(group, gathered) for group, gathered in ((new, now), (old, before))]
        own, older = (
            _against_dense(group, baseline, pair(group, baseline)) if baseline else {}
            for group, baseline in zip((new, old), baselines, strict=True)
        )
        times = {name: _quotient(own[name], older[name]) if name in older else None for name in own}
        dense = pair(new, baselines[0]) if baselines[0] else None
        yield _Compared(_subject(new), new, old, pair(new, old), dense, times)


def _unmatched(now: list[Group], before: list[Group]) -> list[Check]:
    """What only one of two runs has: a method that is left out or renamed must not pass unseen."""
    both = matched(before, now)
    texts = {
        "the older run has this and the new run does not": [g for g in before if all(g is not old for old, _ in both)],
        "the older run does not have this": [g for g in now if all(g is not new for _, new in both)],
    }
    return [
        Check(_subject(group), "cells", Outcome.NOT_COMPARABLE, text)
        for text, alone in texts.items()
        for group in alone
    ]


def _subject(group: Group) -> str:
    settings = [f"{name} {value}" for name, value in group.settings.items()]
    return ", ".join([group.suite, group.policy, group.clock, group.latency, *settings, group.label])


def _own_baseline(group: Group, gathered: list[Group]) -> Group | None:
    return baseline_of(group, [each for each in gathered if each.condition == group.condition], allow_mixed=False)


def _against_dense(group: Group, baseline: Group, pairs: Pairs) -> dict[str, Ratio]:
    """How many times longer a round of each route took than a dense one, on cells that one session measured of both.

    Also an action: routes of which each is fast enough say nothing of a method that takes the slow one more often, or
    executes less of each chunk.
    """
    routes = sorted({round.route for row, _ in pairs.together for round in row.rounds if not round.warmup})
    found = {}
    for route in routes:
        both = [(_time(row, route), _time(base, None)) for row, base in pairs.together]
        both = [(own, base) for own, base in both if own[1] and base[1]]
        if both:
            own, base = (
                stats.Timing(*zip(*((ns, rounds, rounds) for ns, rounds in side), strict=True))
                for side in zip(*both, strict=True)
            )
            # dense as the method: its gain is what the route loses
            found[f"latency of {route}"] = stats.speed_up(base, own).round
    if pairs.together:
        charged = {**charges(group, baseline), **charges(baseline, None)}
        own, base = (timing(side, charged) for side in zip(*pairs.together, strict=True))
        found["latency per action"] = stats.speed_up(base, own).action
    return found


def _time(row: EpisodeRow, route: str | None) -> tuple[int, int]:
    spans = [round.host_ns for round in row.rounds if not round.warmup and route in (None, round.route)]
    return sum(spans), len(spans)


def _quotient(new: Ratio, old: Ratio) -> Ratio:
    """Ratio of two independent ratios, with an interval in logarithms."""
    value = new.value / old.value
    spread = math.hypot(*(math.log(each.high / each.low) / 2 for each in (new, old)))
    return Ratio(value, value * math.exp(-spread), value * math.exp(spread))


def _checks(compared: _Compared, limits: Limits, alpha: float, planned: int) -> Iterable[Check]:
    group, pairs = compared.group, compared.pairs
    found = pairs.worst or pairs.difference

    def check(name: str, outcome: Outcome, text: str) -> Check:
        return Check(compared.subject, name, outcome, text)

    if found is None:
        yield check("cells", Outcome.NOT_COMPARABLE, "no cell is shared with what it is compared with")
        return
    if copied := sum(row == base for row, base in pairs.done):
        text = f"{counted(copied, 'episode')} of the older run, to the nanosecond: a copy shows nothing; measure again"
        yield check("cells", Outcome.NOT_COMPARABLE, text)
    if len(group.cells) < planned:
        text = f"{len(group.cells)} of {counted(planned, 'cell')} were played that the run has; resume it"
        yield check("cells", Outcome.INSUFFICIENT, text)
    if len(pairs.done) < max(len(group.done), len(compared.reference.done)):
        text = f"shared cells: {len(pairs.done)} of {len(group.done)} and {len(compared.reference.done)}"
        yield check("cells", Outcome.INSUFFICIENT, f"{text}: a run that was stopped early may have been stopped for it")
    if limits.retention is None:
        yield check("success", *_success(found, limits, alpha))
    else:
        yield check("retention", *_retention(pairs, limits.retention, alpha))
    failed = sum(row.failure is not None for row, base in pairs.done if base.failure is None)
    yield check(
        "failures",
        Outcome.FAIL if failed else Outcome.PASS,
        f"{counted(failed, 'episode')} ended by an exception, a time-out or an invalid action of the method alone",
    )
    if group.errors:
        yield check("errors", Outcome.INSUFFICIENT, f"{counted(len(group.errors), 'episode')} could not be measured")
    for outcome, text in _acted(group, compared.dense):
        yield check("counters", outcome, text)
    if limits.slower is not None and group.method != BASELINE:
        if not compared.times:
            text = "no cells on which one start of a run measured both the method and dense"
            yield check("latency", Outcome.NOT_COMPARABLE, text)
        for name, ratio in compared.times.items():
            yield check(name, *_latency(ratio, limits.slower))
    if limits.error is not None:
        yield check("action error", *_error(group, limits.error))


def _acted(group: Group, dense: Pairs | None) -> Iterable[tuple[Outcome, str]]:
    """By its counters; a method that declares none must at least come out otherwise than dense."""
    moved = activity(group)
    for name, share in moved.items():
        outcome = Outcome.PASS if share >= ACTIVE_SHARE else Outcome.FAIL
        yield outcome, f"{name} moved in {100 * share:.3g} % of the episodes"
    if moved or group.method == BASELINE or not group.done:
        return
    both = dense.done if dense else []
    differ = sum(row.trajectory_hash != base.trajectory_hash for row, base in both)
    text = f"it declares no activity_counters, and {differ} of {len(both)} episodes differ from {BASELINE}'s"
    if both and differ >= ACTIVE_SHARE * len(both):
        yield Outcome.PASS, text
    else:
        yield Outcome.INSUFFICIENT, f"{text}: nothing shows that it acted; declare a counter that moves when it does"


def _success(found: Paired, limits: Limits, alpha: float) -> tuple[Outcome, str]:
    counts = f"{found.lost} lost and {found.gained} gained of {counted(found.n, 'cell')}"
    points = f"{100 * limits.margin:g} points"
    p_loss = p_value(found.lost, found.gained, found.n, limits.margin)
    if p_loss <= alpha:
        return Outcome.PASS, f"{counts}: a loss of {points} is excluded (p {p_loss:.2g})"
    shown = -score_interval(found.lost, found.gained, found.n, 1 - 2 * alpha).high
    if shown > limits.margin:
        return Outcome.FAIL, f"{counts}: a loss of more than {points} is shown ({100 * shown:.1f} at least)"
    flips = flip_rate(found)
    needed = pairs_about(limits.margin, flips / 2, flips / 2, POWER, alpha)
    enough = f"; about {needed} cells would do for a method that loses nothing" if needed > found.n else ""
    return Outcome.INSUFFICIENT, f"{counts}: a loss of {points} is neither excluded nor shown (p {p_loss:.2g}){enough}"


def _retention(pairs: Pairs, least: float, alpha: float) -> tuple[Outcome, str]:
    """Retention in the worst case: an episode that could not be measured is one that the method lost."""
    solved = [bool(row.success) for row, base in pairs.done if base.success]
    solved += [False for base in pairs.lost_method if base.success]
    bounds = clopper_pearson(sum(solved), len(solved), alpha)
    text = f"{sum(solved)} of {len(solved)} solved cells are kept, and {100 * least:g} % have to be"
    if not solved:
        return Outcome.INSUFFICIENT, text
    text += f" [{100 * bounds.low:.1f}, {100 * bounds.high:.1f}]"
    if bounds.low >= least:
        return Outcome.PASS, text
    return (Outcome.FAIL if bounds.high < least else Outcome.INSUFFICIENT), text


def _error(group: Group, most: float) -> tuple[Outcome, str]:
    """Mean action error, with an interval over episodes, since rounds of one episode resemble each other."""
    errors = [[r.action_error for r in row.rounds if r.action_error is not None] for row in group.done.values()]
    means = np.array([np.mean(each) for each in errors if each])
    if means.size < stats.FEWEST_CELLS:
        return Outcome.INSUFFICIENT, f"{counted(means.size, 'episode')} with a measured action error: too few"
    half = stdtrit(means.size - 1, 1 - ALPHA) * means.std(ddof=1) / np.sqrt(means.size)
    text = f"the mean action error of an episode is {means.mean():.3g} ± {half:.2g}, and {most:g} is allowed"
    if means.mean() + half <= most:
        return Outcome.PASS, text
    return (Outcome.FAIL if means.mean() - half > most else Outcome.INSUFFICIENT), text


def _result(checks: list[Check], run: Store, limits: Limits) -> Result:
    found = {check.outcome for check in checks}
    return Result(next(each for each in Outcome if each in found), tuple(checks), registration(run, limits))


def _latency(ratio: Ratio | None, slower: float) -> tuple[Outcome, str]:
    if ratio is None:
        return Outcome.NOT_COMPARABLE, "the older run did not measure this next to dense"
    most = 1 + slower
    text = f"it takes {ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times as long, and {most:.2f} is allowed"
    if math.isnan(ratio.low):
        return Outcome.INSUFFICIENT, f"{text}; an interval takes {stats.FEWEST_CELLS} cells"
    if ratio.high <= most:
        return Outcome.PASS, text
    return (Outcome.FAIL if ratio.low > most else Outcome.INSUFFICIENT), text
