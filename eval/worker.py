"""What runs in a worker process: one environment a suite, one agent a method, one episode at a time."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..envs.realtime import RealTime
from ..results.groups import BASELINE
from ..results.schema import EpisodeRow, RoundRow
from .cells import address
from .clock import Latency, PolicyCall, parse_latency
from .spec import BadInput

if TYPE_CHECKING:
    from .bench import Agent, Bench
    from .cells import Cell, Job
    from .spec import Spec

WARMUP_CALLS = 2  # policy calls that nobody counts, made by an agent before its first episode in a process
WARMUP_ACTS = 1000  # within which an agent has to make them
INVALID_ACTION = "invalid action"  # outcome of an episode that the policy ended with something that is no action
COMPARED = 5  # one call in so many is compared with the dense policy


class ActionError(ValueError):
    """The agent returned something that is not an action of the environment. It is the policy that failed."""


class NoPolicyCall(RuntimeError):
    """An agent acted on and on without calling its policy."""


class Worker:
    """The environments and agents of one process and one suite, built when first needed and kept.

    Args:
        bench: Where suites, policies and methods come from.
        spec: The evaluation.

    Raises:
        BadInput: The latency source cannot be read.
    """

    def __init__(self, bench: Bench, spec: Spec) -> None:
        """See the class."""
        self._bench, self._spec = bench, spec
        self._latency: Latency = parse_latency(spec.latency)
        self._environments: dict[str, Any] = {}
        self._agents: dict[tuple[str, str], Agent] = {}  # by (policy, method)
        self._warm: set[str] = set()  # methods that have made their warm-up calls in this process
        self._routes: set[tuple[str, str]] = set()  # (method, route) that this process has been through

    def build(self, cells: Iterable[Cell]) -> None:
        """Builds what the evaluation needs, so that what cannot be built is known before it starts.

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
            misfits = self._bench.misfits(policy, env.observation_space, env.action_space)
            if misfits:
                raise BadInput(
                    f"policy {policy!r} does not fit suite {cell.suite!r}: {'; '.join(misfits)}. Name another --policy"
                )
            env.reset(seed=cell.seed, options={"task": cell.task, "init_state": cell.init_state})

    def play(self, job: Job) -> EpisodeRow:
        """Runs one episode. Whatever is raised in it makes it a row of status ``error``.

        An action that is not finite or has another shape than the environment takes ends the episode as a failure of
        the policy: status ``done``, no success, outcome ``invalid action``, and in ``error`` what was wrong with it.
        """
        try:
            # In this order: triton, if the method loads it, does not survive being loaded after an OpenGL context.
            agent = self._agent(job.policy, job.method)
            return self._episode(job, self._environment(job.cell), agent)
        except (Exception, SystemExit) as error:
            return failed(job, self._spec, f"{type(error).__name__}: {error}")

    def _episode(self, job: Job, env: Any, agent: Agent) -> EpisodeRow:
        cell, world = job.cell, env.unwrapped
        world.cameras_on = True
        observation, info = env.reset(seed=cell.seed, options={"task": cell.task, "init_state": cell.init_state})
        manifest, first_look = dict(info["manifest"]), _hash_observation(observation)
        if job.method not in self._warm:
            _warm_up(agent, observation)
            self._warm.add(job.method)
        agent.reset(cell.noise_seed)
        trajectory = hashlib.sha256(_state(world))
        rounds: list[RoundRow] = []
        steps, over, refused = 0, False, None
        while not over:
            planned = agent.act(observation)
            if agent.round is not None:
                rounds.append(self._round(job, agent, len(rounds), steps))
                if self._spec.clock == "realtime":
                    env.think(rounds[-1].latency_ns)
            try:
                action = _checked(planned, env.action_space, steps)
            except ActionError as error:
                refused = str(error)
                break
            world.cameras_on = agent.needs_observation  # an image that nobody looks at is not drawn
            observation, _, terminated, truncated, info = env.step(action)
            trajectory.update(action.tobytes() + _state(world))
            steps, over = steps + 1, terminated or truncated
        ends = [later.control_step for later in rounds[1:]] + [steps]
        return EpisodeRow(
            **_identity(job, self._spec),
            status="done",
            success=bool(info["success"]) and not refused,
            steps=steps,
            sim_ns=int(world.time_ns),
            outcome=INVALID_ACTION if refused else str(info.get("outcome", "")),
            error=refused,
            success_at_end=_truth(info.get("success_at_end")),
            manifest=manifest,
            observation_hash=first_look,
            trajectory_hash=trajectory.hexdigest(),
            counters=_finite(agent.counters()),
            rounds=tuple(replace(r, executed=end - r.control_step) for r, end in zip(rounds, ends, strict=True)),
        )

    def _round(self, job: Job, agent: Agent, index: int, control_step: int) -> RoundRow:
        """Returns the call that the agent has just made; the actions executed from it are filled in at the end."""
        call = agent.round
        assert call is not None
        latency_ns = 0
        if self._spec.clock == "realtime":
            latency_ns = self._latency.of(PolicyCall(job.cell.key, job.method, index, call.route, call.host_ns))
        first = (job.method, call.route) not in self._routes
        self._routes.add((job.method, call.route))
        compared = job.method != BASELINE and _is_compared(job.cell.key, index)
        action_error = float(agent.dense_error()) if compared else math.nan
        return RoundRow(
            index=index,
            control_step=control_step,
            route=call.route,
            host_ns=int(call.host_ns),
            cpu_ns=int(call.cpu_ns),
            latency_ns=int(latency_ns),
            stages_ns={stage: int(ns) for stage, ns in call.stages_ns.items()},
            executed=0,
            window=int(call.window),
            accepted=None if call.accepted is None else int(call.accepted),
            warmup=first,
            action_error=action_error if math.isfinite(action_error) else None,
            extra=_finite(call.extra),
        )

    def _environment(self, cell: Cell) -> Any:
        key = address([cell.suite, cell.settings])
        if key not in self._environments:
            env = self._bench.environment(self._bench.suites()[cell.suite], cell.settings)
            self._environments[key] = RealTime(env) if self._spec.clock == "realtime" else env
        return self._environments[key]

    def _agent(self, policy: str, method: str) -> Agent:
        if (policy, method) not in self._agents:
            self._agents[policy, method] = self._bench.agent(policy, method)
        return self._agents[policy, method]


def failed(job: Job, spec: Spec, error: str, retries: int = 0) -> EpisodeRow:
    """Returns the row of an episode that the harness could not finish. It says nothing about the policy."""
    return EpisodeRow(
        **_identity(job, spec),
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


def _identity(job: Job, spec: Spec) -> dict[str, Any]:
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
    }


def _warm_up(agent: Agent, observation: Any) -> None:
    """Makes calls that nobody counts: the first ones pay for caches, allocators and compiled kernels.

    Raises:
        NoPolicyCall: The agent does not make them.
    """
    agent.reset(seed=0)
    calls = 0
    for _ in range(WARMUP_ACTS):
        agent.act(observation)
        calls += agent.round is not None
        if calls == WARMUP_CALLS:
            return
    raise NoPolicyCall(f"the agent made {calls} policy calls in {WARMUP_ACTS} acts; set `round` in act() when it calls")


def _checked(action: Any, space: Any, step: int) -> np.ndarray:
    array = np.asarray(action)
    if array.shape != space.shape:
        raise ActionError(
            f"the action at control step {step} has shape {array.shape}, the environment takes {space.shape}"
        )
    if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        raise ActionError(f"the action at control step {step} is not finite: {array.tolist()}")
    return np.ascontiguousarray(array, space.dtype)


def _truth(told: Any) -> bool | None:
    return None if told is None else bool(told)


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Leaves out what is not finite: a diagnostic that went wrong must not cost the episode that it is about."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _state(world: Any) -> bytes:
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
    """Whether the call is compared with the dense policy: the same calls for all methods, in no rhythm.

    Every fifth call would not do: a method that refreshes itself with a period of five would always be met at its best.
    """
    return int(address([cell, index])[:8], 16) % COMPARED == 0
