"""Executions of a scene that a square crosses, and what a policy makes of them with a library."""

from __future__ import annotations

import numpy as np
import torch
from replan import accel
from replan.policies.agent import ChunkAgent

INSTRUCTION = "put the hairbrush in the red bin"
ROUNDS, EPISODES = 6, 3
REBUILD = 25_000_000  # nanoseconds


def frames(episode, instruction=INSTRUCTION, rounds=ROUNDS):
    rng = np.random.default_rng(0)
    images = {camera: rng.integers(0, 128, (64, 64, 3), np.uint8) for camera in ("third", "wrist")}
    for number in range(rounds):
        now = {camera: image.copy() for camera, image in images.items()}
        now["third"][16 * episode : 16 * episode + 16, 8 * number : 8 * number + 16] = 255
        state = np.full(11, episode + number / 4, np.float32)
        yield {**now, "state": state, "instruction": instruction}


def record(policy, recording, observations):
    agent = ChunkAgent(policy, [recording], window=1)
    agent.reset(7)
    chunks = []
    for observation in observations:
        agent.act(observation)
        chunks.append(agent.round.chunk)
    return recording.entries, torch.cat(chunks)


def play(policy, spec, observations, idle=100 * REBUILD, seed=3, agent=None):
    """One round per observation, with time to prepare between them; returns rounds and the agent."""
    agent = agent or ChunkAgent(policy, accel.parse(spec), window=1)
    agent.reset(seed)
    rounds = []
    for observation in observations:
        agent.act(observation)
        rounds.append(agent.round)
        if idle:
            agent.idle(idle)
    return rounds, agent


def chunks(rounds):
    return torch.cat([each.chunk for each in rounds])
