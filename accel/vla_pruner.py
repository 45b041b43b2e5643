"""VLA-Pruner: as FastV, but what the actions of the last rounds attended to counts as much as the prefill's attention.

Liu, Chen et al.: "VLA-Pruner: Temporal-Aware Dual-Level Visual Token Pruning for Efficient Vision-Language-Action
Inference", arXiv 2511.16449.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..policies.model import Ops
from ..policies.round import Call
from ..policies.seams import Seam
from .fastv import Pruned, top
from .rows import FirstStep, RowsMethod


class VLAPruner(RowsMethod):
    """Drops visual tokens that neither the prefill nor the actions of the last rounds attend to, then near-duplicates.

    The candidates are the tokens with the most attention of the prefill in one layer and those with the most attention
    of the actions over the last rounds. While they are more than may stay, one of the two most similar is dropped.
    Rounds are dense until there are as many as ``window``; a new instruction starts over. See :class:`FastV` for what
    dropping means.

    Args:
        layer: Layers in front of the pruning, in which all tokens are computed.
        keep: Share of the visual tokens that stay. 1 is exactly dense.
        window: Rounds whose actions count.
        decay: Weight of a round relative to the one after it.

    Raises:
        ValueError: ``layer`` or ``window`` is not positive, or ``keep`` or ``decay`` not in 0..1.
    """

    name = "vla_pruner"
    claims = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN})
    limit = "keep=1"
    papers = ("2511.16449",)
    activity_counters = ("rows_pruned",)

    def __init__(self, layer: int = 3, keep: float = 0.5, window: int = 3, decay: float = 0.8) -> None:
        if window < 1 or not 0 <= decay <= 1:
            raise ValueError(f"window must be at least 1 and decay from 0 to 1, got {window} and {decay}")
        self._watch = FirstStep(layer)  # behind it, dropped tokens receive nothing
        self._pruned = _Pruned(layer, keep, window, decay)
        super().__init__(self._pruned)

    def step_ops(self) -> Ops:
        """Watches the attention of the first denoising step."""
        return self._watch

    def observe_full(self, call: Call) -> None:
        """Remembers what the actions of this round attended to."""
        super().observe_full(call)
        if self._watch.mass is not None:
            self._pruned.remember(self._watch.mass)


class _Pruned(Pruned):
    """The rows that stay."""

    def __init__(self, layer: int, keep: float, window: int, decay: float) -> None:
        super().__init__(VLAPruner.name, layer, keep)
        self._window, self._decay = window, decay

    def begin(self) -> None:
        super().begin()
        self._history: list[Tensor] = []

    def start(self, call: Call) -> None:
        super().start(call)
        if not self.known(call):
            self._history = []

    def remember(self, mass: Tensor) -> None:
        """Adds a round's attention [P] of actions."""
        self._history = [*self._history, mass][-self._window :]

    def choose(self, x: Tensor) -> Tensor | None:
        if len(self._history) < self._window:
            return None
        by_age = enumerate(reversed(self._history))
        recent = torch.stack([self._decay**age * mass for age, mass in by_age]).sum(0)
        candidates = torch.cat([top(self.mass, self.budget), top(recent, self.budget)]).unique()
        return distinct(candidates, x, self.budget)


def distinct(candidates: Tensor, x: Tensor, count: int) -> Tensor:
    """Returns [count] of the candidates [C], ascending, that remain when redundant ones are dropped one by one.

    Args:
        candidates: Indices of tokens, ascending.
        x: [P, width] what the tokens are; they are compared by cosine.
        count: How many remain.
    """
    each, stay = F.normalize(x[candidates].float(), dim=-1), torch.ones_like(candidates, dtype=torch.bool)
    similar = (each @ each.T).fill_diagonal_(-2.0)  # a cosine is at least -1
    for _ in range(len(candidates) - count):
        redundant = similar.max(-1).values.argmax()
        stay[redundant], similar[redundant], similar[:, redundant] = False, -2.0, -2.0
    return candidates[stay]
