"""A hand fetches an object from a shelf. Spaces are those of conveyor sorting, so that its policies fit."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from gymnasium import spaces
from replan.envs.demonstrations import Behaviour, Labelled
from replan.envs.world import CellEnv

from .suite import CAMERAS, TASKS

HEIGHTS = {"low": 0.2, "high": 0.6}  # metres
REACH = 0.03  # metres of one action
GRASP = 0.02  # metres between hand and object
ACTION_TICKS, LIMIT_NS = 25, 4_000_000_000


class Shelf(CellEnv):
    """The hand closes at the object, or the episode lasts 4 s.

    Args:
        spread: Half range of the object's place on the board in metres.
        render_mode: ``rgb_array``, or None.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    tick_ns = 2_000_000

    def __init__(self, spread: float = 0.3, render_mode: str | None = None) -> None:
        super().__init__(TASKS, init_states=20, render_mode=render_mode)
        if not 0 < spread <= 1:
            raise ValueError(f"spread must be in (0, 1] m, got {spread!r}")
        self.spread = spread
        image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.observation_space = spaces.Dict(
            {
                **{camera: image for camera in CAMERAS},
                "state": spaces.Box(-np.inf, np.inf, (11,), np.float32),
                "instruction": spaces.Text(64, charset="abcdefghijklmnopqrstuvwxyz "),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng([seed, init_state, TASKS.index(task)])
        self.object = np.array([*rng.uniform(-self.spread, self.spread, 2), HEIGHTS[task]])
        self.hand, self.velocity, self.gripper = np.zeros(3), np.zeros(3), -1.0
        return {
            "init_state": hashlib.sha256(self.object.tobytes()).hexdigest(),
            "fixtures": "one board",
            "instruction": "put the toy dog in the red bin",
            "step_budget": f"{LIMIT_NS // 10**9} s",
            "success_rule": f"the hand closes within {GRASP * 100:g} cm of the object",
        }

    def _act(self, action: np.ndarray) -> str | None:
        action = np.clip(action, -1, 1)
        self.velocity = action[:3] * REACH / (ACTION_TICKS * self.tick_ns / 1e9)
        self.gripper = float(action[6])
        self._advance(ACTION_TICKS)
        self.time_ns += ACTION_TICKS * self.tick_ns
        if self.gripper > 0:
            return "success" if self._solved() else "missed"
        return "time" if self.time_ns >= LIMIT_NS else None

    def _solved(self) -> bool:
        return bool(self.gripper > 0 and np.linalg.norm(self.object - self.hand) < GRASP)

    def _advance(self, ticks: int) -> None:
        self.hand = self.hand + self.velocity * (ticks * self.tick_ns / 1e9)

    def _observe(self) -> dict[str, Any]:
        images = {
            camera: self._image(camera) if self.cameras_on else np.zeros((64, 64, 3), np.uint8) for camera in CAMERAS
        }
        state = np.array([*self.hand, *self.object, *self.velocity, self.gripper, 0], np.float32)
        return {**images, "state": state, "instruction": "put the toy dog in the red bin"}

    def _image(self, camera: str) -> np.ndarray:
        centre = self.hand if camera == "wrist" else np.zeros(3)
        image = np.full((64, 64, 3), 40, np.uint8)
        for channel, place in enumerate((self.hand, self.object)):
            x, y = np.clip(32 + 30 * (place - centre)[:2], 1, 62).astype(int)
            image[y - 1 : y + 2, x - 1 : x + 2, channel] = 255
        return image

    def _render(self) -> np.ndarray:
        return self._image("third")

    def _state(self) -> np.ndarray:
        return np.array([*self.hand, *self.object, *self.velocity, self.gripper])

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns actions [horizon, 7] straight to the object, where the hand closes."""
        hand, chunk = self.hand.copy(), np.zeros((horizon, 7))
        for action in chunk:
            action[:3] = np.clip((self.object - hand) / REACH, -1, 1)
            hand = hand + action[:3] * REACH
            action[6] = 1.0 if np.linalg.norm(self.object - hand) < GRASP / 2 else -1.0
        return chunk


def episode(
    env: Shelf, rng: np.random.Generator, seed: int, task: str, horizon: int, policy: Behaviour | None
) -> Labelled:
    """Records one episode of the expert."""
    observation, info = env.reset(seed=seed, options={"task": task, "init_state": int(rng.integers(20))})
    frames, over = Labelled(), False
    while not over:
        chunk = env.expert_chunk(horizon)
        frames.add(observation, chunk)
        action = (policy(observation) if policy else chunk)[0]
        observation, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    frames.success = bool(info["success"])
    return frames
