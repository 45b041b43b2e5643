"""What the environments of the conveyor's arm share: spaces, settings, images, time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from gymnasium import spaces

from ..arguments import number, whole
from ..rendering import Renderers, mujoco
from ..world import LETTERS, CellEnv, digest
from .expert import View
from .physics import CONTROL_TICKS, ROTATION, TICK_NS, TRANSLATION, ConveyorPhysics
from .suite import CAMERAS

MAX_SPEED = 60.0  # m/min; twice what the arm can follow


class Start(Protocol):
    """What a sampled initial state has to say about the view and the instruction."""

    @property
    def headlight(self) -> tuple[float, float]:
        """Ambient and diffuse intensity of the camera light."""
        ...

    @property
    def lamp(self) -> tuple[float, float, float]:
        """Diffuse colour of the lamp."""
        ...

    @property
    def instruction(self) -> str:
        """Instruction for the policy."""
        ...


StartType = TypeVar("StartType", bound=Start)
PhysicsType = TypeVar("PhysicsType", bound=ConveyorPhysics)


class ArmEnv(CellEnv, Generic[StartType, PhysicsType]):
    """The arm next to the belt, without a task. ``_begin`` sets ``_start`` and ``_physics``.

    Args:
        tasks: Names of the tasks.
        speed: Belt speed in m/min; None samples it with the cell.
        image_size: Side of both images in pixels.
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: The speed, image size or render mode is out of range.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    tick_ns = TICK_NS
    _start: StartType
    _physics: PhysicsType

    def __init__(self, tasks: Sequence[str], *, speed: float | None, image_size: int, render_mode: str | None) -> None:
        super().__init__(tasks, render_mode=render_mode)
        self.speed = None if speed is None else number("speed", speed, 0, MAX_SPEED, "m/min")
        self.image_size = image_size = whole("image_size", image_size, 16, 240, "pixels")
        image = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                **{camera: image for camera in CAMERAS},
                "state": spaces.Box(-np.inf, np.inf, (11,), np.float32),
                "instruction": spaces.Text(max_length=64, charset=LETTERS),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.start_spread = 0.03  # metres; data collection widens it
        self._renderers = Renderers()

    def _manifest(self, scene: str, time_limit_ns: int, success_rule: str) -> dict[str, Any]:
        """Returns the manifest of the cell that ``_start`` is, in a scene given as MJCF."""
        return {
            # What was sampled, not the state computed from it: rounding differs between processors.
            "init_state": digest(self._start),
            "fixtures": digest(scene, TICK_NS, CONTROL_TICKS),
            "instruction": self._start.instruction,
            "step_budget": f"{time_limit_ns / 1e9:g} s",
            "success_rule": success_rule,
            "action": f"1 is {TRANSLATION * 1000:g} mm and {ROTATION:g} rad; {CONTROL_TICKS * TICK_NS / 1e6:g} ms",
        }

    def _act(self, action: np.ndarray) -> str | None:
        self._physics.control(np.clip(action, -1.0, 1.0))
        self.time_ns += CONTROL_TICKS * TICK_NS
        return self._outcome()

    @abstractmethod
    def _outcome(self) -> str | None:
        """Judges the state after a control step; returns as ``_act`` does."""

    def _advance(self, ticks: int) -> None:
        self._physics.advance(ticks)

    def _state(self) -> np.ndarray:
        return self._physics.state()

    def _view(
        self, name: str, bin_position: tuple[float, float], grasps: tuple[tuple[float, float, float], ...]
    ) -> View:
        """Returns what the expert sees of the state where it has to bring one object to a place."""
        physics = self._physics
        return View(
            target_position=physics.target_position.copy(),
            target_yaw=physics.target_yaw,
            tool_position=physics.tool_position,
            width=physics.width,
            gripper=physics.gripper,
            object_position=physics.object_position(name),
            object_yaw=physics.object_yaw(name),
            bin=bin_position,
            speed=physics.speed,
            grasps=grasps,
        )

    def _render(self) -> np.ndarray:
        return self._render_camera("third", 480, 640)

    def _close(self) -> None:
        self._renderers.close()

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
        renderer = self._renderers.get(model, height, width)
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        renderer.update_scene(self._physics.data, camera)
        return renderer.render().copy()
