"""Benchmarks as Gymnasium environments, their wrappers, and experts that know the simulator's state.

Importing this package registers the environments: ``import replan.envs; gymnasium.make("replan/ConveyorSorting-v0")``.
Gymnasium 1.x no longer loads environments through entry points, so there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import gymnasium


@dataclass(frozen=True)
class Suite:
    """What the harness needs to know about a benchmark.

    Attributes:
        name: What users write in ``--suite``.
        env_id: Registered Gymnasium id.
        tasks: Task names, as ``reset(options={"task": ...})`` takes them.
        init_states: Number of initial states a task, or None where they are drawn without end.
        cameras: Observation keys of the views.
        expert: How its expert can be asked, as ``replan collect`` needs to know: ``analytic`` (answers from any state
            at once), ``simulated`` (by rolling the simulator forward), ``scripted`` (acts whole tasks only), or None.
        gripper: Gripper channels of the action, one an arm.
        absolute: Whether actions are absolute joint positions, in the order of the state.
        settings: Environment arguments that a user may fix with ``--set``, and their types.
    """

    name: str
    env_id: str
    tasks: tuple[str, ...]
    init_states: int | None = None
    cameras: tuple[str, ...] = ()
    expert: str | None = None
    gripper: tuple[int, ...] = (6,)
    absolute: bool = False
    settings: dict[str, type] = field(default_factory=dict)


_CONVEYOR_TASKS = ("dog-red", "dog-blue", "brush-red", "brush-blue")
_CONVEYOR_CAMERAS = ("third", "wrist")
SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name,
            env_id,
            _CONVEYOR_TASKS,
            cameras=_CONVEYOR_CAMERAS,
            expert="analytic",
            settings={"speed": float},
        )
        for name, env_id in (
            ("conveyor", "replan/ConveyorSorting-v0"),
            ("conveyor-hard", "replan/ConveyorSortingHard-v0"),
        )
    )
}


_CONVEYOR = "replan.envs.conveyor.env:ConveyorSorting"
gymnasium.register("replan/ConveyorSorting-v0", _CONVEYOR)
gymnasium.register("replan/ConveyorSortingHard-v0", _CONVEYOR, kwargs={"distractor": True})
