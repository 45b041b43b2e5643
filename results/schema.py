"""The result schema: the rows that every other part writes, stores and reads.

A row is immutable and holds only plain values, so that it survives a process boundary, a database and a
reader written in another language. Times are integer nanoseconds. Nothing here reads a clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Outcomes of episodes that the policy or its method ended by a fault of its own; an environment has others.
BASELINE = "dense"
INVALID_ACTION = "invalid action"  # it returned something that is no action
RAISED = "raised"  # it raised an exception, or took its process down
TIMEOUT = "timeout"  # it did not return in time

OVER_BUDGET = "idle over budget"  # stage of a round: work in idle time that the robot had to wait for


@dataclass(frozen=True)
class Mark:
    """Something that a reader must know about a result.

    Attributes:
        badge: One to four words, such as ``CPU`` or ``stand-in assets``.
        text: The sentence behind it; the badge again where the badge says it all.
    """

    badge: str
    text: str

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Reads the form used in checkpoint headers and suite descriptions: ``badge: sentence``, or a badge alone."""
        badge, _, sentence = text.partition(": ")
        return cls(badge, sentence or badge)

    def __str__(self) -> str:
        return self.badge if self.text == self.badge else f"{self.badge}: {self.text}"


@dataclass(frozen=True)
class RoundRow:
    """One round: one call of the policy.

    Attributes:
        index: Position of the round in its episode, from 0.
        control_step: Control steps executed before the round.
        route: Path that the round took; ``full`` is the dense one, methods name their own.
        host_ns: Wall time of the round in the worker, observation ready to chunk ready.
        cpu_ns: Processor time of the worker in the same span; ``host_ns`` well above it means that the core was shared.
        latency_ns: Latency as the environment saw it (0 under the ``sync`` clock).
        stages_ns: Wall time of each stage (``encode``, ``prefill``, ``denoise``, ``draft``, ``verify``).
        executed: Actions of this chunk that reached the environment.
        window: Replan window, in actions: the most that one round may execute.
        accepted: Leading draft positions that passed verification; None where nothing was drafted.
        drafted: Draft positions that were verified; None where nothing was drafted.
        warmup: True for rounds made before the caches, allocators and kernels were warm. Left out of durations.
        action_error: Root mean square distance to the dense policy's chunk for the same observation and noise, over the
            executed actions, in the policy's normalised action space; None where it was not measured or not finite.
        extra: Further finite numbers that a method reports.
    """

    index: int
    control_step: int
    route: str
    host_ns: int
    cpu_ns: int
    latency_ns: int
    stages_ns: dict[str, int]
    executed: int
    window: int
    accepted: int | None = None
    drafted: int | None = None
    warmup: bool = False
    action_error: float | None = None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)  # without slots, more than 30 fields take Python six times the memory
class EpisodeRow:
    """One episode of one method on one cell.

    Attributes:
        key: Content address of (cell, weights, method, code, clock, latency, precision); equal keys are the same
            measurement.
        cell: Content address of the cell alone; episodes of two methods are paired by it.
        suite: Suite name.
        task: Task name inside the suite.
        init_state: Index of the initial state.
        seed: Seed of the environment's reset.
        settings: Suite settings that the user fixed, such as ``{"speed": 10.0}``.
        policy: Policy name.
        method: Method as the user wrote it, such as ``flash`` or ``few_step:steps=2``.
        clock: ``sync`` or ``realtime``.
        latency: Latency source as the user wrote it, such as ``fixed:58ms``.
        status: ``done``, or ``error`` where the harness (not the policy) failed.
        success: Whether the suite's success rule held, which ends an episode; None when ``status`` is ``error``.
        steps: Control steps executed.
        sim_ns: Simulated time from reset to the end.
        outcome: The suite's word for how it ended, such as ``success``, ``lost`` or ``time``; ``invalid action``,
            ``raised`` or ``timeout`` where the policy or method failed by itself.
        manifest: What the environment says the episode is: hashes of the initial state and of the fixtures,
            instruction, step budget, success rule. Two methods may be compared only where their manifests agree.
        observation_hash: Hash of the first observation.
        trajectory_hash: Hash of all executed actions and visited states.
        counters: Counters of the method at the end of the episode.
        rounds: The rounds, in order.
        retries: Times that the cell was run again after its worker died or hung.
        error: Why the harness could not measure the episode; None when ``status`` is ``done``.
        failure: What the policy or its method did wrong, which ended the episode as their failure: an action that is
            none, an exception, no answer in time. None where they did nothing of the kind.
        success_at_end: Whether the rule held when the suite looked again after the episode, once the robot had been
            still for a while; None where the suite does not look again, or the episode did not reach its end.
        dtype: Precision of the policy, such as ``float32``.
        device: Where the policy ran: ``cpu``, or the name of the CUDA device.
        machine: Digest of the machine that played the episode (:func:`machine_digest`); empty where it is not known.
        code: Digests of the source code that decides the episode: of the ``suite`` with the harness's part of an
            episode, the ``policy`` and the ``method``. Empty where it was not recorded (before schema 4).
        weights: Digest of the policy's files, whatever they were called; empty where it is not known.
        session: Row of table ``runs`` that measured it, from 1: one start or resumption of the run. The store writes
            it; 0 where it is not known (before schema 5, of a run that was resumed). Not a part of the measurement.
        actions: Executed actions in the type of the environment's action space, one after another, on the way into a
            store; empty in a row that was read (:meth:`.store.Store.actions` reads them), or if they are not kept.
    """

    key: str
    cell: str
    suite: str
    task: str
    init_state: int
    seed: int
    settings: dict[str, Any]
    policy: str
    method: str
    clock: str
    latency: str
    status: str
    success: bool | None
    steps: int
    sim_ns: int
    outcome: str
    manifest: dict[str, Any]
    observation_hash: str
    trajectory_hash: str
    counters: dict[str, float]
    rounds: Sequence[RoundRow] = ()
    retries: int = 0
    error: str | None = None
    failure: str | None = None
    success_at_end: bool | None = None
    dtype: str = "float32"
    device: str = "cpu"
    machine: str = ""
    code: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    session: int = field(default=0, compare=False)
    actions: bytes = field(default=b"", compare=False, repr=False)

    @property
    def broke_off(self) -> bool:
        """Whether the policy or method did not finish its last round, so that nobody knows how long it takes."""
        return self.failure is not None and self.outcome in (RAISED, TIMEOUT)

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``cuda``: what the address of the measurement contains."""
        return "cpu" if self.device == "cpu" else "cuda"


@dataclass(frozen=True)
class RunIdentity:
    """What the names in a run's specification stand for. A run is resumed only under an equal one.

    Attributes:
        latency: The durations behind the latency source's name, as JSON values.
        fingerprints: For each suite, versions and digests of what it is made of, by name; ``code`` is the digest of its
            source together with the harness's part of an episode.
        files: For each suite, the digest of the files of its policy with each method, by method.
    """

    latency: Any
    fingerprints: dict[str, dict[str, str]] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What produced a run directory: written when a command starts or resumes it, and compared on resume.

    Attributes:
        spec: The evaluation's specification, as plain values: everything that can change a result, and nothing that
            cannot (such as the number of workers), since a run is resumed only under an equal one. Not the names of the
            policy and of the latency source: what they stand for is in ``identity``.
        identity: What the names in the specification stand for.
        activity_counters: For each method, the counters that prove that it acted: one that stays at zero in every
            episode makes the row ``NOT ACTIVE``.
        command: Command line that started it.
        started: ISO 8601 time at which it started, given by the caller.
        commit: Git commit of the code, with ``-dirty`` where the tree had changes; ``unknown`` outside a checkout.
        packages: Versions of the packages that can change a result.
        machines: Processor, cores, memory, accelerator of each machine, by its digest.
        checkpoints: SHA-256 of the policy's files and of those that the methods of this run need, by name.
        marks: Marks of every row, such as ``CPU``.
        suite_marks: Marks of the rows of one suite and its policy, by suite.
        families: Model family of each policy that has one, by the policy's name; empty where an older replan wrote it.
    """

    spec: dict[str, Any]
    identity: RunIdentity
    activity_counters: dict[str, tuple[str, ...]]
    command: str
    started: str
    commit: str
    packages: dict[str, str]
    machines: dict[str, dict[str, str]]
    checkpoints: dict[str, str]
    marks: tuple[Mark, ...] = ()
    suite_marks: dict[str, tuple[Mark, ...]] = field(default_factory=dict)
    families: dict[str, str] = field(default_factory=dict)


def machine_digest(hardware: Mapping[str, str]) -> str:
    """Returns a short digest (12 hex digits) of what a machine is, which names it in episode rows."""
    return hashlib.sha256(json.dumps(dict(hardware), sort_keys=True).encode()).hexdigest()[:12]
