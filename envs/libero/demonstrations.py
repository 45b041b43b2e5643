"""Recorded episodes of LIBERO. The expert answers by simulating ahead, so a label costs as much as its steps.

One label is therefore asked for a whole stretch in which the expert acts, and the frames of the stretch share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..demonstrations import Behaviour, Disturbance, Labelled

STRIDE = 2  # control steps between two frames of a stretch: neighbours 50 ms apart hardly differ
EXPERT_STRETCH, OTHER_STRETCH = (6, 17), (4, 11)  # control steps; [low, high)
EXPERT_SHARE = 0.25  # of stretches where a policy acts in the others
OWN_SHARES, OWN_ODDS = (0.55, 1.0), (0.8, 0.2)  # without a policy: four episodes of five are disturbed half of the time


def episode(
    env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, policy: Behaviour | None
) -> Labelled:
    """Records one episode in stretches: the expert acts, or something else leads off its path.

    Without a policy that is the disturbed expert. See :data:`..demonstrations.Episode`.
    """
    env.sampled_starts = True  # the standard initial states are for evaluation
    observation, info = env.reset(seed=seed, options={"task": task})
    share = EXPERT_SHARE if policy else float(rng.choice(OWN_SHARES, p=OWN_ODDS))
    disturb = Disturbance(rng)
    frames, over = Labelled(), False
    while not over:
        by_expert = rng.random() < share
        length = int(rng.integers(*(EXPERT_STRETCH if by_expert else OTHER_STRETCH)))
        plan = env.expert_chunk(horizon + length * by_expert) if by_expert or policy else None
        chunk = policy(observation) if policy and not by_expert else plan
        for k in range(length):
            if plan is not None and (k == 0 or (by_expert and k % STRIDE == 0)):
                frames.add(observation, plan[k : k + horizon])
            action = disturb(env.expert_chunk(1)[0]) if chunk is None else chunk[k]
            env.cameras_on = k == length - 1 or (by_expert and (k + 1) % STRIDE == 0)  # only where a frame follows
            observation, _, terminated, truncated, info = env.step(np.clip(action, -1, 1))
            over = terminated or truncated
            if over:
                break
    frames.success = bool(info["success"])
    return frames
