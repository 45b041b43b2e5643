"""Conveyor sorting as a Gymnasium environment."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from ..world import CellEnv
from . import task as rules
from .expert import GRASPS, SEVERAL_GRASPS, View, plan
from .physics import CONTROL_TICKS, TICK_NS, ConveyorPhysics, model_xml
from .suite import CAMERAS, TASKS

MAX_SPEED = 60.0  # m/min; twice what the arm can follow
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz ")


class ConveyorSorting(CellEnv):
    """Pick the named object off the belt and put it into the named bin.

    After the real-world task of Realtime-VLA FLASH (section 4.3). The arm is position controlled at 20 Hz on a physics
    of 2 ms ticks. The belt moves while the policy computes where the caller uses :meth:`hold` or the ``RealTime``
    wrapper; the arm then holds its last target.

    Observation: ``third`` and ``wrist`` uint8 [image_size, image_size, 3]; ``state`` float32 [11] = tool target xyz,
    tool xyz (m), sine and cosine of the tool yaw, distance of the fingers (m), last gripper command, belt speed (m/s);
    ``instruction``. Action: float32 [7] in [-1, 1] = translation (1 is 30 mm), rotation vector (1 is 0.2 rad) in the
    world frame, gripper (-1 open, +1 closed). The reward is 1 on success and 0 before.

    Args:
        distractor: The other object travels on the belt too, and objects have several valid grasps (the ``hard``
            variant).
        speed: Belt speed in m/min; None samples it from 6 to 15 with the cell.
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
        super().__init__(TASKS, render_mode=render_mode)
        if speed is not None and not 0 < float(speed) <= MAX_SPEED:
            raise ValueError(f"speed must be in (0, {MAX_SPEED:g}] m/min, got {speed!r}")
        if not 16 <= image_size <= 240:
            raise ValueError(f"image_size must be in 16..240 pixels, got {image_size!r}")
        self.distractor, self.speed, self.image_size = distractor, speed, image_size
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
        self._renderers: dict[tuple[Any, ...], mujoco.Renderer] = {}

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        self._start = start = rules.sample(
            task, seed, init_state, distractor=self.distractor, speed=self.speed, spread=self.start_spread
        )
        objects = tuple(sorted(start.poses))
        self._physics = ConveyorPhysics(objects, start.speed / 60, start.tool, start.tool_yaw, start.poses)
        return {
            # What was sampled, not the state computed from it: rounding differs between processors.
            "init_state": rules.digest(start),
            "fixtures": rules.digest(model_xml(objects), TICK_NS, CONTROL_TICKS),
            "instruction": start.instruction,
            "step_budget": f"{rules.TIME_LIMIT_NS // 10**9} s",
            "success_rule": rules.SUCCESS_RULE,
        }

    def _act(self, action: np.ndarray) -> str | None:
        self._physics.control(np.clip(action, -1.0, 1.0))
        self.time_ns += CONTROL_TICKS * TICK_NS
        return rules.outcome(self._physics, self._start, self.time_ns)

    def _advance(self, ticks: int) -> None:
        self._physics.advance(ticks)

    def get_state(self) -> np.ndarray:
        """Returns the full simulator state as float64, for hashing."""
        self._require_start()
        return self._physics.state()

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns the actions [horizon, 7] that the scripted expert would take from here; it sees the true state."""
        self._require_start()
        physics, start = self._physics, self._start
        view = View(
            target_position=physics.target_position.copy(),
            target_yaw=physics.target_yaw,
            tool_position=physics.tool_position,
            width=physics.width,
            gripper=physics.gripper,
            object_position=physics.object_position(start.target),
            object_yaw=physics.object_yaw(start.target),
            bin=start.bin,
            speed=physics.speed,
            grasps=(SEVERAL_GRASPS if self.distractor else GRASPS)[start.target],
        )
        return plan(view, horizon)

    def _render(self) -> np.ndarray:
        return self._render_camera("third", 480, 640)

    def close(self) -> None:
        """Frees the graphics contexts."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()

    def _observe(self) -> dict[str, Any]:
        physics, size = self._physics, self.image_size
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
        if self.cameras_on:  # rendered at twice the size and averaged: cheaper than multisampling in software
            for camera in CAMERAS:
                fine = self._render_camera(camera, 2 * size, 2 * size).astype(np.uint16)
                total = fine[::2, ::2] + fine[1::2, ::2] + fine[::2, 1::2] + fine[1::2, 1::2]
                images[camera] = ((total + 2) // 4).astype(np.uint8)
        return {**images, "state": np.array(state, np.float32), "instruction": self._start.instruction}

    def _render_camera(self, camera: str, height: int, width: int) -> np.ndarray:
        model, start = self._physics.model, self._start
        # The model is shared by all environments of the process, so its lights are set whenever it is rendered.
        model.vis.headlight.ambient[:], model.vis.headlight.diffuse[:] = start.headlight
        model.light("lamp").diffuse[:] = start.lamp
        key = (id(model), height, width)
        if key not in self._renderers:
            renderer = mujoco.Renderer(model, height, width)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            self._renderers[key] = renderer
        renderer = self._renderers[key]
        renderer.update_scene(self._physics.data, camera)
        return renderer.render().copy()
