"""Checks that a policy keeps the contract of :class:`replan.eval.registry.Agent`; its author calls it in a test."""

from __future__ import annotations

import random  # noqa: TID251  # whether the global generators are left alone
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..envs import SuiteUnavailable
from .registry import Agent, PolicyInfo, Registry, Unreachable
from .rows import checked_action, count_of, finite, name_of

SEED = 5  # arbitrary
STEPS = 40  # of an episode: several rounds of every policy that we know, in some seconds
OTHER_TASK_STEPS = 5


class BrokenPromise(AssertionError):
    """A policy does not do what the harness relies on."""


def check_policy(
    name: str,
    suite: str,
    *,
    method: str = "dense",
    settings: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    registry: Registry | None = None,
) -> None:
    """Checks everything that the harness relies on, in a suite that the policy is for.

    Args:
        name: The policy, as for ``replan eval --policy``.
        suite: Name of the suite.
        method: The method that it runs with.
        settings: Environment arguments.
        dtype: Precision.
        device: ``cpu`` or ``cuda``.
        registry: Where policies and suites come from; replan's own if missing.

    Raises:
        BrokenPromise: The policy breaks a promise; the message names both.
        ValueError: There is no such policy, suite or method.
        SuiteUnavailable: Something that the suite needs is missing.
    """
    registry = registry or Registry()
    chosen = registry.suites()[suite]
    with _promise(name, "its description is complete"):
        info, runs = registry.policy(name), registry.method(method, name)
        _check_description(info)
    env: Any = registry.environment(chosen, dict(settings or {}))
    try:
        with _promise(name, f"it fits {suite}"):
            problems = info.incompatibilities(env.observation_space, env.action_space)
            assert not problems, "; ".join(problems)
        first, last = chosen.tasks[0], chosen.tasks[-1]
        with _promise(name, "it can be made"):
            agent = registry.agent(name, method, dtype, device)
        with _promise(name, "it acts: rounds, actions and counters are of the documented types"):
            played = _play(env, agent, first, runs.routes)
        with _promise(name, "global random generators have no effect, and are left as they were"):
            _check_generators(env, agent, first, runs.routes, played)
        if not runs.ordered:
            with _promise(name, "an episode is the same after other episodes, one of them broken off"):
                _play(env, agent, last, runs.routes, seed=SEED + 1, steps=OTHER_TASK_STEPS)
                _assert_equal(_play(env, agent, first, runs.routes), played)
        with _promise(name, "an episode is the same with another agent of this policy"):
            _assert_equal(_play(env, registry.agent(name, method, dtype, device), first, runs.routes), played)
    finally:
        env.close()


@contextmanager
def _promise(name: str, promise: str) -> Iterator[None]:
    """Names the policy and the promise in whatever goes wrong inside."""
    try:
        yield
    except (SuiteUnavailable, Unreachable):
        raise
    except Exception as error:
        if isinstance(error, ValueError) and promise.startswith(("its description", "it can be made")):
            raise
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise BrokenPromise(f"policy {name!r} breaks the promise that {promise}: {what}") from error


def _check_description(info: PolicyInfo) -> None:
    for mark in info.marks:
        assert mark.badge and len(mark.badge.split()) <= 4, f"a mark begins with one to four words, got {mark}"
    assert info.code, "its code has no digest, so that a changed policy would be given old results"


def _play(
    env: Any, agent: Agent, task: str, routes: tuple[str, ...], *, seed: int = SEED, steps: int = STEPS
) -> list[tuple[str, bytes]]:
    """Plays the beginning of an episode; returns route, "" for none, and bytes of every action."""
    env.unwrapped.cameras_on = True
    observation, _ = env.reset(seed=SEED, options={"task": task, "init_state": 0})
    agent.reset(seed)
    assert agent.needs_observation, "needs_observation must be True after reset: nothing is planned yet"
    played = []
    for step in range(steps):
        needed = agent.needs_observation
        before = _copied(observation)
        planned, made = agent.act(observation), agent.round
        assert isinstance(needed, bool), f"needs_observation must be a bool, got {needed!r}"
        assert made is None or needed, "act() made a round where needs_observation was False: it read a black image"
        assert made is not None or not needed, "act() made no round where needs_observation was True"
        _assert_unchanged(observation, before)
        action = checked_action(planned, env.action_space, step)
        if made is not None:
            _check_round(made, routes)
        played.append(("" if made is None else made.route, action.tobytes()))
        observation, _, terminated, truncated, _ = env.step(action)
        agent.idle(0)
        if terminated or truncated:
            break
    agent.end(False)
    counters = agent.counters()
    assert finite(counters) == counters, f"counters must be finite numbers by name, got {counters}"
    assert any(route for route, _ in played), "it made no round"
    return played


def _check_round(made: Any, routes: tuple[str, ...]) -> None:
    assert made.route in routes, f"the route {made.route!r} is not declared; {', '.join(routes)} are"
    assert count_of(made.window, "window") >= 1, f"window must be 1 or more, got {made.window}"
    spent = [count_of(ns, name_of(stage)) for stage, ns in made.stages_ns.items()]
    host_ns = count_of(made.host_ns, "host_ns")
    count_of(made.cpu_ns, "cpu_ns")
    assert sum(spent) <= host_ns, f"stages take {sum(spent)} ns together, more than the round with {host_ns}"
    assert (made.accepted is None) == (made.drafted is None), "accepted and drafted go together"
    if made.accepted is not None:
        assert 0 <= made.accepted <= made.drafted, f"accepted {made.accepted} of {made.drafted} drafted"
    assert finite(made.extra) == dict(made.extra), f"extra must be finite numbers by name, got {made.extra}"


def _check_generators(
    env: Any, agent: Agent, task: str, routes: tuple[str, ...], played: list[tuple[str, bytes]]
) -> None:
    import torch

    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        random.seed(99)
        np.random.seed(99)  # noqa: NPY002
        torch.random.manual_seed(99)  # noqa: TID251
        before = _generators()
        _assert_equal(_play(env, agent, task, routes), played)
        for kind, state in _generators().items():
            assert state == before[kind], f"{kind} was used: seed a generator of your own in reset()"
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        torch.set_rng_state(kept[2])


def _generators() -> dict[str, str]:
    import torch

    states = {"random": random.getstate(), "numpy.random": np.random.get_state()}  # noqa: NPY002
    return {name: repr(state) for name, state in {**states, "torch": torch.get_rng_state().tolist()}.items()}


def _assert_equal(again: list[tuple[str, bytes]], played: list[tuple[str, bytes]]) -> None:
    for step, (one, other) in enumerate(zip(again, played, strict=False)):
        assert one == other, f"from control step {step} on it acts differently"
    assert len(again) == len(played), f"the episode has {len(again)} steps, and had {len(played)}"


def _copied(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) for name, value in observation.items()}


def _assert_unchanged(observation: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    for name, value in before.items():
        assert np.array_equal(observation[name], value), f"act() wrote into the observation's {name!r}"
