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
        settings: Environment arguments that a user may fix with ``--set``, and their types.
    """

    name: str
    env_id: str
    tasks: tuple[str, ...]
    init_states: int | None = None
    settings: dict[str, type] = field(default_factory=dict)


_CONVEYOR_TASKS = ("dog-red", "dog-blue", "brush-red", "brush-blue")
SUITES = {
    suite.name: suite
    for suite in (
        Suite("conveyor", "replan/ConveyorSorting-v0", _CONVEYOR_TASKS, settings={"speed": float}),
        Suite("conveyor-hard", "replan/ConveyorSortingHard-v0", _CONVEYOR_TASKS, settings={"speed": float}),
    )
}


_CONVEYOR = "replan.envs.conveyor.env:ConveyorSorting"
gymnasium.register("replan/ConveyorSorting-v0", _CONVEYOR)
gymnasium.register("replan/ConveyorSortingHard-v0", _CONVEYOR, kwargs={"distractor": True})
