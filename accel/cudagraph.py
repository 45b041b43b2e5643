"""CUDA graphs: the kernels of a stage are captured once per shape and replayed, which saves launching them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..policies.model import DENSE, FlowModel, Ops, Stages
from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam
from .nest import leaves, mapped

GRAPHS = 16
"""Graphs of a stage that are kept: one per length of a prefix that episodes of a run have. The oldest one goes."""
CAPTURED = ("prefill", "condition", "step")


class CUDAGraph(Method):
    """Replays stages as CUDA graphs; a walk that another method has ops for runs as it is.

    Args:
        stages: Stages to capture, of ``prefill``, ``condition`` and ``step``. Fast-WAM's prefill cannot be captured: it
            waits for the device. Encoding does so in every family.

    Raises:
        ValueError: There is no such stage; on ``attach``, the policy is not on a GPU.
    """

    name = "cudagraph"
    claims = frozenset({Seam.BACKEND})
    activity_counters = ("replays",)

    def __init__(self, stages: tuple[str, ...] = ("condition", "step")) -> None:
        if not stages or set(stages) - set(CAPTURED):
            raise ValueError(f"stages must be some of {', '.join(CAPTURED)}, got {'/'.join(stages)!r}")
        self._names, self._replayed = stages, dict[str, Replayed]()

    def attach(self, policy: Policy) -> None:
        """Refuses a policy that is not on a GPU."""
        if policy.model.device.type != "cuda":
            raise ValueError(
                f"cudagraph needs a GPU, and {policy.name} is on {policy.model.device.type}: choose --device cuda"
            )

    def begin(self) -> None:
        """Zeroes the counters; graphs stay."""
        for each in self._replayed.values():
            each.captures = each.replays = 0

    def stages(self, model: FlowModel, prefill_ops: Ops, step_ops: Ops) -> Stages:
        """The model's own, and graphs of them."""
        own = model.stages()
        dense: dict[str, Callable[..., Any]] = {
            "prefill": lambda prefix: own.prefill(prefix, DENSE),
            "condition": own.condition,
            "step": lambda x, time, context: own.step(x, time, context, DENSE),
        }
        self._replayed = {name: Replayed(dense[name]) for name in self._names}
        run = {**dense, **self._replayed}
        times: dict[float, Tensor] = {}  # as tensors: a number would be captured with the graph

        def prefill(prefix: Any, ops: Ops) -> Any:
            return run["prefill"](prefix) if ops is DENSE else own.prefill(prefix, ops)

        def step(x: Tensor, time: Tensor | float, context: Any, ops: Ops) -> Tensor:
            if ops is not DENSE or "step" not in self._replayed:
                return own.step(x, time, context, ops)
            if not isinstance(time, Tensor):
                time = times.setdefault(time, torch.tensor(time, dtype=torch.float32, device=x.device))
            return run["step"](x, time, context)

        return Stages(own.encode, prefill, run["condition"], step)

    def observe_full(self, call: Call) -> None:
        """Reports the graphs that were captured so far in this episode."""
        call.extra["captured_graphs"] = sum(each.captures for each in self._replayed.values())

    def counters(self) -> dict[str, float]:
        """Replays of graphs."""
        return {"replays": sum(each.replays for each in self._replayed.values())}


class Replayed:
    """A function of tensors, captured once per shape of its arguments.

    A graph reads and writes the same memory every time. Arguments are copied there, unless they are those of the last
    call, and results are copied from there: a caller may keep them.

    Attributes:
        captures: Graphs that were captured.
        replays: Calls.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._graphs: dict[Any, tuple[list[Tensor], list[Tensor], Any, Callable[[], None]]] = {}
        self.captures = self.replays = 0

    def __call__(self, *arguments: Any) -> Any:
        """Returns the function's result."""
        every = list(leaves(arguments))
        key = tuple((each.shape, each.dtype) if isinstance(each, Tensor) else each for each in every)
        given = [each for each in every if isinstance(each, Tensor)]
        if key not in self._graphs:
            if len(self._graphs) == GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            static = mapped(arguments, torch.clone)
            output, replay = capture(lambda: self._function(*static))
            inputs = [each for each in leaves(static) if isinstance(each, Tensor)]
            self._graphs[key] = (inputs, list(given), output, replay)
            self.captures += 1
        inputs, last, output, replay = self._graphs[key]
        for place, (mine, new) in enumerate(zip(inputs, given, strict=True)):
            if new is not last[place]:
                mine.copy_(new)
                last[place] = new
        replay()
        self.replays += 1
        return mapped(output, torch.clone)


def capture(function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Returns the place of a function's result on a GPU, and what computes it anew from the same places."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # what is allocated and chosen in the first calls must not be captured
            function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = function()
    return output, graph.replay
