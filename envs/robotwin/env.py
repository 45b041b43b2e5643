"""RoboTwin as a Gymnasium environment."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from ..demonstrations import TRAINING_SEED
from .source import Opened, open_real, open_standin
from .tasks import CAMERAS, COUNT
from .world import IMAGE, TICK_NS

# Bounds of one arm's action, in the order of its entries: joints turn no further than half a turn and hands reach no
# farther than two metres. What lies beyond is clipped.
_ARM = {
    "qpos": ([-np.pi] * 6 + [0], [np.pi] * 6 + [1]),
    "ee": ([-2] * 3 + [-1] * 4 + [0], [2] * 3 + [1] * 4 + [1]),
}
ACTIONS = tuple(_ARM)
INSTRUCTIONS = ("unseen", "seen")
SETTLE_TICKS = 250  # one second, after which success is looked at again
SUCCESS_RULE = "upstream's check_success after any physics tick of an action"
_CHARACTERS = frozenset(string.ascii_letters + string.digits + " ',-.:;<>")


class RoboTwin(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Two-armed manipulation: upstream's tasks, experts and success rules.

    Observation: ``head``, ``left_wrist`` and ``right_wrist`` uint8 [240, 320, 3]; ``state`` float32 [14], the joint
    targets ``[L6, Lgrip, R6, Rgrip]`` (radians; grippers from 0 closed to 1 open); ``instruction``, a sentence. Action:
    float32 [14], absolute joint targets in the same order. With ``action="ee"`` it is [16]: for each arm the hand's
    position (metres), unit quaternion (w, x, y, z) and gripper, which the observation then has as ``endpose``. An
    action lasts until upstream's timing of the motion (1 rad/s, 1 rad/s^2, from rest to rest) is through. The reward is
    1 on success and 0 before.

    Args:
        action: ``qpos`` or ``ee``.
        instructions: Which of upstream's sentences: ``unseen`` (its evaluation's) or ``seen`` (its training's).
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: A setting is unknown.
        SuiteUnavailable: A package, the asset tree or a Vulkan device is missing.

    Example:
        >>> import gymnasium
        >>> import replan.envs
        >>> env = gymnasium.make("replan/RoboTwin-v0")  # doctest: +SKIP
        >>> observation, info = env.reset(seed=0, options={"task": "click_bell", "init_state": 3})  # doctest: +SKIP
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    tick_ns = TICK_NS

    def __init__(self, action: str = "qpos", instructions: str = "unseen", render_mode: str | None = None) -> None:
        """See the class."""
        if action not in ACTIONS:
            raise ValueError(f"action must be one of {', '.join(ACTIONS)}, got {action!r}")
        if instructions not in INSTRUCTIONS:
            raise ValueError(f"instructions must be one of {', '.join(INSTRUCTIONS)}, got {instructions!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.action, self.instructions, self.render_mode = action, instructions, render_mode
        image = spaces.Box(0, 255, IMAGE, np.uint8)
        observation = {
            **{camera: image for camera in CAMERAS},
            "state": spaces.Box(-np.inf, np.inf, (14,), np.float32),
            "instruction": spaces.Text(max_length=512, charset=_CHARACTERS),
        }
        if action == "ee":
            observation["endpose"] = spaces.Box(-np.inf, np.inf, (16,), np.float32)
        self.observation_space = spaces.Dict(observation)
        low, high = (np.array(2 * bound, np.float32) for bound in _ARM[action])
        self._bounds, self.action_space = (low, high), spaces.Box(low, high, dtype=np.float32)
        self.cameras_on = True  # False: images come back black, because nobody will look at them
        self._opened = self._open()
        self._world = self._opened.world
        self._running = False
        self._end: tuple[int, np.ndarray] | None = None  # ticks and state when the episode ended

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts the cell (seed, task, init_state).

        Args:
            seed: Seed of the run, which the instruction is drawn with; None continues the environment's own stream.
            options: ``task`` (drawn if missing) and ``init_state`` (0 if missing): an index below 50 into the stored
                scenes that upstream's expert solves, or, for training, the number of any scene from 1 000 000 on.

        Raises:
            ValueError: An option, the task or the index is unknown.
            UnstableScene: The objects of a training scene do not come to rest; take another.
            SuiteUnavailable: The stored scenes belong to other assets or versions.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        task, init_state = options.pop("task", None), options.pop("init_state", 0)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; known are 'task' and 'init_state'")
        tasks = self._opened.tasks
        if task is None:
            task = tasks[int(self.np_random.integers(len(tasks)))]
        if task not in tasks:
            raise ValueError(f"unknown task {task!r}; the tasks are {', '.join(tasks)}")
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        scene, about = self._scene(task, init_state)
        self._running, self._end, self._steps = False, None, 0
        self._limit = self._world.reset(task, scene, about)
        self._running = True
        draw = int(np.random.default_rng([seed, scene]).integers(2**31))
        self._instruction = self._world.instruction(self.instructions, draw)
        manifest = {
            # What the scene is drawn from, not the state computed from it: rounding differs between machines.
            "init_state": _digest(task, scene),
            "fixtures": _digest(self._opened.fingerprint),
            "instruction": self._instruction,
            "step_budget": f"{self._limit} actions",
            "success_rule": SUCCESS_RULE,
            "assets": self._opened.assets,
        }
        return self._observation(), {"success": False, "manifest": manifest}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Executes one action, clipped to the action space.

        Success is upstream's: latched as soon as it is seen after any physics tick. ``info["success_at_end"]``, given
        when the episode ends, says whether the task is (still) solved after the robot held still for another second;
        that second counts nowhere else. ``info["reached"]`` is False when an arm did not move because no way to the
        pose of an ``ee`` action was found.

        Raises:
            ValueError: The action has the wrong shape, or holds NaN or infinity.
            gymnasium.error.ResetNeeded: The environment was never reset, or the episode is over.
        """
        self._check_running()
        action = np.asarray(action, np.float64)
        if action.shape != self.action_space.shape:
            raise ValueError(f"the action must have shape {self.action_space.shape}, got {action.shape}")
        if not np.isfinite(action).all():
            raise ValueError(f"the action must be finite, got {action.tolist()}")
        success, reached = self._world.act(action.clip(*self._bounds), self.action)
        self._steps += 1
        over = not success and self._steps >= self._limit
        info: dict[str, Any] = {"success": success, "reached": reached}
        observation = self._observation()
        if success or over:
            self._end = self._world.ticks, self._world.state()
            info["outcome"] = "success" if success else "time"
            self._world.hold(SETTLE_TICKS)
            info["success_at_end"] = self._world.solved()
        return observation, float(success), success, over, info

    def hold(self, ticks: int) -> None:
        """Lets the world move for ``ticks`` physics ticks while the robot holds its last targets."""
        if ticks < 0:
            raise ValueError(f"ticks must not be negative, got {ticks}")
        self._check_running()
        self._world.hold(ticks)

    @property
    def time_ns(self) -> int:
        """Nanoseconds that the world has moved since the reset, until the episode was over."""
        return (self._end[0] if self._end else self._world.ticks) * TICK_NS

    def get_state(self) -> np.ndarray:
        """Returns the full simulator state as float64, for hashing; after the episode, its last one."""
        if self._end:
            return self._end[1].copy()
        self._check_running()
        return self._world.state()

    def demonstrate(self, every: int, watch: Callable[[dict[str, Any], np.ndarray], None]) -> bool:
        """Lets upstream's expert, unmodified, solve the task from the state as it is.

        Args:
            every: Physics ticks between two looks.
            watch: Called with the observation and the joint targets float64 [14] that the robot holds then (grippers as
                in actions): before the expert starts, after every ``every`` ticks, and when it is done. So the action
                that leads from one look to the next is the targets of the next.

        Returns:
            Whether upstream calls it a success.

        Raises:
            ValueError: ``every`` is below 1.
        """
        if every < 1:
            raise ValueError(f"every must be at least 1 physics tick, got {every}")
        self._check_running()

        def look(seen: dict[str, np.ndarray], target: np.ndarray) -> None:
            watch(self._complete(seen), target)

        return self._world.demonstrate(every, self.cameras_on, look)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns the head camera's picture [240, 320, 3], or None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        if not self._end:
            self._check_running()
        return self._world.observe(draw=True)["head"]

    def close(self) -> None:
        """Frees the scene."""
        self._world.close()
        self._running, self._end = False, None

    def _open(self) -> Opened:
        return open_standin()

    def _scene(self, task: str, init_state: Any) -> tuple[int, dict[str, str] | None]:
        if isinstance(init_state, bool) or not isinstance(init_state, (int, np.integer)):
            raise ValueError(f"init_state must be a whole number, got {init_state!r}")
        if TRAINING_SEED <= init_state < 2**32:  # what numpy takes for a seed
            return int(init_state), None
        if not 0 <= init_state < COUNT:
            raise ValueError(
                f"init_state must be in 0..{COUNT - 1}, or the number of a training scene from "
                f"{TRAINING_SEED} on, got {init_state}"
            )
        return self._opened.scene(task, int(init_state))

    def _check_running(self) -> None:
        if self._end or not self._running:
            over = "the episode is over" if self._end else "the environment is new"
            raise gymnasium.error.ResetNeeded(f"{over}; call reset() before it is used")

    def _observation(self) -> dict[str, Any]:
        return self._complete(self._world.observe(self.cameras_on))

    def _complete(self, seen: dict[str, Any]) -> dict[str, Any]:
        if self.action != "ee":
            del seen["endpose"]
        return {**seen, "instruction": self._instruction}


class RoboTwinReal(RoboTwin):
    """RoboTwin on the user's own assets, run by the user's own interpreter. Everything else is :class:`RoboTwin`'s.

    Args:
        action: See :class:`RoboTwin`.
        instructions: See :class:`RoboTwin`.
        render_mode: See :class:`RoboTwin`.
        root: A RoboTwin checkout with its assets, or a folder with assets for the wheel's code; None takes it from the
            environment variable ``REPLAN_ROBOTWIN_ROOT``.
        python: Interpreter that has upstream's packages; None takes it from ``REPLAN_ROBOTWIN_PYTHON``, or else this.
        planner: ``upstream`` or, where there is no CUDA, ``cpu``.
        config: Upstream's task configuration: ``demo_clean``, ``demo_randomized``, or one of the checkout's own.

    Raises:
        ValueError: A setting is unknown.
        SuiteUnavailable: The folder, the interpreter, a package or a Vulkan device is missing.
    """

    def __init__(
        self,
        action: str = "qpos",
        instructions: str = "unseen",
        render_mode: str | None = None,
        root: str | None = None,
        python: str | None = None,
        planner: str = "upstream",
        config: str = "demo_clean",
    ) -> None:
        """See the class."""
        self._where = (root, python, planner, config)
        super().__init__(action, instructions, render_mode)

    def _open(self) -> Opened:
        return open_real(*self._where)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
