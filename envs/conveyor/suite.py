"""The conveyor suites, described without MuJoCo."""

from __future__ import annotations

from ..checks import FIRST_OBSERVATION, MUJOCO_RENDERING
from ..demonstrations import Demonstrations
from ..suite import Install, Suite

TASKS = ("dog-red", "dog-blue", "brush-red", "brush-blue")
EITHER_TASKS = ("dog-either", "brush-either")
CAMERAS = ("third", "wrist")
NAMES = {"dog": "toy dog", "brush": "hairbrush"}  # of the objects, in instructions
EITHER = "either"  # in place of a bin's name


def instruction(target: str, place: str) -> str:
    """Returns the instruction to bring an object to a bin, or to either."""
    return f"put the {NAMES[target]} in {'either bin' if place == EITHER else f'the {place} bin'}"


SUITES = tuple(
    Suite(
        name,
        env_id,
        "replan.envs.conveyor.env:ConveyorSorting",
        tasks,
        kwargs=kwargs,
        cameras=CAMERAS,
        settings={"speed": float},
        instructions={task: instruction(*task.split("-")) for task in tasks},
        demonstrations=Demonstrations("replan.envs.conveyor.demonstrations:episode"),
        policy=policy,
    )
    for name, env_id, tasks, kwargs, policy in (
        ("conveyor", "replan/ConveyorSorting-v0", TASKS, {}, "pi0-tiny"),
        ("conveyor-hard", "replan/ConveyorSortingHard-v0", TASKS, {"distractor": True}, "pi0-tiny-hard"),
        ("conveyor-either", "replan/ConveyorSortingEither-v0", EITHER_TASKS, {"either": True}, None),
    )
)
INSTALL = Install("conveyor", checks=(MUJOCO_RENDERING, FIRST_OBSERVATION), packages=("mujoco", "robosuite"))
