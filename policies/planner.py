"""Policies of any kind: what maps an observation to the actions until the next one.

A planner has no seams, so no method acts in it: it is measured as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .round import FULL, Stopwatch

ALONE = "dense"
"""The only method of a planner."""


class Planner(Protocol):
    """A policy of any kind."""

    def reset(self, seed: int) -> None:
        """Begins an episode; everything random in it comes from the seed."""
        ...

    def plan(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns actions [n, A] in the environment's convention; all are executed before the next call."""
        ...


@dataclass(frozen=True)
class PlannerPolicy:
    """A planner as a package offers it in the entry-point group ``replan.policies``; nothing is loaded yet.

    Attributes:
        make: Returns the planner for a precision (``float32`` or ``bfloat16``) and a device (``cpu`` or ``cuda``).
        cameras: Observation keys of the images that it reads.
        state: Channels of the state that it reads; None if it takes any.
        action: Channels of its actions.
        files: Files that it is made of, such as weights. Their contents are part of a measurement's address.
        marks: What a reader of its results must know, ``badge: sentence`` each.
        suites: Suites that it was trained on; None where that has no meaning.

    Raises:
        ValueError: ``make`` is no function or class of a module, or something else is of another type.
    """

    make: Callable[[str, str], Planner]
    cameras: tuple[str, ...]
    state: int | None
    action: int
    files: tuple[Path, ...] = ()
    marks: tuple[str, ...] = ()
    suites: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuses what would be found out much later."""
        if not callable(self.make) or not isinstance(getattr(self.make, "__module__", None), str):
            raise ValueError(f"make must be a function or a class of your package, got {self.make!r}")
        for name, kind in (("cameras", str), ("files", Path), ("marks", str), ("suites", str)):
            values = getattr(self, name)
            if values is None and name == "suites":
                continue
            if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
                raise ValueError(f"{name} must be a tuple of {kind.__name__}, got {values!r}")
        for name, width in (("state", self.state), ("action", self.action)):
            if type(width) is not int or width < 1:
                if width is not None or name == "action":
                    raise ValueError(f"{name} must be the number of its channels, got {width!r}")


@dataclass
class PlannedRound:
    """The result of a round; fields as in :class:`~replan.policies.round.Round`.

    ``QueueAgent`` sets ``host_ns``, and adds this process's processor time to ``cpu_ns``.
    """

    actions: np.ndarray
    window: int
    route: str = FULL
    accepted: int | None = None
    drafted: int | None = None
    stages_ns: dict[str, int] = field(default_factory=dict)
    host_ns: int = 0
    cpu_ns: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class QueueAgent:
    """Executes what ``_plan`` returns, and calls it again when all of that has been executed.

    Args:
        device: Accelerator that the plans are made on.

    Attributes:
        round: The round that the last ``act`` made, or None where it took an action that was already planned.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._queue: list[np.ndarray] = []
        self.round: PlannedRound | None = None

    def reset(self, seed: int) -> None:
        """Begins an episode."""
        self._queue, self.round = [], None

    @property
    def needs_observation(self) -> bool:
        """Whether the next ``act`` plans."""
        return not self._queue

    def act(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns the next action, float32 [A].

        Raises:
            ValueError: What was planned is something else than actions.
        """
        self.round = None
        if not self._queue:
            watch = Stopwatch(self._device)
            planned = self._plan(observation, watch)
            planned.host_ns, own_ns = watch.read()
            planned.cpu_ns += own_ns
            self.round, self._queue = planned, list(planned.actions)
        return self._queue.pop(0)

    def _plan(self, observation: Mapping[str, Any], watch: Stopwatch) -> PlannedRound:
        raise NotImplementedError

    def idle(self, budget_ns: int) -> None:
        """Does nothing."""

    def end(self, success: bool) -> None:
        """Does nothing."""

    def counters(self) -> dict[str, float]:
        """Returns what a method did since ``reset``: nothing, where none acts."""
        return {}

    def dense_error(self) -> float:
        """Returns not a number: there is no dense policy here to compare with."""
        return float("nan")


class PlannerAgent(QueueAgent):
    """Executes the plans of a planner.

    Args:
        planner: The planner.
        device: Accelerator that it runs on.
    """

    def __init__(self, planner: Planner, device: str = "cpu") -> None:
        super().__init__(device)
        self._planner = planner

    def reset(self, seed: int) -> None:
        """Begins an episode."""
        super().reset(seed)
        self._planner.reset(seed)

    def _plan(self, observation: Mapping[str, Any], watch: Stopwatch) -> PlannedRound:
        with watch.stage("plan"):
            actions = checked_actions(self._planner.plan(observation))
        return PlannedRound(actions, len(actions), stages_ns=watch.stages_ns)


def checked_actions(actions: Any) -> np.ndarray:
    """Returns a chunk as float32 [n, A].

    Raises:
        ValueError: It is no array of numbers of this shape, or empty.
    """
    array = np.asarray(actions.detach().cpu() if isinstance(actions, torch.Tensor) else actions)
    if array.dtype.kind not in "biuf" or array.ndim != 2 or not array.size:
        raise ValueError(f"actions must be numbers [n, A] with n of 1 or more, got {array.dtype} {list(array.shape)}")
    return np.array(array, np.float32)
