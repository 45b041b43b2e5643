"""Wan's transformer blocks: what Fast-WAM's video and action branches are made of.

A block is modulated by the flow time, attends to keys and values that the caller chooses, and to a text. The residual
stream may be narrower than the attention (Fast-WAM's action branch).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Ops
from .neurons import NeuronFFN
from .norms import rms_norm

Rope = tuple[Tensor, Tensor]
"""Cosine and sine [T, 1, head_dim / 2] of the rotary angles."""

_BASE = 10_000.0  # of rotary angles and of the time embedding


class ScaledRMSNorm(nn.Module):
    """An RMS norm, computed in float32, whose weight is the scale itself (Gemma's is one less)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        return rms_norm(x).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Projections of a self-attention (queries, keys and values of x) or cross-attention (keys, values of a text).

    Args:
        width: Width of the residual stream.
        inner: Width of all heads together.
        heads: Heads.
        cross: Whether keys and values come from another sequence.
    """

    def __init__(self, width: int, inner: int, heads: int, cross: bool) -> None:
        super().__init__()
        self.heads, self.inner = heads, inner
        if cross:
            self.q, self.kv = nn.Linear(width, inner), nn.Linear(width, 2 * inner)
        else:
            self.qkv = nn.Linear(width, 3 * inner)
        self.q_norm, self.k_norm = ScaledRMSNorm(inner), ScaledRMSNorm(inner)
        self.out = nn.Linear(inner, width)

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries and keys, and values, each [B, T, heads, head_dim]."""
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = (self._heads(norm(each)) for norm, each in ((self.q_norm, q), (self.k_norm, k)))
        return rotate(q, rope), rotate(k, rope), self._heads(v)

    def project_keys(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Returns only the rotated keys and the values."""
        k, v = F.linear(x, self.qkv.weight[self.inner :], self.qkv.bias[self.inner :]).chunk(2, -1)
        return rotate(self._heads(self.k_norm(k)), rope), self._heads(v)

    def keys_values(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values [B, T, heads, head_dim] of a text [B, T, width]; they do not depend on a step."""
        k, v = self.kv(text).chunk(2, -1)
        return self._heads(self.k_norm(k)), self._heads(v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the output [B, T, width] of queries that see all keys; all are [B, T or S, heads, head_dim]."""
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(mixed.transpose(1, 2).flatten(2))

    def cross(self, x: Tensor, text: tuple[Tensor, Tensor]) -> Tensor:
        """Returns what [B, T, width] takes from a text, given its keys and values."""
        return self.attend(self._heads(self.q_norm(self.q(x))), *text)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))


class FFN(NeuronFFN):
    """Two matrices around a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def incoming(self, neurons: Tensor) -> tuple[Tensor, ...]:
        """Returns what ``hidden`` needs of the weights to compute these neurons [K] alone, contiguous."""
        return self.up.weight[neurons], self.up.bias[neurons]

    def hidden(self, x: Tensor, incoming: tuple[Tensor, ...] | None = None) -> Tensor:
        """Returns the activation [.., hidden], or [.., K] of the neurons of ``incoming``."""
        return F.gelu(F.linear(x, *(incoming or (self.up.weight, self.up.bias))), approximate="tanh")


class WanBlock(nn.Module):
    """A block. Its six modulations are shift, scale and gate of the self-attention, then of the FFN.

    Args:
        width: Width of the residual stream.
        inner: Width of all heads together.
        heads: Heads.
        mlp: Neurons of the FFN.
    """

    def __init__(self, width: int, inner: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.self_attention = Attention(width, inner, heads, cross=False)
        self.text_norm = nn.LayerNorm(width, eps=1e-6)
        self.text_attention = Attention(width, inner, heads, cross=True)
        self.ffn = FFN(width, mlp)
        self.modulation = nn.Parameter(torch.zeros(1, 6, width))

    def modulations(self, table: Tensor) -> tuple[Tensor, ...]:
        """Returns shift, factor, gate, shift, factor, gate, each [B, 1, width], of a flow time's table [B, 6, width].

        A factor is one more than the scale that the table has.
        """
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = (self.modulation + table)[:, :, None].unbind(1)
        return shift, 1 + scale, gate, ffn_shift, 1 + ffn_scale, ffn_gate

    def project(self, x: Tensor, rope: Rope, modulations: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values [B, T, heads, head_dim] of the self-attention."""
        return self.self_attention.project(_modulate(x, *modulations[:2]), rope)

    def project_keys(self, x: Tensor, rope: Rope, modulations: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Returns only the keys and values of the self-attention."""
        return self.self_attention.project_keys(_modulate(x, *modulations[:2]), rope)

    def finish(
        self,
        ops: Ops,
        layer: int,
        x: Tensor,
        attention: tuple[Tensor, Tensor, Tensor],
        text: tuple[Tensor, Tensor],
        modulations: tuple[Tensor, ...],
        rows: Tensor | None,
    ) -> Tensor:
        """Returns the block's output [B, R, width] at the computed rows.

        Args:
            ops: Answers at this layer.
            layer: Its number.
            x: [B, R, width] the input at these rows.
            attention: Their queries, and the keys and values that they see.
            text: Keys and values of the text.
            modulations: See ``modulations``.
            rows: [R] the computed rows, None for all.
        """
        gate, shift, factor, ffn_gate = modulations[2:]
        ops.attended(layer, attention[0], attention[1])
        x = torch.addcmul(x, gate, self.self_attention.attend(*attention))
        x = x + self.text_attention.cross(self.text_norm(x), text)
        return torch.addcmul(x, ffn_gate, ops.ffn(layer, _modulate(x, shift, factor), self.ffn, rows))


def _modulate(x: Tensor, shift: Tensor, factor: Tensor) -> Tensor:
    return torch.addcmul(shift, F.layer_norm(x.float(), (x.shape[-1],), eps=1e-6).to(x.dtype), factor)


def rope_frequencies(head_dim: int) -> tuple[int, int, int]:
    """Returns how many of the head_dim / 2 rotary angles tell the frame, the row and the column of a video's token."""
    spatial = head_dim // 6
    return head_dim // 2 - 2 * spatial, spatial, spatial


def rope_1d(length: int, angles: int, device: torch.device) -> Tensor:
    """Returns angles [length, angles] of positions 0, 1, ...; float64, as Wan computes them."""
    positions = torch.arange(length, device=device, dtype=torch.float64)
    exponent = torch.arange(angles, device=device, dtype=torch.float64) / angles
    return positions[:, None] * _BASE**-exponent


def rope_image(height: int, width: int, head_dim: int, device: torch.device) -> Tensor:
    """Returns angles [height * width, head_dim / 2] of the tokens of a video's first frame, row by row."""
    time, rows, columns = rope_frequencies(head_dim)
    first = torch.zeros(height, width, time, device=device, dtype=torch.float64)
    by_row = rope_1d(height, rows, device)[:, None].expand(-1, width, -1)
    by_column = rope_1d(width, columns, device)[None].expand(height, -1, -1)
    return torch.cat([first, by_row, by_column], -1).flatten(0, 1)


def rope(angles: Tensor, dtype: torch.dtype) -> Rope:
    """Returns cosines and sines of angles [T, head_dim / 2]."""
    return angles.cos()[:, None].to(dtype), angles.sin()[:, None].to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates [B, T, heads, head_dim], neighbours being the pairs."""
    cos, sin = rope
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def time_features(time: Tensor, width: int, units: float = 1000.0, base: float = _BASE) -> Tensor:
    """Returns [B, width] cosines and sines of a flow time in [0, 1].

    Args:
        time: [B].
        width: Cosines and sines together.
        units: What a time of 1 is counted as; Wan counts in thousandths.
        base: Ratio of the highest frequency to the one that would follow the lowest.
    """
    half = width // 2
    frequency = base ** -(torch.arange(half, device=time.device, dtype=torch.float64) / half)
    angle = (time.float() * units).double()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1).float()
