"""The contract of an environment, and a base class that keeps the parts of it that are the same everywhere.

The harness needs only :class:`World`. :class:`CellEnv` implements it, so that a suite writes its physics, task and
observations alone. :func:`replan.envs.check.check_suite` checks the rest of the contract.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

TIME = "time"  # outcome of an episode that ran out of time or steps: truncated, not terminated
SUCCESS = "success"
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz ")  # of instructions in plain lower case


def digest(*parts: object) -> str:
    """Returns a short content hash of plain values by their repr, for a manifest."""
    contents = hashlib.sha256()
    for part in parts:
        contents.update(repr(part).encode())
    return contents.hexdigest()[:16]


class World(Protocol):
    """What the harness uses of an unwrapped environment besides Gymnasium's own methods.

    ``reset(seed=, options={"task":, "init_state":})`` starts exactly that cell, in any process and after any other, and
    gives ``info["manifest"]``: text or numbers, by name, that must agree between compared episodes. ``step`` gives
    ``info["success"]`` always and ``info["outcome"]``, a word, on the last step. Observations are dictionaries of
    images uint8 [H, W, 3], ``state`` float32 [n] and ``instruction``, and share no memory.

    Attributes:
        tick_ns: Nanoseconds of one physics tick.
        time_ns: Nanoseconds of simulated time since the reset.
        cameras_on: Set by the caller. Where False, images are black, which saves the time of rendering them.
    """

    tick_ns: int
    cameras_on: bool

    @property
    def time_ns(self) -> int:
        """Nanoseconds of simulated time since the reset."""
        ...

    def get_state(self) -> np.ndarray:
        """Returns the full simulator state, float64 [n]."""
        ...

    def hold(self, ticks: int) -> None:
        """Advances the world by physics ticks while the robot holds its last command, as the suite defines holding."""
        ...


class CellEnv(gymnasium.Env[dict[str, Any], np.ndarray]):
    """An environment that starts cells (task, initial state, seed): checks all arguments, keeps time, returns 5-tuples.

    A subclass sets ``tick_ns``, ``observation_space`` and ``action_space``, and implements ``_begin``, ``_act``,
    ``_observe``, ``_advance`` and ``get_state``; where it renders, also ``_render`` and ``metadata``.

    Args:
        tasks: Names of the tasks. A subclass that learns them later sets the attribute.
        init_states: Number of initial states per task; None where they are sampled without end.
        render_mode: One of ``metadata["render_modes"]``, or None.

    Attributes:
        tick_ns: Nanoseconds of one physics tick.
        recorded_states: Further initial states, which only recordings for training use.
        resumable: Whether ``step`` and ``hold`` go on after the end of an episode, as Gymnasium allows.
        cameras_on: See :class:`World`.
        time_ns: See :class:`World`.

    Raises:
        ValueError: The render mode is unknown.
    """

    tick_ns: int
    recorded_states: range = range(0)
    resumable: bool = True

    def __init__(
        self, tasks: Sequence[str] = (), *, init_states: int | None = None, render_mode: str | None = None
    ) -> None:
        modes = self.metadata.get("render_modes", [])
        if render_mode is not None and render_mode not in modes:
            known = " or ".join(map(repr, (None, *modes)))
            raise ValueError(f"render_mode must be {known}, got {render_mode!r}")
        self.tasks, self.init_states, self.render_mode = tuple(tasks), init_states, render_mode
        self.cameras_on = True
        self.time_ns = 0
        self._started, self._over = False, False

    @abstractmethod
    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        """Starts a cell, whatever happened before.

        Returns:
            The manifest: ``init_state`` and ``fixtures`` (digests of what was sampled), ``instruction``,
            ``step_budget``, ``success_rule``, and more where the suite has more that must agree.
        """

    @abstractmethod
    def _act(self, action: np.ndarray) -> str | None:
        """Executes one action, float64 in the shape of the action space, finite, not clipped; adds to ``time_ns``.

        Returns:
            None while the episode goes on; else its outcome: ``success``, ``time`` (truncated), or any other word for
            a failure.
        """

    @abstractmethod
    def _observe(self) -> dict[str, Any]:
        """Returns the observation after the last action, in arrays of its own."""

    @abstractmethod
    def _advance(self, ticks: int) -> None:
        """Advances physics while the robot holds its last command. The caller counts the time."""

    @abstractmethod
    def get_state(self) -> np.ndarray:
        """Returns the full simulator state, float64 [n]."""

    def _info(self) -> dict[str, Any]:
        """Returns further entries of the info of the last step."""
        return {}

    def _render(self) -> np.ndarray:
        """Returns an image uint8 [H, W, 3]; needed where ``metadata`` has render modes."""
        raise NotImplementedError(f"{type(self).__name__} has render modes and no _render")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts the cell (task, init_state, seed).

        Args:
            seed: Seed of the cell; None continues the environment's own stream.
            options: ``task`` (a name; sampled if missing) and ``init_state`` (index of an initial state; 0 if missing).

        Returns:
            The first observation; ``success`` (False) and ``manifest``.

        Raises:
            ValueError: An option, the task or the index is unknown or out of range.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        task, init_state = options.pop("task", None), options.pop("init_state", 0)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; known are 'task' and 'init_state'")
        if task is None:
            task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        if task not in self.tasks:
            raise ValueError(f"unknown task {task!r}; the tasks are {', '.join(self.tasks)}")
        self._check_init_state(init_state)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self.time_ns, self._started, self._over = 0, False, False
        manifest = self._begin(task, int(init_state), seed)
        self._started = True
        return self._observe(), {"success": False, "manifest": manifest}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Executes one action.

        Returns:
            Observation, reward (1 on success, else 0), whether the episode ended in success or failure, whether it ran
            out of time, and the info: ``success``, and on the last step ``outcome``.

        Raises:
            ValueError: The action has the wrong shape, or holds NaN or infinity.
            gymnasium.error.ResetNeeded: There is no episode.
        """
        self._require_episode()
        assert isinstance(self.action_space, spaces.Box)
        action = np.asarray(action, np.float64)
        if action.shape != self.action_space.shape:
            raise ValueError(f"the action must have shape {self.action_space.shape}, got {action.shape}")
        if not np.isfinite(action).all():
            raise ValueError(f"the action must be finite, got {action.tolist()}")
        outcome = self._act(action)
        success = outcome == SUCCESS
        info: dict[str, Any] = {"success": success, **self._info()}
        if outcome is not None:
            info["outcome"] = outcome
            self._over = True
        return self._observe(), float(success), outcome not in (None, TIME), outcome == TIME, info

    def hold(self, ticks: int) -> None:
        """Advances the world by physics ticks while the robot holds its last command.

        Raises:
            ValueError: The number is negative or not whole.
            gymnasium.error.ResetNeeded: There is no episode.
        """
        if isinstance(ticks, bool) or not isinstance(ticks, (int, np.integer)) or ticks < 0:
            raise ValueError(f"ticks must be a whole number and not negative, got {ticks!r}")
        self._require_episode()
        ticks = int(ticks)  # a narrow NumPy integer would overflow in the time
        self._advance(ticks)
        self.time_ns += ticks * self.tick_ns

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns an image uint8 [H, W, 3] for videos, or None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: The environment was never reset.
        """
        if self.render_mode is None:
            return None
        self._require_start()
        return self._render()

    def _check_init_state(self, init_state: Any) -> None:
        whole = isinstance(init_state, (int, np.integer)) and not isinstance(init_state, bool)
        limit, recorded = self.init_states, self.recorded_states
        if whole and (0 <= init_state and (limit is None or init_state < limit) or init_state in recorded):
            return
        bounds = "from 0" if limit is None else f"in 0..{limit - 1}"
        training = f", or for training in {recorded.start}..{recorded.stop - 1}" if recorded else ""
        raise ValueError(f"init_state must be an index {bounds}{training}, got {init_state!r}")

    def _require_start(self) -> None:
        """Raises ResetNeeded where there is no scene."""
        if not self._started:
            raise gymnasium.error.ResetNeeded("call reset() before the environment is used")

    def _require_episode(self) -> None:
        """Raises ResetNeeded where the episode cannot go on."""
        self._require_start()
        if self._over and not self.resumable:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before the environment is used")
