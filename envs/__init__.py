"""Benchmarks as Gymnasium environments, their wrappers, and experts that know the simulator's state.

Importing this package registers the environments: ``import replan.envs; gymnasium.make("replan/ConveyorSorting-v0")``.
Gymnasium 1.x no longer loads environments through entry points, so there is none. It also chooses MuJoCo's OpenGL where
the user did not (:mod:`.opengl`), so it has to be imported before MuJoCo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from . import opengl
from .libero.tasks import INIT_STATES as _LIBERO_INIT_STATES
from .libero.tasks import tasks_of as _libero_tasks
from .robotwin.tasks import COUNT as _ROBOTWIN_INIT_STATES
from .robotwin.tasks import TASKS as _ROBOTWIN_TASKS
from .robotwin.tasks import standin_tasks as _robotwin_tasks

opengl.choose()


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
        open_language: Whether an evaluation uses sentences that recordings for training don't hold.
        training: Environment arguments of recordings for training, where they differ from an evaluation's.
        settings: Environment arguments that a user may fix with ``--set``, and their types.
        marks: What a reader of results of this suite has to know: a badge of a word or two, a colon, the sentence.
        policy: Bundled policy that acts where the user names none; None where there is none.
        block: Initial states of a task that one worker runs in a row: more than 1 where another task costs the
            environment a new simulator.
        world: Returns what the suite is made of besides this package, on this machine and with some settings: versions
            and digests by name. Runs of different ones are not one. It builds nothing and needs no simulator; what is
            missing raises :class:`SuiteUnavailable`. None where this package is all.
    """

    name: str
    env_id: str
    tasks: tuple[str, ...]
    init_states: int | None = None
    cameras: tuple[str, ...] = ()
    expert: str | None = None
    gripper: tuple[int, ...] = (6,)
    absolute: bool = False
    open_language: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, type] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    policy: str | None = None
    block: int = 1
    world: Callable[[Mapping[str, Any]], dict[str, str]] | None = None


class SuiteUnavailable(ImportError):
    """A suite cannot be used here, because a package or a file that it needs is missing or does not fit."""


def _libero_world(settings: Mapping[str, Any]) -> dict[str, str]:
    from .libero.package import world

    return world(settings)


def _standin_world(settings: Mapping[str, Any]) -> dict[str, str]:
    from .robotwin.source import standin_world

    return standin_world(settings)


def _real_world(settings: Mapping[str, Any]) -> dict[str, str]:
    from .robotwin.source import real_world

    return real_world(settings)


_CONVEYOR = tuple(
    Suite(
        name,
        env_id,
        ("dog-red", "dog-blue", "brush-red", "brush-blue"),
        cameras=("third", "wrist"),
        expert="analytic",
        settings={"speed": float},
        policy=policy,
    )
    for name, env_id, policy in (
        ("conveyor", "replan/ConveyorSorting-v0", "pi0-tiny"),
        ("conveyor-hard", "replan/ConveyorSortingHard-v0", "pi0-tiny-hard"),
    )
)
_LIBERO = tuple(
    Suite(
        name,
        env_id,
        tuple(_libero_tasks(name)),
        init_states=_LIBERO_INIT_STATES,
        cameras=("agentview", "wrist"),
        expert="simulated",
        settings={"controller": str, "protocol": str, "image_size": int},
        policy=policy,
        block=5,
        world=_libero_world,
    )
    for name, env_id, policy in (
        ("libero_spatial", "replan/LiberoSpatial-v0", "pi0-tiny-libero-spatial"),
        ("libero_object", "replan/LiberoObject-v0", "pi0-tiny-libero-object"),
        ("libero_goal", "replan/LiberoGoal-v0", None),
        ("libero_10", "replan/Libero10-v0", None),
        ("libero_90", "replan/Libero90-v0", None),
    )
)
_ROBOTWIN = tuple(
    Suite(
        name,
        env_id,
        tasks,
        init_states=_ROBOTWIN_INIT_STATES,
        cameras=("head", "left_wrist", "right_wrist"),
        expert="scripted",
        gripper=(6, 13),
        absolute=True,
        open_language=True,
        training={"instructions": "seen"},
        settings={"action": str, "instructions": str, **settings},
        marks=marks,
        policy="pi0-tiny-robotwin" if name == "robotwin" else None,
        world=world,
    )
    for name, env_id, tasks, settings, marks, world in (
        (
            "robotwin",
            "replan/RoboTwin-v0",
            _robotwin_tasks(),
            {},
            ("stand-in assets: RoboTwin's task code with another robot and other objects; compare with no paper",),
            _standin_world,
        ),
        (
            "robotwin-real",
            "replan/RoboTwinReal-v0",
            _ROBOTWIN_TASKS,
            {"root": str, "python": str, "planner": str, "config": str},
            (),
            _real_world,
        ),
    )
)
SUITES = {suite.name: suite for suite in (*_CONVEYOR, *_LIBERO, *_ROBOTWIN)}


gymnasium.register("replan/ConveyorSorting-v0", "replan.envs.conveyor.env:ConveyorSorting")
gymnasium.register(
    "replan/ConveyorSortingHard-v0", "replan.envs.conveyor.env:ConveyorSorting", kwargs={"distractor": True}
)
for _suite in _LIBERO:
    gymnasium.register(_suite.env_id, "replan.envs.libero.env:Libero", kwargs={"suite": _suite.name})
gymnasium.register("replan/RoboTwin-v0", "replan.envs.robotwin.env:RoboTwin")
gymnasium.register("replan/RoboTwinReal-v0", "replan.envs.robotwin.env:RoboTwinReal")
