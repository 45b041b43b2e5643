"""Which rows of a prefix to compute anew: scores of visual tokens, and the choice by a share of them."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-6  # keeps the movement of a zero vector to another finite; rMuscle has the same one


def movement(now: Tensor, reference: Tensor) -> Tensor:
    """Returns [P] how far vectors [P, D] have moved, relative to their size: WAM-Cache's surprise (section 4.2)."""
    size = 0.5 * (now.norm(dim=-1) + reference.norm(dim=-1))
    return (now - reference).norm(dim=-1) / (size + _LEAST)


def drift(now: Tensor, reference: Tensor) -> Tensor:
    """Returns [P] the RMS by which vectors [P, D] differ from others, relative to theirs: rMuscle's equation 2."""
    size = now.square().mean(-1).sqrt().clamp_min(_LEAST)
    return (now - reference).square().mean(-1).sqrt() / size


def attention_mass(q: Tensor, k: Tensor, first: int) -> Tensor:
    """Returns [first] the attention that the first keys receive, averaged over heads and queries.

    Args:
        q: [1, R, heads, head_dim].
        k: [1, S, heads, head_dim], or [1, S, head_dim] where all heads share one.
        first: Number of keys to report; the others take their part of the attention, too.
    """
    queries = q[0].transpose(0, 1).float()  # [heads, R, head_dim]
    keys = (k[0, :, None] if k.ndim == 3 else k[0]).permute(1, 2, 0).float()  # [heads or 1, head_dim, S]
    weights = (queries @ keys / q.shape[-1] ** 0.5).softmax(-1)
    return weights[..., :first].mean((0, 1))


def largest(scores: Tensor, share: float) -> Tensor:
    """Returns [P] bool, the share of rows with the largest scores: at least one, none for a share of 0."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    if share > 0:
        chosen[scores.topk(max(1, round(share * len(scores)))).indices] = True
    return chosen
