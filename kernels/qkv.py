"""Norm, query, key and value products and rotation in one pass that writes keys and values where attention reads them.

In a layer step of the action expert this is 1 to 6 us of memory traffic, so that each launch saved (norm, rotation, two
copies into a cache) counts as much as the bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import COMPUTED, Tile, Tiles, blocks, require, run
from .norm import EPSILON, FoldedNorm, product, products

STEP = Tile(64, 16, 64, warps=4, stages=4), Tile(64, 32, 64, warps=4, stages=4)
"""Columns are pairs of a head's halves: 16 of them make 80 programs of pi0.5's 10 heads. A sum cannot be shared among
programs without a second pass, since the rotation mixes outputs."""


class Rotated(NamedTuple):
    """Where the outputs go.

    Attributes:
        q: [B, T, heads, head_dim] contiguous.
        k: [B, T, head_dim], such as rows of a cache.
        v: Like k.
    """

    q: Tensor
    k: Tensor
    v: Tensor

    @staticmethod
    def of(x: Tensor, heads: int, head_dim: int) -> Rotated:
        """Returns new tensors for x [B, T, D]."""
        batch, length, _ = x.shape
        return Rotated(
            x.new_empty(batch, length, heads, head_dim),
            x.new_empty(batch, length, head_dim),
            x.new_empty(batch, length, head_dim),
        )


def reference(
    x: Tensor, weight: Tensor, norm: FoldedNorm | None, rope: tuple[Tensor, Tensor], heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What :func:`qkv` computes, in torch and in the precision of x."""
    out = product(x, weight, norm).unflatten(-1, (heads + 2, -1))
    cos, sin = (table.to(x.dtype) for table in rope)
    a, b = out[:, :, :-1].chunk(2, -1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return turned[:, :, :-1], turned[:, :, -1], out[:, :, -1]


def qkv(
    x: Tensor,
    weight: Tensor,
    norm: FoldedNorm | None,
    rope: tuple[Tensor, Tensor],
    into: Rotated,
    tiles: Tiles = STEP,
) -> Rotated:
    """Writes rotated queries, rotated keys and values of the normed x, and returns them.

    Args:
        x: [B, T, D].
        weight: [(heads + 2) * head_dim, D] queries head by head, then keys, then values; as in ``GemmaLayer.qkv``.
        norm: The norm in front; None if x is normed.
        rope: Cosine and sine [B, T, 1, head_dim / 2] in the precision of x.
        into: Where to write.
        tiles: Block sizes to choose among; their columns are pairs of outputs.

    Raises:
        KernelError: A tensor does not fit.
    """
    batch, length, width = x.shape
    heads, head_dim = into.q.shape[2:]
    require("x", x, (batch, length, width), x, COMPUTED)
    require("weight", weight, ((heads + 2) * head_dim, width), x)
    if norm is not None:
        norm.require(x, len(weight))
    for name, table in (("cosine", rope[0]), ("sine", rope[1])):
        require(name, table, (batch, length, 1, head_dim // 2), x)
    require("q", into.q, (batch, length, heads, head_dim), x)
    require("k", into.k, (batch, length, head_dim), x, contiguous=False)
    require("v", into.v, (batch, length, head_dim), x, contiguous=False)
    if not x.numel():
        return into
    scale, bias = (x, x) if norm is None else (norm.scale, x if norm.bias is None else norm.bias)
    scale_stride, bias_stride = (0, 0) if norm is None else norm.strides()
    run(
        _qkv,
        lambda at: (blocks(length, at["M"]), (heads + 2) * blocks(head_dim // 2, at["N"]), batch),
        tiles,
        x,
        scale,
        bias,
        *rope,
        weight,
        *into,
        length,
        width,
        head_dim // 2,
        scale_stride,
        bias_stride,
        *into.k.stride()[:2],
        *into.v.stride()[:2],
        HEADS=heads,
        NORM=norm is not None,
        BIAS=norm is not None and norm.bias is not None,
        EPSILON=EPSILON,
    )
    return into


@triton.jit
def _qkv(
    x,
    scale,
    bias,
    cosine,
    sine,
    weight,
    q,
    keys,
    values,
    length,
    width,
    half,
    scale_stride,
    bias_stride,
    key_branch,
    key_row,
    value_branch,
    value_row,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    EPSILON: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    m = tl.program_id(0) * M + tl.arange(0, M)
    tiles = tl.cdiv(half, N)
    head = tl.program_id(1) // tiles
    pair = tl.program_id(1) % tiles * N + tl.arange(0, N)
    branch = tl.program_id(2)
    k = tl.arange(0, K)
    m_in, pair_in = m < length, pair < half
    column = head * 2 * half + pair
    row = branch * length + m
    x_at = x + row[:, None] * width + k[None, :]
    a_at = weight + column[None, :] * width + k[:, None]
    b_at = a_at + half * width
    scale_at = scale + branch * scale_stride + k
    a, b = products(x_at, scale_at, a_at, b_at, m_in, pair_in, k, width, NORM, EPSILON, M, N, K)
    if BIAS:
        bias_at = bias + branch * bias_stride + column
        a += tl.load(bias_at, mask=pair_in, other=0.0)[None, :]
        b += tl.load(bias_at + half, mask=pair_in, other=0.0)[None, :]
    inside = m_in[:, None] & pair_in[None, :]
    # Queries and keys turn; values are as they are.
    turns = inside & (head <= HEADS)
    angle = row[:, None] * half + pair[None, :]
    cos = tl.load(cosine + angle, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sine + angle, mask=turns, other=0.0).to(tl.float32)
    first, second = a * cos - b * sin, b * cos + a * sin
    if head < HEADS:
        at = q + row[:, None] * (HEADS * 2 * half) + column[None, :]
    elif head == HEADS:
        at = keys + branch * key_branch + m[:, None] * key_row + pair[None, :]
    else:
        at = values + branch * value_branch + m[:, None] * value_row + pair[None, :]
    tl.store(at, first.to(q.dtype.element_ty), mask=inside)
    tl.store(at + half, second.to(q.dtype.element_ty), mask=inside)
