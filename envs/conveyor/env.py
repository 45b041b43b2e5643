"""Conveyor sorting as a Gymnasium environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from . import task as rules
from .expert import GRASPS, SEVERAL_GRASPS, View, plan
from .physics import CONTROL_TICKS, TICK_NS, ConveyorPhysics, model_xml
from .suite import CAMERAS, TASKS

MAX_SPEED = 60.0  # m/min; twice what the arm can follow
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz ")


class ConveyorSorting(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Pick the named object off the belt and put it into the named bin.

    After the real-world task of Realtime-VLA FLASH (section 4.3). The arm is position controlled at 20 Hz on a physics
    of 2 ms ticks. The belt keeps moving while the policy thinks if the caller says so (:meth:`hold`, or the
    ``RealTime`` wrapper).

    Observation: ``third`` and ``wrist`` uint8 [image_size, image_size, 3]; ``state`` float32 [11] = tool target xyz,
        tool
    xyz, sin and cos of the tool yaw, distance of the fingers (all metres), last gripper command, belt speed (m/s);
    ``instruction``, a sentence. Action: float32 [7] in [-1, 1] = translation (1 is 30 mm), rotation vector (1 is 0.2
    rad) in the world frame, gripper (-1 open, +1 closed). The reward is 1 on success and 0 before.

    Args:
        distractor: The other object travels on the belt too, and objects have several valid grasps (the ``hard``
            variant).
        speed: Belt speed in m/min; None draws it from 6 to 15 with the cell.
        image_size: Side of both images in pixels.
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: The speed, image size or render mode is out of range.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("replan/ConveyorSorting-v0", speed=10)
        >>> observation, info = env.reset(seed=0, options={"task": "dog-red", "init_state": 3})
        >>> observation["instruction"]
        'put the toy dog in the red bin'
        >>> env.close()
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    tick_ns = TICK_NS

    def __init__(
        self,
        distractor: bool = False,
        speed: float | None = None,
        image_size: int = 64,
        render_mode: str | None = None,
    ) -> None:
        """See the class."""
        if speed is not None and not 0 < float(speed) <= MAX_SPEED:
            raise ValueError(f"speed must be in (0, {MAX_SPEED:g}] m/min, got {speed!r}")
        if not 16 <= image_size <= 240:
            raise ValueError(f"image_size must be in 16..240 pixels, got {image_size!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.distractor, self.speed, self.image_size, self.render_mode = distractor, speed, image_size, render_mode
        image = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                **{camera: image for camera in CAMERAS},
                "state": spaces.Box(-np.inf, np.inf, (11,), np.float32),
                "instruction": spaces.Text(max_length=64, charset=_LETTERS),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.start_spread = 0.03  # metres; data collection widens it
        self.cameras_on = True  # False: images come back black, because nobody will look at them
        self.time_ns = 0
        self._physics: ConveyorPhysics | None = None
        self._renderers: dict[tuple[Any, ...], mujoco.Renderer] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts the cell (seed, task, init_state).

        Args:
            seed: Seed of the run; None continues the environment's own stream.
            options: ``task`` (one of ``TASKS``; drawn if missing) and ``init_state`` (index from 0; 0 if missing).

        Raises:
            ValueError: An option, the task or the index is unknown.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        task = options.pop("task", None)
        init_state = options.pop("init_state", 0)
        if options:
            raise ValueError(f"unknown reset options {sorted(options)}; known are 'task' and 'init_state'")
        if task is None:
            task = TASKS[int(self.np_random.integers(len(TASKS)))]
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}; the tasks are {', '.join(TASKS)}")
        if not isinstance(init_state, (int, np.integer)) or init_state < 0:
            raise ValueError(f"init_state must be an index from 0, got {init_state!r}")
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._draw = drawn = rules.draw(
            task, seed, int(init_state), distractor=self.distractor, speed=self.speed, spread=self.start_spread
        )
        self._physics = ConveyorPhysics(
            tuple(sorted(drawn.poses)), drawn.speed / 60, drawn.tool, drawn.tool_yaw, drawn.poses
        )
        self.time_ns = 0
        manifest = {
            # What was drawn, not the state computed from it: rounding differs between processors.
            "init_state": rules.digest(drawn),
            "fixtures": rules.digest(model_xml(tuple(sorted(drawn.poses))), TICK_NS, CONTROL_TICKS),
            "instruction": drawn.instruction,
            "step_budget": f"{rules.TIME_LIMIT_NS // 10**9} s",
            "success_rule": rules.SUCCESS_RULE,
        }
        return self._observation(), {"success": False, "manifest": manifest}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Executes one 50 ms control step.

        Raises:
            ValueError: The action has the wrong shape, or holds NaN or infinity.
            gymnasium.error.ResetNeeded: The environment was never reset.
        """
        action = np.asarray(action, np.float64)
        if action.shape != (7,):
            raise ValueError(f"the action must have shape (7,), got {action.shape}")
        if not np.isfinite(action).all():
            raise ValueError(f"the action must be finite, got {action.tolist()}")
        self._running.control(np.clip(action, -1.0, 1.0))
        self.time_ns += CONTROL_TICKS * TICK_NS
        ended = rules.outcome(self._running, self._draw, self.time_ns)
        info: dict[str, Any] = {"success": ended == "success"}
        if ended:
            info["outcome"] = ended
        return self._observation(), float(ended == "success"), ended not in (None, "time"), ended == "time", info

    def hold(self, ticks: int) -> None:
        """Lets the world move for ``ticks`` physics ticks while the arm holds its last target."""
        if ticks < 0:
            raise ValueError(f"ticks must not be negative, got {ticks}")
        self._running.advance(ticks)
        self.time_ns += ticks * TICK_NS

    def get_state(self) -> np.ndarray:
        """Returns the full simulator state as float64, for hashing."""
        return self._running.state()

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns the actions [horizon, 7] that the scripted expert would take from here; it sees the true state."""
        physics, drawn = self._running, self._draw
        view = View(
            target_position=physics.target_position.copy(),
            target_yaw=physics.target_yaw,
            tool_position=physics.tool_position,
            width=physics.width,
            gripper=physics.gripper,
            object_position=physics.object_position(drawn.target),
            object_yaw=physics.object_yaw(drawn.target),
            bin=drawn.bin,
            speed=physics.speed,
            grasps=(SEVERAL_GRASPS if self.distractor else GRASPS)[drawn.target],
        )
        return plan(view, horizon)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns a picture [480, 640, 3] from the third-person camera, or None without a render mode."""
        return self._draw_camera("third", 480, 640) if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        """Frees the graphics contexts."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    @property
    def _running(self) -> ConveyorPhysics:
        if self._physics is None:
            raise gymnasium.error.ResetNeeded("call reset() before the environment is used")
        return self._physics

    def _observation(self) -> dict[str, Any]:
        physics, size = self._running, self.image_size
        yaw = physics.tool_yaw
        state = [
            *physics.target_position,
            *physics.tool_position,
            math.sin(yaw),
            math.cos(yaw),
            physics.width,
            physics.gripper,
            physics.speed,
        ]
        images = {camera: np.zeros((size, size, 3), np.uint8) for camera in CAMERAS}
        if self.cameras_on:  # drawn at twice the size and averaged: cheaper than multisampling in software
            for camera in CAMERAS:
                fine = self._draw_camera(camera, 2 * size, 2 * size).astype(np.uint16)
                total = fine[::2, ::2] + fine[1::2, ::2] + fine[::2, 1::2] + fine[1::2, 1::2]
                images[camera] = ((total + 2) // 4).astype(np.uint8)
        return {**images, "state": np.array(state, np.float32), "instruction": self._draw.instruction}

    def _draw_camera(self, camera: str, height: int, width: int) -> np.ndarray:
        model, drawn = self._running.model, self._draw
        # The model is shared by all environments of the process, so its lights are set whenever it is drawn.
        model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = drawn.headlight
        model.light("lamp").diffuse[:] = drawn.lamp
        key = (id(model), height, width)
        if key not in self._renderers:
            renderer = mujoco.Renderer(model, height, width)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            self._renderers[key] = renderer
        renderer = self._renderers[key]
        renderer.update_scene(self._running.data, camera)
        return renderer.render().copy()
