"""The data of a round: what hooks see while it runs, what a method may offer, and the result."""

from __future__ import annotations

import time  # noqa: TID251 - measuring is this file's job
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .flow import Schedule
from .model import Inputs, Prefix, Stages

FULL = "full"
"""Route of a round that took the full path and about which no method says anything else."""


class Stopwatch:
    """Wall and processor time of a round, and wall time of its stages.

    Args:
        device: Accelerator to wait for on both sides of a stage.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.stages_ns: dict[str, int] = {}
        self._finished_ns = 0  # of all stages so far
        self._start, self._cpu_start = time.perf_counter_ns(), time.process_time_ns()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the wall time of the block to a stage, less that of the stages inside the block."""
        self._wait()
        start, before = time.perf_counter_ns(), self._finished_ns
        yield
        self._wait()
        took = time.perf_counter_ns() - start
        self.stages_ns[name] = self.stages_ns.get(name, 0) + took - (self._finished_ns - before)
        self._finished_ns = before + took

    def read(self) -> tuple[int, int]:
        """Returns wall and processor time since the stopwatch was made, in nanoseconds."""
        return time.perf_counter_ns() - self._start, time.process_time_ns() - self._cpu_start

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


@dataclass
class Call:
    """A round in flight: what hooks see.

    Attributes:
        inputs: Model inputs of batch 1.
        instruction: The instruction as the environment gave it.
        noise: [1, H, A], the same for every method at the same control step of an episode.
        control_step: Control steps executed so far in the episode.
        executed: [n, A] float32 actions executed since the last round, in the environment's convention; n = 0 at the
            start of an episode.
        window: Replan window in actions.
        stages: How the model's stages run in this round: the BACKEND's, or the model's own.
        watch: The round's stopwatch.
        context: After the full path: what ``prefill`` returned, without the state.
        schedule: After the full path: the denoising steps that were taken.
        chunk: After the full path: [1, H, A], normalised.
        extra: Numbers that a method reports for this round.
    """

    inputs: Inputs
    instruction: str
    noise: Tensor
    control_step: int
    executed: np.ndarray
    window: int
    stages: Stages
    watch: Stopwatch
    context: Any = None
    schedule: Schedule | None = None
    chunk: Tensor | None = None
    extra: dict[str, float] = field(default_factory=dict)

    @cached_property
    def prefix(self) -> Prefix:
        """Prefix embeddings of this round's observation, which is encoded when they are first read."""
        with self.stage("encode"):
            return self.stages.encode(self.inputs)

    def stage(self, name: str) -> Any:
        """Returns a context manager that adds the wall time of its block to a stage."""
        return self.watch.stage(name)


@dataclass(frozen=True)
class Proposal:
    """A chunk that a method offers in place of the full path's.

    Attributes:
        chunk: [1, H, A], normalised.
        length: Leading actions to execute; 0 sends this very round to the full path.
        route: Name of the route that the round takes with this outcome.
        accepted: Leading actions that passed verification; None where nothing was verified.
        drafted: Actions that were verified; None where nothing was.
    """

    chunk: Tensor
    length: int
    route: str
    accepted: int | None = None
    drafted: int | None = None


@dataclass(frozen=True)
class Start:
    """Where denoising starts.

    Attributes:
        x: [1, H, A].
        time: Flow time of x.
    """

    x: Tensor
    time: float


@dataclass(frozen=True)
class Round:
    """The result of a round.

    Attributes:
        route: Name of the path it took: ``full``, or what a method calls its own.
        actions: [n, A] float32 in the environment's convention, to be executed before the next round; n <= window.
        window: Replan window in actions.
        accepted: Leading actions of a draft that passed verification; None where none was verified.
        drafted: Actions of the draft that were verified; None where none were.
        stages_ns: Wall time of each stage.
        host_ns: Wall time from observation to actions.
        cpu_ns: Processor time in the same span.
        extra: Numbers that the methods report.
        call: The round as hooks saw it.
        chunk: [1, H, A] normalised, of which ``actions`` is a prefix.
    """

    route: str
    actions: np.ndarray
    window: int
    accepted: int | None
    drafted: int | None
    stages_ns: dict[str, int]
    host_ns: int
    cpu_ns: int
    extra: dict[str, float]
    call: Call
    chunk: Tensor
