"""What runs in a worker process: one environment per suite, one agent per method, one episode at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..envs.realtime import RealTime
from ..results.groups import BASELINE
from ..results.schema import EpisodeRow, RoundRow
from .cells import address
from .clock import FinishedRound, parse_latency
from .spec import BadInput

if TYPE_CHECKING:
    from ..envs.world import World
    from .cells import Cell, Job
    from .registry import Agent, Registry, Round
    from .spec import Spec

WARMUP_ROUNDS = 2  # uncounted rounds of an agent before its first episode in a process
WARMUP_ACTS = 1000  # within which an agent has to make them
INVALID_ACTION = "invalid action"  # outcome of an episode that the policy ended with something that is no action
COMPARED = 5  # one round in this many is compared with the dense policy: dense_error costs a dense round each time


class ActionError(ValueError):
    """The agent returned something that is not an action of the environment: a failure of the policy."""


class NoRound(RuntimeError):
    """An agent kept acting without calling its policy."""


class Host(NamedTuple):
    """Where episodes are measured.

    Attributes:
        machine: Digest of the machine (:func:`replan.results.schema.machine_digest`).
        device: ``cpu``, or the name of the CUDA device.
    """

    machine: str
    device: str


class Worker:
    """The environments and agents of one process and one suite, built when first needed and then reused.

    Args:
        registry: Where suites, policies and methods come from.
        spec: The evaluation, its device resolved.
        host: The machine and device that the worker runs on.

    Raises:
        BadInput: The latency source cannot be read.
    """

    def __init__(self, registry: Registry, spec: Spec, host: Host) -> None:
        self._registry, self._spec, self._host = registry, spec, host
        self._latency = parse_latency(spec.latency)
        self._environments: dict[str, Any] = {}
        self._agents: dict[tuple[str, str], Agent] = {}  # by (policy, method)
        self._warm: set[tuple[str, str]] = set()  # (policy, method) that have made their warm-up rounds here
        self._routes: set[tuple[str, str]] = set()  # (method, route) that have been taken in this process

    def build(self, cells: Iterable[Cell]) -> None:
        """Builds what the evaluation needs, so that it fails before anything is measured.

        Args:
            cells: One of each environment: a suite may lack something that only an episode asks for.

        Raises:
            BadInput: A policy does not fit its suite.
            Exception: Whatever the environment, policy or method raises.
        """
        for cell in cells:
            policy = self._spec.policy[cell.suite]
            for method in self._spec.method:
                self._agent(policy, method)
            env = self._environment(cell)
            problems = self._registry.policy(policy).incompatibilities(env.observation_space, env.action_space)
            if problems:
                raise BadInput(
                    f"policy {policy!r} does not fit suite {cell.suite!r}: {'; '.join(problems)}. Name another --policy"
                )
            env.reset(seed=cell.seed, options={"task": cell.task, "init_state": cell.init_state})

    def play(self, job: Job) -> EpisodeRow:
        """Runs one episode. Whatever is raised in it makes it a row of status ``error``.

        An action that is not finite or has another shape than the environment takes ends the episode as a failure of
        the policy: status ``done``, no success, outcome ``invalid action``, and in ``failure`` what was wrong with it.
        """
        try:
            # In this order: triton, if the method loads it, does not survive being loaded after an OpenGL context.
            agent = self._agent(job.policy, job.method)
            return self._episode(job, self._environment(job.cell), agent)
        except (Exception, SystemExit) as error:
            return failed(job, self._spec, self._host, f"{type(error).__name__}: {error}")

    def _episode(self, job: Job, env: Any, agent: Agent) -> EpisodeRow:
        cell = job.cell
        world: World = env.unwrapped
        world.cameras_on = True
        observation, info = env.reset(seed=cell.seed, options={"task": cell.task, "init_state": cell.init_state})
        manifest, observation_hash = dict(info["manifest"]), _hash_observation(observation)
        if (job.policy, job.method) not in self._warm:
            _warm_up(agent, observation)
            self._warm.add((job.policy, job.method))
        agent.reset(cell.noise_seed)
        trajectory = hashlib.sha256(_state(world))
        rounds: list[RoundRow] = []
        steps, over, failure = 0, False, None
        while not over:
            planned = agent.act(observation)
            if agent.round is not None:
                rounds.append(self._round(job, agent, agent.round, len(rounds), steps))
                if self._spec.clock == "realtime":
                    env.think(rounds[-1].latency_ns)
            try:
                action = _checked(planned, env.action_space, steps)
            except ActionError as error:
                failure = str(error)
                break
            world.cameras_on = agent.needs_observation  # rendering costs more than physics on most suites
            before_ns = int(world.time_ns)
            observation, _, terminated, truncated, info = env.step(action)
            agent.idle(int(world.time_ns) - before_ns)
            trajectory.update(action.tobytes() + _state(world))
            steps, over = steps + 1, terminated or truncated
        success = bool(info["success"]) and not failure
        agent.end(success)
        ends = [later.control_step for later in rounds[1:]] + [steps]
        return EpisodeRow(
            **_identity(job, self._spec, self._host),
            status="done",
            success=success,
            steps=steps,
            sim_ns=int(world.time_ns),
            outcome=INVALID_ACTION if failure else str(info.get("outcome", "")),
            failure=failure,
            success_at_end=_bool_or_none(info.get("success_at_end")),
            manifest=manifest,
            observation_hash=observation_hash,
            trajectory_hash=trajectory.hexdigest(),
            counters=_finite(agent.counters()),
            rounds=tuple(replace(r, executed=end - r.control_step) for r, end in zip(rounds, ends, strict=True)),
        )

    def _round(self, job: Job, agent: Agent, round: Round, index: int, control_step: int) -> RoundRow:
        """Returns the row of the agent's last round; the actions executed from it are filled in at the end."""
        latency_ns = 0
        if self._spec.clock == "realtime":
            finished = FinishedRound(job.cell.key, job.method, index, round.route, int(round.host_ns))
            latency_ns = self._latency.of(finished)
        first = (job.method, round.route) not in self._routes
        self._routes.add((job.method, round.route))
        compared = job.method != BASELINE and _is_compared(job.cell.key, index)
        action_error = float(agent.dense_error()) if compared else math.nan
        return RoundRow(
            index=index,
            control_step=control_step,
            route=round.route,
            host_ns=int(round.host_ns),
            cpu_ns=int(round.cpu_ns),
            latency_ns=int(latency_ns),
            stages_ns={stage: int(ns) for stage, ns in round.stages_ns.items()},
            executed=0,
            window=int(round.window),
            accepted=None if round.accepted is None else int(round.accepted),
            drafted=None if round.drafted is None else int(round.drafted),
            warmup=first,
            action_error=action_error if math.isfinite(action_error) else None,
            extra=_finite(round.extra),
        )

    def _environment(self, cell: Cell) -> Any:
        key = address([cell.suite, cell.settings])
        if key not in self._environments:
            env = self._registry.environment(self._registry.suites()[cell.suite], cell.settings)
            self._environments[key] = RealTime(env) if self._spec.clock == "realtime" else env
        return self._environments[key]

    def _agent(self, policy: str, method: str) -> Agent:
        if (policy, method) not in self._agents:
            dtype, device = self._spec.dtype, self._spec.device
            self._agents[policy, method] = self._registry.agent(policy, method, dtype, device)
        return self._agents[policy, method]


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


def _warm_up(agent: Agent, observation: Any) -> None:
    """Makes uncounted rounds: the first ones pay for caches, allocators and compiled kernels.

    Raises:
        NoRound: The agent does not make them.
    """
    agent.reset(seed=0)
    rounds = 0
    for _ in range(WARMUP_ACTS):
        agent.act(observation)
        rounds += agent.round is not None
        if rounds == WARMUP_ROUNDS:
            return
    raise NoRound(
        f"the agent made {rounds} rounds in {WARMUP_ACTS} acts; set `round` in act() when the policy is called"
    )


def _checked(action: Any, space: Any, step: int) -> np.ndarray:
    array = np.asarray(action)
    if array.shape != space.shape:
        raise ActionError(
            f"the action at control step {step} has shape {array.shape}, the environment takes {space.shape}"
        )
    if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        raise ActionError(f"the action at control step {step} is not finite: {array.tolist()}")
    return np.ascontiguousarray(array, space.dtype)


def _bool_or_none(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Leaves out what is not finite: a broken diagnostic must not cost the episode that it is about."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _state(world: World) -> bytes:
    return np.ascontiguousarray(world.get_state(), np.float64).tobytes()


def _hash_observation(observation: Mapping[str, Any]) -> str:
    """SHA-256 over every entry's name, type, shape and bytes."""
    digest = hashlib.sha256()
    for name in sorted(observation):
        value = observation[name]
        if isinstance(value, str):
            digest.update(f"{name}:{value};".encode())
        else:
            array = np.ascontiguousarray(value)
            digest.update(f"{name}:{array.dtype.str}{array.shape};".encode() + array.tobytes())
    return digest.hexdigest()


def _is_compared(cell: str, index: int) -> bool:
    """Whether the round is compared with the dense policy: the same rounds for all methods, at irregular intervals.

    With every fifth round, a method that refreshes itself with a period of five would always be compared at its best.
    """
    return int(address([cell, index])[:8], 16) % COMPARED == 0
