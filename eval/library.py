"""Builds a library of executions: the dense policy plays episodes that no evaluation measures.

In two rounds, as rMuscle has it: a number of episodes per task, then more of them where the first ones leave gaps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..accel import library
from ..accel.rmuscle.recording import Recording
from .play import EPISODES, Player
from .spec import BadInput

if TYPE_CHECKING:
    from .registry import Registry

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
        policy: Name or path of the policy; the suite's own if empty.
        ratios: Shares of neurons for which the library has masks.
        seed: Separates libraries from each other and from recordings.

    Attributes:
        player: Plays the episodes.

    Raises:
        ValueError: The policy does not fit, a ratio is out of range, or the seed is not in 0..999.
    """

    def __init__(
        self, registry: Registry, suite: str, policy: str | None, *, ratios: tuple[float, ...], seed: int = 500
    ) -> None:
        self._ratios, self._recording = ratios, Recording(ratios)
        self.player = Player(registry, suite, policy, [self._recording], seed)

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
        if episodes + POOL * more > EPISODES:
            raise BadInput(f"episodes and {POOL} times as many as are added must be at most {EPISODES}")
        out = out or library.library_path(self.player.policy.path)
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
            self.player.policy.files,
            ratios=self._ratios,
            anchors=self._recording.anchors,
            neurons=self._recording.neurons,
        )
        size = sum(path.stat().st_size for path in library.Library(out).files)
        return Built(out, {task: len(each) for task, each in kept.items()}, sum(len(e.entries) for e in every), size)

    def _play(self, task: str, number: int) -> library.Episode | None:
        """Plays an episode; None where it fails."""
        played = self.player.play(task, number)
        if not played.success:
            return None
        return library.Episode(played.instruction, played.first_observation, self._recording.entries)

    @torch.inference_mode()
    def _thin(self, task: str, kept: list[library.Episode], pool: range, count: int) -> list[int]:
        """Returns the numbers of those beginnings that are least like what is kept, or was chosen before."""
        model, processor = self.player.policy.model, self.player.policy.processor
        known = [each.entries[0].query.float().flatten() for each in kept]
        queries: dict[int, Tensor] = {}
        for number in pool:
            observation, _ = self.player.reset(task, number)
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
