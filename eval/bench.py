"""What a round costs: time per stage, arithmetic and the floor under both, of methods that take turns with dense."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from ..policies.agent import ChunkAgent
from ..policies.policy import Policy
from ..policies.round import Round, Stopwatch
from ..policies.seams import Method

DENSE = "dense"
WARMUP = 3  # rounds: the first allocates, the second fills caches, and methods have something to reuse in the third
_SIDE = 1536  # of the matrices by which the machine is rated: beyond any cache in float32, and a fraction of a second

aten = torch.ops.aten
_FORMULAS = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
        q.shape, k.shape, v.shape
    ),
}


@dataclass
class Cost:
    """Rounds of a method.

    Attributes:
        method: As the user wrote it.
        ns: Wall time of each round; round i of every method saw the same observation within the same moments.
        routes: Its rounds by route.
        stages_ns: Wall time per stage, of each round.
        flops: Arithmetic of matrix products, convolutions and attention, of a round (mean).
        bytes: What these read and wrote (mean).
        floor_ns: Shortest time in which this machine could do them, one after another (mean).
        peak_bytes: Most memory that was allocated on the accelerator; None on a processor, which does not say.
        extra: Numbers that the method reports of a round (mean).
        error: Distance of its actions to dense ones, normalised (mean).
    """

    method: str
    ns: list[int] = field(default_factory=list)
    routes: Counter[str] = field(default_factory=Counter)
    stages_ns: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    flops: float = 0.0
    bytes: float = 0.0
    floor_ns: float = 0.0
    peak_bytes: int | None = None
    extra: dict[str, float] = field(default_factory=dict)
    error: float = 0.0


@dataclass(frozen=True)
class Machine:
    """What the machine gave while the rounds ran, each the median.

    Attributes:
        flops: Operations per second of a product of square matrices.
        bytes: Bytes per second that a product of a matrix and a vector reads.
    """

    flops: float
    bytes: float

    def floor_ns(self, products: Sequence[Product]) -> float:
        """Returns the roofline of some products that run one after another."""
        return 1e9 * sum(max(each.flops / self.flops, each.bytes / self.bytes) for each in products)


@dataclass(frozen=True)
class Product:
    """One matrix product, convolution or attention."""

    flops: int
    bytes: int


def bench(
    policy: Policy,
    methods: Mapping[str, Sequence[Method]],
    observations: Sequence[Mapping[str, Any]],
    progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> tuple[list[Cost], Machine]:
    """Lets methods take turns on the same observations, in an order that rotates.

    Args:
        policy: The policy.
        methods: By name; dense need not be among them.
        observations: One per round; the first :data:`WARMUP` are not counted, and as many as that at the end are
            played once more to count their arithmetic.
        progress: Wraps the observations of the measured rounds.

    Returns:
        Costs, dense first, and what the machine gave.

    Raises:
        ValueError: There are too few observations, or a method does not fit the policy.
    """
    if len(observations) <= 2 * WARMUP:
        raise ValueError(f"{len(observations)} observations are too few: {2 * WARMUP} do not count as rounds")
    timed, counted = observations[:-WARMUP], observations[-WARMUP:]
    agents = {name: ChunkAgent(policy, each) for name, each in {DENSE: (), **methods}.items()}
    costs = {name: Cost(name) for name in agents}
    extras: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in agents}
    machine = _Rating(policy.model.device, policy.model.dtype)
    names = list(agents)
    for number, observation in enumerate(progress(timed)):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            with _peak(policy.model.device) as peak:
                done = _round(agents[name], observation)
            if number < WARMUP:
                continue
            cost = costs[name]
            cost.ns.append(done.host_ns)
            cost.routes[done.route] += 1
            for stage, ns in done.stages_ns.items():
                cost.stages_ns[stage].append(ns)
            for key, value in done.extra.items():
                extras[name][key].append(value)
            cost.peak_bytes = max(cost.peak_bytes or 0, peak[0]) if peak else None
        machine.measure()
    rated = machine.result()
    for name, cost in costs.items():
        errors, products = [], list[Product]()
        for observation in counted:
            with Products() as mode:
                _round(agents[name], observation)
            products += mode.all
            errors.append(agents[name].dense_error())
        cost.flops = sum(each.flops for each in products) / WARMUP
        cost.bytes = sum(each.bytes for each in products) / WARMUP
        cost.floor_ns = rated.floor_ns(products) / WARMUP
        cost.error = float(np.mean(errors))
        cost.extra = {key: float(np.mean(values)) for key, values in extras[name].items()}
    return list(costs.values()), rated


def _round(agent: ChunkAgent, observation: Mapping[str, Any]) -> Round:
    """Takes actions that are planned until a round runs; the robot is then taken to move for as long as it likes."""
    while not agent.needs_observation:
        agent.act(observation)
    agent.idle(10**9)
    agent.act(observation)
    assert agent.round is not None
    return agent.round


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster than dense: median over pairs of rounds, with its 95 % interval; NaN below 6 rounds."""

    value: float
    low: float
    high: float


def speed_up(method: Cost, dense: Cost) -> SpeedUp:
    """Compares rounds that saw the same observation; the interval is that of order statistics."""
    ratios = np.array(dense.ns) / np.array(method.ns)
    if len(ratios) < 6:  # with fewer, no two order statistics enclose the median with 95 %
        return SpeedUp(float(np.median(ratios)), math.nan, math.nan)
    interval = stats.quantile_test(ratios, q=1, p=0.5).confidence_interval(0.95)
    return SpeedUp(float(np.median(ratios)), float(interval.low), float(interval.high))


class Products(TorchDispatchMode):
    """Notes every matrix product, convolution and attention.

    Attributes:
        all: In the order in which they ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation; in inference mode, those that torch composes of others arrive whole."""
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet not in _FORMULAS and func is not torch.ops.prim.device.default:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        if packet in _FORMULAS:
            tensors = (*args, *(out if isinstance(out, tuple) else (out,)))
            moved = sum(each.nbytes for each in tensors if isinstance(each, torch.Tensor))
            self.all.append(Product(int(_FORMULAS[packet](*args, **kwargs, out_val=out)), moved))
        return out


class _Rating:
    """Rates the machine between rounds, so that what slows them down is in the rating too."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._square = torch.randn(_SIDE, _SIDE, device=device).to(dtype)
        self._wide = torch.randn(4 * _SIDE, 4 * _SIDE, device=device).to(dtype)
        self._vector = torch.randn(1, 4 * _SIDE, device=device).to(dtype)
        self._flops: list[float] = []
        self._bytes: list[float] = []

    @torch.inference_mode()
    def measure(self) -> None:
        """Adds a sample of each."""
        watch = Stopwatch(self._device)
        with watch.stage("square"):
            torch.matmul(self._square, self._square)
        with watch.stage("vector"):
            torch.matmul(self._vector, self._wide.T)
        self._flops.append(1e9 * 2 * _SIDE**3 / watch.stages_ns["square"])
        self._bytes.append(1e9 * self._wide.nbytes / watch.stages_ns["vector"])

    def result(self) -> Machine:
        """Returns the medians."""
        return Machine(float(np.median(self._flops[WARMUP:])), float(np.median(self._bytes[WARMUP:])))


@contextmanager
def _peak(device: torch.device) -> Iterator[list[int]]:
    """Yields a list that has, after the block, the most memory that was allocated on an accelerator."""
    peak: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield peak
    if device.type == "cuda":
        peak.append(torch.cuda.max_memory_allocated(device))
