"""VLA-Cache: visual tokens whose pixels stay reuse keys and values of the round before, unless the task looks at them.

Xu, Wang, Xia, Zhu, Huang, Xu: "VLA-Cache: Efficient Vision-Language-Action Manipulation via Adaptive Token Caching",
arXiv 2502.02175.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..policies.model import FlowModel
from ..policies.policy import Policy
from ..policies.round import Call
from .rows import KeptRows, RowsMethod, attention, check_share, largest, pixels


class VLACache(RowsMethod):
    """Reuses keys and values of static tokens, in more of them the deeper the layer.

    A token is static if its pixels resemble those of the round before, and is not among those that the text attended to
    most in the middle layer of that round's prefill. A layer reuses the most similar of them: the more, the lower the
    entropy of its attention was in that round. The first layer reuses none, and a layer no fewer than the one before.
    The first round of an episode or of an instruction is dense. Tokens that are not visual are always computed.

    Args:
        similarity: Smallest cosine between the pixels (from 0 to 1) of a static token and those before.
        static: Largest share of static tokens; the most similar are taken. 0 is exactly dense.
        relevant: Share of the tokens that the text's attention protects.
        growth: Share of an increase from layer to layer that is followed.
        layers: ``entropy`` is the public code's rule; ``all`` reuses all static tokens in every layer.

    Raises:
        ValueError: A share is not in 0..1, ``similarity`` not in -1..1, ``growth`` not in 0..1, or ``layers`` unknown.
    """

    name = "vla_cache"
    limit = "static=0"
    papers = ("2502.02175",)

    def __init__(
        self,
        similarity: float = 0.996,
        static: float = 0.586,  # 150 of a view's 256 tokens
        relevant: float = 0.469,  # 120 of them
        growth: float = 0.55,
        layers: str = "entropy",
    ) -> None:
        check_share(self.name, "static", static)
        check_share(self.name, "relevant", relevant)
        check_share(self.name, "growth", growth)
        if not -1 <= similarity <= 1:
            raise ValueError(f"similarity is a cosine from -1 to 1, got {similarity}")
        if layers not in ("entropy", "all"):
            raise ValueError(f"layers must be 'entropy' or 'all', got {layers!r}")
        self.similarity, self.static, self.relevant = similarity, static, relevant
        self.growth, self.layers = growth, layers
        self._static = _Static(self)
        super().__init__(self._static)

    def attach(self, policy: Policy) -> None:
        """Keeps the model, which knows the pixels of a token."""
        self._static.model = policy.model


class _Static(KeptRows):
    """The rows that layers of a round compute.

    Attributes:
        model: Of the policy.
        reusable: Number of static tokens of this round.
        shares: Which share of them each layer reuses; the last one stands for all layers behind it.
    """

    model: FlowModel

    def __init__(self, method: VLACache) -> None:
        self._method = method

    def start(self, call: Call) -> None:
        super().start(call)
        now = 0.5 * (1 + pixels(self.model, call))
        self.reusable, self.shares = 0, [0.0]
        if self.known(call):
            self._find(F.cosine_similarity(now, self._pixels, dim=-1))
        self._pixels = now
        self._received: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def _find(self, similarity: Tensor) -> None:
        """Sets what this round reuses, from what the last one has attended to."""
        method = self._method
        static = largest(similarity, method.static) & (similarity >= method.similarity)
        static &= ~largest(self._received[len(self._received) // 2], method.relevant)
        self._order = torch.where(static, similarity, -2.0).argsort(stable=True)  # a cosine is at least -1
        self.reusable = int(static.sum())  # waits for the device, once per round: the number shapes what follows
        self.shares = [1.0] if method.layers == "all" else growing(torch.stack(self._entropies).tolist(), method.growth)

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        reused = round(self.shares[min(layer, len(self.shares) - 1)] * self.reusable)
        return self.take(self._order[: self.visual - reused].sort().values if reused else None)

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        others = len(self.others)
        by_entropy = self._method.layers == "entropy"
        weights = attention(q if by_entropy else q[:, -others:], k).mean(0)  # of all rows if none is text
        self._received.append(weights[-others:, : self.visual].mean(0))
        if by_entropy:
            self._entropies.append(torch.special.entr(weights).sum(-1).mean())


def growing(entropies: list[float], growth: float) -> list[float]:
    """Returns the share of static tokens that each layer reuses, from the entropy of its attention.

    1 for the smallest entropy, 0 for the largest, damped where it increases. It never shrinks: a layer can only compute
    rows that the layer before it has computed. Layers behind those of the list reuse as many as the last one.
    """
    lowest, span = min(entropies), max(entropies) - min(entropies)
    wanted = [1 - (entropy - lowest) / span if span > 0 else 0.0 for entropy in entropies]
    shares = [0.0]
    for layer in range(1, len(wanted)):
        wanted[layer] -= (1 - growth) * max(wanted[layer] - wanted[layer - 1], 0)
        shares.append(max(shares[-1], wanted[layer]))
    return shares
