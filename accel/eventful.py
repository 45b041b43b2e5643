"""After Eventful Transformers: in every layer, the visual tokens whose input has changed most are computed anew.

Dutson, Li, Gupta: "Eventful Transformers: Leveraging Temporal Redundancy in Vision Transformers", arXiv 2308.13494.
"""

from __future__ import annotations

from torch import Tensor

from ..policies.round import Call
from .rows import KeptRows, RowsMethod, budget, check_share


class Eventful(RowsMethod):
    """Gates the visual tokens of every layer of the prefill by their change since they last passed.

    A token that does not pass keeps its keys and values of the layer, and what the layer adds to it. The first round of
    an episode or of an instruction is dense. Tokens that are not visual always pass.

    Args:
        ratio: Share of the visual tokens that pass every gate (r). 1 is exactly dense.

    Raises:
        ValueError: The ratio is not in 0..1.
    """

    name = "eventful"
    limit = "ratio=1"
    papers = ("2308.13494",)

    def __init__(self, ratio: float = 0.5) -> None:
        super().__init__(_Gated(check_share(self.name, "ratio", ratio)))


class _Gated(KeptRows):
    """Per layer what every visual token was when it last passed, and what the layer then added to it."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio

    def start(self, call: Call) -> None:
        super().start(call)
        self._passing = budget(self._ratio, self.visual)
        self._dense = not self.known(call) or self._passing == self.visual
        if self._dense:
            self._inputs: list[Tensor] = []
            self._added: list[Tensor] = []

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        if self._dense:
            if layer:
                self._added.append(x - self._inputs[-1])
            self._inputs.append(x)
            return self.take(None)
        changed = (x - self._inputs[layer])[0, : self.visual].norm(dim=-1)
        rows = self.take(changed.topk(self._passing).indices.sort().values)
        assert rows is not None
        self._inputs[layer] = self._inputs[layer].index_copy(1, rows, x[:, rows])
        return rows

    def scatter(self, layer: int, x: Tensor, computed: Tensor, rows: Tensor) -> Tensor:
        self._added[layer] = self._added[layer].index_copy(1, rows, computed - x[:, rows])
        return (x + self._added[layer]).index_copy(1, rows, computed)
