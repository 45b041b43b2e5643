"""Builds a library of executions: the dense policy plays episodes that no evaluation measures.

In two rounds, as rMuscle has it: a number of episodes per task, then more of them where the first ones leave gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..accel import library
from ..accel.rmuscle.recording import Recording
from ..envs.demonstrations import TRAINING_SEED
from ..policies.agent import ChunkAgent
from ..policies.policy import load_policy
from .spec import BadInput
from .worker import hash_observation

if TYPE_CHECKING:
    from ..envs import Suite
    from .registry import Registry

_SEEDS, _TASKS, _EPISODES = 1_000, 1_000, 1_000  # as recordings are numbered, so that other seeds share no state
POOL = 4  # beginnings among which the second round finds each of its episodes


class Built(NamedTuple):
    """A library that was built.

    Attributes:
        folder: Where it is.
        episodes: Episodes that it holds, by task: those that succeeded.
        rounds: Rounds in them.
        bytes: Its size.
    """

    folder: Path
    episodes: dict[str, int]
    rounds: int
    bytes: int


class Builder:
    """Plays episodes of a suite with the dense policy and keeps those that succeed.

    Args:
        registry: Where suites and environments come from.
        suite: Name of the suite.
        policy: Name or path of the policy.
        ratios: Shares of neurons for which the library has masks.
        seed: Separates libraries from each other and from recordings.

    Raises:
        ValueError: The policy does not fit, a ratio is out of range, or the seed is not in 0..999.
    """

    def __init__(
        self, registry: Registry, suite: str, policy: str, *, ratios: tuple[float, ...], seed: int = 500
    ) -> None:
        if not 0 <= seed < _SEEDS:
            raise ValueError(f"the seed must be in 0..{_SEEDS - 1}, got {seed}")
        torch.set_num_threads(1)
        self._suite: Suite = registry.suites()[suite]
        self._seed, self._ratios = seed, ratios
        self._recording = Recording(ratios)
        self._policy = load_policy(policy)
        self._agent = ChunkAgent(self._policy, [self._recording])
        # Finite initial states are an evaluation's; with the settings of recordings the suite samples others.
        experts = self._suite.demonstrations
        finite = self._suite.init_states is not None and experts is not None
        self._env: Any = registry.environment(self._suite, dict(experts.settings) if finite and experts else {})
        problems = self._policy.processor.incompatibilities(self._env.observation_space, self._env.action_space)
        if problems:
            raise BadInput(f"policy {policy!r} does not fit suite {suite!r}: {'; '.join(problems)}")

    def build(self, tasks: list[str], episodes: int, more: int, out: Path | None = None) -> Built:
        """Builds the library.

        Args:
            tasks: Tasks of the suite.
            episodes: Episodes per task in the first round.
            more: Episodes per task in the second round: the beginnings least like those that there are.
            out: Folder to write; next to the policy if None.

        Raises:
            BadInput: Too many episodes, or none that succeeded.
        """
        if episodes + POOL * more > _EPISODES:
            raise BadInput(f"episodes and {POOL} times as many as are added must be at most {_EPISODES}")
        out = out or library.library_path(self._policy.path)
        out.mkdir(parents=True, exist_ok=True)  # what cannot be written is known before anything is played
        kept: dict[str, list[library.Episode]] = {}
        for task in tqdm(tasks, desc="tasks", mininterval=5.0):
            numbers = list(range(episodes))
            kept[task] = [each for number in numbers if (each := self._play(task, number))]
            for number in self._thin(task, kept[task], range(episodes, episodes + POOL * more), more):
                kept[task] += [each] if (each := self._play(task, number)) else []
        every = [each for task in tasks for each in kept[task]]
        if not every:
            raise BadInput(f"the policy solved none of the episodes of {', '.join(tasks)}, so there is nothing to keep")
        library.write(
            out,
            every,
            self._policy.files,
            ratios=self._ratios,
            anchors=self._recording.anchors,
            neurons=self._recording.neurons,
        )
        size = sum(path.stat().st_size for path in library.Library(out).files)
        return Built(out, {task: len(each) for task, each in kept.items()}, sum(len(e.entries) for e in every), size)

    def _reset(self, task: str, number: int) -> tuple[dict[str, Any], int]:
        """Starts an episode; returns its first observation and its seed."""
        world = self._env.unwrapped
        world.cameras_on = True
        seed = TRAINING_SEED + (self._seed * _TASKS + self._suite.tasks.index(task)) * _EPISODES + number
        state = seed if seed in getattr(world, "recorded_states", ()) else 0
        observation, _ = self._env.reset(seed=seed, options={"task": task, "init_state": state})
        return observation, seed

    def _play(self, task: str, number: int) -> library.Episode | None:
        """Plays an episode; None where it fails."""
        observation, seed = self._reset(task, number)
        first, instruction = hash_observation(observation), str(observation["instruction"])
        self._agent.reset(seed)
        over, info = False, {}
        while not over:
            action = self._agent.act(observation)
            self._env.unwrapped.cameras_on = self._agent.needs_observation
            observation, _, terminated, truncated, info = self._env.step(action)
            over = bool(terminated or truncated)
        return library.Episode(instruction, first, self._recording.entries) if info["success"] else None

    @torch.inference_mode()
    def _thin(self, task: str, kept: list[library.Episode], pool: range, count: int) -> list[int]:
        """Returns the numbers of those beginnings that are least like what is kept, or was chosen before."""
        model, processor = self._policy.model, self._policy.processor
        known = [each.entries[0].query.float().flatten() for each in kept]
        queries: dict[int, Tensor] = {}
        for number in pool:
            observation, _ = self._reset(task, number)
            inputs = processor.inputs(observation).to(model.device, model.dtype)
            queries[number] = library.query_of(model.encode(inputs)).float().flatten()
        chosen: list[int] = []
        while len(chosen) < count:
            likeness = {
                number: max((float(torch.cosine_similarity(query, each, dim=0)) for each in known), default=-1.0)
                for number, query in queries.items()
                if number not in chosen
            }
            chosen.append(min(likeness, key=likeness.__getitem__))
            known.append(queries[chosen[-1]])
        return chosen
