"""What one measured episode is: the rows every other part writes, stores and reads.

A row is immutable and holds only plain values, so that it survives a process boundary, a database and a
reader written in another language. Times are integer nanoseconds. Nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RoundRow:
    """One policy call.

    Attributes:
        index: Position of the call in its episode, from 0.
        control_step: Control steps executed before the call.
        route: Path the method took: ``full``, ``flash`` or ``fallback``; a method may name its own.
        host_ns: Wall time of the call in the worker, observation ready to chunk ready.
        cpu_ns: Processor time of the worker in the same span; ``host_ns`` well above it means that the core was shared.
        latency_ns: Latency that the world was given (0 under the ``sync`` clock).
        stages_ns: Wall time of each stage (``encode``, ``prefill``, ``denoise``, ``draft``, ``verify``).
        executed: Actions of this chunk that reached the environment.
        accepted: Accepted draft prefix, in actions; None where nothing was drafted.
        window: Replan window, in actions: the most that one call may execute.
        warmup: True for calls made before the caches, allocators and kernels were warm. Kept out of latency statistics.
        action_error: Root mean square distance to the dense policy's chunk for the same observation and noise, over the
            executed actions, in the policy's normalised action space; None where it was not measured or not finite.
        extra: Further finite numbers a method reports.
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
    warmup: bool = False
    action_error: float | None = None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of one method on one cell.

    Attributes:
        key: Content address of (cell, policy, method, clock, latency); equal keys are the same measurement.
        cell: Content address of the cell alone; episodes of two methods are paired by it.
        suite: Suite name.
        task: Task name inside the suite.
        init_state: Index of the initial state.
        seed: Seed of the run.
        settings: Suite settings that the user fixed, such as ``{"speed": 10.0}``.
        policy: Policy name.
        method: Method as the user wrote it, such as ``flash`` or ``few_step:steps=2``.
        clock: ``sync`` or ``realtime``.
        latency: Latency source as the user wrote it, such as ``fixed:58ms``.
        status: ``done``, or ``error`` where the harness (not the policy) failed.
        success: Whether the suite's success rule held, which ends an episode; None when ``status`` is ``error``.
        steps: Control steps executed.
        sim_ns: Simulated time from reset to the end.
        outcome: The suite's word for how it ended, such as ``success``, ``lost`` or ``time``; ``invalid action`` where
            the policy ended it, as a failure of its own, with an action that is not finite or has the wrong shape.
        manifest: What the environment says the episode is: hashes of the initial state and of the fixtures,
            instruction, step budget, success rule. Two methods may be compared only where their manifests agree.
        observation_hash: Hash of the first observation.
        trajectory_hash: Hash of all executed actions and visited states.
        counters: Counters of the method at the end of the episode.
        retries: Times that the cell was run again after a dead or hung worker.
        error: What the harness saw when ``status`` is ``error``, or what was wrong with an invalid action.
        success_at_end: Whether the rule held when the suite looked again after the episode, once the robot had been
            still for a while; None where the suite does not look again, or the episode never came to its end.
        rounds: The policy calls, in order.
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
    rounds: tuple[RoundRow, ...] = ()
    retries: int = 0
    error: str | None = None
    success_at_end: bool | None = None


@dataclass(frozen=True)
class Run:
    """What produced a run directory, written once and compared on resume.

    Attributes:
        spec: The evaluation's specification, as plain values: everything that can change a result, and nothing that
            cannot (such as the number of workers), since a run is resumed only under an equal one. Its entry
            ``must_move`` maps a method to the counters that prove that it acted, ``world`` a suite to what it is made
            of: versions and digests by name.
        command: Command line that started it.
        started: ISO 8601 time at which it started, given by the caller.
        commit: Git commit of the code, with ``-dirty`` where the tree had changes; ``unknown`` outside a checkout.
        packages: Versions of the packages that can change a result.
        hardware: Processor, cores, memory, accelerator.
        checkpoints: SHA-256 of the policy's file and of those that the methods of this run need, by name.
        marks: What a reader must know about every row, such as ``CPU``.
        suite_marks: The same about the rows of one suite and its policy, by suite: a badge, a colon and the sentence;
            or a badge that says it all.
    """

    spec: dict[str, Any]
    command: str
    started: str
    commit: str
    packages: dict[str, str]
    hardware: dict[str, str]
    checkpoints: dict[str, str]
    marks: tuple[str, ...] = ()
    suite_marks: dict[str, list[str]] = field(default_factory=dict)
