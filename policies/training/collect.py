"""Demonstrations: an expert that labels every state, driven off its own path on purpose.

Noise, shoves and random latencies take the arm where a policy's errors will take it (DART); with a policy at the wheel
the same loop is DAgger. Either way the label of a frame is the expert's chunk from that very state.

The environment is reached by name through Gymnasium; its ``unwrapped`` must offer ``expert_chunk(horizon)`` and
``hold(ticks)``, and let ``speed`` and ``start_spread`` be set before a reset.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tqdm import tqdm

from ..policy import call_policy, load_policy

TRAINING_SEED = 1_000_000  # evaluation uses small seeds, so no training cell is ever an evaluation cell
SPEEDS = (5.0, 16.0)  # m/min; a little beyond what is evaluated
MAX_STEPS = 130

Driver = Callable[[dict[str, Any]], np.ndarray]
"""A policy: observation to chunk [H, A] in the environment's convention."""


@dataclass
class Frames:
    """Labelled frames.

    Attributes:
        images: uint8 [N, V, S, S, 3].
        state: float32 [N, state_dim].
        instruction: [N] str.
        actions: float16 [N, H, A], the expert's chunks.
        episode: int64 [N], for splitting by episode.
    """

    images: np.ndarray
    state: np.ndarray
    instruction: np.ndarray
    actions: np.ndarray
    episode: np.ndarray

    def save(self, path: Path) -> None:
        """Writes the arrays uncompressed, one file each, so that training can map the images into memory."""
        path.mkdir(parents=True, exist_ok=True)
        for name, array in vars(self).items():
            np.save(path / f"{name}.npy", array)

    @staticmethod
    def load(path: Path) -> Frames:
        """Maps the arrays of a folder into memory.

        Raises:
            FileNotFoundError: A file is missing.
        """
        return Frames(**{name: np.load(path / f"{name}.npy", mmap_mode="r") for name in Frames.__annotations__})


def collect(
    env_id: str, out: Path, episodes: int, seed: int, horizon: int, cameras: tuple[str, ...], policy: Path | None = None
) -> float:
    """Records episodes into ``out`` and returns the share that succeeded.

    Args:
        env_id: Gymnasium id, with its module: ``replan.envs:replan/ConveyorSorting-v0``.
        out: Folder to write.
        episodes: Episodes to run.
        seed: Separates recordings; the same seed gives the same frames.
        horizon: Length of a label.
        cameras: Observation keys of the views.
        policy: Checkpoint of the policy at the wheel (DAgger); None lets the disturbed expert drive.
    """
    driver = policy_driver(policy, seed) if policy else None
    env = gymnasium.make(env_id).unwrapped
    rows: list[tuple[Any, ...]] = []
    successes = 0
    for episode in tqdm(range(episodes), desc=out.name, mininterval=5.0):
        number = seed * 100_000 + episode
        rng = np.random.default_rng([TRAINING_SEED, number])
        successes += _episode(env, rng, number, horizon, cameras, driver, rows)
    env.close()
    images, state, instruction, actions, index = zip(*rows, strict=True)
    Frames(
        np.stack(images),
        np.stack(state),
        np.array(instruction),
        np.stack(actions).astype(np.float16),
        np.array(index, np.int64),
    ).save(out)
    return successes / episodes


def collect_parallel(
    env_id: str,
    out: Path,
    episodes: int,
    seed: int,
    horizon: int,
    cameras: tuple[str, ...],
    policy: Path | None = None,
    workers: int = 2,
) -> list[Path]:
    """Records with several processes; returns the folders written, one a process. Arguments as in :func:`collect`."""
    context = multiprocessing.get_context("spawn")
    folders = [out / f"part{worker}" for worker in range(workers)]
    jobs = [
        context.Process(
            target=collect,
            args=(
                env_id,
                folder,
                episodes // workers + (worker < episodes % workers),
                seed * workers + worker,
                horizon,
                cameras,
                policy,
            ),
        )
        for worker, folder in enumerate(folders)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    if any(job.exitcode for job in jobs):
        raise RuntimeError(f"a collection process ended with {[job.exitcode for job in jobs]}; its output says why")
    return folders


def policy_driver(path: Path, seed: int) -> Driver:
    """Returns a dense policy as a driver, with its own stream of noise."""
    policy, generator = load_policy(path), torch.Generator().manual_seed(seed)
    config = policy.model.config
    torch.set_num_threads(1)

    def drive(observation: dict[str, Any]) -> np.ndarray:
        noise = torch.randn((1, config.horizon, config.action_dim), generator=generator)
        return policy.processor.actions(call_policy(policy, (), observation, noise).chunk[0])

    return drive


def _episode(
    env: Any,
    rng: np.random.Generator,
    number: int,
    horizon: int,
    cameras: tuple[str, ...],
    driver: Driver | None,
    rows: list[tuple[Any, ...]],
) -> bool:
    clean = rng.random() < 0.35
    env.speed = float(rng.uniform(*SPEEDS))
    env.start_spread = 0.03 if rng.random() < 0.5 else 0.12
    observation, info = env.reset(seed=TRAINING_SEED + number)
    disturb = _Disturbance(rng) if driver is None and not clean else None
    steps = 0
    while steps < MAX_STEPS:
        chunk = None
        latency = rng.choice([0, 0, 0, 10, 25, 50]) if not clean else 0  # ticks
        by_expert = driver is None or rng.random() < 0.2
        for k in range(int(rng.integers(1, 13))):
            label = env.expert_chunk(horizon)
            if chunk is None:
                chunk = label if by_expert or driver is None else driver(observation)
            rows.append(
                (
                    np.stack([observation[camera] for camera in cameras]),
                    observation["state"],
                    observation["instruction"],
                    label,
                    number,
                )
            )
            if k == 0 and latency:
                env.hold(int(latency))
            action = chunk[k] if disturb is None else disturb(chunk[k])
            observation, _, terminated, truncated, info = env.step(action)
            steps += 1
            if terminated or truncated:
                return bool(info["success"])
    return False


class _Disturbance:
    """Correlated noise on every action, and now and then a shove of a few steps that may flip the gripper."""

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
