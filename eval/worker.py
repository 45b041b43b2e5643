"""What runs in a worker process: one environment per suite, one agent per method, one episode at a time."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..envs.realtime import RealTime
from ..results.groups import BASELINE
from ..results.schema import EpisodeRow, RoundRow
from .cells import address
from .clock import FinishedRound, Measured, parse_latency
from .journal import Entry, Journal
from .spec import BadInput

if TYPE_CHECKING:
    from ..envs.world import World
    from .cells import Cell, Job
    from .registry import Agent, Registry, Round
    from .spec import Spec

WARMUP_ROUNDS = 2  # uncounted rounds of an agent under each seed before its first episode in a process
WARMUP_SEEDS = 4  # seeds tried until every route of the method has been taken: other noise may take another one
WARMUP_ACTS = 1000  # within which an agent has to make a round
COMPARED = 5  # one round in this many is compared with the dense policy: dense_error costs a dense round each time
LONGEST_TEXT = 2000  # characters of an exception's text that a row keeps

# Outcomes of episodes that the policy or its method ended by a fault of its own; an environment has others.
INVALID_ACTION = "invalid action"  # it returned something that is no action
RAISED = "raised"  # it raised an exception, or took its process down
TIMEOUT = "timeout"  # it did not return in time


class ActionError(ValueError):
    """The agent returned something that is not an action of the environment: a failure of the policy."""


class AgentError(Exception):
    """The policy or its method raised: their failure, not the harness's. The text is that of their exception."""


class NoRound(RuntimeError):
    """An agent kept acting without calling its policy."""


class WorldError(ValueError):
    """An environment returned something that no episode can be recorded with."""


class CodeChanged(RuntimeError):
    """What would be measured is not what the run began with."""


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
        journal: Where it notes what it does, for the case that its process does not survive it.

    Raises:
        BadInput: The latency source cannot be read.
    """

    def __init__(self, registry: Registry, spec: Spec, host: Host, journal: Journal | None = None) -> None:
        self._registry, self._spec, self._host = registry, spec, host
        self._journal = journal or Journal()
        self._latency = parse_latency(spec.latency)
        self._environments: dict[str, Any] = {}
        self._agents: dict[tuple[str, str], Agent] = {}  # by (policy, method)
        self._same_code: set[tuple[str, str, str]] = set()  # (suite, policy, method) that were compared with the run's
        self._warm: set[tuple[str, str]] = set()  # (policy, method) that have made their warm-up rounds here
        self._routes: set[tuple[str, str, str]] = set()  # (policy, method, route) that have been taken by its agent

    def build(self, cells: Iterable[Cell]) -> None:
        """Builds what the evaluation needs and makes the warm-up rounds, so that it fails before anything is measured.

        Args:
            cells: One of each environment: a suite may lack something that only an episode asks for.

        Raises:
            BadInput: A policy does not fit its suite, or cannot act there with one of the methods.
            Exception: Whatever the environment raises, or a policy or method when it is loaded.
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
            env.unwrapped.cameras_on = True
            observation, _ = env.reset(seed=cell.seed, options=_options(cell))
            for method in self._spec.method:
                self._journal.begin(BUILDING)
                self._journal.note((policy, method))
                try:
                    self._warm_up(policy, method, observation)
                except AgentError as error:
                    raise BadInput(
                        f"policy {policy!r} with method {method!r} cannot act in suite {cell.suite!r}: {error}"
                    ) from error

    def play(self, job: Job) -> EpisodeRow:
        """Runs one episode.

        What the policy or its method does wrong ends the episode as their failure: status ``done``, no success, the
        rounds so far, and the cause in ``failure``. The outcome is ``invalid action`` where an action is not finite or
        has another shape than the environment takes, and ``raised`` where an exception came out of them. Whatever else
        is raised makes the row one of status ``error``. Ctrl-C does not reach a worker process, so that
        KeyboardInterrupt and SystemExit are exceptions of whoever raised them.

        A route that the warm-up did not take is cold when an episode first takes it. Under measured latency that would
        move the world, so the episode is played again, unless the method learns from each episode.
        """
        try:
            self._require_same_code(job)
            # In this order: triton, if the method loads it, does not survive being loaded after an OpenGL context.
            agent = self._agent(job.policy, job.method)
            env, method = self._environment(job.cell), self._registry.method(job.method, job.policy)
            row = self._episode(job, env, agent)
            if self._spec.clock == "realtime" and isinstance(self._latency, Measured) and not method.ordered:
                for _ in method.routes:  # a new one at least each time
                    if row.failure is not None or not any(each.warmup for each in row.rounds):
                        break
                    row = self._episode(job, env, agent)
            return row
        except BaseException as error:
            return failed(job, self._spec, self._host, _text(error))

    def _require_same_code(self, job: Job) -> None:
        """Makes sure, once in a process, that the code has not been edited since the run began.

        Raises:
            CodeChanged: It has: what is measured now must not get the address of the old code.
        """
        who = job.cell.suite, job.policy, job.method
        if who not in self._same_code:
            here = self._registry.code(*who)
            if changed := [part for part, digest in job.code.items() if digest != here[part]]:
                raise CodeChanged(f"the code of the {' and '.join(changed)} was edited during the run; start it again")
            self._same_code.add(who)

    def _episode(self, job: Job, env: Any, agent: Agent) -> EpisodeRow:
        cell = job.cell
        world: World = env.unwrapped
        self._journal.begin(job.key)
        world.cameras_on = True
        observation, info = env.reset(seed=cell.seed, options=_options(cell))
        played = Played(_manifest(info), _hash_observation(observation))
        self._journal.note((played.manifest, played.observation_hash))
        trajectory = hashlib.sha256(_state(world))
        over = success = bool(info.get("success", False))  # the rule may hold at once
        outcome = str(info.get("outcome", "success" if success else ""))
        try:
            self._warm_up(job.policy, job.method, observation)
            with self._agents_turn(played):
                agent.reset(cell.noise_seed)
            while not over:
                with self._agents_turn(played):
                    planned = agent.act(observation)
                    made = None if agent.round is None else self._round(job, agent, agent.round, played)
                if made is not None:
                    played.rounds.append(replace(made, latency_ns=self._latency_of(job, made)))
                    self._journal.note(played.rounds[-1])
                    if self._spec.clock == "realtime":
                        env.think(played.rounds[-1].latency_ns)
                        played.sim_ns = int(world.time_ns)
                with self._agents_turn(played):
                    action = _checked(planned, env.action_space, played.steps)
                    needed = bool(agent.needs_observation)
                world.cameras_on = needed  # rendering costs more than physics on most suites
                before_ns = int(world.time_ns)
                observation, _, terminated, truncated, info = env.step(action)
                played.steps, played.sim_ns = played.steps + 1, int(world.time_ns)
                trajectory.update(action.tobytes() + _state(world))
                over, success = bool(terminated or truncated), bool(_needed(info, "success"))
                outcome = str(info.get("outcome", ""))
                with self._agents_turn(played):
                    agent.idle(played.sim_ns - before_ns)
            with self._agents_turn(played):
                agent.end(success)
                played.counters = _finite(agent.counters())
        except ActionError as error:
            success, outcome, played.failure = False, INVALID_ACTION, str(error)
            with suppress(AgentError), self._agents_turn(played):
                agent.end(False)
                played.counters = _finite(agent.counters())
        except AgentError as error:
            success, outcome, played.failure = False, RAISED, str(error)
            with suppress(AgentError), self._agents_turn(played):
                played.counters = _finite(agent.counters())
        at_end = None if played.failure else _bool_or_none(info.get("success_at_end"))
        return played.row(
            job, self._spec, self._host, success, outcome, success_at_end=at_end, trajectory=trajectory.hexdigest()
        )

    @contextmanager
    def _agents_turn(self, played: Played) -> Iterator[None]:
        """What is raised in the block is the agent's failure, and so is it if the process does not survive the block.

        Raises:
            ActionError: It was raised in the block.
            AgentError: Anything else was.
        """
        self._journal.turn(agent_acting=True, steps=played.steps, sim_ns=played.sim_ns)
        try:
            yield
        except (ActionError, AgentError):
            raise
        except BaseException as error:
            raise AgentError(_text(error)) from error
        finally:
            self._journal.turn(agent_acting=False, steps=played.steps, sim_ns=played.sim_ns)

    def _warm_up(self, policy: str, method: str, observation: Any) -> None:
        """Makes uncounted rounds, once in a process: the first ones pay for caches, allocators and compiled kernels.

        Every route of the method should be taken. Where one is not, its first round in an episode is marked warm-up.
        A method that learns must not learn from these rounds, so another agent makes them.

        Raises:
            AgentError: The agent raises, or makes no round.
        """
        if (policy, method) in self._warm:
            return
        info = self._registry.method(method, policy)
        with self._agents_turn(Played({}, "")):
            agent = self._new_agent(policy, method) if info.ordered else self._agent(policy, method)
            taken: set[str] = set()
            for seed in range(WARMUP_SEEDS):
                agent.reset(seed)
                taken |= {_route(_next_round(agent, observation)) for _ in range(WARMUP_ROUNDS)}
                if taken.issuperset(info.routes):
                    break
        if not info.ordered:
            self._routes |= {(policy, method, route) for route in taken}
        self._warm.add((policy, method))

    def _round(self, job: Job, agent: Agent, round: Round, played: Played) -> RoundRow:
        """Returns the row of the agent's last round.

        The latency and the actions executed from it are filled in later.
        """
        index, route = len(played.rounds), _route(round)
        compared = job.method != BASELINE and _is_compared(job.cell.key, index)
        action_error = float(agent.dense_error()) if compared else math.nan
        row = RoundRow(
            index=index,
            control_step=played.steps,
            route=route,
            host_ns=_whole(round.host_ns, "host_ns"),
            cpu_ns=_whole(round.cpu_ns, "cpu_ns"),
            latency_ns=0,
            stages_ns={_name(stage): _whole(ns, f"stage {stage!r}") for stage, ns in round.stages_ns.items()},
            executed=0,
            window=_whole(round.window, "window"),
            accepted=None if round.accepted is None else _whole(round.accepted, "accepted"),
            drafted=None if round.drafted is None else _whole(round.drafted, "drafted"),
            warmup=(job.policy, job.method, route) not in self._routes,
            action_error=action_error if math.isfinite(action_error) else None,
            extra=_finite(round.extra),
        )
        self._routes.add((job.policy, job.method, route))
        return row

    def _latency_of(self, job: Job, round: RoundRow) -> int:
        if self._spec.clock != "realtime":
            return 0
        return int(self._latency.of(FinishedRound(job.cell.key, job.method, round.index, round.route, round.host_ns)))

    def _environment(self, cell: Cell) -> Any:
        key = address([cell.suite, cell.settings])
        if key not in self._environments:
            env = self._registry.environment(self._registry.suites()[cell.suite], cell.settings)
            self._environments[key] = RealTime(env) if self._spec.clock == "realtime" else env
        return self._environments[key]

    def _agent(self, policy: str, method: str) -> Agent:
        if (policy, method) not in self._agents:
            self._agents[policy, method] = self._new_agent(policy, method)
        return self._agents[policy, method]

    def _new_agent(self, policy: str, method: str) -> Agent:
        return self._registry.agent(policy, method, self._spec.dtype, self._spec.device)


BUILDING = "build"  # key of the journal's entry while a worker is built


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
    """

    manifest: dict[str, Any]
    observation_hash: str
    steps: int = 0
    sim_ns: int = 0
    rounds: list[RoundRow] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    failure: str | None = None

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


def _options(cell: Cell) -> dict[str, Any]:
    return {"task": cell.task, "init_state": cell.init_state}


def _next_round(agent: Agent, observation: Any) -> Round:
    """Lets the agent act until it makes a round.

    Raises:
        NoRound: It does not.
    """
    for _ in range(WARMUP_ACTS):
        agent.act(observation)
        if agent.round is not None:
            return agent.round
    raise NoRound(f"the agent made no round in {WARMUP_ACTS} acts; set `round` in act() when the policy is called")


def _checked(action: Any, space: Any, step: int) -> np.ndarray:
    """Returns the action in the type of the space. What is checked is what the environment gets.

    Raises:
        ActionError: It is not numbers, has another shape, or is not finite in that type.
    """
    what = f"the action at control step {step}"
    try:
        array = np.asarray(action)
    except Exception as error:  # a list of unequal rows, or an object's own __array__
        raise ActionError(f"{what} is no array: {_text(error)}") from error
    if array.dtype.kind not in "iuf":
        raise ActionError(f"{what} is no array of real numbers: {type(action).__name__} of type {array.dtype}")
    if array.shape != space.shape:
        raise ActionError(f"{what} has shape {array.shape}, the environment takes {space.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        converted = np.ascontiguousarray(array, space.dtype)
    if not np.isfinite(converted).all():
        raise ActionError(f"{what} is not finite as {space.dtype}: {array.tolist()}")
    return converted


def _needed(info: Mapping[str, Any], name: str) -> Any:
    if name not in info:
        raise WorldError(f"the environment's info has no {name!r}; docs/extending.md lists what it must have")
    return info[name]


def _manifest(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the manifest as the store keeps it.

    Raises:
        WorldError: The environment gives none, or not JSON values under names that are strings.
    """
    return {name: _plain(value, name) for name, value in dict(_needed(info, "manifest")).items()}


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


def _text(error: BaseException) -> str:
    """Returns type and text of an exception, whatever its text is."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = f"{type(error).__name__}, whose text cannot be read"
    return text[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode()


def _route(round: Round) -> str:
    return _name(round.route)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a route or stage is named by a string, got {value!r}")
    return str(value)


def _whole(value: Any, what: str) -> int:
    """Returns a count or a duration of a round as an integer that the store can keep."""
    whole = operator.index(value) if not isinstance(value, float) else int(value)
    if not 0 <= whole < 2**63:
        raise ValueError(f"{what} of a round must be 0 or more, and below 2^63, got {value!r}")
    return whole


def _bool_or_none(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _finite(values: Mapping[Any, Any]) -> dict[str, float]:
    """Keeps what is a finite number under a string: a broken diagnostic must not cost the episode that it is about."""
    kept = {}
    for name, value in values.items():
        with suppress(TypeError, ValueError, OverflowError):
            if isinstance(name, str) and not isinstance(value, str) and math.isfinite(float(value)):
                kept[str(name)] = float(value)
    return kept


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
