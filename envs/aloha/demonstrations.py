"""Recorded episodes of ALOHA. The expert can only act the whole task, so its own plan is the label.

A policy, or noise on the joints, may act before the expert takes over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..demonstrations import Behaviour, Labelled

STRIDE = 4  # control steps between frames: 80 ms
POLICY_WINDOW = 10  # actions of a chunk that the policy executes
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
    queue: list[np.ndarray] = []
    before = int(rng.integers(*(POLICY_STEPS if policy else NOISE_STEPS)))
    for step in range(before):
        if policy:
            queue = queue or list(policy(observation)[:POLICY_WINDOW])
            action = queue.pop(0)
        else:
            action = observation["state"] + rng.normal(0, NOISE, len(observation["state"]))
        env.cameras_on = step == before - 1 or (policy is not None and not queue)  # only where the image is used
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            env.cameras_on = True
            return Labelled(success=bool(info["success"]))
    plan, frames = env.expert_plan(), Labelled()
    labels = np.concatenate([plan, np.repeat(plan[-1:], horizon, axis=0)])  # the arms stay where the plan ends
    for step, action in enumerate(plan):
        if step % STRIDE == 0:
            frames.add(observation, labels[step : step + horizon])
        env.cameras_on = (step + 1) % STRIDE == 0
        observation, _, terminated, truncated, info = env.step(action)
        frames.success = bool(info["success"])
        if terminated or truncated:
            break
    env.cameras_on = True
    return frames if frames.success else Labelled()
