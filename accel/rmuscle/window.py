"""rMuscle's retrieval: a window of rounds that slides over the episodes most like the present one."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor

from ..library import Pack


class Match(NamedTuple):
    """What a retrieval found.

    Attributes:
        row: The reference; None where no candidate is ready or similar enough.
        similarity: Largest cosine similarity among the candidates that are ready; None where none is.
    """

    row: int | None
    similarity: float | None


class Window:
    """The candidates of one episode.

    The first round chooses ``width`` episodes by how they begin. Of each, the matched round and ``ahead`` more are
    candidates from then on.

    Args:
        pack: The executions of the episode's instruction.
        width: Episodes (T), and candidates of a round whose motion is compared.
        ahead: Rounds behind the matched one (L), and states of a history.
        threshold: Similarity below which a candidate does not count.
        arms: Arms of the robot.
    """

    def __init__(self, pack: Pack, width: int, ahead: int, threshold: float, arms: int) -> None:
        self._pack, self._width, self._ahead, self._threshold, self._arms = pack, width, ahead, threshold, arms
        self._history: list[Tensor] = []
        self._at: dict[range, int] = {}  # matched round of every episode in the window, the best one first

    @property
    def starts(self) -> list[int]:
        """First rounds of all episodes."""
        return [rows.start for rows in self._pack.episodes]

    @property
    def rows(self) -> list[int]:
        """Candidates of the next round, in the order in which they are likely to be needed."""
        if not self._at:
            return self.starts
        places = [(ahead, rows, at + ahead) for rows, at in self._at.items() for ahead in range(self._ahead + 1)]
        return [place for _, rows, place in sorted(places, key=lambda each: each[0]) if place in rows]

    def match(self, query: Tensor, state: Tensor, ready: Collection[int]) -> Match:
        """Returns the reference of a round, and slides the window to it.

        Args:
            query: [P, n], see :func:`~replan.accel.library.query_of`.
            state: [state_dim], normalised.
            ready: Rounds that can be a reference.
        """
        self._history = [*self._history, state.float().cpu()][-self._ahead :]
        first = not self._at
        if query.shape != self._pack.queries.shape[1:]:  # another camera is missing: nothing can be compared
            return Match(None, 0.0)
        rows = self.starts if first else [row for row in self.rows if row in ready]
        if not rows:
            return Match(None, None)
        similarity = dict(zip(rows, self._similarity(query, rows), strict=True))
        ranked = sorted(rows, key=similarity.__getitem__, reverse=True)
        self._slide(ranked, first)
        eligible = [row for row in ranked if row in ready and similarity[row] >= self._threshold][: self._width]
        best = similarity[ranked[0]]
        if not eligible:
            missing = best >= self._threshold  # similar enough, and not ready
            return Match(None, None if missing else best)
        chosen = eligible[0] if first else min(eligible, key=self._motion)
        if not first:
            episode = self._episode(chosen)
            self._at = {episode: chosen, **{each: at for each, at in self._at.items() if each != episode}}
        return Match(chosen, similarity[chosen])

    def _similarity(self, query: Tensor, rows: list[int]) -> list[float]:
        """Cosines between the query and those of rows."""
        stored = self._pack.queries[rows].flatten(1).to(query.device, torch.float32)
        return torch.cosine_similarity(stored, query.float().flatten()[None]).tolist()

    def _slide(self, ranked: list[int], first: bool) -> None:
        """Chooses the episodes in the first round; then moves every one to its most similar round."""
        best: dict[range, int] = {}
        for row in ranked:
            best.setdefault(self._episode(row), row)
        self._at = dict(list(best.items())[: self._width]) if first else {**self._at, **best}

    def _episode(self, row: int) -> range:
        return next(rows for rows in self._pack.episodes if row in rows)

    def _motion(self, row: int) -> float:
        """Distance of the last states to those before a candidate: the largest of the arms' RMS."""
        begin = self._episode(row).start
        length = min(len(self._history), row + 1 - begin)
        mine, theirs = torch.stack(self._history[-length:]), self._pack.states[row + 1 - length : row + 1]
        moved = mine - theirs
        arms = moved.chunk(self._arms, -1) if moved.shape[-1] % self._arms == 0 else (moved,)
        return max(float(arm.square().mean().sqrt()) for arm in arms)
