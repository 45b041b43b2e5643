"""Compiles every kernel with every tile for every architecture, without a GPU, and writes kernels/resources.toml.

    .venv/bin/python tools/kernels.py            compile everything and write the table
    .venv/bin/python tools/kernels.py --check 90 compile for one architecture and compare with the table

A kernel is refused when it spills registers, needs more shared memory than a block can have, or multiplies matrices
without tensor cores. The table is committed, so that a change of registers or shared memory shows in a review. This
needs the package triton, whose wheel brings the assembler, and three minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from replan.kernels import accept, attention, geglu, project, qkv
from replan.kernels.launch import PLAIN, Tile, Tiles
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).parent.parent / "kernels" / "resources.toml"
ARCHITECTURES = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
"""Compute capability, and the most shared memory of a block in KiB (CUDA programming guide)."""
TENSOR_CORES = {80: "mma.sync", 89: "mma.sync", 90: "wgmma", 100: "tcgen05.mma", 120: "mma.sync"}
"""The instruction that multiplies matrices there."""
FLOATS = {"scale", "delta"}
"""Arguments that are floating-point numbers, in kernels where they are numbers."""
STRIDES = tuple(
    f"{whose}_{what}_{which}" for whose in ("prefix", "own") for what in ("key", "value") for which in ("branch", "row")
)
ALIGNED = {
    *(
        "width",
        "hidden",
        "inner",
        "columns",
        "dim",
        "half",
        "neuron_count",
        "scale_stride",
        "bias_stride",
        "gate_stride",
    ),
    *("weight_row", "weight_column", "key_branch", "key_row", "value_branch", "value_row"),
    *STRIDES,
}
"""Numbers that are multiples of 16 at full size, of which Triton makes wide loads."""


class Variant(NamedTuple):
    """A kernel with the constants that it is launched with.

    Attributes:
        name: In the table.
        tile: Block sizes.
        kernel: The jitted function.
        pointers: Types of what its pointers point to; those without one hold activations.
        numbers: Arguments that are numbers.
        constants: Compile-time arguments, but for those of the tile.
        unit: Numbers that are 1 at every launch.
        multiplies: Whether it multiplies matrices.
    """

    name: str
    tile: Tile
    kernel: Any
    pointers: dict[str, str]
    numbers: tuple[str, ...]
    constants: dict[str, Any]
    unit: tuple[str, ...] = ()
    multiplies: bool = True


def variants() -> Iterator[Variant]:
    """Yields the kernels as pi0, pi0.5 and the methods launch them at full size, in bfloat16, with every tile."""
    table = {"scale": "fp32", "bias": "fp32", "rows": "i64", "neurons": "i64"}
    numbers = ("length", "count", "neuron_count", "hidden", "width", "scale_stride", "bias_stride")
    for name, tiles, flags in (
        ("geglu, all neurons of a step", geglu.STEP, "NORM BIAS"),
        ("geglu, chosen neurons of a step", geglu.CHOSEN, "NEURONS"),
        ("geglu, chosen rows of the prefix", geglu.PREFIX, "ROWS"),
    ):
        constants = {**_flags("NORM BIAS ROWS NEURONS", flags), "EPSILON": 1e-6}
        yield from _tiled(tiles, name, geglu._geglu, table, numbers, constants)
    table = {"neurons": "i64", "rows": "i64", "partials": "fp32", "arrived": "i32"}
    numbers = ("count", "length", "height", "columns", "inner", "weight_row", "weight_column", "gate_stride")
    for name, tiles, flags, unit in (
        ("project, all neurons of a step", project.STEP, "RESIDUAL GATE", ("weight_row",)),
        ("project, an anchor's change", project.STEP, "NEURONS ANCHOR", ("weight_column",)),
        ("project, chosen rows of the prefix", project.PREFIX, "ROWS", ("weight_row",)),
    ):
        constants = {**_flags("NEURONS ANCHOR RESIDUAL GATE ROWS", flags), "SPLIT": tiles[0].split}
        yield from _tiled(tiles, name, project._project, table, numbers, constants, unit)
    yield from _tiled(
        qkv.STEP,
        "qkv",
        qkv._qkv,
        {"scale": "fp32", "bias": "fp32"},
        (
            "length",
            "width",
            "half",
            "scale_stride",
            "bias_stride",
            "key_branch",
            "key_row",
            "value_branch",
            "value_row",
        ),
        {"HEADS": 8, "NORM": True, "BIAS": True, "EPSILON": 1e-6},
    )
    parts = attention.STEP[0].split
    yield from _tiled(
        attention.STEP,
        "attention, parts",
        attention._split,
        {"mask": "i1", "sums": "fp32", "logs": "fp32"},
        ("rows", "past", "new", "dim", "scale", *STRIDES, "mask_branch"),
        {"MASK": False, "SPLIT": parts, "D": 256},
    )
    yield from _tiled(
        PLAIN,
        "attention, combined",
        attention._combine,
        {"sums": "fp32", "logs": "fp32"},
        ("rows", "dim"),
        {"PARTS": parts + 1, "P": triton.next_power_of_2(parts + 1), "D": 256},
        multiplies=False,
    )
    yield from _tiled(
        PLAIN,
        "accept",
        accept._accept,
        {**dict.fromkeys(accept._accept.arg_names, "fp32"), "continuous": "i1", "gripper": "i1"},
        ("branches", "horizon", "width", "window", "delta"),
        {"H": 64, "A": 32},
        multiplies=False,
    )


def _tiled(tiles: Tiles, name: str, *about: Any, **others: Any) -> Iterator[Variant]:
    """Yields a variant per tile."""
    for tile in tiles:
        sizes = " x ".join(map(str, tile.constants().values()))
        label = f"{name}: {sizes}, {tile.warps} warps, {tile.stages} stages" if sizes else name
        yield Variant(label, tile, *about, **others)


def _flags(every: str, chosen: str) -> dict[str, bool]:
    return {flag: flag in chosen.split() for flag in every.split()}


def compiled(variant: Variant, architecture: int) -> dict[str, Any]:
    """Returns what a kernel takes on an architecture.

    Raises:
        SystemExit: It spills, does not fit, or multiplies without tensor cores.
    """
    names = variant.kernel.arg_names
    constants = {**variant.constants, **variant.tile.constants(), **dict.fromkeys(variant.unit, 1)}
    signature, attributes = {}, {}
    for place, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in variant.numbers:
            signature[name] = "fp32" if name in FLOATS else "i32"
            if name in ALIGNED:
                attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = f"*{variant.pointers.get(name, 'bf16')}"
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(variant.kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": variant.tile.warps, "num_stages": variant.tile.stages}
    done = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, spilled = _registers(done.asm["cubin"])
    shared, ptx = done.metadata.shared, done.asm["ptx"]
    tensor_cores = TENSOR_CORES[architecture] if TENSOR_CORES[architecture] in ptx else ""
    where = f"{variant.name!r} on sm_{architecture}"
    if spilled:
        raise SystemExit(f"{where} spills {spilled} bytes per thread: its tile is too large")
    if shared > ARCHITECTURES[architecture] * 1024:
        raise SystemExit(f"{where} needs {shared} bytes of shared memory, of {ARCHITECTURES[architecture]} KiB")
    if variant.multiplies and not tensor_cores:
        raise SystemExit(f"{where} multiplies without {TENSOR_CORES[architecture]}")
    return {"registers": registers, "shared": shared, "tensor_cores": tensor_cores, "wide_loads": _wide_loads(ptx)}


def _registers(cubin: bytes) -> tuple[int, int]:
    """Returns registers per thread and bytes of the stack, where spilled ones go."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", text.stdout + text.stderr)
    if found is None:
        raise SystemExit(f"cuobjdump says nothing of registers: {text.stdout}{text.stderr}")
    return int(found[1]), int(found[2])


def _wide_loads(ptx: str) -> int:
    """Returns the number of copies of 16 bytes that go to shared memory without waiting."""
    return len(re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*, 0x10", ptx))


def table(architectures: list[int]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns what every kernel takes on every architecture."""
    return {each.name: {f"sm_{arch}": compiled(each, arch) for arch in architectures} for each in variants()}


def write(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Writes the table."""
    lines = [
        "# Written by `make kernels`: what each kernel takes, compiled without a GPU. Registers are per thread, shared",
        "# memory is in bytes per block; wide loads are copies of 16 bytes to it that do not wait. No kernel spills.",
        "# Of several tiles the first launch of a size chooses the fastest.",
        f'triton = "{triton.__version__}"',
    ]
    for name, each in found.items():
        lines += ["", f'["{name}"]']
        for arch, takes in each.items():
            lines.append(f"{arch} = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in takes.items())} }}")
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", type=int, choices=sorted(ARCHITECTURES), help="compare one with the table")
    chosen = parser.parse_args().check
    if chosen is None:
        write(table(list(ARCHITECTURES)))
        return
    known = tomllib.loads(TABLE.read_text())
    if known.pop("triton") != triton.__version__:
        raise SystemExit(f"the table is of another triton than {triton.__version__}; write it with `make kernels`")
    arch = f"sm_{chosen}"
    wrong = [
        f"{name}: {takes[arch]}, in the table {known.get(name, {}).get(arch)}"
        for name, takes in table([chosen]).items()
        if takes[arch] != known.get(name, {}).get(arch)
    ]
    if wrong:
        raise SystemExit("kernels/resources.toml is out of date; write it with `make kernels`:\n" + "\n".join(wrong))


if __name__ == "__main__":
    sys.exit(main())
