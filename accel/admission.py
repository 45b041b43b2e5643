"""Online admission: successful episodes join a library while it is used, so that a new task goes from dense to cached.

rMuscle leaves this to future work; bound and eviction are ours. Nothing is written: who wants to keep such episodes
builds a library with more of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .library import Library, Pack, join_images


@dataclass(frozen=True, eq=False)  # equal is the same one
class Admitted:
    """An episode that joined the library.

    Attributes:
        instruction: As the environment gave it.
        tensors: Its rounds, as a pack has them.
    """

    instruction: str
    tensors: dict[str, Tensor]

    @property
    def beginning(self) -> Tensor:
        """What a retrieval compares of its first round, flat."""
        return self.tensors["query"][0].flatten().float()


class Admission:
    """The episodes that joined, at most ``capacity``: those that cover most.

    While there are too many, the episode leaves that begins most like another one of its instruction, admitted or in
    the library; of two alike the older one. So the only episode of an instruction stays until all are the only ones.

    Args:
        library: The library that they join.
        capacity: Most episodes.

    Attributes:
        episodes: In the order in which they came.
    """

    def __init__(self, library: Library, capacity: int) -> None:
        self._library, self._capacity = library, capacity
        self._stored: dict[str, list[Tensor]] = {}
        self.episodes: list[Admitted] = []

    def add(self, episode: Admitted) -> set[str]:
        """Admits an episode and lets others go; returns the instructions whose packs are others now.

        An episode whose rounds do not stack with those that are there, since a camera was missing, stays out.
        """
        pack = self.pack(episode.instruction)
        if pack is not None and _shapes(pack.tensors) != _shapes(episode.tensors):
            return set()
        before = list(self.episodes)
        self.episodes = [*before, episode]
        while len(self.episodes) > self._capacity:
            self.episodes.remove(max(self.episodes, key=self._redundancy))
        return {each.instruction for each in {*before} ^ {*self.episodes}}

    def pack(self, instruction: str) -> Pack | None:
        """Returns the executions of an instruction, those of the library first; None where there are none."""
        pack = self._library.pack(instruction)
        for each in self.episodes:
            if each.instruction == instruction:
                pack = _joined(pack, each.tensors)
        return pack

    def _redundancy(self, episode: Admitted) -> float:
        """Returns how similar the beginning is to the most similar other one of its instruction."""
        if episode.instruction not in self._stored:
            pack = self._library.pack(episode.instruction)
            starts = [] if pack is None else [rows.start for rows in pack.episodes]
            self._stored[episode.instruction] = [pack.queries[start].flatten().float() for start in starts if pack]
        others = [each for each in self.episodes if each.instruction == episode.instruction and each is not episode]
        beginnings = [*self._stored[episode.instruction], *(each.beginning for each in others)]
        mine = episode.beginning
        return max((float(torch.cosine_similarity(mine, each, dim=0)) for each in beginnings), default=-1.0)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape[1:] for name, tensor in tensors.items()}


def _joined(pack: Pack | None, rounds: dict[str, Tensor]) -> Pack:
    """Returns a pack with the rounds of one more episode at its end."""
    before = {name: tensor[:0] for name, tensor in rounds.items()} if pack is None else pack.tensors
    episodes = () if pack is None else pack.episodes
    start, count = len(before["query"]), len(rounds["query"])
    tensors = {name: torch.cat([before[name], tensor]) for name, tensor in rounds.items() if name != "images"}
    tensors["images"] = join_images(before["images"], rounds["images"])
    return Pack((*episodes, range(start, start + count)), tensors["query"], tensors["state"], tensors)
