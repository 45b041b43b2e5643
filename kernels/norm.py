"""A scaled RMS norm, folded into the matrix product that reads it.

With ``r = rsqrt(mean(x^2) + epsilon)``, ``(x * r * scale + shift) @ W.T`` is ``r * ((x * scale) @ W.T) + shift @ W.T``.
So the kernel of the product scales its input as it loads it, sums the squares on the way, and multiplies by r at the
end: no kernel of its own, and no normed x in memory. Scale and ``shift @ W.T`` depend on nothing but weights and, in
pi0.5, the flow time, so that they are tables.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .launch import require

EPSILON = 1e-6  # Gemma's


class FoldedNorm(NamedTuple):
    """A norm as the product behind it needs it.

    Attributes:
        scale: [1 or B, D] float32 factors of the normed input: 1 + weight in Gemma.
        bias: [1 or B, N] float32, what the shift adds to the outputs of the product; None where nothing is shifted.
    """

    scale: Tensor
    bias: Tensor | None = None

    @staticmethod
    def of(scale: Tensor, shift: Tensor | None, weight: Tensor) -> FoldedNorm:
        """Folds a shift into the product.

        Args:
            scale: [1 or B, D] factors.
            shift: [1 or B, D] what is added to the scaled input, or None.
            weight: [N, D] of the product.
        """
        bias = None if shift is None else F.linear(shift, weight).float().contiguous()
        return FoldedNorm(scale.float().contiguous(), bias)

    def require(self, x: Tensor, outputs: int) -> None:
        """Refuses tables that do not fit x [B, T, D] and a product of so many outputs."""
        for name, table, width in (("scale", self.scale, x.shape[-1]), ("bias", self.bias, outputs)):
            if table is not None:
                batch = 1 if len(table) == 1 else len(x)
                require(f"the norm's {name}", table, (batch, width), x, (torch.float32,))

    def strides(self) -> tuple[int, int]:
        """Returns how far the tables of one branch are from those of the next: 0 where all share one."""
        scale, bias = self.scale, self.bias
        return (0 if len(scale) == 1 else scale.shape[1]), (0 if bias is None or len(bias) == 1 else bias.shape[1])


def product(x: Tensor, weight: Tensor, norm: FoldedNorm | None) -> Tensor:
    """Reference: the normed x [B, T, D] times weight [N, D] -> [B, T, N]."""
    if norm is None:
        return F.linear(x, weight)
    normed = F.rms_norm(x, x.shape[-1:], None, EPSILON) * norm.scale[:, None].to(x.dtype)
    out = F.linear(normed, weight)
    return out if norm.bias is None else out + norm.bias[:, None].to(x.dtype)


@triton.jit
def products(
    x_at,
    scale_at,
    a_at,
    b_at,
    m_in,
    n_in,
    k,
    width,
    NORM: tl.constexpr,
    EPSILON: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Returns the products [M, N] of a normed tile of x with two blocks of weights, which share the loads of x.

    Args:
        x_at: [M, K] pointers to the first elements of the rows of x.
        scale_at: [K] pointers to the first factors of the norm.
        a_at: [K, N] pointers to the first elements of the weights' rows.
        b_at: Like ``a_at``.
        m_in: [M] which rows exist.
        n_in: [N] which columns exist.
        k: [K] offsets of the pointers from the first element.
        width: Elements of a row of x.
        NORM: Whether x is normed here.
        EPSILON: The norm's.
        M: Rows.
        N: Columns.
        K: Elements per iteration.
    """
    a = tl.zeros((M, N), tl.float32)
    b = tl.zeros((M, N), tl.float32)
    squares = tl.zeros((M,), tl.float32)
    for start in range(0, width, K):
        k_in = start + k < width
        part = tl.load(x_at + start, mask=m_in[:, None] & k_in[None, :], other=0.0)
        if NORM:
            wide = part.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            part = (wide * tl.load(scale_at + start, mask=k_in, other=0.0)[None, :]).to(part.dtype)
        w_in = k_in[:, None] & n_in[None, :]
        a = tl.dot(part, tl.load(a_at + start, mask=w_in, other=0.0), a, input_precision="ieee")
        b = tl.dot(part, tl.load(b_at + start, mask=w_in, other=0.0), b, input_precision="ieee")
    if NORM:
        r = tl.rsqrt(squares / width + EPSILON)[:, None]
        a, b = a * r, b * r
    return a, b
