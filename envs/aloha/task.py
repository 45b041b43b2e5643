"""What is sampled and how it is judged: upstream's cube start distribution and reward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .physics import AlohaPhysics
from .suite import TASKS

LOW, HIGH = (0.0, 0.4, 0.05), (0.2, 0.6, 0.05)  # metres: upstream's sample_box_pose
STEP_LIMIT = 400  # 8 s at 50 Hz, as ACT evaluates it; gym-aloha registers 300
SOLVED = 4  # upstream's highest reward
SUCCESS_RULE = f"the cube touches the left gripper and does not touch the table (upstream's reward of {SOLVED})"


@dataclass(frozen=True)
class Sample:
    """One initial state: position of the cube in metres."""

    cube: tuple[float, float, float]


def sample(task: str, seed: int, init_state: int) -> Sample:
    """Samples an initial state, uniformly as upstream, from a generator of the cell's own."""
    rng = np.random.default_rng([seed, init_state, TASKS.index(task)])
    x, y, z = rng.uniform(LOW, HIGH).tolist()
    return Sample((x, y, z))


def reward(physics: AlohaPhysics) -> int:
    """Returns upstream's reward.

    1: the right hand touches the cube; 2: it lifted it; 3: the left hand touches the cube; 4: and the cube is off the
    table.
    """
    touched = physics.touched()
    if "left" in touched:
        return 3 if "table" in touched else SOLVED
    if "right" in touched:
        return 1 if "table" in touched else 2
    return 0


def outcome(stage: int, steps: int) -> str | None:
    """Returns ``success``, ``time``, or None while the episode goes on, from upstream's reward and the steps taken."""
    if stage == SOLVED:
        return "success"
    return "time" if steps >= STEP_LIMIT else None
