"""What runs in a worker process: one environment per suite, one agent per method, one episode at a time."""

from __future__ import annotations

import hashlib
import math
import time  # noqa: TID251 - what an agent does in idle time is measured here
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..envs.realtime import RealTime
from ..results.addresses import address
from ..results.groups import BASELINE
from ..results.schema import INVALID_ACTION, OVER_BUDGET, RAISED, EpisodeRow, RoundRow
from .clock import FinishedRound, parse_latency
from .journal import Journal
from .registry import Unreachable
from .rows import (
    ActionError,
    Host,
    Played,
    bool_or_none,
    checked_action,
    count_of,
    entry_of,
    failed,
    finite,
    manifest_of,
    name_of,
    route_of,
    text_of,
)
from .spec import BadInput

if TYPE_CHECKING:
    from ..envs.world import World
    from .cells import Cell, Job
    from .registry import Agent, MethodInfo, Registry, Round
    from .spec import Spec

WARMUP_ROUNDS = 2  # uncounted rounds of an agent under each seed before its first episode in a process
WARMUP_SEEDS = 4  # seeds tried until every route of the method has been taken: other noise may take another one
WARMUP_ACTS = 1000  # within which an agent has to make a round
REPLAYS = 2  # times that an episode is played again because a route was cold in it
NAMED = 3  # changes that a message names


class AgentError(Exception):
    """The policy or its method raised: their failure, not the harness's. The text is that of their exception."""


class NoRound(RuntimeError):
    """An agent kept acting without calling its policy."""


class Changed(RuntimeError):
    """What would be measured is not what the run began with."""


class Altered(RuntimeError):
    """A method changed the policy that all agents of its process share."""


class UndeclaredRoute(RuntimeError):
    """A round took a route that its method does not declare, so that nobody could have warmed it or given its time."""


class Contents(NamedTuple):
    """Digests of files that an agent was made of.

    Attributes:
        policy: Of the policy's, as rows have it.
        method: Of the method's own.
    """

    policy: str
    method: tuple[str, ...]


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
        self._loaded: dict[tuple[str, str], Contents] = {}  # by (policy, method): what its agent was made of
        self._methods: dict[tuple[str, str], MethodInfo] = {}  # by (policy, method)
        self._same: set[tuple[str, str, str]] = set()  # (suite, policy, method) that were compared with the run's
        self._warm: set[tuple[str, str]] = set()  # (policy, method) that have made their warm-up rounds here
        self._routes: set[tuple[str, str, str]] = set()  # (policy, method, route) that have been taken by its agent

    def build(self, jobs: Sequence[Job]) -> None:
        """Builds what the evaluation needs and makes the warm-up rounds, so that it fails before anything is measured.

        Args:
            jobs: One of each environment and method: a suite may lack something that only an episode asks for.

        Raises:
            BadInput: A policy does not fit its suite, or cannot act there with one of the methods; or something that
                decides an episode has changed since the run began.
            Exception: Whatever the environment raises, or a policy or method when it is loaded.
        """
        try:
            for job in jobs:  # all agents before an environment, see `play`
                self._agent(job.policy, job.method)
                self._require_same(job)
        except (Altered, Changed) as error:
            raise BadInput(str(error)) from error
        for cell in {job.cell.key: job.cell for job in jobs}.values():
            policy = self._spec.policy[cell.suite]
            env = self._environment(cell)
            problems = self._registry.policy(policy).incompatibilities(env.observation_space, env.action_space)
            if problems:
                raise BadInput(
                    f"policy {policy!r} does not fit suite {cell.suite!r}: {'; '.join(problems)}. Name another --policy"
                )
            env.unwrapped.cameras_on = True
            observation, _ = env.reset(seed=cell.seed, options=_options(cell))
            for method in (job.method for job in jobs if job.cell.key == cell.key):
                self._journal.begin(BUILDING)
                self._journal.note((policy, method))
                try:
                    self._warm_up(policy, method, observation)
                except AgentError as error:
                    raise BadInput(
                        f"policy {policy!r} with method {method!r} cannot act in suite {cell.suite!r}: {error}"
                    ) from error

    def prepare(self, job: Job) -> None:
        """Builds what one episode needs and makes the warm-up rounds, so that its time limit is for the episode alone.

        Raises:
            Exception: Whatever the environment, policy or method raises. It comes again when the episode is played.
        """
        self._journal.begin(BUILDING)
        self._agent(job.policy, job.method)
        env = self._environment(job.cell)
        env.unwrapped.cameras_on = True
        observation, _ = env.reset(seed=job.cell.seed, options=_options(job.cell))
        self._warm_up(job.policy, job.method, observation)

    def play(self, job: Job) -> EpisodeRow:
        """Runs one episode.

        What the policy or its method does wrong ends the episode as their failure: status ``done``, no success, the
        rounds so far, and the cause in ``failure``. The outcome is ``invalid action`` where an action is not finite or
        has another shape than the environment takes, and ``raised`` where an exception came out of them. Whatever else
        is raised makes the row one of status ``error``. Ctrl-C does not reach a worker process, so that
        KeyboardInterrupt and SystemExit are exceptions of whoever raised them. A method that leaves the shared policy
        changed has ``raised``, too, whatever the episode came to; its process must play nothing else.

        A route that the warm-up did not take is cold when an episode first takes it. Under measured latency that would
        move the world, so the episode is played again, unless the method learns from each episode.
        """
        try:
            # In this order: triton, if the method loads it, does not survive being loaded after an OpenGL context.
            agent = self._agent(job.policy, job.method)
            self._require_same(job)
            env = self._environment(job.cell)
            row = self._episode(job, env, agent)
            if self._spec.measures_latency and job.place is None:  # a place is in the chain of one that learns
                for _ in range(REPLAYS):
                    if row.failure is not None or not any(each.warmup for each in row.rounds):
                        break
                    row = self._episode(job, env, agent)
            try:
                self._require_unaltered(job.method)
            except Altered as error:
                row = replace(row, success=False, success_at_end=None, outcome=RAISED, failure=text_of(error))
            return row
        except BaseException as error:
            return failed(job, self._spec, self._host, text_of(error))

    def _require_same(self, job: Job) -> None:
        """Makes sure, once in a process, that nothing that decides an episode has changed since the run began.

        Raises:
            Changed: Something has: what is measured now must not get the address of what was there before.
        """
        who = job.cell.suite, job.policy, job.method
        if who in self._same:
            return
        code, loaded = self._registry.code(*who), self._loaded[job.policy, job.method]
        changed = [f"the code of the {part}" for part, digest in job.code.items() if digest != code[part]]
        changed += ["the weights of the policy"] if loaded.policy != job.weights else []
        changed += ["the files of the method"] if loaded.method != job.files else []
        changed += ["the latency source"] if job.latency and address(self._latency.identity()) != job.latency else []
        if changed:
            raise Changed(f"{' and '.join(changed)} changed during the run; start it again")
        self._same.add(who)

    def _require_unaltered(self, method: str) -> None:
        """Makes sure that the policy is what it was when it was loaded: the other methods act with it, too.

        Args:
            method: The one that was at work.

        Raises:
            Altered: It is not.
        """
        if altered := self._registry.altered():
            more = f" and {len(altered) - NAMED} more" * (len(altered) > NAMED)
            raise Altered(
                f"method {method!r} changed the policy that all methods share: {', '.join(altered[:NAMED])}{more}; let "
                "it work on copies"
            )

    def _episode(self, job: Job, env: Any, agent: Agent) -> EpisodeRow:
        cell = job.cell
        world: World = env.unwrapped
        self._journal.begin(job.key)
        world.cameras_on = True
        observation, info = env.reset(seed=cell.seed, options=_options(cell))
        played = Played(manifest_of(info), hash_observation(observation))
        self._journal.note((played.manifest, played.observation_hash))
        if played.observation_hash in self._method(job.policy, job.method).first_observations:
            raise BadInput(f"method {job.method!r} was made from this very episode; choose another --seed")
        trajectory = hashlib.sha256(state_bytes(world))
        over = success = bool(info.get("success", False))  # the rule may hold at once
        outcome = str(info.get("outcome", "success" if success else ""))
        idle_ns = 0  # that the agent took since the last round, less the time that the robot gave it
        try:
            self._warm_up(job.policy, job.method, observation)
            with self._agents_turn(played):
                agent.reset(cell.noise_seed)
            while not over:
                with self._agents_turn(played):
                    planned = agent.act(observation)
                    made = None if agent.round is None else self._round(job, agent, agent.round, played)
                if made is not None:
                    made, idle_ns = _charged(made, idle_ns), 0
                    played.rounds.append(replace(made, latency_ns=self._latency_of(job, made)))
                    self._journal.note(played.rounds[-1])
                    if self._spec.clock == "realtime":
                        env.think(played.rounds[-1].latency_ns)
                        played.sim_ns = int(world.time_ns)
                with self._agents_turn(played):
                    action = checked_action(planned, env.action_space, played.steps)
                    needed = bool(agent.needs_observation)
                world.cameras_on = needed  # rendering costs more than physics on most suites
                before_ns = int(world.time_ns)
                observation, _, terminated, truncated, info = env.step(action)
                played.steps, played.sim_ns = played.steps + 1, int(world.time_ns)
                played.actions += action.tobytes()
                trajectory.update(action.tobytes() + state_bytes(world))
                over, success = bool(terminated or truncated), bool(entry_of(info, "success"))
                outcome = str(info.get("outcome", ""))
                with self._agents_turn(played):
                    begun = time.perf_counter_ns()
                    agent.idle(played.sim_ns - before_ns)
                    idle_ns += time.perf_counter_ns() - begun - (played.sim_ns - before_ns)
            with self._agents_turn(played):
                agent.end(success)
                played.counters = finite(agent.counters())
        except ActionError as error:
            success, outcome, played.failure = False, INVALID_ACTION, str(error)
            with suppress(AgentError), self._agents_turn(played):
                agent.end(False)
                played.counters = finite(agent.counters())
        except AgentError as error:
            success, outcome, played.failure = False, RAISED, str(error)
            with suppress(AgentError), self._agents_turn(played):
                played.counters = finite(agent.counters())
        self._latency.end(cell.key, job.method, len(played.rounds))
        at_end = None if played.failure else bool_or_none(info.get("success_at_end"))
        return played.row(
            job, self._spec, self._host, success, outcome, success_at_end=at_end, trajectory=trajectory.hexdigest()
        )

    @contextmanager
    def _agents_turn(self, played: Played) -> Iterator[None]:
        """What is raised in the block is the agent's failure, and so is it if the process does not survive the block.

        Raises:
            ActionError: It was raised in the block.
            Unreachable: It was raised in the block: not the agent's failure, after all.
            AgentError: Anything else was.
        """
        self._journal.turn(agent_acting=True, steps=played.steps, sim_ns=played.sim_ns)
        try:
            yield
        except (ActionError, AgentError, Unreachable):
            raise
        except BaseException as error:
            raise AgentError(text_of(error)) from error
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
        info = self._method(policy, method)
        with self._agents_turn(Played({}, "")):
            agent = self._new_agent(policy, method) if info.ordered else self._agent(policy, method)
            taken: set[str] = set()
            for seed in range(WARMUP_SEEDS):
                agent.reset(seed)
                taken |= {self._declared(policy, method, _next_round(agent, observation)) for _ in range(WARMUP_ROUNDS)}
                if taken.issuperset(info.routes):
                    break
            self._require_unaltered(method)
        if not info.ordered:
            self._routes |= {(policy, method, route) for route in taken}
        self._warm.add((policy, method))

    def _round(self, job: Job, agent: Agent, round: Round, played: Played) -> RoundRow:
        """Returns the row of the agent's last round.

        The latency and the actions executed from it are filled in later.
        """
        index, route = len(played.rounds), self._declared(job.policy, job.method, round)
        compared = job.method != BASELINE and _is_compared(job.cell.key, index, self._spec.compared)
        action_error = float(agent.dense_error()) if compared else math.nan
        row = RoundRow(
            index=index,
            control_step=played.steps,
            route=route,
            host_ns=count_of(round.host_ns, "host_ns"),
            cpu_ns=count_of(round.cpu_ns, "cpu_ns"),
            latency_ns=0,
            stages_ns={name_of(stage): count_of(ns, f"stage {stage!r}") for stage, ns in round.stages_ns.items()},
            executed=0,
            window=count_of(round.window, "window"),
            accepted=None if round.accepted is None else count_of(round.accepted, "accepted"),
            drafted=None if round.drafted is None else count_of(round.drafted, "drafted"),
            warmup=(job.policy, job.method, route) not in self._routes,
            action_error=action_error if math.isfinite(action_error) else None,
            extra=finite(round.extra),
        )
        self._routes.add((job.policy, job.method, route))
        return row

    def _declared(self, policy: str, method: str, round: Round) -> str:
        """Returns the route of a round.

        Raises:
            UndeclaredRoute: Its method does not declare it.
        """
        route, declared = route_of(round), self._method(policy, method).routes
        if route not in declared:
            raise UndeclaredRoute(
                f"a round took the route {route!r}, and method {method!r} declares {', '.join(declared)} only; add it "
                "to its `routes`"
            )
        return route

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

    def _method(self, policy: str, method: str) -> MethodInfo:
        if (policy, method) not in self._methods:
            self._methods[policy, method] = self._registry.method(method, policy)
        return self._methods[policy, method]

    def _new_agent(self, policy: str, method: str) -> Agent:
        """Makes an agent, and makes sure that its files were not being replaced, and that others can act after it.

        Raises:
            Altered: It changed what it shares with them.
            Changed: The files were replaced.
        """
        before = self._contents(policy, method)
        agent = self._registry.agent(policy, method, self._spec.dtype, self._spec.device)
        if self._contents(policy, method) != before:
            raise Changed(f"files of policy {policy!r} or method {method!r} changed while they were read; start again")
        self._require_unaltered(method)
        self._loaded.setdefault((policy, method), before)
        return agent

    def _contents(self, policy: str, method: str) -> Contents:
        return Contents(self._registry.policy(policy).files.digest, self._registry.method(method, policy).files.digests)


BUILDING = "build"  # key of the journal's entry while a worker is built


def _charged(round: RoundRow, idle_ns: int) -> RoundRow:
    """Returns a round with what its agent was still doing in idle time when it was asked: the robot waited for that."""
    if idle_ns <= 0:
        return round
    return replace(
        round,
        host_ns=round.host_ns + idle_ns,
        cpu_ns=round.cpu_ns + idle_ns,
        stages_ns={**round.stages_ns, OVER_BUDGET: idle_ns},
    )


def _options(cell: Cell) -> dict[str, Any]:
    return {"task": cell.task, "init_state": cell.init_state}


def _next_round(agent: Agent, observation: Any) -> Round:
    """Lets the agent act until it makes a round.

    Raises:
        NoRound: It does not.
    """
    for _ in range(WARMUP_ACTS):
        agent.act(deepcopy(observation))  # one that writes into it must not change the episode that begins with it
        if agent.round is not None:
            return agent.round
    raise NoRound(f"the agent made no round in {WARMUP_ACTS} acts; set `round` in act() when the policy is called")


def state_bytes(world: World) -> bytes:
    """Returns the simulator's state as trajectory hashes contain it."""
    return np.ascontiguousarray(world.get_state(), np.float64).tobytes()


def hash_observation(observation: Mapping[str, Any]) -> str:
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


def _is_compared(cell: str, index: int, one_in: int) -> bool:
    """Whether the round is compared with the dense policy: the same rounds for all methods, at irregular intervals.

    With every fifth round, a method that refreshes itself with a period of five would always be compared at its best.
    """
    return one_in > 0 and int(address([cell, index])[:8], 16) % one_in == 0
