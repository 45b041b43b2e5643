"""FastV: behind an early layer, visual tokens that receive little attention there are dropped from the prefix.

Chen, Zhao, Liu, He, Lin, Zhou, Chang: "An Image is Worth 1/2 Tokens After Layer 2", arXiv 2403.06764.
"""

from __future__ import annotations

from torch import Tensor

from ..policies.round import Call
from ..policies.seams import Seam
from .rows import PrefixRows, RowsMethod, attention_mass, budget, check_share


class FastV(RowsMethod):
    """Drops visual tokens by the attention that they receive in one layer.

    A dropped token has no keys and values in the layers behind, neither for the prefix nor for the actions. It claims
    PREFILL_FFN, too: a token that is dropped has no FFN output that another method could keep.

    Args:
        layer: Layers in front of the pruning, in which all tokens are computed; the last of them scores the tokens.
        keep: Share of the visual tokens that stay. 1 is exactly dense.

    Raises:
        ValueError: ``layer`` is not positive, or ``keep`` not in 0..1.
    """

    name = "fastv"
    claims = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN})
    limit = "keep=1"
    papers = ("2403.06764",)
    activity_counters = ("rows_pruned",)

    def __init__(self, layer: int = 2, keep: float = 0.5) -> None:
        super().__init__(Pruned(self.name, layer, keep))


class Pruned(PrefixRows):
    """The rows that stay; their keys and values are all that is seen.

    Args:
        method: Name of the method.
        layer: First layer without the dropped tokens.
        keep: Share of the visual tokens that stay.

    Attributes:
        layer: First layer without the dropped tokens.
        mass: [P] attention that the visual tokens received in the layer before it.

    Raises:
        ValueError: ``layer`` is not positive, or ``keep`` not in 0..1.
    """

    def __init__(self, method: str, layer: int, keep: float) -> None:
        if layer < 1:
            raise ValueError(f"{method} needs at least one layer in front of the pruning to score tokens, got {layer}")
        self.layer, self._keep = layer, check_share(method, "keep", keep)

    def start(self, call: Call) -> None:
        """Keeps all rows until a layer has been seen."""
        super().start(call)
        self.budget, self._kept = budget(self._keep, self.visual), None

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        """Returns all rows in front of the pruning, and those that stay behind it."""
        if layer == self.layer and self.budget < self.visual:
            self._kept = self.choose(x[0, : self.visual])
        return self.take(self._kept)

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        """Scores the tokens in the last layer that has all of them."""
        if layer == self.layer - 1 and self.budget < self.visual:
            self.mass = attention_mass(q, k, self.visual)

    def choose(self, x: Tensor) -> Tensor | None:
        """Returns the visual rows that stay, ascending, given what enters the layer [P, width]; None keeps all."""
        return top(self.mass, self.budget)


def top(scores: Tensor, count: int) -> Tensor:
    """Returns [count] the indices of the largest scores, ascending."""
    return scores.topk(count).indices.sort().values
