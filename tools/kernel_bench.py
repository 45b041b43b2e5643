"""Times every kernel against PyTorch on a GPU, at the sizes of pi0.5, and says how far from the roofline each is.

    .venv/bin/python tools/kernel_bench.py          on a CUDA device: three to five minutes, most of it compilation
    .venv/bin/python tools/kernel_bench.py --list   the work of each, without a device

A variant is a CUDA graph of 18 layers with weights of their own, which together exceed the L2 cache. The graphs of a
kernel, of PyTorch (cuBLAS) and of torch.compile are replayed in turn, so that all see the same clock frequency; the
numbers are medians per layer. The floor is the larger of operations and bytes over what this device reached in this run
with a large matrix product and a copy. Bytes count weights, inputs and outputs once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from replan.kernels import accept, attention, geglu, project, qkv
from replan.kernels.decision import Channels, decide
from replan.kernels.norm import FoldedNorm
from torch import Tensor

LAYERS, WARM_UPS, REPLAYS = 18, 20, 100
ROWS, PREFIX, CHOSEN = 50, 968, 507
"""Actions; tokens of three images and a prompt; those that Context Cache computes: 40 % of 768, and the prompt."""
WIDE, MLP, VLM, VLM_MLP, HEADS, HEAD = 1024, 4096, 2048, 16384, 8, 256


class Case(NamedTuple):
    """One kernel at one size.

    Attributes:
        name: As in kernels/resources.toml.
        make: Makes the tensors of one layer on a device.
        ours: The kernel, on these tensors.
        theirs: The same in PyTorch.
        operations: Multiplications and additions.
        size: Bytes that must be read or written.
    """

    name: str
    make: Callable[[Callable[..., Tensor]], tuple[Any, ...]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operations: int
    size: int


def cases() -> Iterator[Case]:
    """Yields the kernels as pi0.5 and the methods use them. ``new`` of a case samples a bfloat16 tensor."""

    def norm(new: Callable[..., Tensor], outputs: int) -> FoldedNorm:
        return FoldedNorm(new(1, WIDE).float(), new(1, outputs).float())

    def some(new: Callable[..., Tensor], count: int, of: int) -> Tensor:
        return new(of).argsort()[:count].sort().values

    def scratch(new: Callable[..., Tensor]) -> project.Scratch:
        return project.Scratch.of(ROWS, WIDE, new(1).device)

    half = MLP // 2
    yield Case(
        "geglu, all neurons of a step",
        lambda new: (new(1, ROWS, WIDE), new(2 * MLP, WIDE), norm(new, 2 * MLP)),
        geglu.geglu,
        geglu.reference,
        2 * ROWS * 2 * MLP * WIDE,
        2 * (2 * MLP * WIDE + ROWS * (WIDE + MLP)),
    )
    yield Case(
        "geglu, chosen neurons of a step",
        lambda new: _packed(new(1, ROWS, WIDE), new(2 * MLP, WIDE), some(new, half, MLP)),
        lambda x, weight, packed, neurons: geglu.geglu(x, weight, neurons=neurons),
        lambda x, weight, packed, neurons: geglu.reference(x, packed),  # packed before: once per group of steps
        2 * ROWS * 2 * half * WIDE,
        2 * (2 * half * WIDE + ROWS * (WIDE + half)),
    )
    yield Case(
        "geglu, chosen rows of the prefix",
        lambda new: (new(1, PREFIX, VLM), new(2 * VLM_MLP, VLM), some(new, CHOSEN, PREFIX)),
        lambda x, weight, rows: geglu.geglu(x, weight, rows=rows),
        lambda x, weight, rows: geglu.reference(x, weight, rows=rows),
        2 * CHOSEN * 2 * VLM_MLP * VLM,
        2 * (2 * VLM_MLP * VLM + CHOSEN * (VLM + VLM_MLP)),
    )
    yield Case(
        "project, all neurons of a step",
        lambda new: (new(1, ROWS, MLP), new(WIDE, MLP), new(1, ROWS, WIDE), new(1, WIDE), scratch(new)),
        lambda h, w, residual, gate, scratch: project.project(h, w.T, residual=residual, gate=gate, scratch=scratch),
        lambda h, w, residual, gate, scratch: residual + gate[:, None] * F.linear(h, w),
        2 * ROWS * MLP * WIDE,
        2 * (MLP * WIDE + ROWS * (MLP + 2 * WIDE)),
    )
    yield Case(
        "project, an anchor's change",
        lambda new: (
            new(1, ROWS, half),
            new(MLP, WIDE),
            some(new, half, MLP),
            project.Anchor(new(1, ROWS, half), new(1, ROWS, WIDE)),
            new(half, WIDE),
            scratch(new),
        ),
        lambda h, weight, neurons, anchor, packed, scratch: project.project(
            h, weight, neurons, anchor, scratch=scratch
        ),
        lambda h, weight, neurons, anchor, packed, scratch: project.reference(h, packed, None, anchor),
        2 * ROWS * half * WIDE,
        2 * (half * WIDE + ROWS * 2 * (half + WIDE)),
    )
    yield Case(
        "project, chosen rows of the prefix",
        lambda new: (new(1, CHOSEN, VLM_MLP), new(VLM, VLM_MLP), some(new, CHOSEN, PREFIX), new(1, PREFIX, VLM)),
        lambda h, weight, rows, out: project.project(h, weight.T, rows=rows, out=out),
        lambda h, weight, rows, out: out.index_copy_(1, rows, F.linear(h, weight)),
        2 * CHOSEN * VLM_MLP * VLM,
        2 * (VLM_MLP * VLM + CHOSEN * (VLM_MLP + VLM)),
    )
    outputs = (HEADS + 2) * HEAD
    yield Case(
        "qkv",
        lambda new: (
            new(1, ROWS, WIDE),
            new(outputs, WIDE),
            norm(new, outputs),
            (new(1, ROWS, 1, HEAD // 2), new(1, ROWS, 1, HEAD // 2)),
        ),
        lambda x, weight, norm, rope: qkv.qkv(x, weight, norm, rope, qkv.Rotated.of(x, HEADS, HEAD)),
        lambda x, weight, norm, rope: qkv.reference(x, weight, norm, rope, HEADS),
        2 * ROWS * outputs * WIDE,
        2 * (outputs * WIDE + ROWS * (WIDE + outputs + HEAD)),
    )
    yield Case(
        "attention",
        lambda new: (
            new(1, ROWS, HEADS, HEAD),
            (new(1, PREFIX, HEAD), new(1, PREFIX, HEAD)),
            (new(1, ROWS, HEAD), new(1, ROWS, HEAD)),
        ),
        attention.attention,
        _sdpa,
        4 * ROWS * HEADS * (PREFIX + ROWS) * HEAD,
        2 * 2 * (PREFIX + ROWS + ROWS * HEADS) * HEAD,
    )
    yield Case(
        "accept",
        lambda new: (
            *(new(*shape).float() for shape in ((2, ROWS, 32), (2, ROWS, 32), (2,), (1, ROWS, 32))),
            Channels(new(32) > -9, new(32) > 1),
            new(32).float(),
            10,
            0.15,
        ),
        accept.accept,
        decide,
        0,
        4 * (2 * 3 + 1) * ROWS * 32,
    )


def _packed(x: Tensor, weight: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    both = weight.unflatten(0, (2, -1)).index_select(1, neurons).flatten(0, 1)
    return x, weight, both, neurons


def _sdpa(q: Tensor, prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor]) -> Tensor:
    """PyTorch's attention as the model calls it: heads folded into rows."""
    k, v = (torch.cat(each, 1).unsqueeze(1) for each in zip(prefix, own, strict=True))
    folded = q.transpose(1, 2).flatten(1, 2).unsqueeze(1)
    return F.scaled_dot_product_attention(folded, k, v)


def captured(function: Callable[..., Any], layers: list[tuple[Any, ...]]) -> torch.cuda.CUDAGraph:
    """Returns a graph that calls a function with the tensors of one layer after the other."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and fills the allocator
        for given in layers[:2]:
            function(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for given in layers:
            function(*given)
    return graph


def medians(graphs: list[Callable[[], Any]], calls: int) -> list[float]:
    """Returns the median microseconds per call of functions that are run in turn."""
    taken: list[list[float]] = [[] for _ in graphs]
    for replay in range(WARM_UPS + REPLAYS):
        for graph, times in zip(graphs, taken, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            start.record()
            graph()
            end.record()
            end.synchronize()
            if replay >= WARM_UPS:
                times.append(start.elapsed_time(end) * 1e3 / calls)
    return [statistics.median(times) for times in taken]


def reached() -> tuple[float, float]:
    """Returns operations and bytes per microsecond that the device reaches."""
    size = 8192
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    source, target = torch.empty(2, 2**29, dtype=torch.uint8, device="cuda")
    product, copy = medians([lambda: a @ a, lambda: target.copy_(source)], 1)
    return 2 * size**3 / product, 2 * 2**29 / copy


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print operations and bytes, and run nothing")
    if parser.parse_args().list:
        for case in cases():
            print(f"{case.name:36} {case.operations / 1e9:8.2f} GFLOP {case.size / 1e6:8.2f} MB")
        return
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device to time on; --list needs none")
    operations, size = reached()
    print(f"{torch.cuda.get_device_name()}: {operations / 1e6:.0f} TFLOP/s, {size / 1e6:.2f} TB/s; us per layer")
    print(f"{'':36} {'kernel':>8} {'PyTorch':>8} {'compiled':>8} {'floor':>8} {'of floor':>8}")
    generator = torch.Generator("cuda").manual_seed(0)
    for case in cases():

        def new(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, device="cuda", dtype=torch.bfloat16)

        layers = [case.make(new) for _ in range(LAYERS)]
        variants = case.ours, case.theirs, torch.compile(case.theirs, dynamic=False)
        with torch.inference_mode():
            times = medians([captured(each, layers).replay for each in variants], LAYERS)
        floor = max(case.operations / operations, case.size / size)
        print(f"{case.name:36} " + " ".join(f"{each:8.2f}" for each in (*times, floor)) + f" {floor / times[0]:8.0%}")
        del layers
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
