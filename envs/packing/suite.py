"""The packing suite, described without MuJoCo."""

from __future__ import annotations

import itertools

from ..checks import FIRST_OBSERVATION, MUJOCO_RENDERING
from ..conveyor.suite import CAMERAS
from ..demonstrations import Demonstrations
from ..suite import Install, Suite

PARTS = ("leg", "top", "screw")
TASKS = tuple("-".join(order) for order in itertools.permutations(PARTS))


def instruction(order: tuple[str, ...]) -> str:
    """Returns the instruction to place parts in an order."""
    return "pack the " + " then the ".join(order)


SUITES = (
    Suite(
        "packing",
        "replan/ConveyorPacking-v0",
        "replan.envs.packing.env:ConveyorPacking",
        TASKS,
        cameras=CAMERAS,
        settings={"speed": float},
        instructions={task: instruction(tuple(task.split("-"))) for task in TASKS},
        demonstrations=Demonstrations("replan.envs.packing.demonstrations:episode"),
    ),
)
INSTALL = Install("packing", checks=(MUJOCO_RENDERING, FIRST_OBSERVATION), packages=("mujoco", "robosuite"))
