"""Episodes of a suite that no evaluation measures, played for what happens inside the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..envs.demonstrations import TRAINING_SEED
from ..policies.agent import ChunkAgent
from ..policies.policy import load_policy
from ..policies.round import Round
from ..policies.seams import Method
from .spec import BadInput, unknown
from .worker import hash_observation

if TYPE_CHECKING:
    from ..envs import Suite
    from .registry import Registry

_SEEDS, _TASKS = 1_000, 1_000  # as recordings are numbered, so that other seeds share no state
EPISODES = 1_000
"""Episodes per task and seed."""


class Played(NamedTuple):
    """An episode.

    Attributes:
        instruction: As the environment gave it.
        first_observation: Digest of its first observation, as rows of results have it.
        success: Whether it succeeded.
    """

    instruction: str
    first_observation: str
    success: bool


class Player:
    """Plays episodes with initial states of their own.

    Args:
        registry: Where suites and environments come from.
        suite: Name of the suite.
        policy: Name or path of the policy; the suite's own if empty.
        methods: What acts, or watches, inside the policy.
        seed: Separates episodes from those of other seeds, and from recordings.

    Attributes:
        suite: The suite.
        policy: The policy.

    Raises:
        ValueError: There is no such suite, the policy does not fit it, or the seed is not in 0..999.
    """

    def __init__(
        self, registry: Registry, suite: str, policy: str | None, methods: Sequence[Method], seed: int
    ) -> None:
        if not 0 <= seed < _SEEDS:
            raise ValueError(f"the seed must be in 0..{_SEEDS - 1}, got {seed}")
        if suite not in registry.suites():
            raise unknown("suite", suite, registry.suites())
        self.suite: Suite = registry.suites()[suite]
        if not policy and self.suite.policy is None:
            raise BadInput(f"suite {suite!r} has no policy of its own; write --policy")
        torch.set_num_threads(1)
        self._seed = seed
        self.policy = load_policy(policy or str(self.suite.policy))
        self._agent = ChunkAgent(self.policy, methods)
        # Finite initial states are an evaluation's; with the settings of recordings the suite samples others.
        experts = self.suite.demonstrations
        finite = self.suite.init_states is not None and experts is not None
        self._env: Any = registry.environment(self.suite, dict(experts.settings) if finite and experts else {})
        problems = self.policy.processor.incompatibilities(self._env.observation_space, self._env.action_space)
        if problems:
            raise BadInput(f"policy {self.policy.name!r} does not fit suite {suite!r}: {'; '.join(problems)}")

    def tasks(self, names: str | None) -> list[str]:
        """Returns the tasks that a user named, separated by commas; all of the suite for None.

        Raises:
            BadInput: The suite has no such task.
        """
        requested = [name.strip() for name in names.split(",")] if names else list(self.suite.tasks)
        for name in requested:
            if name not in self.suite.tasks:
                raise unknown("task", name, self.suite.tasks)
        return requested

    def reset(self, task: str, number: int) -> tuple[dict[str, Any], int]:
        """Starts an episode; returns its first observation and its seed."""
        world = self._env.unwrapped
        world.cameras_on = True
        if hasattr(world, "sampled_starts"):  # its standard initial states are for evaluation
            world.sampled_starts = True
        seed = TRAINING_SEED + (self._seed * _TASKS + self.suite.tasks.index(task)) * EPISODES + number
        state = seed if seed in getattr(world, "recorded_states", ()) else 0
        observation, _ = self._env.reset(seed=seed, options={"task": task, "init_state": state})
        return observation, seed

    def play(self, task: str, number: int, after: Callable[[Round], None] = lambda _: None) -> Played:
        """Plays an episode to its end.

        Args:
            task: Task of the suite.
            number: Which of its episodes, below :data:`EPISODES`.
            after: Is given every round.
        """
        observation, seed = self.reset(task, number)
        first, instruction = hash_observation(observation), str(observation["instruction"])
        self._agent.reset(seed)
        over, info = False, {}
        while not over:
            action = self._agent.act(observation)
            if self._agent.round is not None:
                after(self._agent.round)
            self._env.unwrapped.cameras_on = self._agent.needs_observation
            observation, _, terminated, truncated, info = self._env.step(action)
            over = bool(terminated or truncated)
        return Played(instruction, first, bool(info["success"]))
