"""Gemma's gated activation: norm, both products, gate, for chosen rows and chosen neurons.

The action expert's 50 rows are bound by the bytes of the weights, so that choosing half of the neurons halves the time:
their rows of the weight are read where they lie, 2 KB each, and nothing is packed before. The prefix's rows are bound
by arithmetic, so that choosing rows pays (Context Cache, WAM-Cache); there the gate as an epilogue saves a pass over
[rows, 2 * neurons].
"""

from __future__ import annotations

import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .launch import COMPUTED, FEW, INDICES, Tile, Tiles, blocks, require, run
from .norm import EPSILON, FoldedNorm, product, products

STEP = (
    Tile(64, 32, 128, warps=4, stages=3),
    Tile(64, 16, 128, warps=4, stages=3),
    Tile(64, 32, 128, warps=8, stages=3),
)
"""For few rows: with 32, 4096 neurons make 128 programs, about one for each multiprocessor of an H200 (132), and each
has 32 KB of weights in flight: what 33 GB/s and a microsecond of latency ask for."""
CHOSEN = Tile(64, 16, 128, warps=4, stages=3), Tile(64, 32, 128, warps=4, stages=3)
"""For half of these neurons: with 16 there are still 128 programs to read with."""
PREFIX = Tile(128, 64, 32, warps=4, stages=4), Tile(128, 64, 32, warps=8, stages=4)
"""For many rows: 128 x 128 with two accumulators spills registers on sm_80, sm_89 and sm_120."""


def reference(
    x: Tensor,
    weight: Tensor,
    norm: FoldedNorm | None = None,
    rows: Tensor | None = None,
    neurons: Tensor | None = None,
) -> Tensor:
    """What :func:`geglu` computes, in torch and in the precision of x."""
    both = product(x if rows is None else x[:, rows], weight, norm).unflatten(-1, (2, -1))
    gate, up = (both if neurons is None else both[..., neurons]).unbind(-2)
    return F.gelu(gate, approximate="tanh") * up


def geglu(
    x: Tensor,
    weight: Tensor,
    norm: FoldedNorm | None = None,
    rows: Tensor | None = None,
    neurons: Tensor | None = None,
    tiles: Tiles | None = None,
) -> Tensor:
    """Returns the post-gate activation [B, R, K] of rows and neurons of a gated FFN.

    Args:
        x: [B, T, D].
        weight: [2 * H, D] the gate's rows, then those of up; as in ``GeGLU.gate_up``.
        norm: The norm of x in front; None if x is normed.
        rows: [R] int32 or int64 rows of x to compute; None is all. Not checked, since that would wait for the device.
        neurons: [K] int32 or int64 neurons to compute; None is all. Not checked either.
        tiles: Block sizes to choose among; None goes by the number of rows and neurons.

    Raises:
        KernelError: A tensor does not fit.
    """
    batch, length, width = x.shape
    hidden = weight.shape[0] // 2
    require("x", x, (batch, length, width), x, COMPUTED)
    require("weight", weight, (2 * hidden, width), x)
    for name, index in (("rows", rows), ("neurons", neurons)):
        if index is not None:
            require(name, index, (index.numel(),), x, INDICES)
    if norm is not None:
        norm.require(x, 2 * hidden)
    count, neuron_count = (length if rows is None else len(rows)), (hidden if neurons is None else len(neurons))
    out = x.new_empty(batch, count, neuron_count)
    if not out.numel():
        return out
    if tiles is None:
        tiles = PREFIX if batch * count > FEW else STEP if neurons is None else CHOSEN
    scale, bias = (x, x) if norm is None else (norm.scale, x if norm.bias is None else norm.bias)
    scale_stride, bias_stride = (0, 0) if norm is None else norm.strides()
    run(
        _geglu,
        lambda at: (blocks(count, at["M"]), blocks(neuron_count, at["N"]), batch),
        tiles,
        x,
        scale,
        bias,
        x if rows is None else rows,
        x if neurons is None else neurons,
        weight,
        out,
        length,
        count,
        neuron_count,
        hidden,
        width,
        scale_stride,
        bias_stride,
        NORM=norm is not None,
        BIAS=norm is not None and norm.bias is not None,
        ROWS=rows is not None,
        NEURONS=neurons is not None,
        EPSILON=EPSILON,
    )
    return out


@triton.jit
def gelu_tanh(x):
    """Gemma's activation; tanh(u) is 2 * sigmoid(2u) - 1, which needs no library of the vendor's."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _geglu(
    x,
    scale,
    bias,
    rows,
    neurons,
    weight,
    out,
    length,
    count,
    neuron_count,
    hidden,
    width,
    scale_stride,
    bias_stride,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    NEURONS: tl.constexpr,
    EPSILON: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    # Rows vary fastest: programs that run together share a tile of the weights, and x fits the L2 cache whole.
    m = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    branch = tl.program_id(2)
    k = tl.arange(0, K)
    m_in, n_in = m < count, n < neuron_count
    if ROWS:
        row = tl.load(rows + m, mask=m_in, other=0).to(tl.int32)
    else:
        row = m
    if NEURONS:
        neuron = tl.load(neurons + n, mask=n_in, other=0).to(tl.int32)
    else:
        neuron = n
    x_at = x + (branch * length + row)[:, None] * width + k[None, :]
    gate_at = weight + neuron[None, :] * width + k[:, None]
    up_at = gate_at + hidden * width
    scale_at = scale + branch * scale_stride + k
    gate, up = products(x_at, scale_at, gate_at, up_at, m_in, n_in, k, width, NORM, EPSILON, M, N, K)  # pyright: ignore
    if BIAS:
        bias_at = bias + branch * bias_stride + neuron
        gate += tl.load(bias_at, mask=n_in, other=0.0)[None, :]
        up += tl.load(bias_at + hidden, mask=n_in, other=0.0)[None, :]
    out_at = out + (branch * count + m)[:, None] * neuron_count + n[None, :]
    tl.store(out_at, (gelu_tanh(gate) * up).to(out.dtype.element_ty), mask=m_in[:, None] & n_in[None, :])
