"""Rows, made of what environment, policy and method hand out: all of it comes from outside and is checked here."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..envs.world import action_array
from ..results.schema import INVALID_ACTION, EpisodeRow, RoundRow
from .journal import Entry

if TYPE_CHECKING:
    from .cells import Job
    from .registry import Round
    from .spec import Spec

LONGEST_TEXT = 2000  # characters of an exception's text that a row keeps


class ActionError(ValueError):
    """The agent returned something that is not an action of the environment: a failure of the policy."""


class WorldError(ValueError):
    """An environment returned something that no episode can be recorded with."""


class Host(NamedTuple):
    """Where episodes are measured.

    Attributes:
        machine: Digest of the machine (:func:`replan.results.schema.machine_digest`).
        device: ``cpu``, or the name of the CUDA device.
    """

    machine: str
    device: str


@dataclass
class Played:
    """What an episode has come to so far.

    Attributes:
        manifest: The environment's manifest.
        observation_hash: Hash of the first observation.
        steps: Control steps executed.
        sim_ns: Simulated time, in nanoseconds.
        rounds: Rows of the rounds so far.
        counters: Counters of the method.
        failure: What the policy or its method did wrong.
        actions: Executed actions, as the environment got them.
    """

    manifest: dict[str, Any]
    observation_hash: str
    steps: int = 0
    sim_ns: int = 0
    rounds: list[RoundRow] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    actions: bytearray = field(default_factory=bytearray)

    def row(
        self,
        job: Job,
        spec: Spec,
        host: Host,
        success: bool,
        outcome: str,
        *,
        success_at_end: bool | None = None,
        trajectory: str = "",
        retries: int = 0,
    ) -> EpisodeRow:
        """Returns the row of the episode, now that it is over."""
        ends = [later.control_step for later in self.rounds[1:]] + [self.steps]
        return EpisodeRow(
            **_identity(job, spec, host),
            status="done",
            success=success,
            steps=self.steps,
            sim_ns=self.sim_ns,
            outcome=outcome,
            failure=self.failure,
            success_at_end=success_at_end,
            manifest=self.manifest,
            observation_hash=self.observation_hash,
            trajectory_hash=trajectory,
            counters=self.counters,
            rounds=tuple(replace(r, executed=end - r.control_step) for r, end in zip(self.rounds, ends, strict=False)),
            retries=retries,
            actions=bytes(self.actions) if spec.keep_actions else b"",
        )


def abandoned(job: Job, spec: Spec, host: Host, entry: Entry, outcome: str, failure: str, retries: int) -> EpisodeRow:
    """Returns the row of an episode whose worker process was lost while the policy or its method was at work.

    It has no trajectory, and no counters.
    """
    (manifest, observation_hash), *rounds = entry.notes
    played = Played(manifest, observation_hash, entry.steps, entry.sim_ns, rounds, failure=failure)
    return played.row(job, spec, host, False, outcome, retries=retries)


def failed(job: Job, spec: Spec, host: Host, error: str, retries: int = 0) -> EpisodeRow:
    """Returns the row of an episode that the harness could not finish. It says nothing about the policy."""
    return EpisodeRow(
        **_identity(job, spec, host),
        status="error",
        success=None,
        steps=0,
        sim_ns=0,
        outcome="",
        manifest={},
        observation_hash="",
        trajectory_hash="",
        counters={},
        retries=retries,
        error=error,
    )


def _identity(job: Job, spec: Spec, host: Host) -> dict[str, Any]:
    cell = job.cell
    return {
        "key": job.key,
        "cell": cell.key,
        "suite": cell.suite,
        "task": cell.task,
        "init_state": cell.init_state,
        "seed": cell.seed,
        "settings": dict(cell.settings),
        "policy": job.policy,
        "method": job.method,
        "clock": spec.clock,
        "latency": spec.latency,
        "dtype": spec.dtype,
        "device": host.device,
        "machine": host.machine,
        "weights": job.weights,
        "code": dict(job.code),
    }


def checked_action(action: Any, space: Any, step: int) -> np.ndarray:
    """Returns the action in the type of the space.

    Raises:
        ActionError: It is not numbers, has another shape, or is not finite in that type.
    """
    try:
        return np.ascontiguousarray(action_array(action, space), space.dtype)
    except ValueError as error:
        raise ActionError(f"at control step {step}, {error}") from error


def entry_of(info: Mapping[str, Any], name: str) -> Any:
    """Returns an entry of an environment's info.

    Raises:
        WorldError: There is none.
    """
    if name not in info:
        raise WorldError(f"the environment's info has no {name!r}; docs/extending.md lists what it must have")
    return info[name]


def manifest_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest as the store keeps it.

    Raises:
        WorldError: The environment gives none, or not JSON values under names that are strings.
    """
    return {name: _plain(value, name) for name, value in dict(entry_of(info, "manifest")).items()}


def _plain(value: Any, name: Any) -> Any:
    if not isinstance(name, str):
        raise WorldError(f"the environment's manifest has a name that is no string: {name!r}")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(each, name) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each, key) for key, each in value.items()}
    raise WorldError(
        f"the environment's manifest has a value that is no finite JSON value: {name!r} is {str(value)[:80]}, of type "
        f"{type(value).__name__}"
    )


def text_of(error: BaseException) -> str:
    """Returns type and text of an exception, whatever its text is."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be read"
    return text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def is_fault(row: EpisodeRow) -> bool:
    """Whether an exception, a loss or a time-out ended the episode."""
    return row.status == "error" or (row.failure is not None and row.outcome != INVALID_ACTION)


def route_of(round: Round) -> str:
    """Returns the route of a round."""
    return name_of(round.route)


def name_of(value: Any) -> str:
    """Returns the name of a route or stage.

    Raises:
        TypeError: It is no string.
    """
    if not isinstance(value, str):
        raise TypeError(f"a route or stage is named by a string, got {value!r}")
    return str(value)


def count_of(value: Any, what: str) -> int:
    """Returns a count or a duration of a round as an integer that the store can keep."""
    whole = operator.index(value) if not isinstance(value, float) else int(value)
    if not 0 <= whole < 2**63:
        raise ValueError(f"{what} of a round must be 0 or more, and below 2^63, got {value!r}")
    return whole


def bool_or_none(value: Any) -> bool | None:
    """Returns what an environment may leave out."""
    return None if value is None else bool(value)


def finite(values: Mapping[Any, Any]) -> dict[str, float]:
    """Keeps what is a finite number under a string: a broken diagnostic must not cost the episode that it is about."""
    kept = {}
    for name, value in values.items():
        with suppress(TypeError, ValueError, OverflowError):
            if isinstance(name, str) and not isinstance(value, str) and math.isfinite(float(value)):
                kept[str(name)] = float(value)
    return kept
