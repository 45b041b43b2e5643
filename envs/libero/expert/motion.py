"""From a wish in metres to an OSC_POSE delta action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .scene import Scene

_GAIN = 16.0  # action per metre
_LEAD = 0.03  # seconds; looking that far ahead damps the arm's swing
_TURN_GAIN = 3.0  # action per radian
_TURN_LIMIT = 0.6


def servo(scene: Scene, goal: np.ndarray, rotation: np.ndarray, grip: float, limit: float = 1.0) -> np.ndarray:
    """The action [7] that brings the tool nearer to a pose.

    Args:
        scene: The scene.
        goal: Wanted tool position [3], metres.
        rotation: Wanted tool rotation [3, 3].
        grip: -1 opens, 1 closes.
        limit: Largest component of the translation, of at most 1.
    """
    move = (goal - scene.tool - _LEAD * scene.tool_velocity) * _GAIN
    move *= limit / max(limit, float(np.abs(move).max()))
    turn = np.clip(_TURN_GAIN * turn_to(scene, rotation), -_TURN_LIMIT, _TURN_LIMIT)
    return np.concatenate((move, turn, [grip]))


def turn_to(scene: Scene, rotation: np.ndarray) -> np.ndarray:
    """Rotation vector [3] from the tool's present rotation to the wanted one, radians, in the world frame."""
    difference = rotation @ scene.tool_rotation.T
    axis = np.array(
        [difference[2, 1] - difference[1, 2], difference[0, 2] - difference[2, 0], difference[1, 0] - difference[0, 1]]
    )
    sine, cosine = np.linalg.norm(axis) / 2, (np.trace(difference) - 1) / 2
    return axis / max(2 * sine, 1e-9) * np.arctan2(sine, cosine)


def yaw_of(scene: Scene) -> float:
    """Turn of the hand from its rest orientation about the vertical, radians."""
    fingers = scene.tool_rotation[:, 0]
    return float(np.arctan2(-fingers[0], fingers[1]))


@dataclass(frozen=True)
class Approach:
    """How a grasp gets on.

    Attributes:
        close: The fingers are around it: close them.
        error: What keeps the hand from going all the way, 0 to 1: distance aside, a wrong turn, closed fingers.
    """

    close: bool
    error: float


def approach(scene: Scene, goal: np.ndarray, hand: np.ndarray, width: float) -> Approach:
    """Judges the present state against the pose [3], [3, 3] in which something ``width`` metres wide is grasped."""
    pointing = hand[:, 2]
    gap = goal - scene.tool
    short = float(gap @ pointing)
    aside = float(np.linalg.norm(gap - short * pointing))
    turn = float(np.linalg.norm(turn_to(scene, hand)))
    closing = scene.squeeze > -1 and scene.opening_speed < -0.004
    wide = scene.opening > max(0.06, min(width + 0.012, 0.0765))
    stopped = abs(float(scene.tool_velocity @ pointing)) < 0.005 and abs(short) < 0.025
    there = aside < 0.008 and turn < 0.12 and (abs(short) < 0.008 or stopped)
    about = aside < 0.02 and turn < 0.3 and abs(short) < 0.025
    error = (aside - 0.01 + 0.1 * max(0.0, turn - 0.1)) / 0.03 + (0 if wide or about else 1)
    return Approach((there and wide) or (about and closing), float(np.clip(error, 0, 1)))


def path_top(obstacles: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float) -> float:
    """Height of the highest obstacle within ``radius`` metres of the straight way [2] -> [2]; -inf if it is free."""
    way = end[:2] - start[:2]
    share = np.clip((obstacles[:, :2] - start[:2]) @ way / (way @ way + 1e-9), 0, 1)
    beside = obstacles[:, :2] - start[:2] - share[:, None] * way
    near = obstacles[(beside**2).sum(axis=1) < radius**2, 2]
    return float(near.max(initial=-np.inf))


def over_the_top(tool: np.ndarray, goal: np.ndarray, floor: float, error: float) -> np.ndarray:
    """The next waypoint [3] towards a goal above which the tool may only travel at ``floor`` metres or higher.

    The way is a function of the present state alone: up first where the tool is too low, across meanwhile as far as it
    is high enough, and down in a funnel over the goal: at an error of 1 the tool stays up, at 0 it may be down.
    """
    away = goal[:2] - tool[:2]
    height = goal[2] + max(0.0, floor - goal[2]) * float(np.clip(error, 0, 1))
    free = float(np.clip(1 - (height - 0.01 - tool[2]) / 0.03, 0, 1))
    return np.array([*(tool[:2] + free * away), height])
