"""Qwen3's decoder layers: causal, with grouped keys and values, and norms on the queries and keys of each head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gemma import GeGLU, Rope, rotate
from .model import Ops
from .wan import ScaledRMSNorm

BASE = 1_000_000.0
"""Base of the rotary angles."""


class SwiGLU(GeGLU):
    """Gemma's gated FFN with a SiLU for its gate."""

    def gated(self, gate: Tensor) -> Tensor:
        """[.., hidden] -> [.., hidden]."""
        return F.silu(gate)


class Qwen3Layer(nn.Module):
    """One decoder layer.

    Args:
        width: Width of the residual stream.
        mlp: Neurons of the FFN.
        heads: Query heads.
        kv_heads: Key and value heads; each serves ``heads / kv_heads`` query heads that follow each other.
        head_dim: Width of a head.
    """

    def __init__(self, width: int, mlp: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.attention_norm, self.ffn_norm = ScaledRMSNorm(width), ScaledRMSNorm(width)
        self.q_norm, self.k_norm = ScaledRMSNorm(head_dim), ScaledRMSNorm(head_dim)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.ffn = SwiGLU(width, mlp)

    def forward(self, ops: Ops, number: int, x: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        """Returns the layer's output [B, T, width].

        Args:
            ops: Answers at this layer.
            number: Index of the layer.
            x: [B, T, width].
            rope: Cosine and sine [B, T, 1, head_dim], as ``rotate`` takes them.
            mask: [B, 1, T, T] bool, which rows see which columns; None is plainly causal.
        """
        q, k, v = self.project(x, rope)
        ops.attended(number, q, k)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + ops.ffn(number, self.ffn_norm(x), self.ffn, None)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries [B, T, heads, head_dim] and keys, and values [B, T, kv_heads, head_dim]."""
        each = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = each.split([self.heads, self.kv_heads, self.kv_heads], 2)
        return rotate(self.q_norm(q), rope), rotate(self.k_norm(k), rope), v


def causal(mask: Tensor) -> Tensor:
    """Returns [B, 1, T, T] which rows see which columns, of a mask [B, T] that is False at padding.

    Padding sees itself, so that no row is without a column: nothing reads such rows, and their softmax stays finite.
    """
    length = mask.shape[1]
    earlier = torch.ones((length, length), dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((earlier & mask[:, None]) | itself)[:, None]
