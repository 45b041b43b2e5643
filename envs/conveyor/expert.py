"""A scripted expert with privileged state that labels any state, not only those on its own path.

It is Markov: a chunk is the roll-out of a kinematic mental model from the present state, so noisy and on-policy states
can be labelled for free (DART, DAgger).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .physics import BELT_TOP, BIN_HALF, ROTATION, TRANSLATION

CONTROL_S = 0.05  # one control step at 20 Hz
SERVO_LAG_S = 0.048  # the tool follows its target this late
HOVER = 0.10  # metres above the grasp: higher than either object, so that the open fingers pass over it
CARRY_Z = 0.27  # metres: a held object clears the walls of the bins
CLOSING_PER_STEP = 0.028  # metres of opening lost in one control step

# Grasps as (offset along the object's x axis, height of the tool above the object's origin, width between the pads).
GRASPS = {
    "dog": ((0.0, 0.030, 0.034),),
    "brush": ((0.0, 0.010, 0.038),),
}
SEVERAL_GRASPS = {
    "dog": ((-0.016, 0.030, 0.034), (0.016, 0.030, 0.034)),
    "brush": ((-0.055, 0.010, 0.018), (0.040, 0.010, 0.038)),
}


@dataclass(frozen=True)
class View:
    """What the expert may see: positions [3] and the bin's [2] in metres, yaws in radians, speed in m/s."""

    target_position: np.ndarray
    target_yaw: float
    tool_position: np.ndarray
    width: float
    gripper: float
    object_position: np.ndarray
    object_yaw: float
    bin: tuple[float, float]
    speed: float
    grasps: tuple[tuple[float, float, float], ...]


def plan(view: View, horizon: int) -> np.ndarray:
    """Returns the chunk [horizon, 7] that the expert would execute from here, as the environment takes it."""
    mind = MentalModel(view)
    return np.stack([mind.step() for _ in range(horizon)])


def wrap(angle: float) -> float:
    """Wraps to [-pi/2, pi/2): the two fingers are interchangeable."""
    return (angle + np.pi / 2) % np.pi - np.pi / 2


class MentalModel:
    """The state, predicted one control step at a time, and what the expert does in it."""

    def __init__(self, view: View) -> None:
        self.tool, self.yaw = view.target_position.copy(), view.target_yaw
        self.object, self.object_yaw = view.object_position.copy(), view.object_yaw
        self.width, self.speed = view.width, view.speed
        self.bin = np.array(view.bin)
        axis = np.array([np.cos(self.object_yaw), np.sin(self.object_yaw)])
        # The nearest grasp: approaching one makes it the nearest, so the choice sticks without memory.
        offset, self.height, grip_width = min(
            view.grasps, key=lambda grasp: float(np.linalg.norm(self.object[:2] + grasp[0] * axis - self.tool[:2]))
        )
        # Fingers that have closed to the object's width hold it; 6 mm are for the pads' compliance.
        self.offset, self.held_width = offset * axis, grip_width + 0.006
        gap = self.object + np.array([*self.offset, self.height]) - view.tool_position
        # 45 mm: the tool is at the grasp, its lag behind a fast belt included (13 mm at 16 m/min).
        near, closed = bool(np.linalg.norm(gap) < 0.045), view.gripper > 0
        self.held = near and closed and self.width < self.held_width
        self.closing = near and closed and not self.held
        self.done = self._delivered()
        self.moving = abs(self.object[2] - BELT_TOP) < 0.02 and not self.held  # its origin lies on the belt

    def step(self) -> np.ndarray:
        """Returns the action [7] of one control step, and predicts the state after it."""
        if self.done:
            goal, gripper, turn = self._leave()
        elif self.held:
            goal, gripper, turn = self._carry()
        else:
            goal, gripper, turn = self._approach()
        move = goal - self.tool
        length = np.linalg.norm(move[:2])
        if length > TRANSLATION:
            move[:2] *= TRANSLATION / length
        action = np.zeros(7)
        action[:2] = move[:2] / TRANSLATION
        action[2] = np.clip(move[2] / TRANSLATION, -1, 1)
        action[5] = 0.6 * np.clip(turn / ROTATION, -1, 1)
        action[6] = gripper
        self.tool = self.tool + action[:3] * TRANSLATION
        self.yaw += action[5] * ROTATION
        if self.held:
            self.object = self.tool - np.array([*self.offset, self.height])
        elif self.moving and not self.done:
            self.object = self.object + np.array([0.0, self.speed * CONTROL_S, 0.0])
        return action

    def _delivered(self) -> bool:
        inside = bool(np.all(np.abs(self.object[:2] - self.bin) < BIN_HALF))
        return inside and bool(self.object[2] < 0.09)  # below the bin's rim

    def _leave(self) -> tuple[np.ndarray, float, float]:
        return np.array([*self.tool[:2], max(self.tool[2], CARRY_Z)]), -1.0, 0.0

    def _carry(self) -> tuple[np.ndarray, float, float]:
        """Up, then over the bin, braking: a release at speed throws the object past the bin."""
        goal = np.array([*self.tool[:2], CARRY_Z])
        to_bin = self.bin - (self.tool[:2] - self.offset)
        distance = float(np.linalg.norm(to_bin))
        if self.tool[2] > BELT_TOP + 0.09:
            # Braking: 30 % of what is left per step, at least 5 mm so that it arrives.
            stride = min(TRANSLATION, max(0.3 * distance, 0.005), distance)
            goal[:2] = self.tool[:2] + to_bin / max(distance, 1e-6) * stride
        elif self.tool[2] < BELT_TOP + 0.05:
            goal[1] += self.speed * CONTROL_S  # leave the belt without dragging
        if distance < 0.02 and self.tool[2] > 0.20:
            self.held, self.done = False, True
            return self.tool.copy(), -1.0, 0.0
        return goal, 1.0, 0.0

    def _approach(self) -> tuple[np.ndarray, float, float]:
        """Over the object's future position, down once aligned, then close while moving along."""
        travel = np.array([0.0, self.speed])
        aligned = self.object[:2] + self.offset + travel * SERVO_LAG_S  # where the target has to be now
        future = aligned + travel * CONTROL_S
        turn, floor = wrap(self.object_yaw - self.yaw), BELT_TOP + self.height
        error = float(np.linalg.norm(aligned - self.tool[:2]))
        if self.closing:
            self.width -= CLOSING_PER_STEP
            self.held = self.width < self.held_width
            return np.array([*future, floor]), 1.0, turn
        if error < 0.05 and abs(turn) < 0.35:
            z = floor + 2.0 * max(0.0, error - 0.008)  # a funnel: the closer to the grasp, the lower
        else:
            z = floor + HOVER + (0.0 if error < 0.10 else 0.06)  # 6 cm more while far, to pass over other objects
        # 8 mm is well inside the 13 mm per side that the open fingers leave free around the wider grasp.
        ready = self.tool[2] - floor < 0.008 and error < 0.008 and abs(turn) < 0.15
        self.closing = ready
        return np.array([*future, z]), 1.0 if ready else -1.0, turn
