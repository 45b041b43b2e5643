"""ToMe: behind every layer of the prefill, visual tokens with the most similar keys are merged.

Bolya, Fu, Dai, Zhang, Feichtenhofer, Hoffman: "Token Merging: Your ViT But Faster", arXiv 2210.09461.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..policies.round import Call
from ..policies.seams import Seam
from .rows import PrefixRows, RowsMethod, check_share


class ToMe(RowsMethod):
    """Merges visual tokens by bipartite matching; a merged token is their mean and weighs as much in attention.

    Attention weighs a key by the number of tokens that it stands for (the paper's proportional attention), for the
    prefix and for the actions: its key and value stand in the place of every part. It claims PREFILL_FFN, too: what
    another method keeps of a token is not that of a merged one.

    Args:
        merge: Tokens that every layer merges away, as a share of all visual tokens. 0 is exactly dense.

    Raises:
        ValueError: ``merge`` is not in 0..1.
    """

    name = "tome"
    claims = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN})
    limit = "merge=0"
    papers = ("2210.09461",)
    activity_counters = ("rows_merged",)

    def __init__(self, merge: float = 0.05) -> None:
        super().__init__(_Merged(check_share(self.name, "merge", merge)))


class _Merged(PrefixRows):
    """The visual tokens that remain, and which of them stands for every row of the prefix."""

    def __init__(self, merge: float) -> None:
        self._merge = merge

    def start(self, call: Call) -> None:
        super().start(call)
        length, device = call.prefix.embeddings.shape[1], self.others.device
        self._count = round(self._merge * self.visual)
        self._remaining = torch.arange(self.visual, device=device)
        self._stands = torch.arange(length, device=device)
        self._sizes = torch.ones(length, device=device)

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        return self.take(self._remaining if self._count else None)

    def keys_values(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        if rows is None:
            return k, v
        self._keys = k[0, : len(self._remaining)]
        place = torch.empty_like(self._stands).index_copy_(0, rows, torch.arange(len(rows), device=rows.device))
        each = place[self._stands]
        return k[:, each], v[:, each]

    def scatter(self, layer: int, x: Tensor, computed: Tensor, rows: Tensor) -> Tensor:
        x = x.index_copy(1, rows, computed)
        gone, into = matched(self._keys.reshape(len(self._keys), -1), self._count)
        stay = torch.ones_like(self._remaining, dtype=torch.bool).index_fill_(0, gone, False)
        gone, into = self._remaining[gone], self._remaining[into]
        weights = self._sizes.to(x.dtype)[:, None]
        sums = (x * weights).index_add(1, into, x[:, gone] * weights[gone])
        self._sizes = self._sizes.index_add(0, into, self._sizes[gone])
        x = x.index_copy(1, into, sums[:, into] / self._sizes.to(x.dtype)[into, None])
        self._stands = torch.arange(len(self._stands), device=gone.device).index_copy_(0, gone, into)[self._stands]
        self._remaining = self._remaining[stay]
        return x


def matched(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the tokens that are merged away, and into which other token each is: two of [R] indices.

    Every second token looks for the most similar of the others; the ``count`` closest pairs are merged, at most all.

    Args:
        keys: [T, n], compared by cosine.
        count: Tokens to merge away.
    """
    keys = F.normalize(keys.float(), dim=-1)
    similarity = keys[0::2] @ keys[1::2].T
    if not similarity.numel():
        none = torch.zeros(0, dtype=torch.int64, device=keys.device)
        return none, none
    nearest, partner = similarity.max(-1)
    closest = nearest.topk(min(count, len(nearest))).indices
    return 2 * closest, 2 * partner[closest] + 1
