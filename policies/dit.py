"""The diffusion transformer of GR00T: blocks that are modulated by the flow time and attend in turn to others and to
themselves, and layers with weights per robot, which X-VLA has, too.
"""  # noqa: D205

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .wan import FFN


class Modulation(NamedTuple):
    """What a flow time makes of a norm, each [B or 1, 1, width]: the factor, which is one more than the scale."""

    factor: Tensor
    shift: Tensor


class DiTBlock(nn.Module):
    """Attention behind a modulated norm, then an FFN behind a plain one.

    Args:
        width: Width of the residual stream.
        heads: Attention heads, which divide the width.
        mlp: Neurons of the FFN.
        source: Width of what it attends to; None is a block that attends to its own input.
    """

    def __init__(self, width: int, heads: int, mlp: int, source: int | None) -> None:
        super().__init__()
        self.heads, self.width, self.crosses = heads, width, source is not None
        self.modulate = nn.Linear(width, 2 * width)
        if source is None:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.kv = nn.Linear(width, width), nn.Linear(source, 2 * width)
        self.out = nn.Linear(width, width)
        self.ffn = FFN(width, mlp)

    def modulation(self, condition: Tensor) -> Modulation:
        """[B, width] -> what it makes of this block's first norm."""
        scale, shift = self.modulate(condition)[:, None].chunk(2, -1)
        return Modulation(1 + scale, shift)

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values [B, S, heads, head_dim] of what a crossing block attends to, [B, S, source]."""
        k, v = self.kv(source).unflatten(-1, (2 * self.heads, -1)).chunk(2, 2)
        return k, v

    def project(self, normed: Tensor) -> tuple[Tensor, ...]:
        """Returns queries [B, T, heads, head_dim], and keys and values where the block attends to itself."""
        projected = self.q(normed) if self.crosses else self.qkv(normed)
        return projected.unflatten(-1, (-1, self.heads, self.width // self.heads)).unbind(2)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the attention output [B, T, width]; ``mask`` is [B, S] bool."""
        batch = len(q)
        k, v = (each.expand(batch, -1, -1, -1).transpose(1, 2) for each in (k, v))
        columns = None if mask is None else mask[:, None, None]
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=columns)
        return self.out(mixed.transpose(1, 2).flatten(2))


def norm(x: Tensor, by: Modulation | None = None, epsilon: float = 1e-5) -> Tensor:
    """Normalises the last dimension, without weights of its own, then scales and shifts."""
    wide = F.layer_norm(x.float(), (x.shape[-1],), eps=epsilon).to(x.dtype)
    return wide if by is None else torch.addcmul(by.shift, wide, by.factor)


class Chosen(NamedTuple):
    """A linear layer of the robots of a batch.

    Attributes:
        weight: [B or 1, in, out].
        bias: [B or 1, 1, out].
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[B, T, in] -> [B, T, out]."""
        return x @ self.weight + self.bias


class ByRobot(nn.Module):
    """A linear layer with weights for each robot, [in, out].

    Args:
        robots: How many.
        width: Width of the input.
        out: Width of the output.
    """

    def __init__(self, robots: int, width: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(robots, width, out)), nn.Parameter(torch.zeros(robots, out))

    def of(self, robots: Tensor) -> Chosen:
        """Returns the layer of the robots [B] int64 of a batch."""
        return Chosen(self.weight[robots], self.bias[robots][:, None])


def waves(time: Tensor, width: int, slowest_is_last: bool) -> tuple[Tensor, Tensor]:
    """Returns sines and cosines [B, width / 2] each of times [B], with frequencies that fall from 1.

    In float32, operation by operation as the public code has it: at times of several hundred the angles show rounding.

    Args:
        time: Counted in thousandths of the path.
        width: Sines and cosines together.
        slowest_is_last: Whether the last frequency is 1e-4 itself, or would be the next.
    """
    half = width // 2
    exponent = torch.arange(half, dtype=torch.float32, device=time.device) * -math.log(10_000.0)
    angle = time.float()[:, None] * (exponent / (half - slowest_is_last)).exp()
    return angle.sin(), angle.cos()
