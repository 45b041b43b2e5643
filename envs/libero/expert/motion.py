"""From a wish in metres to an OSC_POSE delta action."""

from __future__ import annotations

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
