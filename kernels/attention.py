"""Attention of few queries with one key-value head: the keys are split among programs, and a second kernel combines.

50 actions times 8 heads are 400 rows, which fill only 7 programs of 64: too few to read 1000 keys in a microsecond.
With the prefix in 16 parts they are over a hundred. The prefix may be shared by all branches of a batch (FLASH verifies
K points against one context) without a copy; the branches' own keys are one more part.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .launch import COMPUTED, PLAIN, KernelError, Tile, Tiles, blocks, require, run

STEP = Tile(64, 32, 0, warps=8, stages=2, split=16), Tile(64, 32, 0, warps=8, stages=1, split=16)
"""64 queries by 32 keys of 256. 64 keys in two stages exceed the 99 KiB of shared memory of sm_89 and sm_120; 32
queries are too few for the tensor cores of sm_90 and sm_100; with 4 warps sm_80, sm_89 and sm_120 spill registers."""


def reference(
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    mask: Tensor | None = None,
) -> Tensor:
    """What :func:`attention` computes, in torch and in the precision of q."""
    k, v = (torch.cat([old, new], 1).unsqueeze(1) for old, new in zip(prefix, own, strict=True))
    seen = None if mask is None else F.pad(mask, (0, own[0].shape[1]), value=True)[:, None, None, :]
    weights = q.transpose(1, 2) @ k.mT * q.shape[-1] ** -0.5
    if seen is not None:
        weights = weights.masked_fill(~seen, float("-inf"))
    return (weights.softmax(-1) @ v).transpose(1, 2)


def attention(
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    mask: Tensor | None = None,
    tiles: Tiles = STEP,
) -> Tensor:
    """Returns what queries make of all keys of the prefix and of their branch, [B, T, heads, head_dim].

    Args:
        q: [B, T, heads, head_dim].
        prefix: Keys and values [B, S, head_dim]; expanded views are read in place.
        own: Keys and values [B, U, head_dim] of each branch, at least one.
        mask: [B, S] bool, False for keys of the prefix that nobody sees; None where all are seen.
        tiles: Block sizes to choose among: rows are queries times heads, columns are keys, which are equal as parts of
            a sum are, and ``split`` the parts of the prefix.

    Raises:
        KernelError: A tensor does not fit.
    """
    batch, length, heads, dim = q.shape
    past, new = prefix[0].shape[1], own[0].shape[1]
    require("q", q, (batch, length, heads, dim), q, COMPUTED)
    for name, tensor, size in (("prefix keys", prefix[0], past), ("prefix values", prefix[1], past)):
        require(name, tensor, (batch, size, dim), q, contiguous=False)
    for name, tensor in (("own keys", own[0]), ("own values", own[1])):
        require(name, tensor, (batch, new, dim), q, contiguous=False)
    if not new:
        raise KernelError("every query must see a key of its own, and own has none")
    if mask is not None:
        require("mask", mask, (batch, past), q, (torch.bool,), contiguous=False)
    split = max(1, min(tiles[0].split, blocks(past, tiles[0].n)))  # no part without a key
    rows, parts = length * heads, split + 1
    out = torch.empty_like(q)
    if not out.numel():
        return out
    sums = q.new_empty(parts, batch * rows, dim, dtype=torch.float32)
    logs = q.new_empty(parts, batch * rows, dtype=torch.float32)
    width = triton.next_power_of_2(dim)
    run(
        _split,
        lambda at: (blocks(rows, at["M"]), parts, batch),
        tiles,
        q,
        *prefix,
        *own,
        q if mask is None else mask,
        sums,
        logs,
        rows,
        past,
        new,
        dim,
        dim**-0.5 * 1.4426950408889634,  # exp2 is what the hardware has
        *(stride for each in (*prefix, *own) for stride in each.stride()[:2]),
        0 if mask is None else mask.stride(0),
        MASK=mask is not None,
        SPLIT=split,
        D=width,
    )
    run(
        _combine,
        lambda at: (batch * rows, 1, 1),
        PLAIN,
        sums,
        logs,
        out,
        batch * rows,
        dim,
        PARTS=parts,
        P=triton.next_power_of_2(parts),
        D=width,
    )
    return out


@triton.jit
def _split(
    q,
    prefix_keys,
    prefix_values,
    own_keys,
    own_values,
    mask,
    sums,
    logs,
    rows,
    past,
    new,
    dim,
    scale,
    prefix_key_branch,
    prefix_key_row,
    prefix_value_branch,
    prefix_value_row,
    own_key_branch,
    own_key_row,
    own_value_branch,
    own_value_row,
    mask_branch,
    MASK: tl.constexpr,
    SPLIT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    m = tl.program_id(0) * M + tl.arange(0, M)
    part = tl.program_id(1)
    branch = tl.program_id(2)
    d = tl.arange(0, D)
    m_in, d_in = m < rows, d < dim
    row = branch * rows + m
    query_in = m_in[:, None] & d_in[None, :]
    query = tl.load(q + row[:, None] * dim + d[None, :], mask=query_in, other=0.0)
    if part < SPLIT:
        share = tl.cdiv(tl.cdiv(past, SPLIT), N) * N
        first = part * share
        last = tl.minimum(first + share, past)
        keys, key_row = prefix_keys + branch * prefix_key_branch, prefix_key_row
        values, value_row = prefix_values + branch * prefix_value_branch, prefix_value_row
    else:
        first = 0
        last = new
        keys, key_row = own_keys + branch * own_key_branch, own_key_row
        values, value_row = own_values + branch * own_value_branch, own_value_row
    highest = tl.full((M,), float("-inf"), tl.float32)
    weight = tl.zeros((M,), tl.float32)
    total = tl.zeros((M, D), tl.float32)
    for start in range(first, last, N):
        n = start + tl.arange(0, N)
        n_in = n < last
        k = tl.load(keys + n[None, :] * key_row + d[:, None], mask=n_in[None, :] & d_in[:, None], other=0.0)
        seen = n_in
        if MASK:
            visible = tl.load(mask + branch * mask_branch + n, mask=n_in & (part < SPLIT), other=1)
            seen = n_in & (visible != 0)
        score = tl.where(seen[None, :], tl.dot(query, k, input_precision="ieee") * scale, float("-inf"))
        now = tl.maximum(highest, tl.max(score, 1))
        base = tl.where(now == float("-inf"), 0.0, now)  # nothing seen so far
        fade = tl.exp2(highest - base)
        p = tl.exp2(score - base[:, None])
        weight = weight * fade + tl.sum(p, 1)
        v = tl.load(values + n[:, None] * value_row + d[None, :], mask=n_in[:, None] & d_in[None, :], other=0.0)
        total = tl.dot(p.to(v.dtype), v, total * fade[:, None], input_precision="ieee")
        highest = now
    some = tl.where(weight > 0, weight, 1.0)
    at = part * tl.num_programs(2) * rows + row
    tl.store(sums + at[:, None] * dim + d[None, :], total / some[:, None], mask=query_in)
    tl.store(logs + at, tl.where(weight > 0, highest + tl.log2(some), float("-inf")), mask=m_in)


@triton.jit
def _combine(sums, logs, out, rows, dim, PARTS: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, D)
    part = tl.arange(0, P)
    part_in, d_in = part < PARTS, d < dim
    log = tl.load(logs + part * rows + row, mask=part_in, other=float("-inf"))
    share = tl.exp2(log - tl.max(log, 0))
    share = share / tl.sum(share, 0)
    at = sums + (part * rows + row)[:, None] * dim + d[None, :]
    each = tl.load(at, mask=part_in[:, None] & d_in[None, :], other=0.0)
    tl.store(out + row * dim + d, tl.sum(each * share[:, None], 0).to(out.dtype.element_ty), mask=d_in)
