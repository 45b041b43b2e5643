"""Gemma layers: the modules that PaliGemma, the experts of pi0 and pi0.5 and FLASH's draft are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .model import Ops
from .neurons import NeuronFFN
from .norms import rms_norm

Rope = tuple[Tensor, Tensor]
"""Cosine and sine [B, T, 1 or heads, head_dim] of the rotary angles; a head's first half has the sines negative."""


class RMSNorm(nn.Module):
    """Gemma's norm: scales by 1 + weight, in float32."""

    def __init__(self, width: int) -> None:
        """Starts as the plain norm."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        wide = rms_norm(x)
        return torch.addcmul(wide, wide, self.weight.float()).to(x.dtype)


class Modulation(NamedTuple):
    """What a condition makes of a norm and of the branch behind it, each [B or 1, 1, width]."""

    scale: Tensor
    shift: Tensor
    gate: Tensor


class AdaRMSNorm(nn.Module):
    """A norm whose scale, shift and gate depend on a condition (pi0.5: on the flow time).

    Args:
        width: Width of what is normalised, and of the condition.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def modulation(self, condition: Tensor) -> Modulation:
        """[B, width] -> what this norm does under the condition."""
        return Modulation(*self.dense(condition)[:, None].chunk(3, -1))

    def forward(self, x: Tensor, by: Modulation) -> Tensor:
        """Normalises the last dimension in float32, then scales and shifts."""
        wide = rms_norm(x)
        return torch.addcmul(wide + by.shift.float(), wide, by.scale.float()).to(x.dtype)


class GeGLU(NeuronFFN):
    """Gemma's gated FFN; gate and up are one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        """``hidden`` is the number of neurons."""
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def incoming(self, neurons: Tensor) -> tuple[Tensor, ...]:
        """Returns what ``hidden`` needs of the weights to compute these neurons [K] alone, contiguous."""
        return (self.gate_up.weight.unflatten(0, (2, -1)).index_select(1, neurons).flatten(0, 1),)

    def hidden(self, x: Tensor, incoming: tuple[Tensor, ...] | None = None) -> Tensor:
        """Returns the post-gate activation [.., hidden], or [.., K] of the neurons of ``incoming``."""
        gate, up = F.linear(x, *(incoming or (self.gate_up.weight,))).chunk(2, -1)
        return self.gated(gate) * up

    def gated(self, gate: Tensor) -> Tensor:
        """[.., hidden] -> [.., hidden]."""
        return F.gelu(gate, approximate="tanh")


class Parts(NamedTuple):
    """A layer for whoever computes it in another way.

    Attributes:
        layer: The weights.
        norms: Per norm, of attention and of the FFN: scale, and shift and gate of an adaptive one; each [.., width].
    """

    layer: GemmaLayer
    norms: tuple[tuple[Tensor, Tensor | None, Tensor | None], ...]


class GemmaLayer(nn.Module):
    """One decoder layer with a single key-value head. The caller decides which rows see which.

    Args:
        width: Width of the residual stream.
        mlp: Neurons of the FFN.
        heads: Query heads.
        head_dim: Width of a head.
        norm: Makes the two norms; a layer of :class:`AdaRMSNorm` is walked as :class:`ModulatedLayer`.
    """

    def __init__(
        self, width: int, mlp: int, heads: int, head_dim: int, norm: Callable[[int], nn.Module] = RMSNorm
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.attention_norm, self.ffn_norm = norm(width), norm(width)
        self.qkv = nn.Linear(width, (heads + 2) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.ffn = GeGLU(width, mlp)

    def parts(self) -> Parts:
        """Returns the weights and what the norms do."""
        weights = [cast("RMSNorm", norm).weight for norm in (self.attention_norm, self.ffn_norm)]
        return Parts(self, tuple((weight, None, None) for weight in weights))

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries [B, T, heads, head_dim], rotated keys and values [B, T, head_dim]."""
        return self.split(self.attention_norm(x), rope)

    def split(self, normed: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """As ``project``, of an input that is normalised already."""
        heads = self.qkv(normed).unflatten(-1, (self.heads + 2, self.head_dim))
        turned = rotate(heads[:, :, :-1], rope)
        return turned[:, :, :-1], turned[:, :, -1], heads[:, :, -1]

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """Returns only the rotated keys and the values, each [B, T, head_dim]."""
        weight = self.qkv.weight[self.heads * self.head_dim :]
        k, v = F.linear(self.attention_norm(x), weight).chunk(2, -1)
        return rotate(k.unsqueeze(2), rope).squeeze(2), v

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Adds the attention output; ``mask`` is [B, T or 1, S] bool."""
        return x + self.attention(q, k, v, mask)

    def add_ffn(self, x: Tensor, ffn: Callable[[Tensor], Tensor]) -> Tensor:
        """Adds the output of ``ffn`` for the normed x."""
        return x + ffn(self.ffn_norm(x))

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the attention output [B, T, width]; ``mask`` is [B, T or 1, S] bool."""
        batch, length, heads, dim = q.shape
        # One key-value head: fold the query heads into rows, so no key is copied, and the output lies as it is needed.
        q = q.reshape(batch, 1, length * heads, dim)
        if mask is not None:
            mask = (mask if mask.shape[1] == 1 else mask.repeat_interleave(heads, 1)).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1), attn_mask=mask)
        return self.out(mixed.reshape(batch, length, heads * dim))


class ModulatedLayer:
    """A layer of adaptive norms under one condition; a walk uses it as it uses a :class:`GemmaLayer`.

    Args:
        layer: The layer; its norms are :class:`AdaRMSNorm`.
        attention: What the condition makes of its attention.
        ffn: What the condition makes of its FFN.
    """

    def __init__(self, layer: GemmaLayer, attention: Modulation, ffn: Modulation) -> None:
        self.ffn, self._layer, self._by, self._by_ffn = layer.ffn, layer, attention, ffn

    def parts(self) -> Parts:
        """See :meth:`GemmaLayer.parts`."""
        return Parts(self._layer, (self._by, self._by_ffn))

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`GemmaLayer.project`."""
        return self._layer.split(self._layer.attention_norm(x, self._by), rope)

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """See :meth:`GemmaLayer.attend`; the output is gated."""
        return torch.addcmul(x, self._by.gate, self._layer.attention(q, k, v, mask))

    def add_ffn(self, x: Tensor, ffn: Callable[[Tensor], Tensor]) -> Tensor:
        """See :meth:`GemmaLayer.add_ffn`; the output is gated."""
        return torch.addcmul(x, self._by_ffn.gate, ffn(self._layer.ffn_norm(x, self._by_ffn)))


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
    layer: GemmaLayer | ModulatedLayer,
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
    computed = layer.add_ffn(computed, lambda normed: ops.ffn(number, normed, layer.ffn, rows))
    return computed if rows is None else ops.scatter(number, x, computed, rows)


def rotary(positions: Tensor, head_dim: int, dtype: torch.dtype, base: float = 10_000.0) -> Rope:
    """Returns the tables that ``rotate`` takes, [B, T, 1, head_dim], of positions [B, T]."""
    cos, sin = rope_table(positions, head_dim, dtype, base)
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


def rope_table(positions: Tensor, head_dim: int, dtype: torch.dtype, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine [B, T, 1, head_dim / 2] of rotary angles; the default base is Gemma's."""
    frequency = base ** (-torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32) * 2 / head_dim)
    angle = positions[..., None].float() * frequency
    return angle.cos()[:, :, None].to(dtype), angle.sin()[:, :, None].to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotates [B, T, heads, head_dim], the halves of a head being the pairs."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
