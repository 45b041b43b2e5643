"""Marks of a row: what a reader must know before believing it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from . import stats
from .escaping import counted
from .groups import BASELINE, Group
from .pairs import MIXED, Pairs
from .rounds import ABSENT, STAGE, gathered
from .schema import OVER_BUDGET, EpisodeRow, Mark, Run
from .timing import contention, left_out
from .verdicts import MARGIN

SMALL_N = 0.05  # half width of the success interval above which a row is marked
SHARED_CORE = 1.1  # wall time over processor time above which a row is marked
NOT_ACTIVE = "NOT ACTIVE"
ACTIVE_SHARE = 0.5  # below it, most episodes are the dense policy's, and so are the figures of the row
NONE_FINISHED = "NONE FINISHED"
NOT_WARM = "NOT WARM"
LEFT_OUT = 0.05  # time of cold rounds beyond their charge, as a share of all, above which a row has no rank
LOSS = "loss not excluded"
PUBLISHED = "published latency"
RANK = (
    f"Rank: by speed-up per action, where an episode that could not be measured is charged {BASELINE}'s time. It takes"
    f" a verdict that excludes a loss of {100 * MARGIN:.0f} points. A method that is {NOT_ACTIVE} or {NOT_WARM}, or"
    " never finished an episode, has none"
)


def activity(group: Group) -> dict[str, float]:
    """For each counter that proves that the method acted, the share of measured episodes in which it moved."""
    promised = {name for run in group.runs for name in run.activity_counters.get(group.method, ())}
    episodes = group.done.values()
    return {
        name: sum(bool(row.counters.get(name)) for row in episodes) / len(episodes)
        for name in sorted(promised)
        if episodes
    }


def marks(
    group: Group,
    baseline: Group | None,
    pairs: Pairs,
    timed: list[tuple[EpisodeRow, EpisodeRow]],
    success: stats.Proportion,
    moved: dict[str, float],
) -> Iterable[Mark]:
    """Yields the marks of a row.

    Args:
        group: Its episodes.
        baseline: What it is compared with; None for nothing.
        pairs: Their shared cells.
        timed: The pairs behind the speed-up.
        success: Its success rate.
        moved: What :func:`activity` says of it.
    """
    yield from own_marks(group, success, moved, timed)
    if group.errors:
        yield Mark("errors", "episodes could not be measured; the worst case counts each as a failure")
    if group.method != BASELINE and not pairs.done:
        yield Mark("unpaired", f"no {BASELINE} episode on these cells, so there is no comparison")
    elif pairs.done and len(pairs.done) < len(group.done):
        text = f"compared on the {len(pairs.done)} of {len(group.done)} cells that {BASELINE} ran too"
        yield Mark("part paired", text)
    if len(pairs.together) < len(pairs.done):
        text = f"{BASELINE} was measured at another start of a run; other company may be behind a speed-up"
        yield Mark("separate runs", text)
    if pairs.equal:
        yield Mark(f"same as {BASELINE}", f"every episode equals {BASELINE} action by action")
    if pairs.mixed:
        yield Mark(MIXED, f"{BASELINE} was played by other code of the suite or policy, or by code not recorded")
    yield from places(group, baseline if pairs.done else None, pairs)


def own_marks(
    group: Group,
    success: stats.Proportion,
    moved: dict[str, float],
    timed: list[tuple[EpisodeRow, EpisodeRow]],
) -> Iterable[Mark]:
    """Yields the marks of a row that do not come from a comparison; the arguments are those of :func:`marks`."""
    yield from dict.fromkeys(mark for run in group.runs for mark in run.suite_marks.get(group.suite, ()))
    yield from _published(group)
    yield from _activity(moved)
    if success.n and (success.high - success.low) / 2 > SMALL_N:
        yield Mark("small n", f"the 95 % interval of success is wider than ±{100 * SMALL_N:.0f} points")
    measured = group.rounds.measured
    if late := int((group.rounds[f"{STAGE}{OVER_BUDGET}"][measured] != ABSENT).sum()):
        text = f"in {late} of {measured.sum()} rounds the method was still at work in idle time when actions were due;"
        yield Mark(OVER_BUDGET, f"{text} that time is the round's")
    if (cold := left_out(group)).rounds:
        badge = NOT_WARM if cold.share > LEFT_OUT else "cold rounds"
        text = f"{counted(cold.rounds, 'round')} took a route for the first time in a process, charged with its median;"
        yield Mark(badge, f"{text} that leaves out {100 * cold.share:.2g} % of the time")
    if broke_off := sum(row.broke_off for row in group.done.values()):
        text = f"{broke_off} of {len(group.done)} episodes ended in a round that raised or did not return; its time is"
        text += (
            f" unknown, and {BASELINE}'s round at least is charged, if there is one; routes and latency leave it out"
        )
        yield Mark("broke off", text)
        if broke_off == len(group.done):
            yield Mark(NONE_FINISHED, "every episode ended by an exception or a time-out of the policy or method")
    yield from _contention(group, timed)
    if group.repeats:
        yield Mark(
            "repeats", f"{group.repeats} measured twice, {group.contradictions} of them differently; the first counts"
        )
    if not group.code:
        yield Mark("code not recorded", "an older version of replan did not write down which code played this")


def _published(group: Group) -> Iterable[Mark]:
    """A latency that others published is shown as such; one from a file of the user's own is not known to be that."""
    routes = next((run.identity.latency for run in group.runs if isinstance(run.identity.latency, dict)), {})
    figures = routes.get("profile")
    if group.clock == "realtime" and isinstance(figures, dict) and "#" not in group.latency:
        each = ", ".join(f"{route} {ns / 1e6:g} ms" for route, ns in figures.items())
        yield Mark(PUBLISHED, f"the environment saw latencies that others published and nobody measured here: {each}")


def _activity(moved: dict[str, float]) -> Iterable[Mark]:
    shares = {name: f"{name} moved in {100 * share:.3g} % of the episodes" for name, share in moved.items()}
    idle = [shares[name] for name, share in moved.items() if share < ACTIVE_SHARE]
    if idle:
        yield Mark(NOT_ACTIVE, f"{', '.join(idle)}, and has to in {100 * ACTIVE_SHARE:.0f} %")
    elif any(share < 1 for share in moved.values()):
        yield Mark("part active", ", ".join(shares[name] for name, share in moved.items() if share < 1))


def _contention(group: Group, timed: list[tuple[EpisodeRow, EpisodeRow]]) -> Iterable[Mark]:
    own, base = contention(group.rounds), contention(gathered(row.rounds for _, row in timed))
    shared = []
    if own > SHARED_CORE:
        shared.append(f"wall time is {own:.1f} × processor time: latency was not measured alone")
    if base > SHARED_CORE:
        shared.append(f"{BASELINE}'s, which the speed-up compares with, is {base:.1f} × processor time")
    if shared and (group.clock, group.latency) == ("realtime", "measured"):
        shared.append("the world moved on by these times, so success is affected as well")
    if shared:
        yield Mark("core shared", "; ".join(shared))
    elif math.isnan(own) and len(group.rounds):
        yield Mark("latency unknown", "no round after warm-up has a processor time")


def places(group: Group, baseline: Group | None, pairs: Pairs) -> Iterable[Mark]:
    """Marks of a row whose episodes, or those that they are compared with, were not measured in one place."""
    episodes = [*group.done.values(), *(row for _, row in pairs.done)]
    runs: list[Run] = [*group.runs, *(baseline.runs if baseline else ())]
    machines = {row.machine for row in episodes}
    if "" in machines:  # an old run that was resumed: its episodes may come from any of its machines
        machines = machines - {""} | {machine for run in runs for machine in run.machines}
    apart = sum(a.machine != b.machine or not a.machine for a, b in pairs.done) if len(machines) > 1 else 0
    if apart:
        text = f"{apart} of {len(pairs.done)} pairs were played on two machines: the same cell, but floating-point sums"
        yield Mark("matched cells", f"{text} differ between processors, and so may how an episode ends")
    for name, values in (
        ("machines", set() if apart else machines),
        ("devices", {row.device for row in episodes}),
        ("packages", {str(sorted(run.packages.items())) for run in runs}),
    ):
        if len(values) > 1:
            yield Mark(f"mixed {name}", f"this row and its comparison come from {len(values)} {name}")
