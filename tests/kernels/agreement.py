"""Kernels against their torch references in float64: run by test_kernels.py in a process of its own.

On the CPU, Triton's interpreter runs the kernels: TRITON_INTERPRET=1 pytest tests/kernels/agreement.py
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import bfloat16
import pytest
import torch
import triton
import triton.language as tl
from replan.kernels import accept, attention, geglu, norm, project, qkv
from replan.kernels.decision import Channels, decide
from replan.kernels.launch import KernelError, Tile
from replan.kernels.norm import FoldedNorm

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
MARGIN = 4096
if INTERPRETED:
    bfloat16.install()


class Samples:
    """Random tensors that lie in the middle of NaN, so that a read past an end shows."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = scale * torch.randn(*shape, generator=self.generator)
        around = torch.full((values.numel() + 2 * MARGIN,), float("nan"), dtype=dtype or self.dtype)
        around[MARGIN : MARGIN + values.numel()] = values.flatten()
        return around.to(DEVICE)[MARGIN : MARGIN + values.numel()].view(shape)

    def some(self, count: int, of: int) -> torch.Tensor:
        return torch.randperm(of, generator=self.generator)[:count].to(DEVICE)

    def norm(self, batch: int, width: int, weight: torch.Tensor) -> FoldedNorm:
        table = {"dtype": torch.float32}
        return FoldedNorm(self(batch, width, **table), self(batch, len(weight), **table))


class Whole(Samples):
    """Whole numbers, whose sums are exact: they don't depend on how a library of the interpreter adds."""

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return super().__call__(*shape, dtype=dtype).round_()


@pytest.fixture(autouse=True)
def outputs(monkeypatch):
    """Puts every output that a launch makes into the middle of sevens, which must still be there afterwards."""
    made: list[tuple[torch.Tensor, int]] = []

    def guarded(shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        size = torch.Size(shape).numel()
        around = torch.full((size + 2 * MARGIN,), 7.0, dtype=dtype or like.dtype, device=like.device)
        around[MARGIN : MARGIN + size] = float("nan")
        made.append((around, size))
        return around[MARGIN : MARGIN + size].view(shape)

    def new_empty(like: torch.Tensor, *shape: int, dtype: torch.dtype | None = None, **others) -> torch.Tensor:
        return plain(like, shape, dtype=dtype, **others) if others else guarded(shape, like, dtype)  # Triton's own

    plain = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    monkeypatch.setattr(torch, "empty_like", lambda like: guarded(tuple(like.shape), like, None))

    def check() -> None:
        for around, size in made:
            assert (around[:MARGIN] == 7).all() and (around[MARGIN + size :] == 7).all()

    return check


def agrees(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype], f"differs by {error}"


def wide(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


def check_geglu(
    module, dtype, length=19, width=72, hidden=40, rows=None, neurons=None, normed=True, batch=2, tile=None
):
    samples = Samples(dtype)
    x, weight = samples(batch, length, width), samples(2 * hidden, width, scale=width**-0.5)
    norm = samples.norm(batch, width, weight) if normed else None
    rows = None if rows is None else samples.some(rows, length)
    neurons = None if neurons is None else samples.some(neurons, hidden).int()
    found = module.geglu(x, weight, norm, rows, neurons, tile and (tile,))
    agrees(found, geglu.reference(*wide(x, weight), norm, rows, neurons), dtype)


def check_project(module, dtype, length=19, inner=40, columns=72, total=None, batch=2, tile=None, spliced=False):
    samples = Samples(dtype)
    neurons = None if total is None else samples.some(inner, total)
    h, weight = samples(batch, length, inner), samples(total or inner, columns, scale=inner**-0.5)
    if neurons is None and not spliced:
        weight = samples(columns, inner, scale=inner**-0.5).T  # as a linear layer holds it
    anchor = None if neurons is None else project.Anchor(samples(batch, length, inner), samples(batch, length, columns))
    residual, gate = (None, None) if spliced else (samples(batch, length, columns), samples(batch, columns))
    rows, out = None, None
    if spliced:
        rows, out = samples.some(length, 2 * length), samples(batch, 2 * length, columns)
    truth = project.Anchor(*wide(*anchor)) if anchor else None
    expected = project.reference(*wide(h, weight), neurons, truth, *wide(residual, gate))
    before = None if out is None else out.clone()
    tiles = tile and (tile,)
    scratch = module.Scratch.of(batch * length, columns, DEVICE, tiles) if tile and tile.split > 1 else None
    again = []
    for _ in range(2):  # the second launch finds the scratch as the first one left it
        found = module.project(h, weight, neurons, anchor, residual, gate, rows, out, scratch, tiles)
        agrees(found if rows is None else found[:, rows], expected, dtype)
        again.append(found.clone())
        assert scratch is None or not scratch.arrived.any()
    assert torch.equal(*again)
    if rows is not None:
        others = torch.ones(2 * length, dtype=torch.bool, device=DEVICE).index_fill(0, rows, False)
        assert torch.equal(found[:, others], before[:, others])


def check_qkv(module, dtype, length=19, width=72, heads=2, head_dim=24, batch=2, past=5, normed=True, tile=None):
    samples = Samples(dtype)
    x, weight = samples(batch, length, width), samples((heads + 2) * head_dim, width, scale=width**-0.5)
    norm = samples.norm(batch, width, weight) if normed else None
    rope = samples(batch, length, 1, head_dim // 2), samples(batch, length, 1, head_dim // 2)
    caches = [samples(batch, past + length, head_dim) for _ in "kv"]
    before = [cache.clone() for cache in caches]
    into = qkv.Rotated(samples(batch, length, heads, head_dim), *(cache[:, past:] for cache in caches))
    found = module.qkv(x, weight, norm, rope, into, *([(tile,)] if tile else []))
    for each, expected in zip(found, qkv.reference(*wide(x, weight), norm, rope, heads), strict=True):
        agrees(each, expected, dtype)
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache[:, :past], old[:, :past])


def check_attention(module, dtype, length=5, heads=2, dim=24, past=37, batch=2, shared=True, masked=True, tile=None):
    samples = Samples(dtype)
    q = samples(batch, length, heads, dim)
    prefix = [samples(1 if shared else batch, past, dim).expand(batch, -1, -1) for _ in "kv"]
    own = samples(batch, length, 2 * dim).chunk(2, -1)  # parts of one product, as a model has them
    mask = None
    if masked:  # all of the first part too: a block of which nothing is seen
        mask = torch.rand(batch, past, generator=samples.generator) > 0.4
        mask[:, : past // 2] = False
        mask = mask.to(DEVICE)
    found = module.attention(q, prefix, own, mask, *([(tile,)] if tile else []))
    agrees(found, attention.reference(q.double(), wide(*prefix), wide(*own), mask), dtype)


def check_accept(module, dtype=torch.float32, branches=3, horizon=6, width=7, window=4, delta=2.4):
    samples = Samples()
    given = [samples(*shape) for shape in [(branches, horizon, width)] * 2 + [(branches,), (1, horizon, width)]]
    flags = torch.zeros(2, width, dtype=torch.bool, device=DEVICE)
    flags[0, : width - 2], flags[1, width - 1] = True, True
    for still in (True, False):  # a gripper that does not move, and one that does
        if still:
            given[3][..., -1], given[0][..., -1], given[1][..., -1] = 1.0, 1.0, 0.0
            command = torch.ones(width, device=DEVICE)
        else:
            command = -torch.ones(width, device=DEVICE)
        found = module.accept(*given, Channels(*flags), command, window, delta)
        expected = decide(*wide(*given), Channels(*flags), command, window, delta)
        for each, truth in zip(found, expected, strict=True):
            agrees(each, truth.double(), dtype)
        assert found.numbers[1] == (0 if still else 1)
        assert 0 < found.numbers[0] < window


SMALL = {  # a few programs each; nothing divides anything
    "geglu": lambda module, dtype: check_geglu(module, dtype, tile=Tile(16, 16, 32)),
    "geglu of chosen neurons": lambda module, dtype: check_geglu(module, dtype, neurons=21, tile=Tile(16, 16, 64)),
    "geglu of chosen rows": lambda module, dtype: check_geglu(
        module, dtype, rows=17, normed=False, batch=1, tile=Tile(16, 32, 32)
    ),
    "geglu of one row and one neuron": lambda module, dtype: check_geglu(
        module, dtype, length=1, neurons=1, batch=1, tile=Tile(16, 16, 128)
    ),
    "project": lambda module, dtype: check_project(module, dtype, tile=Tile(16, 64, 16)),
    "project with a shared sum": lambda module, dtype: check_project(module, dtype, tile=Tile(16, 64, 16, split=2)),
    "project of an anchor's change": lambda module, dtype: check_project(
        module, dtype, inner=37, total=50, tile=Tile(16, 64, 16, split=3)
    ),
    "project onto chosen rows": lambda module, dtype: check_project(module, dtype, spliced=True, tile=Tile(16, 64, 32)),
    "qkv": lambda module, dtype: check_qkv(module, dtype, tile=Tile(16, 16, 32)),
    "qkv of what is normed": lambda module, dtype: check_qkv(
        module, dtype, batch=1, normed=False, tile=Tile(16, 16, 32)
    ),
    "attention": lambda module, dtype: check_attention(module, dtype, tile=Tile(16, 16, 0, split=2)),
    "attention without a mask": lambda module, dtype: check_attention(
        module, dtype, past=70, masked=False, shared=False, tile=Tile(16, 16, 0, split=2)
    ),
    "attention of an empty prefix": lambda module, dtype: check_attention(
        module, dtype, length=1, past=0, masked=False, batch=1, tile=Tile(16, 16, 0, split=1)
    ),
}
FULL = {  # as pi0.5 launches them, with the blocks that are shipped
    "geglu": lambda module, dtype: check_geglu(module, dtype, 50, 1024, 4096),
    "geglu of chosen neurons": lambda module, dtype: check_geglu(module, dtype, 50, 1024, 4096, neurons=2048, batch=1),
    "geglu of chosen rows": lambda module, dtype: check_geglu(
        module, dtype, 968, 2048, 16384, rows=507, normed=False, batch=1
    ),
    "project": lambda module, dtype: check_project(module, dtype, 50, 4096, 1024),
    "project of an anchor's change": lambda module, dtype: check_project(module, dtype, 50, 2048, 1024, total=4096),
    "project onto chosen rows": lambda module, dtype: check_project(
        module, dtype, 507, 16384, 2048, batch=1, spliced=True
    ),
    "qkv": lambda module, dtype: check_qkv(module, dtype, 50, 1024, heads=8, head_dim=256, past=968),
    "attention": lambda module, dtype: check_attention(module, dtype, 50, heads=8, dim=256, past=968, masked=False),
}
MODULES = {"geglu": geglu, "project": project, "qkv": qkv, "attention": attention, "accept": accept}


TILES = {  # every list that is shipped, and a check that takes a tile
    "geglu": (geglu.STEP, lambda tiles, samples: _geglu_with(tiles, samples)),
    "geglu of chosen neurons": (geglu.CHOSEN, lambda tiles, samples: _geglu_with(tiles, samples, neurons=21)),
    "geglu of chosen rows": (geglu.PREFIX, lambda tiles, samples: _geglu_with(tiles, samples, rows=17)),
    "project": (project.STEP, lambda tiles, samples: _project_with(tiles, samples)),
    "project onto chosen rows": (project.PREFIX, lambda tiles, samples: _project_with(tiles, samples)),
    "qkv": (
        qkv.STEP,
        lambda tiles, samples: (
            qkv.qkv(
                (x := samples(1, 19, 200)),
                samples(4 * 24, 200),
                FoldedNorm(samples(1, 200, dtype=torch.float32)),
                (samples(1, 19, 1, 12), samples(1, 19, 1, 12)),
                qkv.Rotated.of(x, 2, 24),
                tiles,
            ).q
        ),
    ),
    "attention": (
        attention.STEP,
        lambda tiles, samples: attention.attention(
            samples(1, 19, 4, 24),
            (samples(1, 100, 24), samples(1, 100, 24)),
            (samples(1, 19, 24), samples(1, 19, 24)),
            None,
            tiles,
        ),
    ),
}


def _geglu_with(tiles, samples, rows=None, neurons=None):
    x, weight = samples(1, 19, 200), samples(80, 200)
    rows, neurons = (None if count is None else samples.some(count, 19) for count in (rows, neurons))
    return geglu.geglu(x, weight, samples.norm(1, 200, weight), rows, neurons, tiles)


def _project_with(tiles, samples):
    return project.project(samples(1, 19, 300), samples(300, 140), residual=samples(1, 19, 140), tiles=tiles)


def module_of(name: str):
    return MODULES[name.split()[0]]


@pytest.mark.skipif(not INTERPRETED, reason="a GPU has bfloat16")
def test_bfloat16_of_the_interpreter_is_a_gpus(outputs):
    @triton.jit
    def square(a, out, N: tl.constexpr):
        at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
        value = tl.load(a + at)
        tl.store(out + at, tl.dot(value, value) + (value * 2.0).to(tl.float32))

    a, out = torch.randn(16, 16, generator=Samples().generator).bfloat16(), torch.zeros(16, 16)
    square[(1,)](a, out, N=16)
    agrees(out, a.double() @ a.double() + 2 * a.double(), torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_small_and_ragged(name, dtype, outputs):
    SMALL[name](module_of(name), dtype)
    outputs()


@pytest.mark.skipif(INTERPRETED, reason="takes the interpreter hours")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", FULL)
def test_full_size(name, dtype, outputs):
    FULL[name](module_of(name), dtype)
    outputs()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", TILES)
def test_every_tile_gives_the_same_bits(name, dtype, outputs):
    """So that nobody's result depends on which one was the fastest."""
    tiles, result = TILES[name]
    first, *others = (result((tile,), Whole(dtype) if INTERPRETED else Samples(dtype)) for tile in tiles)
    assert others and all(torch.equal(first, other) for other in others)
    assert len({(tile.k, tile.split, tile.n if name == "attention" else 0) for tile in tiles}) == 1  # the order of sums
    outputs()


def test_accept(outputs):
    check_accept(accept)
    outputs()


def test_accept_takes_whole_windows_and_passes_on_what_is_not_a_number():
    x = torch.zeros(2, 6, 7, device=DEVICE)
    flags = Channels(*torch.ones(2, 7, dtype=torch.bool, device=DEVICE))
    given = x, x, torch.zeros(2, device=DEVICE), x[:1], flags, -torch.ones(7, device=DEVICE)
    assert accept.accept(*given, window=6, delta=0.0).numbers.tolist() == [6, 0, 0]
    x[1, 2, 3] = float("nan")
    accepted, _, largest = accept.accept(*given, window=6, delta=1e9).numbers.tolist()
    assert accepted == 2 and largest != largest


PLANTED = [
    ("geglu", "mask=m_in[:, None] & k_in[None, :]", "mask=m_in[:, None]"),
    ("geglu", "mask=k_in, other=0.0)", "mask=k >= 0, other=0.0)"),
    ("geglu", "branch * scale_stride", "0"),
    ("geglu", "bias_at + hidden", "bias_at"),
    ("geglu", "squares / width", "squares / K"),
    ("geglu", "gelu_tanh(gate) * up", "gelu_tanh(up) * gate"),
    ("geglu", "mask=m_in[:, None] & n_in[None, :])", "mask=m_in[:, None])"),
    ("geglu of chosen neurons", "neuron = tl.load(neurons + n, mask=n_in, other=0).to(tl.int32)", "neuron = n"),
    ("geglu of chosen rows", "row = tl.load(rows + m, mask=m_in, other=0).to(tl.int32)", "row = m"),
    ("project", "(m // length)[:, None] * gate_stride", "0 * m[:, None]"),
    ("project", "total += tl.load(residual", "total -= tl.load(residual"),
    ("project with a shared sum", "tl.store(counter, 0)", "pass"),
    ("project of an anchor's change", "< SPLIT - 1", "< SPLIT - 2"),
    ("project with a shared sum", "mask=k_in[:, None] & n_in[None, :]", "mask=n_in[None, :]"),
    ("project of an anchor's change", "row = tl.load(neurons + k, mask=k_in, other=0).to(tl.int32)", "row = k"),
    ("project of an anchor's change", "a.to(tl.float32) - before", "a.to(tl.float32) + before"),
    ("project onto chosen rows", "(m // length) * height", "(m // length) * length"),
    ("qkv", "b * cos + a * sin", "b * cos - a * sin"),
    ("qkv", "head <= HEADS", "head < HEADS"),
    ("qkv", "keys + branch * key_branch", "keys"),
    (
        "qkv",
        "values + branch * value_branch + m[:, None] * value_row",
        "keys + branch * key_branch + m[:, None] * key_row",
    ),
    ("attention without a mask", "total * fade[:, None]", "total"),
    ("attention", "tl.minimum(first + share, past)", "first + share"),
    ("attention", "branch * own_value_branch", "0"),
    ("attention", "visible != 0", "visible == 0"),
    ("attention", 'tl.where(now == float("-inf"), 0.0, now)', "now"),
    ("attention without a mask", "share = share / tl.sum(share, 0)", "pass"),
    ("accept", "window_in & (good == 0)", "good == 1"),
    ("accept", "gripper[None, :] & window_in[:, None]", "window_in[:, None]"),
    ("accept", "* counts[None, :]", ""),
]


@pytest.mark.parametrize(("name", "good", "bad"), PLANTED)
def test_planted_bug_is_found(name, good, bad, tmp_path, outputs):
    def changed(module):
        source = Path(module.__file__).read_text()
        file = tmp_path / Path(module.__file__).name
        file.write_text(source.replace(good, bad))
        spec = importlib.util.spec_from_file_location(f"replan.kernels.planted_{file.stem}", file)
        planted = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(planted)
        return planted, source != file.read_text()

    module, here = changed(module_of(name))
    if not here:  # in what several kernels share
        shared, there = changed(norm)
        assert there
        module.products = shared.products
    with pytest.raises(AssertionError):
        SMALL.get(name, check_accept)(module, torch.float32)
        outputs()


def test_what_does_not_fit_is_refused():
    samples = Samples()
    x, weight = samples(2, 19, 72), samples(80, 72)
    for wrong, says in (
        ({"weight": samples(80, 71)}, r"weight must have shape \[80, 72\], got \[80, 71\]"),
        ({"weight": weight.bfloat16()}, "weight must be torch.float32, got torch.bfloat16"),
        ({"x": x.double(), "weight": weight.double()}, "x must be torch.float32 or torch.bfloat16 or torch.float16"),
        ({"x": samples(72, 19, 2).transpose(0, 2)}, "x must be contiguous, got strides"),
        ({"rows": torch.zeros(3, device=DEVICE)}, "rows must be torch.int32 or torch.int64, got torch.float32"),
        ({"norm": FoldedNorm(samples(3, 72))}, r"the norm's scale must have shape \[2, 72\], got \[3, 72\]"),
        ({"weight": torch.empty(80, 72, device="meta")}, "weight is on meta; all tensors of a kernel must be on one"),
        ({"x": x[:1, :1, :1].expand(40_000, 1, 60_000)}, "x must be contiguous"),
    ):
        with pytest.raises(KernelError, match=says):
            geglu.geglu(**{"x": x, "weight": weight, **wrong})
    h = samples(2, 19, 200)
    for wrong, says in (
        ({"weight": samples(201, 72)}, "h has 200 activations and weight 201 rows; name the neurons that h has"),
        ({"rows": torch.zeros(19, dtype=torch.int64, device=DEVICE)}, "so out must be given"),
        ({"scratch": project.Scratch.of(8, 72, DEVICE)}, r"make it with Scratch.of\(38, 72"),
    ):
        with pytest.raises(KernelError, match=says):
            project.project(**{"h": h, "weight": samples(200, 72), **wrong})
    keys = samples(2, 5, 24), samples(2, 5, 24)
    with pytest.raises(KernelError, match="own has none"):
        attention.attention(samples(2, 3, 2, 24), keys, (keys[0][:, :0], keys[1][:, :0]))
    with pytest.raises(KernelError, match="window must lie in the chunk of 6 actions, got 7"):
        check_accept(accept, window=7)
