"""Two arms on the same cells: an older and a newer run, or two values of one thing, such as a setting, in one run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from . import stats
from .groups import BASELINE, SHOWN, Group, groups
from .marks import activity, own_marks, places
from .pairs import MIXED, CodeMismatch, Flip, baseline_of, pair
from .schema import EpisodeRow, Mark
from .store import Store

PARTS = (
    "suite",
    "policy",
    "clock",
    "latency",
    "dtype",
    "device",
    "method",
)  # what arms may differ in, besides settings


class NothingToCompare(ValueError):
    """The runs hold no two arms that are equal but for what is compared."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison.

    Attributes:
        value: What tells it from the other: a run directory, or the value of what is compared.
        method: Method as the user wrote it, with its version where the run holds several.
        policy: Policy name.
        weights: Digest of the policy's files; empty where it is not known.
        code: Digests of the source code behind the episodes; empty where it was not recorded.
        success: Success rate over its measured episodes.
        errors: Episodes that could not be measured.
    """

    value: str
    method: str
    policy: str
    weights: str
    code: dict[str, str]
    success: stats.Proportion
    errors: int


@dataclass(frozen=True)
class Comparison:
    """What changed from one arm to another on the cells that both ran.

    Attributes:
        across: What tells the arms apart: ``run``, the name of a setting, or a part of the condition.
        suite: Suite name.
        condition: What both arms were measured under.
        old: The arm that is compared with.
        new: The other arm.
        paired: ``new`` minus ``old``; None where they share no measured cell.
        paired_worst: The same in the worst case (:attr:`.pairs.Pairs.worst`); None where every cell was measured.
        marks: What limits the comparison.
        flips: Cells that ended differently; ``lost`` is what the old arm solved and the new one did not.
    """

    across: str
    suite: str
    condition: dict[str, Any]
    old: Arm
    new: Arm
    paired: stats.Paired | None
    paired_worst: stats.Paired | None
    marks: tuple[Mark, ...]
    flips: tuple[Flip, ...]


def compare_runs(old: Store, new: Store, *, allow_mixed: bool = False) -> list[Comparison]:
    """Compares each method of one run with the same method of another, under the same condition.

    Policy code, method code and weights may differ: they are what is compared, and are marked. The suite's code must
    not.

    Args:
        old: The run that is compared with.
        new: The other run.
        allow_mixed: Compare also where the suite's code differs or was not recorded; such comparisons are marked.

    Raises:
        CodeMismatch: The suite's code differs, or was not recorded.
        ManifestMismatch: A cell is not the same episode in both.
        NothingToCompare: No method was run under the same condition in both.
    """
    values = (str(old.path.parent), str(new.path.parent))
    gathered = (groups([old]), groups([new]))
    found = [_compare("run", before, after, values, gathered, allow_mixed) for before, after in matched(*gathered)]
    if not found:
        raise NothingToCompare(
            f"{values[0]} and {values[1]} have no method under the same condition; name what else differs with --across"
        )
    return found


def matched(old: list[Group], new: list[Group]) -> list[tuple[Group, Group]]:
    """Groups of two runs with the same method under the same condition, the older one first."""
    return [both for both in product(old, new) if _rest(both[0], "policy") == _rest(both[1], "policy")]


def compare_across(stores: Iterable[Store], name: str, *, allow_mixed: bool = False) -> list[Comparison]:
    """Compares arms that are equal but for one setting or part of the condition, each with the first of them.

    Arms are in natural order, with dense first. Cells of two values of a setting are matched by task, initial state,
    seed and the other settings.

    Args:
        stores: Runs.
        name: The setting, or one of ``PARTS``.
        allow_mixed: Compare also where the suite's code differs or was not recorded; such comparisons are marked.

    Raises:
        CodeMismatch: The suite's code differs, or was not recorded in runs of different directories.
        ManifestMismatch: A cell is not the same episode in both.
        NothingToCompare: No two rows differ in this only.
    """
    gathered = groups(stores)
    having = [group for group in gathered if name in _parts(group)]
    known = ", ".join(dict.fromkeys((*PARTS, *(setting for group in gathered for setting in group.settings))))
    if not having:
        raise NothingToCompare(f"{name!r} is neither a setting of these runs nor a part; --across takes {known}")
    for with_code in (True, False):  # arms of one version of the code, where there are any
        arms: dict[Hashable, list[Group]] = {}
        for group in having:
            arms.setdefault((_rest(group, name), _code(group, name) if with_code else ()), []).append(group)
        found = [
            _compare(name, first, other, (_value(first, name), _value(other, name)), (gathered, gathered), allow_mixed)
            for first, *others in arms.values()
            for other in others
        ]
        if found:
            return found
    raise NothingToCompare(f"no two rows differ in {name!r} only; --across takes {known}")


def _parts(group: Group) -> dict[str, Hashable]:
    """What the group is, by content, without its code."""
    suite, policy, clock, latency, _, dtype, device = group.condition
    return dict(zip(PARTS, (suite, policy, clock, latency, dtype, device, group.method), strict=True)) | group.settings


def _rest(group: Group, name: str) -> frozenset[tuple[str, Hashable]]:
    return frozenset((part, value) for part, value in _parts(group).items() if part != name)


def _code(group: Group, name: str) -> tuple[str, ...]:
    """The code that two arms of a comparison across ``name`` have in common."""
    suite, policy = group.world
    return (
        suite,
        *([] if name == "policy" else [policy]),
        *([] if name == "method" else [group.code.get("method", "")]),
    )


def _value(group: Group, name: str) -> str:
    value = group.settings[name] if name in group.settings else getattr(group, name)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _compare(
    across: str,
    old: Group,
    new: Group,
    values: tuple[str, str],
    gathered: tuple[list[Group], list[Group]],
    allow_mixed: bool,
) -> Comparison:
    one_suite = old.world[0] == new.world[0] if old.code and new.code else old.world == new.world
    if not (one_suite or allow_mixed):
        raise CodeMismatch(new, old)
    setting = across in new.settings

    def cell_of(row: EpisodeRow) -> Hashable:
        kept = tuple(sorted((name, value) for name, value in row.settings.items() if name != across))
        return (row.suite, row.task, row.init_state, row.seed, kept)

    pairs = pair(new, old, cell_of, same=not setting)
    marks = [*_differences(across, old, new), *places(new, old if pairs.done else None, pairs)]
    marks += _arm_marks((old, gathered[0]), (new, gathered[1]))
    if pairs.equal:
        marks.append(Mark("same episodes", "every episode of one arm equals the other's action by action"))
    if not one_suite:
        marks.append(Mark(MIXED, "the suite's code differs between the arms, or was not recorded"))
    if setting:
        marks.append(Mark("matched cells", f"{across} changes the episode: cells are matched by all but this setting"))
    if len(pairs.done) < max(len(old.done), len(new.done)):
        marks.append(Mark("part paired", f"{len(pairs.done)} cells of {len(old.done)} and {len(new.done)} are shared"))
    if old.errors or new.errors:
        marks.append(Mark("errors", "cells could not be measured; the worst case counts them against the new arm"))
    shared = {"policy": new.policy, "clock": new.clock, "latency": new.latency, **new.settings}
    return Comparison(
        across=across,
        suite=new.suite,
        condition={name: value for name, value in shared.items() if name != across},
        old=_arm(old, values[0]),
        new=_arm(new, values[1]),
        paired=pairs.difference,
        paired_worst=pairs.worst,
        marks=tuple(dict.fromkeys(marks)),
        flips=pairs.flips,
    )


def _arm_marks(*arms: tuple[Group, list[Group]]) -> list[Mark]:
    """Marks of the board's rows of both arms; one that only one of them has says which one."""
    before, after = (list(dict.fromkeys(_row_marks(*arm))) for arm in arms)
    one = [("before", mark) for mark in before if mark not in after]
    one += [("now", mark) for mark in after if mark not in before]
    return [
        *(mark for mark in before if mark in after),
        *(Mark(mark.badge, f"{when}: {mark.text}") for when, mark in one),
    ]


def _row_marks(group: Group, gathered: list[Group]) -> Iterable[Mark]:
    """Marks of an arm's row on its own board."""
    success = stats.proportion([bool(row.success) for row in group.done.values()])
    yield from own_marks(group, success, activity(group), timed=[])
    members = [each for each in gathered if each.condition == group.condition]
    baseline = baseline_of(group, members, allow_mixed=True)
    if baseline and pair(group, baseline).equal:
        yield Mark(f"same as {BASELINE}", f"every episode equals {BASELINE} action by action")
    for run in group.runs:
        yield from run.marks


def _arm(group: Group, value: str) -> Arm:
    return Arm(
        value=value,
        method=group.label,
        policy=group.policy,
        weights=group.weights,
        code=group.code,
        success=stats.proportion([bool(row.success) for row in group.done.values()]),
        errors=len(group.errors),
    )


def _differences(across: str, old: Group, new: Group) -> Iterable[Mark]:
    """What tells two arms apart besides what they are compared across."""
    parts = {"weights": (old.weights, new.weights)} if across != "policy" else {}
    for part in ("policy", "method"):
        if part != across and old.code and new.code:
            parts[f"{part} code"] = (old.code.get(part, ""), new.code.get(part, ""))
    for name, (before, after) in parts.items():
        if before != after:
            yield Mark(
                f"other {name}", f"{name} {before[:SHOWN] or 'unknown'} before, {after[:SHOWN] or 'unknown'} now"
            )
