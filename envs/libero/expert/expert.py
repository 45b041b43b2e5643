"""The expert of a task: it works on the first line of the goal that is not satisfied."""

from __future__ import annotations

from typing import Any

import numpy as np

from .fixtures import Door, Drawer, Knob
from .grasp import Grasp
from .scene import Scene
from .skills import PickPlace

_ORDER = ("turnon", "turnoff", "open", "on", "in", "close")  # any other comes last
_FREE = np.array([0.0, 0.0, 0.8, 0.0, 0.0, 0.0])  # up, which bends a stretched elbow and unfolds a folded one
_ROW = 0.1  # metres between things that share a surface


class Expert:
    """A scripted policy with privileged state for one LIBERO task.

    Args:
        problem: LIBERO's environment (``ControlEnv(...).env``), after its reset.

    Raises:
        NotImplementedError: There is no skill for one of the task's goals, such as to open a door.
    """

    def __init__(self, problem: Any) -> None:
        self.scene = Scene(problem)
        goals = problem.parsed_problem["goal_state"]
        self.goals = [list(goal) for goal in sorted(goals, key=lambda goal: (*_ORDER, goal[0]).index(goal[0]))]
        self.skills = [self._skill(*goal) for goal in self.goals]

    def _skill(self, verb: str, *things: str) -> PickPlace | Door | Drawer | Knob:
        if verb in ("open", "close"):
            if things[0] in self.scene.problem.object_sites_dict:
                return Drawer(self.scene, things[0], open=verb == "open")
            if verb == "close":
                return Door(self.scene, things[0])
        elif verb in ("turnon", "turnoff"):
            return Knob(self.scene, things[0], on=verb == "turnon")
        elif verb in ("in", "on"):
            return PickPlace(self.scene, *things, aside=self._aside(*things))
        raise NotImplementedError(f"the scripted experts have no skill for the goal {' '.join((verb, *things))!r}")

    def _aside(self, thing: str, target: str) -> np.ndarray:
        """Returns the offset [3] of a thing on a surface that several share: a row, the first farthest from the arm."""
        sharing = [goal[1] for goal in self.goals if goal[0] == "on" and goal[2] == target]
        if thing not in sharing:
            return np.zeros(3)
        return np.array([_ROW * ((len(sharing) - 1) / 2 - sharing.index(thing)), 0.0, 0.0])

    def act(self) -> np.ndarray:
        """Returns the next OSC_POSE delta action, float64 [7] in [-1, 1], for the present state."""
        todo = [skill for goal, skill in zip(self.goals, self.skills, strict=True) if not self.scene.satisfied(goal)]
        leaving = (skill.leave() for skill in self.skills if skill not in todo[:1])
        action = next((action for action in leaving if action is not None), None)
        if action is None:
            action = todo[0].act() if todo else np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
        if self.scene.locked:
            action[:6] = _FREE
        return np.clip(action, -1.0, 1.0)

    def snapshot(self) -> list[Grasp | None]:
        """Returns what the expert remembers between calls, for :meth:`restore`."""
        return [skill.grasp if isinstance(skill, PickPlace) else None for skill in self.skills]

    def restore(self, memo: list[Grasp | None]) -> None:
        """Restores a memory."""
        for skill, grasp in zip(self.skills, memo, strict=True):
            if isinstance(skill, PickPlace):
                skill.grasp = grasp
