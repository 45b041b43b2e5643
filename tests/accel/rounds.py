"""Rounds of a policy on a scene that changes in a known place."""

from __future__ import annotations

import numpy as np
import torch
from replan import accel
from replan.policies.agent import ChunkAgent

VISUAL = 128
"""Visual tokens of two views of 64 pixels."""


def observations(count, moving=True, instruction="put the hairbrush in the red bin"):
    """A scene in which a bright square moves over a background that stays."""
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 128, (64, 64, 3), np.uint8) for camera in ("third", "wrist")}
    state = rng.normal(size=11).astype(np.float32)
    for number in range(count):
        now = {camera: image.copy() for camera, image in images.items()}
        if moving:
            left = 8 * (number % 8)
            now["third"][16:32, left : left + 8] = 255
        yield {**now, "state": state, "instruction": instruction}


def play(policy, spec, frames, seed=3):
    """One round per observation; returns the chunks, the rounds and the agent."""
    agent = ChunkAgent(policy, accel.parse(spec), window=1)
    agent.reset(seed)
    rounds = []
    for observation in frames:
        agent.act(observation)
        rounds.append(agent.round)
    return torch.cat([each.chunk for each in rounds]), rounds, agent
