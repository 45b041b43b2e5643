"""A product back into the residual stream: an FFN's second half, and attention's output.

One kernel computes ``residual + gate * (anchor + (h - anchor_hidden) @ weight[neurons])`` with any of its parts left
out: Action Cache's update of an anchor by chosen neurons, which reads their outgoing weights where they lie; the gated
residual of pi0.5; and the splice of chosen rows into outputs that are known (Context Cache).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import COMPUTED, FEW, INDICES, KernelError, Tile, Tiles, blocks, require, run

STEP = Tile(64, 64, 64, warps=4, stages=4, split=8), Tile(64, 32, 64, warps=4, stages=4, split=8)
"""For few rows: 16 tiles of 64 columns would leave most of an H200's 132 multiprocessors idle, so 8
programs share the sum of each."""
PREFIX = Tile(128, 64, 64, warps=8, stages=3), Tile(128, 128, 64, warps=8, stages=3)
"""For many rows, whose tiles are enough programs."""


class Anchor(NamedTuple):
    """An FFN's earlier activation and output, which a product changes.

    Attributes:
        hidden: [B, T, K] the activation of the neurons that the product reads.
        out: [B, T, N] the output.
    """

    hidden: Tensor
    out: Tensor


def reference(
    h: Tensor,
    weight: Tensor,
    neurons: Tensor | None = None,
    anchor: Anchor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """What :func:`project` computes, in torch, in the precision of h; ``out`` and ``rows`` are an ``index_copy_``."""
    weight = (weight if neurons is None else weight[neurons]).to(h.dtype)
    out = h @ weight if anchor is None else anchor.out + (h - anchor.hidden) @ weight
    out = out if gate is None else gate[:, None].to(h.dtype) * out
    return out if residual is None else residual + out


class Scratch(NamedTuple):
    """Memory in which programs that share a sum meet. Launches on one stream may share it; others must not.

    Attributes:
        partials: [n] float32.
        arrived: [n] int32 zeros, which every launch leaves as it found them.
    """

    partials: Tensor
    arrived: Tensor

    @staticmethod
    def of(rows: int, columns: int, device: torch.device, tiles: Tiles | None = None) -> Scratch:
        """Returns enough for outputs of so many rows and columns."""
        sums, programs = _needed(rows, columns, tiles or _tiles(rows))
        return Scratch(
            torch.empty(sums, dtype=torch.float32, device=device),
            torch.zeros(programs, dtype=torch.int32, device=device),
        )


def project(
    h: Tensor,
    weight: Tensor,
    neurons: Tensor | None = None,
    anchor: Anchor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    rows: Tensor | None = None,
    out: Tensor | None = None,
    scratch: Scratch | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """Returns the product [B, T, N], added to what it changes.

    Programs that share a sum add their parts in one order, so that equal inputs give equal bits.

    Args:
        h: [B, T, K] activation.
        weight: [F, N] a neuron's outgoing weights in a row; where all neurons are read, also a transposed [N, F].
        neurons: [K] int32 or int64 neurons that h has; None is all F. Not checked: that would wait for the device.
        anchor: An earlier activation and output, which are changed by the difference; None computes the product alone.
        residual: [B, T, N] to be added; None is nothing.
        gate: [1 or B, N] factors of all but the residual; None is 1.
        rows: [T] int32 or int64 rows of ``out`` to write, each at most once; None is all. Not checked either.
        out: [B, R, N] to write into, which no other argument is; None makes one.
        scratch: Memory of an earlier launch on this stream; None makes its own.
        tiles: Block sizes to choose among; None goes by the number of rows.

    Raises:
        KernelError: A tensor does not fit, ``rows`` is given without ``out``, or ``out`` is what is added to it.
    """
    batch, length, inner = h.shape
    total, columns = weight.shape
    require("h", h, (batch, length, inner), h, COMPUTED)
    wide = weight.stride(1) != 1 and neurons is None
    require("weight", weight.T if wide else weight, (columns, total) if wide else (total, columns), h, contiguous=False)
    if neurons is None and inner != total:
        raise KernelError(f"h has {inner} activations and weight {total} rows; name the neurons that h has")
    for name, index, size in (("neurons", neurons, inner), ("rows", rows, length)):
        if index is not None:
            require(name, index, (size,), h, INDICES)
    if anchor is not None:
        require("anchor.hidden", anchor.hidden, (batch, length, inner), h)
        require("anchor.out", anchor.out, (batch, length, columns), h)
    if residual is not None:
        require("residual", residual, (batch, length, columns), h)
    if gate is not None:
        require("gate", gate, (1 if len(gate) == 1 else batch, columns), h)
    if rows is not None and out is None:
        raise KernelError("rows says where in out to write, so out must be given")
    height = length if rows is None or out is None else out.shape[1]
    out = h.new_empty(batch, length, columns) if out is None else out
    require("out", out, (batch, height, columns), h)
    added = residual, None if anchor is None else anchor.out
    if any(each is not None and each.data_ptr() == out.data_ptr() for each in added) and out.numel():
        raise KernelError("out must not be what is added to it: a launch may run twice, to be timed")
    if not out.numel() or not length:
        return out
    tiles = tiles or _tiles(batch * length)
    split = min(tiles[0].split, blocks(inner, tiles[0].k))  # no part without a summand
    if split > 1:
        scratch = scratch or Scratch.of(batch * length, columns, h.device, tiles)
        _check(scratch, batch * length, columns, tiles)
    run(
        _project,
        lambda at: (blocks(batch * length, at["M"]), blocks(columns, at["N"]), split),
        tiles,
        h,
        h if anchor is None else anchor.hidden,
        weight,
        h if neurons is None else neurons,
        h if anchor is None else anchor.out,
        h if residual is None else residual,
        h if gate is None else gate,
        h if rows is None else rows,
        out,
        h if scratch is None else scratch.partials,
        h if scratch is None else scratch.arrived,
        batch * length,
        length,
        height,
        columns,
        inner,
        weight.stride(0),
        weight.stride(1),
        0 if gate is None or len(gate) == 1 else columns,
        NEURONS=neurons is not None,
        ANCHOR=anchor is not None,
        RESIDUAL=residual is not None,
        GATE=gate is not None,
        ROWS=rows is not None,
        SPLIT=split,
    )
    return out


def _tiles(rows: int) -> Tiles:
    """Returns the block sizes for a number of rows."""
    return STEP if rows <= FEW else PREFIX


def _needed(rows: int, columns: int, tiles: Tiles) -> tuple[int, int]:
    """Returns how many partial sums, of how many tiles of the output, a launch may have."""
    return tiles[0].split * rows * columns, max(blocks(rows, tile.m) * blocks(columns, tile.n) for tile in tiles)


def _check(scratch: Scratch, rows: int, columns: int, tiles: Tiles) -> None:
    """Raises KernelError where the programs of a launch would meet outside of the scratch."""
    sums, programs = _needed(rows, columns, tiles)
    if scratch.partials.numel() < sums or scratch.arrived.numel() < programs:
        raise KernelError(
            f"scratch has room for {scratch.partials.numel()} partial sums of {scratch.arrived.numel()} tiles, but "
            f"{sums} of {programs} are needed; make it with Scratch.of({rows}, {columns}, ...)"
        )


@triton.jit
def _project(
    h,
    anchor_hidden,
    weight,
    neurons,
    anchor_out,
    residual,
    gate,
    rows,
    out,
    partials,
    arrived,
    count,
    length,
    height,
    columns,
    inner,
    weight_row,
    weight_column,
    gate_stride,
    NEURONS: tl.constexpr,
    ANCHOR: tl.constexpr,
    RESIDUAL: tl.constexpr,
    GATE: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    part = tl.program_id(2)
    m_in, n_in = m < count, n < columns
    share = tl.cdiv(tl.cdiv(inner, K), SPLIT) * K
    first = part * share
    last = tl.minimum(first + share, inner)
    total = tl.zeros((M, N), tl.float32)
    for start in range(first, last, K):
        k = start + tl.arange(0, K)
        k_in = k < last
        h_at = m[:, None] * inner + k[None, :]
        h_in = m_in[:, None] & k_in[None, :]
        a = tl.load(h + h_at, mask=h_in, other=0.0)
        if ANCHOR:
            before = tl.load(anchor_hidden + h_at, mask=h_in, other=0.0)
            a = (a.to(tl.float32) - before.to(tl.float32)).to(a.dtype)
        if NEURONS:
            row = tl.load(neurons + k, mask=k_in, other=0).to(tl.int32)
        else:
            row = k
        w_at = weight + row[:, None] * weight_row + n[None, :] * weight_column
        w = tl.load(w_at, mask=k_in[:, None] & n_in[None, :], other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    at = m[:, None] * columns + n[None, :]
    inside = m_in[:, None] & n_in[None, :]
    if SPLIT > 1:
        # Every program leaves its part; the last one to arrive adds all of them, in their order, and goes on alone.
        tl.store(partials + part * count * columns + at, total, mask=inside)
        tl.debug_barrier()  # all threads have stored before one of them says so
        counter = arrived + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") < SPLIT - 1:
            return
        tl.store(counter, 0)
        total = tl.zeros((M, N), tl.float32)
        for other in range(SPLIT):
            # Written by other multiprocessors: past the L1 cache, which does not know.
            other_at = partials + other * count * columns + at
            total += tl.load(other_at, mask=inside, other=0.0, cache_modifier=".cg")
    if ANCHOR:
        total += tl.load(anchor_out + at, mask=inside, other=0.0).to(tl.float32)
    if GATE:
        gate_at = gate + (m // length)[:, None] * gate_stride + n[None, :]
        total *= tl.load(gate_at, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if ROWS:
        row_out = (m // length) * height + tl.load(rows + m % length, mask=m_in, other=0).to(tl.int32)
    else:
        row_out = m
    tl.store(out + row_out[:, None] * columns + n[None, :], total.to(out.dtype.element_ty), mask=inside)
