"""Recorded episodes of conveyor sorting. The expert answers from any state at once, so every frame is labelled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..demonstrations import Behaviour, Disturbance, Labelled

SPEEDS = (5.0, 16.0)  # m/min; a little beyond what is evaluated (6 to 15)
STEPS = 130  # 6.5 s of the 10 s that an evaluated episode may last
SPREADS = (0.03, 0.12)  # metres around the tool's start: an evaluation's, and a wider one
CLEAN = 0.35  # share of episodes without disturbance and latency
LATENCIES = (0, 0, 0, 10, 25, 50)  # ticks of 2 ms: half of the chunks start late, by up to 100 ms
LONGEST_WINDOW = 12  # actions of a chunk that are executed, at most
EXPERT_SHARE = 0.2  # of chunks that are the expert's where a policy acts, so that some episodes go on after its errors


def episode(
    env: Any,
    rng: np.random.Generator,
    seed: int,
    task: str,
    horizon: int,
    policy: Behaviour | None,
    *,
    speeds: tuple[float, float] = SPEEDS,
    longest: int = STEPS,
) -> Labelled:
    """Records one episode, at a random belt speed and with random latencies; see :data:`..demonstrations.Episode`."""
    clean = rng.random() < CLEAN
    env.speed = float(rng.uniform(*speeds))
    env.start_spread = SPREADS[0] if rng.random() < 0.5 else SPREADS[1]
    observation, _ = env.reset(seed=seed, options={"task": task})
    disturb = Disturbance(rng) if policy is None and not clean else None
    frames, steps = Labelled(), 0
    while steps < longest:
        chunk = None
        latency = 0 if clean else rng.choice(LATENCIES)
        by_expert = policy is None or rng.random() < EXPERT_SHARE
        for k in range(int(rng.integers(1, LONGEST_WINDOW + 1))):
            label = env.expert_chunk(horizon)
            if chunk is None:
                chunk = label if by_expert or policy is None else policy(observation)
            frames.add(observation, label)
            if k == 0 and latency:
                env.hold(int(latency))
            action = chunk[k] if disturb is None else disturb(chunk[k])
            observation, _, terminated, truncated, info = env.step(action)
            steps += 1
            if terminated or truncated:
                frames.success = bool(info["success"])
                return frames
    return frames
