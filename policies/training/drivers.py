"""Episodes in which an expert labels states that it is driven into on purpose.

Noise and shoves take the arm where a policy's errors will take it (DART); with a policy at the wheel the same loop is
DAgger. Experts differ in how they can be asked, and so there are three kinds of episode:

* ``analytic``: answers from any state at once (conveyor sorting). Every frame is labelled.
* ``simulated``: answers from any state by rolling the simulator forward (LIBERO). A label costs as much as its steps,
  so one is asked for a whole stretch of expert driving, and the frames of that stretch share it.
* ``scripted``: can only act a whole task from here to its end (RoboTwin). What it does is the label; a policy, or a
  shaken arm, may drive before it takes over.

All environments are reached through ``unwrapped``; labels are in the environment's convention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Driver = Callable[[dict[str, Any]], np.ndarray]
"""A policy: observation to chunk [H, A] in the environment's convention."""

BELT_SPEEDS = (5.0, 16.0)  # m/min; a little beyond what is evaluated
CONVEYOR_STEPS = 130
STRIDE = 2  # control steps between two frames of one stretch
SHAKE = 0.05  # rad, standard deviation
SCRIPTED_TICKS = 40  # physics ticks of a scripted expert's motion that one action is to cover
SCRIPTED_WINDOW = 10  # actions of a chunk that a policy executes


@dataclass
class Labelled:
    """Observations of an episode with the expert's chunks.

    Attributes:
        observations: As the environment gave them.
        labels: [H, A] each.
        success: Whether the episode ended well.
    """

    observations: list[dict[str, Any]] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    success: bool = False

    def add(self, observation: dict[str, Any], label: np.ndarray) -> None:
        """Adds a frame."""
        self.observations.append(observation)
        self.labels.append(label)


def analytic(env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, driver: Driver | None) -> Labelled:
    """Runs one episode of conveyor sorting, at a random belt speed and with latencies."""
    clean = rng.random() < 0.35
    env.speed = float(rng.uniform(*BELT_SPEEDS))
    env.start_spread = 0.03 if rng.random() < 0.5 else 0.12
    observation, info = env.reset(seed=seed, options={"task": task})
    disturb = _Disturbance(rng) if driver is None and not clean else None
    frames, steps = Labelled(), 0
    while steps < CONVEYOR_STEPS:
        chunk = None
        latency = rng.choice([0, 0, 0, 10, 25, 50]) if not clean else 0  # ticks
        by_expert = driver is None or rng.random() < 0.2
        for k in range(int(rng.integers(1, 13))):
            label = env.expert_chunk(horizon)
            if chunk is None:
                chunk = label if by_expert or driver is None else driver(observation)
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


def simulated(
    env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, driver: Driver | None
) -> Labelled:
    """Runs one episode in stretches: the expert drives and is recorded, or someone else takes it off its path."""
    env.sampled_starts = True  # the standard initial states are for evaluation
    observation, info = env.reset(seed=seed, options={"task": task})
    share = 0.25 if driver else float(rng.choice([0.55, 1.0], p=[0.8, 0.2]))  # of stretches that the expert drives
    disturb = _Disturbance(rng)
    frames, over = Labelled(), False
    while not over:
        by_expert = rng.random() < share
        length = int(rng.integers(6, 17) if by_expert else rng.integers(4, 11))
        plan = env.expert_chunk(horizon + length * by_expert) if by_expert or driver else None
        chunk = driver(observation) if driver and not by_expert else plan
        for k in range(length):
            if plan is not None and (k == 0 or (by_expert and k % STRIDE == 0)):
                frames.add(observation, plan[k : k + horizon])
            action = disturb(env.expert_chunk(1)[0]) if chunk is None else chunk[k]
            env.cameras_on = k == length - 1 or (by_expert and (k + 1) % STRIDE == 0)  # only where a frame follows
            observation, _, terminated, truncated, info = env.step(np.clip(action, -1, 1))
            over = terminated or truncated
            if over:
                break
    env.cameras_on = True
    frames.success = bool(info["success"])
    return frames


def scripted(env: Any, rng: np.random.Generator, seed: int, task: str, horizon: int, driver: Driver | None) -> Labelled:
    """Lets the policy drive for a while, or shakes the arm, then records the expert from there to the end.

    An episode that the expert does not bring to success is not recorded.
    """
    try:
        observation, info = env.reset(seed=seed, options={"task": task, "init_state": seed})  # a scene for training
    except env.unstable:  # its objects do not come to rest
        return Labelled()
    before = int(rng.integers(0, 60)) if driver else int(rng.integers(0, 4))
    queue: list[np.ndarray] = []
    for _ in range(before):
        if driver:
            queue = queue or list(driver(observation)[:SCRIPTED_WINDOW])
            action = queue.pop(0)
        else:
            action = observation["state"] + rng.normal(0, SHAKE, len(observation["state"]))
        env.cameras_on = driver is not None and not queue
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return Labelled(success=bool(info["success"]))
    env.cameras_on = True
    frames, targets = Labelled(), []

    def watch(seen: dict[str, Any], target: np.ndarray) -> None:
        frames.observations.append(seen)
        targets.append(target)

    frames.success = env.demonstrate(SCRIPTED_TICKS, watch)
    if not frames.success:
        return Labelled()
    ends = targets + [targets[-1]] * horizon  # the arm stays where the expert left it
    frames.labels = [np.stack(ends[k + 1 : k + 1 + horizon]) for k in range(len(targets))]
    return frames


EPISODES: dict[str, Callable[..., Labelled]] = {"analytic": analytic, "simulated": simulated, "scripted": scripted}


class _Disturbance:
    """Correlated noise on every action, and now and then a shove of a few steps that may flip the gripper.

    For seven channels: translation, rotation, gripper.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.drift = rng, np.zeros(7)
        self.shove, self.left = np.zeros(7), 0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        rng = self.rng
        self.drift = 0.7 * self.drift + rng.normal(0, [0.16, 0.16, 0.12, 0, 0, 0.12, 0])
        action = action + self.drift
        if self.left == 0 and rng.random() < 0.025:
            self.left = int(rng.integers(3, 8))
            self.shove = rng.uniform(-1, 1, 7) * [1, 1, 0.8, 0, 0, 0.8, 0]
            self.shove[6] = rng.choice([0, 0, -2, 2])
        if self.left:
            self.left -= 1
            action = 0.3 * action + self.shove
        return action
