"""The contract of an environment, and a base class that keeps the parts of it that are the same everywhere.

The harness needs only :class:`World`. :class:`CellEnv` implements it, so that a suite writes its physics, task and
observations alone. :func:`replan.envs.check.check_suite` checks the rest of the contract.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from .arguments import whole

TIME = "time"  # outcome of an episode that ran out of time or steps: truncated, not terminated
SUCCESS = "success"
SETTLE_NS = 1_000_000_000  # simulated time after which a success is looked at again
HEADLINE = (
    "success: the rule held once, which ended the episode; "
    f"success_at_end: it still held {SETTLE_NS / 1e9:g} s later, the robot holding its last command"
)
MAX_SEED = 2**63 - 1
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz ")  # of instructions in plain lower case


def digest(*parts: object) -> str:
    """Returns a short content hash of plain values by their repr, for a manifest."""
    contents = hashlib.sha256()
    for part in parts:
        contents.update(repr(part).encode())
    return contents.hexdigest()[:16]


def action_array(action: Any, space: spaces.Box) -> np.ndarray:
    """Returns an action as float64 in the shape of the space, not clipped.

    It has to be finite in the type of the space, which is what a policy and the harness deal in; its own precision is
    kept all the same.

    Raises:
        ValueError: It is no array of real numbers, has another shape, or is not finite in the space's type.
    """
    try:
        array = np.asarray(action)
    except Exception as error:  # NumPy and the action's own conversion raise whatever they like
        raise ValueError(f"the action must be an array of shape {space.shape}, got {_kind(action)} ({error})") from None
    if array.dtype.kind not in "fiu":
        raise ValueError(f"the action must be real numbers, got an array of type {array.dtype} from {_kind(action)}")
    if array.shape != space.shape:
        raise ValueError(f"the action must have shape {space.shape}, got {array.shape}")
    with np.errstate(over="ignore"):
        finite = np.isfinite(array.astype(space.dtype)).all()
    if not finite:
        raise ValueError(f"the action must be finite as {space.dtype}, got {array.tolist()}")
    return array.astype(np.float64)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


class World(Protocol):
    """What the harness uses of an unwrapped environment besides Gymnasium's own methods.

    ``reset(seed=, options={"task":, "init_state":})`` starts exactly that cell, in any process and after any other, and
    gives ``info["manifest"]``: text or numbers, by name, that must agree between compared episodes. ``reset`` and
    ``step`` give ``info["success"]`` always: whether the rule holds. The last step also gives ``info["outcome"]``, a
    word, and ``info["success_at_end"]``: whether a success still held once the world had settled. Observations are
    dictionaries of images uint8 [H, W, 3], ``state`` float32 [n] and ``instruction``, and share no memory.

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


class CellEnv(gymnasium.Env[dict[str, Any], np.ndarray], ABC):
    """An environment that starts cells (task, initial state, seed): checks all arguments, keeps time, returns 5-tuples.

    A subclass sets ``tick_ns``, ``observation_space`` and ``action_space``, and implements ``_begin``, ``_act``,
    ``_solved``, ``_observe``, ``_advance`` and ``_state``; where it renders, also ``_render`` and ``metadata``; where
    it holds something that has to be freed, also ``_close``.

    The first control step on which the task's rule holds ends the episode. Such a success may pass: the object is
    still falling, or held. So the world then moves on for a second while the robot holds its last command, and
    ``info["success_at_end"]`` says whether the rule still holds. Nothing else shows that second: observation, state,
    render and time are those of the end of the episode.

    Args:
        tasks: Names of the tasks. A subclass that learns them later sets the attribute.
        init_states: Number of initial states per task; None where they are sampled without end.
        render_mode: One of ``metadata["render_modes"]``, or None.

    Attributes:
        tick_ns: Nanoseconds of one physics tick.
        recorded_states: Further initial states, which only recordings for training use.
        cameras_on: See :class:`World`.
        time_ns: See :class:`World`.

    Raises:
        ValueError: The render mode is unknown.
    """

    tick_ns: int
    recorded_states: range = range(0)

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
        self._started, self._over, self._closed = False, False, False
        self._last_state = np.empty(0)  # when the episode ended
        self._last_frame: np.ndarray | None = None

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
    def _solved(self) -> bool:
        """Returns whether the rule of success holds as the world stands. It changes nothing that can be observed."""

    @abstractmethod
    def _observe(self) -> dict[str, Any]:
        """Returns the observation after the last action, in arrays of its own."""

    @abstractmethod
    def _advance(self, ticks: int) -> None:
        """Advances physics while the robot holds its last command. The caller counts the time."""

    @abstractmethod
    def _state(self) -> np.ndarray:
        """Returns the full simulator state, float64 [n], in an array of its own."""

    def _info(self) -> dict[str, Any]:
        """Returns further entries of the info of the last step."""
        return {}

    def _render(self) -> np.ndarray:
        """Returns an image uint8 [H, W, 3]; needed where ``metadata`` has render modes."""
        raise NotImplementedError(f"{type(self).__name__} has render modes and no _render")

    def _close(self) -> None:
        """Frees what the environment holds; a reset may follow."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts the cell (task, init_state, seed).

        Args:
            seed: Seed of the cell, from 0 to 2**63 - 1; None continues the environment's own stream.
            options: ``task`` (a name; sampled if missing) and ``init_state`` (index of an initial state; 0 if missing).

        Returns:
            The first observation; ``success`` (whether the rule holds from the start) and ``manifest``.

        Raises:
            ValueError: The seed, an option, the task or the index is unknown, out of range or of another type.
        """
        if seed is not None:
            seed = whole("the seed", seed, 0, MAX_SEED)
        if not isinstance(options, Mapping | None):
            raise ValueError(f"the reset options must be a dictionary with 'task' and 'init_state', got {options!r}")
        options = dict(options or {})
        task, init_state = options.pop("task", None), options.pop("init_state", 0)
        if options:
            raise ValueError(f"unknown reset options {list(options)}; known are 'task' and 'init_state'")
        if task is not None and not (isinstance(task, str) and task in self.tasks):
            raise ValueError(f"unknown task {task!r}; the tasks are {', '.join(self.tasks)}")
        self._check_init_state(init_state)
        super().reset(seed=seed)
        if task is None:
            task = self.tasks[int(self.np_random.integers(len(self.tasks)))]
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self.time_ns, self._started, self._over = 0, False, False
        manifest = self._begin(task, int(init_state), seed)
        self._started, self._closed = True, False
        return self._observe(), {"success": bool(self._solved()), "manifest": {**manifest, "headline": HEADLINE}}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Executes one action.

        Returns:
            Observation, reward (1 on success, else 0), whether the episode ended in success or failure, whether it ran
            out of time, and the info: ``success``, and on the last step ``outcome`` and ``success_at_end``.

        Raises:
            ValueError: The action is no array of real numbers, has the wrong shape, or is not finite.
            gymnasium.error.ResetNeeded: There is no episode.
        """
        self._require_episode()
        assert isinstance(self.action_space, spaces.Box)
        outcome = self._act(action_array(action, self.action_space))
        observation, success = self._observe(), outcome == SUCCESS
        info: dict[str, Any] = {"success": success, **self._info()}
        if outcome is not None:
            info |= {"outcome": outcome, "success_at_end": self._end(success)}
        return observation, float(success), outcome not in (None, TIME), outcome == TIME, info

    def _end(self, success: bool) -> bool:
        """Ends the episode; returns whether a success still holds after the world has settled."""
        self._over, self._last_state = True, self._state()
        self._last_frame = None if self.render_mode is None else self._render()
        if not success:
            return False
        self._advance(-(-SETTLE_NS // self.tick_ns))
        return bool(self._solved())

    def hold(self, ticks: int) -> None:
        """Advances the world by physics ticks while the robot holds its last command.

        Raises:
            ValueError: The number is negative or not whole.
            gymnasium.error.ResetNeeded: There is no episode.
        """
        ticks = whole("ticks", ticks, 0)
        self._require_episode()
        self._advance(ticks)
        self.time_ns += ticks * self.tick_ns

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns an image uint8 [H, W, 3] for videos, or None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: There is no scene.
        """
        if self.render_mode is None:
            return None
        self._require_start()
        return self._render() if self._last_frame is None or not self._over else self._last_frame.copy()

    def get_state(self) -> np.ndarray:
        """Returns the full simulator state, float64 [n], for hashing; after the episode, its last one.

        Raises:
            gymnasium.error.ResetNeeded: There is no scene.
        """
        self._require_start()
        return self._last_state.copy() if self._over else self._state()

    def close(self) -> None:
        """Frees the simulator and its graphics contexts. A reset opens them again."""
        self._started, self._closed = False, True
        self._close()

    def _check_init_state(self, init_state: Any) -> None:
        is_index = isinstance(init_state, (int, np.integer)) and not isinstance(init_state, bool)
        limit, recorded = self.init_states, self.recorded_states
        if is_index and (0 <= init_state and (limit is None or init_state < limit) or init_state in recorded):
            return
        bounds = "from 0" if limit is None else f"in 0..{limit - 1}"
        training = f", or for training in {recorded.start}..{recorded.stop - 1}" if recorded else ""
        raise ValueError(f"init_state must be an index {bounds}{training}, got {init_state!r}")

    def _require_start(self) -> None:
        """Raises ResetNeeded where there is no scene."""
        if not self._started:
            why = "the environment is closed" if self._closed else "no episode was started"
            raise gymnasium.error.ResetNeeded(f"{why}; call reset() before the environment is used")

    def _require_episode(self) -> None:
        """Raises ResetNeeded where the episode cannot go on."""
        self._require_start()
        if self._over:
            raise gymnasium.error.ResetNeeded("the episode is over; call reset() before the environment is used")
