"""ALOHA's cube transfer as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from ..arguments import whole
from ..rendering import Renderers, mujoco
from ..world import LETTERS, CellEnv, digest
from . import task as rules
from .assets import DIGEST
from .expert import plan
from .physics import CONTROL_TICKS, TICK_NS, AlohaPhysics, build_model
from .suite import CAMERAS, INSTRUCTION, TASKS


class AlohaTransferCube(CellEnv):
    """The right arm picks up a cube and hands it to the left arm.

    The scene, start distribution and success rule of gym-aloha 0.1.5 (``AlohaTransferCube-v0``), at 50 Hz on a physics
    of 2 ms ticks. During :meth:`hold` the arms hold their last targets.

    Observation: ``top``, ``left_wrist`` and ``right_wrist`` uint8 [image_size, image_size, 3]; ``state`` float32 [14] =
    joint positions of the left arm (rad), left gripper (0 closed, 1 open), the same of the right arm;
    ``instruction``. Action: float32 [14], targets in the order of the state, which MuJoCo clips to the joints' ranges.
    The reward is 1 on success and 0 before; ``info["stage"]`` is upstream's reward, 0 to 4.

    Args:
        image_size: Side of the images in pixels.
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: A setting is out of range or of another type.
        SuiteUnavailable: gym-aloha is not installed, or its scene is another one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
    tick_ns = TICK_NS

    def __init__(self, image_size: int = 64, render_mode: str | None = None) -> None:
        super().__init__(TASKS, render_mode=render_mode)
        self.image_size = image_size = whole("image_size", image_size, 16, 480, "pixels")
        image = spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                **{camera: image for camera in CAMERAS},
                "state": spaces.Box(-np.inf, np.inf, (14,), np.float32),
                "instruction": spaces.Text(max_length=64, charset=LETTERS),
            }
        )
        ranges = build_model().actuator_ctrlrange[:6]
        low, high = [*ranges[:, 0], 0.0], [*ranges[:, 1], 1.0]
        self.action_space = spaces.Box(np.array(low * 2, np.float32), np.array(high * 2, np.float32))
        self._renderers = Renderers()

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        start = rules.sample(task, seed, init_state)
        self._physics, self._steps = AlohaPhysics(start.cube), 0
        return {
            "init_state": digest(start),
            "fixtures": DIGEST,
            "instruction": INSTRUCTION,
            "step_budget": f"{rules.STEP_LIMIT} control steps",
            "success_rule": rules.SUCCESS_RULE,
            "action": f"joint targets; {CONTROL_TICKS * TICK_NS / 1e6:g} ms",
        }

    def _act(self, action: np.ndarray) -> str | None:
        self._physics.control(action)
        self.time_ns += CONTROL_TICKS * TICK_NS
        self._steps += 1
        self._stage = rules.reward(self._physics)
        return rules.outcome(self._stage, self._steps)

    def _solved(self) -> bool:
        return rules.reward(self._physics) == rules.SOLVED

    def _info(self) -> dict[str, Any]:
        return {"stage": self._stage}

    def _advance(self, ticks: int) -> None:
        self._physics.advance(ticks)

    def _state(self) -> np.ndarray:
        return self._physics.state()

    def expert_plan(self) -> np.ndarray:
        """Returns the actions [n, 14] with which the scripted expert would do the task from here, the arms at rest."""
        self._require_start()
        return plan(self._physics)

    def _observe(self) -> dict[str, Any]:
        size = self.image_size
        images = {camera: np.zeros((size, size, 3), np.uint8) for camera in CAMERAS}
        if self.cameras_on:
            images = {camera: self._render_camera(camera, size, size) for camera in CAMERAS}
        return {**images, "state": self._physics.joints.astype(np.float32), "instruction": INSTRUCTION}

    def _render(self) -> np.ndarray:
        return self._render_camera("top", 480, 640)

    def _render_camera(self, camera: str, height: int, width: int) -> np.ndarray:
        renderer = self._renderers.get(self._physics.model, height, width)
        # Upstream shows `top` alone, with shadows; they take five sixths of a render in software.
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = camera == "top"
        renderer.update_scene(self._physics.data, camera)
        return renderer.render().copy()

    def _close(self) -> None:
        self._renderers.close()
