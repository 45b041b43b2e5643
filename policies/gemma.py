"""Gemma layers: the modules that PaliGemma, pi0's expert and FLASH's draft are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Ops

Rope = tuple[Tensor, Tensor]
"""Cosine and sine [B, T, 1, head_dim / 2] of the rotary angles."""


class RMSNorm(nn.Module):
    """Gemma's norm: scales by 1 + weight, in float32."""

    def __init__(self, width: int) -> None:
        """Starts as the plain norm."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        wide = F.rms_norm(x.float(), (x.shape[-1],), 1.0 + self.weight.float(), 1e-6)  # Gemma's epsilon
        return wide.to(x.dtype)


class GeGLU(nn.Module):
    """Gemma's gated FFN; gate and up are one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        """``hidden`` is the number of neurons."""
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def hidden(self, x: Tensor) -> Tensor:
        """Returns the post-gate activation [.., hidden]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return F.gelu(gate, approximate="tanh") * up

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., width]."""
        return self.down(self.hidden(x))


class GemmaLayer(nn.Module):
    """One decoder layer with a single key-value head. The caller decides which rows see which.

    Args:
        width: Width of the residual stream.
        mlp: Neurons of the FFN.
        heads: Query heads.
        head_dim: Width of a head.
    """

    def __init__(self, width: int, mlp: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.ffn = GeGLU(width, mlp)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries [B, T, heads, head_dim], rotated keys and values [B, T, head_dim]."""
        q, k, v = self.qkv(self.attention_norm(x)).split([self.heads * self.head_dim, self.head_dim, self.head_dim], -1)
        q = q.unflatten(-1, (self.heads, self.head_dim))
        return rotate(q, rope), rotate(k.unsqueeze(2), rope).squeeze(2), v

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Returns only the rotated keys and the values, each [B, T, head_dim]."""
        weight = self.qkv.weight[self.heads * self.head_dim :]
        k, v = F.linear(self.attention_norm(x), weight).chunk(2, -1)
        return rotate(k.unsqueeze(2), rope).squeeze(2), v

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Adds the attention output; ``mask`` is [B, T or 1, S] bool."""
        batch, length, heads, dim = q.shape
        # One key-value head: fold the query heads into rows, so no key is copied.
        q = q.transpose(1, 2).reshape(batch, 1, heads * length, dim)
        if mask is not None:
            mask = (mask if mask.shape[1] == 1 else mask.repeat(1, heads, 1)).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1), attn_mask=mask)
        return x + self.out(mixed.view(batch, heads, length, dim).transpose(1, 2).flatten(2))


def choose(ops: Ops, layer: int, x: Tensor, rope: Rope) -> tuple[Tensor | None, Tensor, Rope]:
    """Returns the rows that a layer computes, and x and the rotary angles at these rows.

    Args:
        ops: Who chooses.
        layer: Index of the layer.
        x: [B, T, D] input of the layer.
        rope: Angles of all T rows.
    """
    rows = ops.rows(layer, x)
    if rows is None:
        return None, x, rope
    return rows, x[:, rows], (rope[0][:, rows], rope[1][:, rows])


def finish(
    ops: Ops,
    number: int,
    layer: GemmaLayer,
    x: Tensor,
    computed: Tensor,
    rows: Tensor | None,
    attention: tuple[Tensor, Tensor, Tensor, Tensor | None],
) -> Tensor:
    """Returns the layer's output [B, T, D]: attention and FFN of the computed rows, put back among the others.

    Args:
        ops: Answers at this layer.
        number: Index of the layer.
        layer: The layer.
        x: [B, T, D] its input.
        computed: [B, R, D] its input at the computed rows.
        rows: [R] the computed rows, None for all.
        attention: Queries of the computed rows, keys and values that they see, and their mask, as in ``attend``.
    """
    q, k, v, mask = attention
    ops.attended(number, q, k)
    computed = layer.attend(computed, q, k, v, mask)
    computed = computed + ops.ffn(number, layer.ffn_norm(computed), layer.ffn, rows)
    return computed if rows is None else ops.scatter(number, x, computed, rows)


def rope_table(positions: Tensor, head_dim: int, dtype: torch.dtype) -> Rope:
    """Returns cosine and sine [B, T, 1, head_dim / 2] of rotary angles with Gemma's base, 10000."""
    frequency = 10_000.0 ** (-torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32) * 2 / head_dim)
    angle = positions[..., None].float() * frequency
    return angle.cos()[:, :, None].to(dtype), angle.sin()[:, :, None].to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates [B, T, heads, head_dim], the halves of a head being the pairs."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
