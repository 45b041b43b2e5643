"""A scripted expert with privileged state: the conveyor's, part after part, that places instead of dropping.

Like the conveyor's it is Markov: it labels any state, not only those on its own path.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ..conveyor.expert import CARRY_Z, CONTROL_S, MentalModel, View, wrap
from ..conveyor.physics import BELT_TOP, BELT_WIDTH, BELT_X, TRANSLATION
from ..conveyor.task import RELEASED
from .physics import FLOOR, SLOT_HALF, TRAY

# The grasp of a part in metres: offset along its x axis, height of the tool above its origin, width between the pads.
GRASPS = {
    "leg": ((0.0, 0.014, 0.026),),
    "top": ((0.0, 0.011, 0.044),),
    "screw": ((0.0, 0.016, 0.030),),
}
OPENING_PER_STEP = 0.015  # metres of opening gained in one control step
WAIT_Y = -0.44  # where the tool waits for a part that is not in reach yet
CLEAR_Z = FLOOR + 0.09  # above the tray's parts


def plan(views: list[View], horizon: int) -> np.ndarray:
    """Returns the chunk [horizon, 7] that the expert would execute from here.

    Args:
        views: The state as seen for each part that is not placed yet, in the order named; ``bin`` is the part's slot.
        horizon: Number of control steps.
    """
    mind, pending = _MentalModel(views[0]), views[1:]
    actions = []
    for number in range(horizon):
        if mind.placed and pending:
            view, *pending = pending
            travel = np.array([0.0, view.speed * CONTROL_S * number, 0.0])
            mind = _MentalModel(
                dataclasses.replace(
                    view,
                    target_position=mind.tool,
                    target_yaw=mind.yaw,
                    tool_position=mind.tool,
                    width=mind.width,
                    gripper=-1.0,
                    object_position=view.object_position + travel,
                )
            )
        actions.append(mind.step())
    return np.stack(actions)


class _MentalModel(MentalModel):
    """Approaches like the conveyor's expert, then lays the part into its slot, straight."""

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self.moving = self.moving and abs(self.object[0] - BELT_X) < BELT_WIDTH / 2

    @property
    def placed(self) -> bool:
        return self.done and self.width > RELEASED

    def _delivered(self) -> bool:
        inside = np.all(np.abs(self.object[:2] - self.bin) < SLOT_HALF)
        return bool(inside and self.object[2] - FLOOR < 0.006)

    def _leave(self) -> tuple[np.ndarray, float, float]:
        """Opens where it is, then up: fingers that open on their way up take the part along."""
        if not self.placed:
            self.width += OPENING_PER_STEP
            return self.tool.copy(), -1.0, 0.0
        return super()._leave()

    def _carry(self) -> tuple[np.ndarray, float, float]:
        """Up, over the slot while turning the part straight, then down onto the floor of the slot."""
        goal, turn = np.array([*self.tool[:2], CARRY_Z]), wrap(-self.yaw)
        to_slot = self.bin - (self.tool[:2] - self.offset)
        distance = float(np.linalg.norm(to_slot))
        if self.tool[2] > BELT_TOP + 0.09 or distance < 0.02:
            stride = min(TRANSLATION, max(0.3 * distance, 0.005), distance)
            goal[:2] = self.tool[:2] + to_slot / max(distance, 1e-6) * stride
        elif self.tool[2] < BELT_TOP + 0.05:
            goal[1] += self.speed * CONTROL_S  # leave the belt without dragging
        if distance < 0.008 and abs(turn) < 0.1:
            goal[2] = max(self.tool[2] - 0.02, FLOOR + self.height + 0.001)
            self.done = self.tool[2] - FLOOR - self.height < 0.003
            self.held = not self.done
        return goal, -1.0 if self.done else 1.0, turn

    def _approach(self) -> tuple[np.ndarray, float, float]:
        """Out of the tray, to where the part will be, then as the conveyor's expert."""
        over_tray = abs(self.tool[0] - TRAY[0]) < 0.12 and abs(self.tool[1] - TRAY[1]) < 0.20
        if over_tray and self.tool[2] < CLEAR_Z and not self.closing:
            return np.array([*self.tool[:2], CLEAR_Z + TRANSLATION]), -1.0, 0.0
        if self.object[1] < WAIT_Y - 0.03 and self.moving:
            return np.array([self.object[0], WAIT_Y, CARRY_Z]), -1.0, wrap(self.object_yaw - self.yaw)
        return super()._approach()
