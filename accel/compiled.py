"""torch.compile: the same arithmetic within rounding, in kernels made for it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..policies.model import DENSE, FlowModel, Inputs, Ops, Prefix, Stages
from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam
from .nest import leaves

COMPILERS = ("g++", "clang++", "c++")


class Compile(Method):
    """Runs the stages through ``torch.compile``; a walk that another method has ops for runs as it is.

    The first round compiles. Graphs behind the encoding serve prefixes of any length.

    Args:
        backend: Of ``torch.compile``. ``eager`` and ``aot_eager`` trace and compile nothing, to find faults.

    Raises:
        ValueError: On ``attach``, there is no such backend, or what it needs is missing.
    """

    name = "compile"
    claims = frozenset({Seam.BACKEND})
    activity_counters = ("compiled_calls",)

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend
        self._calls = self._graphs = 0

    def attach(self, policy: Policy) -> None:
        """Checks what the backend needs, which would be a page of text in the first round."""
        known = torch.compiler.list_backends(exclude_tags=())
        if self.backend not in known:
            raise ValueError(f"compile has no backend {self.backend!r}; there are {', '.join(known)}")
        if self.backend != "inductor":
            return
        if policy.model.device.type == "cpu" and not any(map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])):
            raise ValueError("compile needs a C++ compiler, and none is on the path: install g++, or name yours in CXX")
        if policy.model.device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise ValueError("compile needs the package triton on a GPU, and it is not installed: pip install triton")

    def begin(self) -> None:
        """Zeroes the counter."""
        self._calls = self._graphs = 0

    def stages(self, model: FlowModel, prefill_ops: Ops, step_ops: Ops) -> Stages:
        """Compiled ones. The model's own methods stay as they are."""
        # What depends on the values of masks is read once per round, and is no reason to warn.
        logging.getLogger("torch._dynamo.variables.tensor").setLevel(logging.ERROR)
        encode, prefill, condition, step = map(self._compiled, model.stages()[:4])
        times: dict[float, Tensor] = {}  # as tensors: a graph would be compiled for every number
        length_varies = _LengthVaries()

        def run_prefill(prefix: Prefix, ops: Ops) -> Any:
            return prefill(length_varies(prefix), ops) if ops is DENSE else model.prefill(prefix, ops)

        def run_condition(context: Any, inputs: Inputs) -> Any:
            return condition(length_varies(context), inputs)

        def run_step(x: Tensor, time: Tensor | float, context: Any, ops: Ops) -> Tensor:
            if ops is not DENSE:
                return model.step(x, time, context, ops)
            if not isinstance(time, Tensor):
                time = times.setdefault(time, torch.tensor(time, dtype=torch.float32, device=x.device))
            # The noise was made outside of inference mode, and would be compiled for apart.
            return step(x if x.is_inference() else x.clone(), time, length_varies(context), ops)

        return Stages(encode, run_prefill, run_condition, run_step)

    def observe_full(self, call: Call) -> None:
        """Reports the graphs that this round compiled."""
        call.extra["compiled_graphs"], self._graphs = self._graphs, 0

    def counters(self) -> dict[str, float]:
        """Calls of compiled stages."""
        return {"compiled_calls": self._calls}

    def _compiled(self, stage: Callable[..., Any]) -> Callable[..., Any]:
        from torch._dynamo import lookup_backend  # takes a second

        def compile_graph(graph: Any, example: Any) -> Any:
            self._graphs += 1
            return lookup_backend(self.backend)(graph, example)

        fast = torch.compile(stage, backend=compile_graph)

        def run(*arguments: Any) -> Any:
            self._calls += 1
            return fast(*arguments)

        return run


class _LengthVaries:
    """Tells the compiler that prompts have different lengths, before a second one makes it compile everything anew."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, value: Any) -> Any:
        """Returns a prefix or context whose second dimension may be another one in the next round."""
        if value is not self._last:
            for each in leaves(value):
                if isinstance(each, Tensor) and each.ndim > 1:
                    torch._dynamo.maybe_mark_dynamic(each, 1)
            self._last = value
        return value
