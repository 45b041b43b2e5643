"""VLA-Cache: visual tokens whose pixels stay reuse keys and values of the round before, unless the task looks at them.

Xu, Wang, Xia, Zhu, Huang, Xu: "VLA-Cache: Efficient Vision-Language-Action Manipulation via Adaptive Token Caching",
arXiv 2502.02175.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ..policies.model import FlowModel
from ..policies.policy import Policy
from ..policies.round import Call
from .rows import KeptRows, RowsMethod, attention_mass, check_share, largest, pixels


class VLACache(RowsMethod):
    """Reuses keys and values of static tokens, in more of them the deeper the layer.

    A token is static if its pixels resemble those of the round before, and is not among those that the text attended to
    most in the middle layer of that round's prefill. A layer reuses the most similar of them; how many, the entropy of
    the round before's attention says: the more it has fallen up to that layer, the more. The first round of an episode
    or of an instruction is dense. Tokens that are not visual are always computed.

    Args:
        similarity: Smallest cosine between the pixels (from 0 to 1) of a static token and those before.
        static: Largest share of static tokens; the most similar are taken. 0 is exactly dense.
        relevant: Share of the tokens that the text's attention protects.
        growth: How fast the share of static tokens that are reused grows with the fall of the entropy.
        layers: ``entropy`` is the paper's; ``all`` reuses all static tokens in every layer.

    Raises:
        ValueError: A share is not in 0..1, ``similarity`` not in -1..1, ``growth`` negative, or ``layers`` unknown.
    """

    name = "vla_cache"

    def __init__(
        self,
        similarity: float = 0.996,
        static: float = 0.586,  # 150 of a view's 256 tokens
        relevant: float = 0.39,  # 100 of them
        growth: float = 0.55,
        layers: str = "entropy",
    ) -> None:
        check_share(self.name, "static", static)
        check_share(self.name, "relevant", relevant)
        if not -1 <= similarity <= 1:
            raise ValueError(f"similarity is a cosine from -1 to 1, got {similarity}")
        if not (growth >= 0 and layers in ("entropy", "all")):
            raise ValueError(f"growth must be 0 or more and layers 'entropy' or 'all', got {growth} and {layers!r}")
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
        self._attention: list[Tensor] = []

    def _find(self, similarity: Tensor) -> None:
        """Sets what this round reuses, from what the last one has attended to."""
        method = self._method
        static = largest(similarity, method.static) & (similarity >= method.similarity)
        if self._attention:
            static &= ~largest(self._attention[len(self._attention) // 2], method.relevant)
        self._order = torch.where(static, similarity, -2.0).argsort(stable=True)  # a cosine is at least -1
        self.reusable = int(static.sum())  # waits for the device, once per round: the number shapes what follows
        self.shares = [1.0] if method.layers == "all" else growing(self._attention, method.growth)

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        reused = round(self.shares[min(layer, len(self.shares) - 1)] * self.reusable)
        return self.take(self._order[: self.visual - reused].sort().values if reused else None)

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        text = len(self.others)
        self._attention.append(attention_mass(q[:, -text:] if text else q, k, self.visual))


def growing(attention: list[Tensor], growth: float) -> list[float]:
    """Returns the share of static tokens that each layer reuses, from its attention [P] to the visual tokens.

    ``growth`` times the relative falls of the entropy up to the layer, summed, at most 1. It never shrinks: a layer can
    only compute rows that the layer before it has computed.
    """
    if not attention:
        return [0.0]
    each = torch.stack(attention)
    parts = each / each.sum(-1, keepdim=True)
    entropies = torch.special.entr(parts).sum(-1).tolist()
    shares, fallen = [0.0], 0.0
    for before, now in pairwise(entropies):
        fallen += (before - now) / before if before > 0 else 0.0
        shares.append(min(max(shares[-1], growth * fallen), 1.0))
    return shares
