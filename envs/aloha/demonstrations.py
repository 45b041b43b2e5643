"""Recorded episodes of ALOHA. The expert can only act the whole task, so its own plan is the label.

A policy, or noise on the joints, may act before the expert takes over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..demonstrations import Behaviour, Labelled, lead_in

STRIDE = 4  # control steps between frames: 80 ms
# Actions before the expert takes over, [low, high): it needs 336 of the 400 of an episode.
POLICY_STEPS, NOISE_STEPS = (0, 60), (0, 20)
NOISE = 0.1  # standard deviation per joint (rad) and gripper


def episode(
    env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, policy: Behaviour | None
) -> Labelled:
    """Records the expert after a policy or noise has acted for a while; see :data:`..demonstrations.Episode`.

    An episode that the expert does not bring to success has no frames.
    """
    observation, _ = env.reset(seed=seed, options={"task": task})
    before = int(rng.integers(*(POLICY_STEPS if policy else NOISE_STEPS)))
    observation, ended = lead_in(env, rng, observation, policy, before, NOISE)
    if ended is not None:
        return Labelled(success=bool(ended["success"]))
    plan, frames, info = env.expert_plan(), Labelled(), {"success": False}
    labels = np.concatenate([plan, np.repeat(plan[-1:], horizon, axis=0)])  # the arms stay where the plan ends
    for step, action in enumerate(plan):
        if step % STRIDE == 0:
            frames.add(observation, labels[step : step + horizon])
        env.cameras_on = (step + 1) % STRIDE == 0
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    frames.success = bool(info["success"])
    return frames if frames.success else Labelled()
