"""Recordings of experts: what a suite declares, and what the episodes of several suites share.

An episode function lives next to its environment. Experts differ in what they can be asked, so there are three kinds:
one that answers from any state at once (conveyor), one that answers by simulating ahead (LIBERO), and one that can only
act a whole task (RoboTwin).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Demonstrations:
    """How the expert of a suite is recorded, and the conventions that training needs.

    Attributes:
        episode: Entry point ``module:function`` of the function that records one episode.
        gripper: Gripper channels of the action, one per arm.
        absolute: Whether actions are absolute joint positions, in the order of the state.
        open_language: Whether evaluations use instructions that recordings do not contain.
        settings: Environment arguments of recordings, where they differ from an evaluation's.
    """

    episode: str
    gripper: tuple[int, ...] = (6,)
    absolute: bool = False
    open_language: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


TRAINING_SEED = 1_000_000  # seeds of recordings start here, and those of evaluations are small: no cell is in both

Behaviour = Callable[[dict[str, Any]], np.ndarray]
"""A policy: observation to chunk [H, A] in the environment's convention."""


@dataclass
class Labelled:
    """Observations of an episode with the expert's chunks.

    Attributes:
        observations: As the environment returned them.
        labels: Chunks [H, A], one per observation, in the environment's convention.
        success: Whether the episode ended in success.
    """

    observations: list[dict[str, Any]] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)
    success: bool = False

    def add(self, observation: dict[str, Any], label: np.ndarray) -> None:
        """Adds a frame."""
        self.observations.append(observation)
        self.labels.append(label)


@contextmanager
def cameras_restored(env: Any) -> Iterator[None]:
    """Turns an environment's cameras on when an episode has been recorded, however that ended.

    Episode functions turn them off where no frame follows; whoever calls one does it inside.
    """
    try:
        yield
    finally:
        env.cameras_on = True


Episode = Callable[[Any, np.random.Generator, int, str, int, "Behaviour | None"], Labelled]
"""Records an episode: (unwrapped environment, generator, seed, task, horizon, policy) to labelled frames.

The seed is one that no evaluation uses. With a policy, the policy acts and the expert labels the states that it leads
to (DAgger); with None, the expert acts, disturbed (DART), so that labels cover the states around its own path.
"""


POLICY_WINDOW = 10  # actions of a chunk that a policy executes before an expert takes over


def lead_in(
    env: Any,
    rng: np.random.Generator,
    observation: dict[str, Any],
    policy: Behaviour | None,
    steps: int,
    noise: float,
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Lets a policy, or noise on absolute joint targets, act before an expert that can only act a whole task.

    Images are rendered only where the policy reads them, and after the last step.

    Args:
        env: The environment, whose actions are absolute joint positions in the order of the state.
        rng: Source of the noise.
        observation: The present observation.
        policy: Who acts; None is noise.
        steps: Actions to execute.
        noise: Standard deviation per channel of the state.

    Returns:
        The last observation; the info of the last step if the episode ended in it, else None.
    """
    queue: list[np.ndarray] = []
    for step in range(steps):
        if policy:
            queue = queue or list(policy(observation)[:POLICY_WINDOW])
            action = queue.pop(0)
        else:
            action = observation["state"] + rng.normal(0, noise, len(observation["state"]))
        env.cameras_on = step == steps - 1 or (policy is not None and not queue)
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            return observation, info
    return observation, None


class Disturbance:
    """Correlated noise on every action, and occasional shoves of a few steps that may flip the gripper.

    For actions of seven channels in [-1, 1]: translation, rotation, gripper. Only rotation about the vertical axis is
    disturbed, because the experts keep the gripper upright.

    Args:
        rng: Source of all randomness.
    """

    # In units of the action, 1 being the most that a command can be. The drift's stationary standard deviation is
    # 0.16 / sqrt(1 - 0.7^2) = 0.22, and an episode of 130 steps has about three shoves.
    DRIFT = np.array([0.16, 0.16, 0.12, 0, 0, 0.12, 0])
    DRIFT_MEMORY = 0.7
    SHOVE = np.array([1, 1, 0.8, 0, 0, 0.8, 0])
    SHOVE_RATE = 0.025
    SHOVE_STEPS = (3, 8)
    SHOVE_FLIPS = (0, 0, -2, 2)  # added to a command in [-1, 1]: two of four shoves may turn the gripper round
    FOLLOWED = 0.3  # share of the action that is kept during a shove

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.drift = rng, np.zeros(7)
        self.shove, self.left = np.zeros(7), 0

    def __call__(self, action: np.ndarray) -> np.ndarray:
        """Returns the action, disturbed; it may leave [-1, 1]."""
        rng = self.rng
        self.drift = self.DRIFT_MEMORY * self.drift + rng.normal(0, self.DRIFT)
        action = action + self.drift
        if self.left == 0 and rng.random() < self.SHOVE_RATE:
            self.left = int(rng.integers(*self.SHOVE_STEPS))
            self.shove = rng.uniform(-1, 1, 7) * self.SHOVE
            self.shove[6] = rng.choice(self.SHOVE_FLIPS)
        if self.left:
            self.left -= 1
            action = self.FOLLOWED * action + self.shove
        return action
