"""What every launch has in common: where kernels can run, how large a program's tile is, and the checks of tensors."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs

COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""Precisions of activations and weights. Sums are float32 in all of them."""
INDICES = (torch.int32, torch.int64)


class KernelError(ValueError):
    """A tensor that a kernel would read or write wrongly."""


class Tile(NamedTuple):
    """What one program computes, and how.

    Attributes:
        m: Rows of the output, at least 16: a tensor core takes no fewer.
        n: Columns of the output, at least 16.
        k: Elements of the sum per iteration, at least 16.
        warps: Warps of a program.
        stages: Iterations whose loads are in flight at once.
        split: Programs that share the sum of one output tile, where it is long enough.
    """

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 3
    split: int = 1


FEW = 256
"""Up to so many rows a product waits for the bytes of its weights rather than for arithmetic: an H200 does 184
operations per byte, an RTX 4090 165."""
PLAIN = Tile(0, 0, 0)
"""Of a kernel without blocks to choose: four warps."""


def blocks(size: int, block: int) -> int:
    """Returns how many blocks cover a size."""
    return -(-size // block)


def runs_on(device: torch.device) -> bool:
    """Whether kernels can run there: on CUDA, and anywhere under Triton's interpreter."""
    return device.type == "cuda" or bool(knobs.runtime.interpret)


def run(kernel: Any, grid: tuple[int, ...], tile: Tile, *arguments: Any, **constants: Any) -> None:
    """Launches a kernel on the device of its first argument, a tensor."""
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, **constants, num_warps=tile.warps, num_stages=tile.stages)


def require(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    like: Tensor,
    dtypes: Collection[torch.dtype] = (),
    contiguous: bool = True,
) -> None:
    """Refuses what a kernel would read or write wrongly.

    Args:
        name: What the caller calls the tensor.
        tensor: The tensor.
        shape: The shape it must have.
        like: A tensor on whose device it must be.
        dtypes: Its possible precisions; none given is that of ``like``.
        contiguous: Whether it must be contiguous; otherwise only its last dimension must be.

    Raises:
        KernelError: It has another shape, precision, device or layout, or more elements than 32-bit offsets reach.
    """
    dtypes = dtypes or (like.dtype,)
    if tuple(tensor.shape) != shape:
        raise KernelError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        raise KernelError(f"{name} must be {' or '.join(map(str, dtypes))}, got {tensor.dtype}")
    if tensor.device != like.device or not runs_on(tensor.device):
        raise KernelError(f"{name} is on {tensor.device}; all tensors of a kernel must be on one CUDA device")
    if not (tensor.is_contiguous() if contiguous else tensor.stride(-1) == 1):
        which = "contiguous" if contiguous else "contiguous in its last dimension"
        raise KernelError(f"{name} must be {which}, got strides {list(tensor.stride())} for shape {list(shape)}")
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size)
    if reach >= 2**31:
        raise KernelError(f"{name} spans {reach} elements; kernels reach 2**31 - 1, so pass it in parts")
