"""Recorded episodes of RoboTwin. The expert can only act a whole task, so its own motion is the label.

A policy, or noise on the joints, may act before the expert takes over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..demonstrations import Behaviour, Labelled, lead_in
from .world import UnstableScene

FRAME_TICKS = 40  # physics ticks of the expert's motion that one action covers: 160 ms
POLICY_STEPS, NOISE_STEPS = (0, 60), (0, 4)  # actions before the expert takes over; [low, high)
NOISE = 0.05  # standard deviation per joint (rad) and gripper


def episode(
    env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, policy: Behaviour | None
) -> Labelled:
    """Records the expert after a policy or noise has acted for a while; see :data:`..demonstrations.Episode`.

    An episode that the expert does not bring to success has no frames.
    """
    try:
        observation, _ = env.reset(seed=seed, options={"task": task, "init_state": seed})  # a scene for training
    except UnstableScene:
        return Labelled()
    before = int(rng.integers(*(POLICY_STEPS if policy else NOISE_STEPS)))
    _, ended = lead_in(env, rng, observation, policy, before, NOISE)
    if ended is not None:
        return Labelled(success=bool(ended["success"]))
    env.cameras_on = True
    frames, targets = Labelled(), []

    def watch(observation: dict[str, Any], target: np.ndarray) -> None:
        frames.observations.append(observation)
        targets.append(target)

    frames.success = env.demonstrate(FRAME_TICKS, watch)
    if not frames.success:
        return Labelled()
    following = targets + [targets[-1]] * horizon  # the arm stays where the expert left it
    frames.labels = [np.stack(following[k + 1 : k + 1 + horizon]) for k in range(len(targets))]
    return frames
