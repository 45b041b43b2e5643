"""What every launch has in common: where kernels can run, how large a program's tile is, and the checks of tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
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

    def constants(self) -> dict[str, int]:
        """Returns the compile-time arguments of a kernel, by name."""
        return {name: size for name, size in (("M", self.m), ("N", self.n), ("K", self.k)) if size}


Tiles = tuple[Tile, ...]
"""Block sizes among which the first launch of a size chooses the fastest on a GPU. Their ``k`` and ``split`` are equal:
these say in which order a sum is added, so that the choice, which takes a clock, changes no bit of a result."""

FEW = 256
"""Up to so many rows a product waits for the bytes of its weights rather than for arithmetic: an H200 does 184
operations per byte, an RTX 4090 165."""
PLAIN = (Tile(0, 0, 0),)
"""Of a kernel without blocks to choose: four warps."""
_MODELS = ("width", "hidden", "inner", "columns", "half", "dim")
"""Sizes of a kernel's arguments that a model has, for each of which a choice is made. Numbers of rows are not among
them: prompts differ in length from round to round, and timing again would cost more than it gains."""


def blocks(size: int, block: int) -> int:
    """Returns how many blocks cover a size."""
    return -(-size // block)


def runs_on(device: torch.device) -> bool:
    """Whether kernels can run there: on CUDA, and anywhere under Triton's interpreter."""
    return device.type == "cuda" or bool(knobs.runtime.interpret)


Grid = Callable[[Mapping[str, int]], tuple[int, ...]]
"""Numbers of programs, given compile-time arguments, those of the tile among them."""


def run(kernel: Any, grid: Grid, tiles: Tiles, *arguments: Any, **constants: Any) -> None:
    """Launches a kernel on the device of its first argument, a tensor, with the fastest of some tiles.

    It must give the same result when it runs twice, since it does in order to be timed.
    """
    with torch.cuda.device_of(arguments[0]):
        if len(tiles) > 1 and not knobs.runtime.interpret:
            tuned(kernel, tiles, tuple(constants))[grid](*arguments, **constants)
        else:
            tile = next(iter(tiles))
            given = {**constants, **tile.constants()}
            kernel[grid](*arguments, **given, num_warps=tile.warps, num_stages=tile.stages)


@cache
def tuned(kernel: Any, tiles: Tiles, constants: tuple[str, ...]) -> Any:
    """Returns a kernel that times tiles at its first launch of a size and keeps the times in Triton's cache on disk.

    Args:
        kernel: The jitted function.
        tiles: The choices.
        constants: Names of its other compile-time arguments, for each of which a choice is made too.
    """
    choices = [
        triton.Config(dict[str, Any](tile.constants()), num_warps=tile.warps, num_stages=tile.stages) for tile in tiles
    ]
    return triton.autotune(choices, key=[*_MODELS, *constants], cache_results=True)(kernel)


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
