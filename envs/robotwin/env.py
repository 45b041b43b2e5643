"""RoboTwin as a Gymnasium environment."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from .. import opengl
from ..arguments import choice, text
from ..demonstrations import TRAINING_SEED
from ..world import CellEnv
from .source import PLANNERS, Opened, open_real, open_standin
from .tasks import CAMERAS, COUNT
from .world import IMAGE, TICK_NS, World

# Bounds of one arm's action, in the order of its entries: joints turn no further than half a turn and hands reach no
# farther than two metres. What lies beyond is clipped.
_ARM = {
    "qpos": ([-np.pi] * 6 + [0], [np.pi] * 6 + [1]),
    "ee": ([-2] * 3 + [-1] * 4 + [0], [2] * 3 + [1] * 4 + [1]),
}
ACTIONS = tuple(_ARM)
INSTRUCTIONS = ("unseen", "seen")
SUCCESS_RULE = "upstream's check_success after any physics tick of an action"
_CHARACTERS = frozenset(string.ascii_letters + string.digits + " ',-.:;<>")


class RoboTwin(CellEnv):
    """Two-armed manipulation: upstream's tasks, experts and success rules.

    Observation: ``head``, ``left_wrist`` and ``right_wrist`` uint8 [240, 320, 3]; ``state`` float32 [14], the joint
    targets ``[L6, Lgrip, R6, Rgrip]`` (radians; grippers from 0 closed to 1 open); ``instruction``. Action:
    float32 [14], absolute joint targets in the same order. With ``action="ee"`` it is [16]: for each arm the hand's
    position (metres), unit quaternion (w, x, y, z) and gripper, which the observation then has as ``endpose``. An
    action lasts until upstream's timing of the motion (1 rad/s, 1 rad/s^2, from rest to rest) is through. The reward is
    1 on success and 0 before.

    Success is upstream's: latched as soon as it is seen after any physics tick. ``info["reached"]`` is False when an
    arm did not move because no path to the pose of an ``ee`` action exists for the planner.

    Args:
        action: ``qpos`` or ``ee``.
        instructions: Which of upstream's instructions: ``unseen`` (its evaluation's) or ``seen`` (its training's).
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
    recorded_states = range(TRAINING_SEED, 2**32)  # scenes by their number, which numpy takes for a seed

    def __init__(self, action: str = "qpos", instructions: str = "unseen", render_mode: str | None = None) -> None:
        super().__init__(init_states=COUNT, render_mode=render_mode)
        self.action = choice("action", action, ACTIONS)
        self.instructions = choice("instructions", instructions, INSTRUCTIONS)
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
        self._opened = self._open()
        self.tasks, self._world = self._opened.tasks, self._opened.world

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        self._steps = 0
        if init_state in self.recorded_states:
            scene, about = init_state, None
        else:
            scene, about = self._opened.scene(task, init_state)
        self._limit = self._world.reset(task, scene, about)
        choice = int(np.random.default_rng([seed, scene]).integers(2**31))
        self._instruction = self._world.instruction(self.instructions, choice)
        self._observation = self._seen(self.cameras_on)
        return {
            # What the scene is sampled from, not the state computed from it: rounding differs between machines.
            "init_state": _digest(task, scene),
            "fixtures": _digest(self._opened.fingerprint),
            "instruction": self._instruction,
            "step_budget": f"{self._limit} actions",
            "success_rule": SUCCESS_RULE,
            "action": f"{self.action}, timed by upstream in ticks of {TICK_NS / 1e6:g} ms",
            "assets": self._opened.assets,
        }

    def _act(self, action: np.ndarray) -> str | None:
        success, reached = self._world.act(action.clip(*self._bounds), self.action)
        self._steps += 1
        self.time_ns = self._world.ticks * TICK_NS
        self._entries: dict[str, Any] = {"reached": reached}
        self._observation = self._seen(self.cameras_on)
        if success:
            return "success"
        return "time" if self._steps >= self._limit else None

    def _solved(self) -> bool:
        return self._world.solved()

    def _observe(self) -> dict[str, Any]:
        return self._observation

    def _info(self) -> dict[str, Any]:
        return self._entries

    def _advance(self, ticks: int) -> None:
        self._world.hold(ticks)

    def _state(self) -> np.ndarray:
        return self._world.state()

    def demonstrate(self, every: int, watch: Callable[[dict[str, Any], np.ndarray], None]) -> bool:
        """Lets upstream's expert, unmodified, solve the task from the state as it is.

        Args:
            every: Physics ticks between two observations.
            watch: Called with the observation and the joint targets float64 [14] that the robot holds then (grippers as
                in actions): before the expert starts, after every ``every`` ticks, and when it is done. So the action
                that leads from one observation to the next is the targets of the next.

        Returns:
            Whether upstream calls it a success.

        Raises:
            ValueError: ``every`` is below 1.
        """
        if every < 1:
            raise ValueError(f"every must be at least 1 physics tick, got {every}")
        self._require_episode()

        def look(observation: dict[str, np.ndarray], target: np.ndarray) -> None:
            watch(self._complete(observation), target)

        try:
            return self._world.demonstrate(every, self.cameras_on, look)
        finally:
            self.time_ns = self._world.ticks * TICK_NS

    def _render(self) -> np.ndarray:
        return self._seen(render=True)["head"]

    def _close(self) -> None:
        self._world.close()

    def _open(self) -> Opened:
        return open_standin()

    def _seen(self, render: bool) -> dict[str, Any]:
        if render and isinstance(self._world, World):  # the other kind renders in a process of its own
            opengl.claim()
        return self._complete(self._world.observe(render))

    def _complete(self, observation: dict[str, Any]) -> dict[str, Any]:
        if self.action != "ee":
            del observation["endpose"]
        return {**observation, "instruction": self._instruction}


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
        for name, value in (("root", root), ("python", python)):
            if value is not None:
                text(name, value)
        self._where = (root, python, choice("planner", planner, PLANNERS), text("config", config))
        super().__init__(action, instructions, render_mode)

    def _open(self) -> Opened:
        return open_real(*self._where)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
