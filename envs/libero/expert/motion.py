"""Motion primitives: from a goal pose in metres to an OSC_POSE delta action."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .scene import Scene

_GAIN = 16.0  # action per metre: full speed from 6 cm on (OSC_POSE moves 5 cm for an action of 1)
_LEAD = 0.03  # seconds; looking that far ahead damps the arm's swing
_TURN_GAIN = 2.0  # action per radian
_TURN_LIMIT = 0.6
DOWNWARD = np.array([0.0, 0.0, -1.0])


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
    turn = np.clip(_TURN_GAIN * _swing_first(scene, rotation), -_TURN_LIMIT, _TURN_LIMIT)
    return np.concatenate((move, turn, [grip]))


def turn_to(scene: Scene, rotation: np.ndarray) -> np.ndarray:
    """Rotation vector [3] from the tool's present rotation to the wanted one, radians, in the world frame."""
    return _rotation_vector(rotation @ scene.tool_rotation.T)


def _swing_first(scene: Scene, rotation: np.ndarray) -> np.ndarray:
    """The turn [3] to take now: the hand's direction first, then its roll, so that the arm does not wind itself up."""
    now, wanted = scene.tool_rotation[:, 2], rotation[:, 2]
    axis = np.cross(now, wanted)
    angle = float(np.arctan2(np.linalg.norm(axis), now @ wanted))
    if angle < 0.4:
        return turn_to(scene, rotation)
    return axis / max(float(np.linalg.norm(axis)), 1e-9) * angle


def _rotation_vector(rotation: np.ndarray) -> np.ndarray:
    axis = np.array([rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]])
    sine, cosine = float(np.linalg.norm(axis)) / 2, (float(np.trace(rotation)) - 1) / 2
    return axis / max(2 * sine, 1e-9) * np.arctan2(sine, cosine)


def yaw_of(scene: Scene) -> float:
    """Turn of the hand from its rest orientation about the vertical, radians."""
    fingers = scene.tool_rotation[:, 0]
    return float(np.arctan2(-fingers[0], fingers[1]))


@dataclass(frozen=True)
class Approach:
    """The state of an approach to a grasp.

    Attributes:
        close: Whether the fingers are around the object, so that they should close.
        error: What keeps the hand from going all the way, 0 to 1: lateral distance, a wrong turn, closed fingers.
    """

    close: bool
    error: float


def approach(scene: Scene, goal: np.ndarray, hand: np.ndarray, width: float, way: np.ndarray = DOWNWARD) -> Approach:
    """Judges the present state against the pose [3], [3, 3] in which something ``width`` metres wide is grasped.

    The hand gets there by moving along ``way`` [3].
    """
    gap = goal - scene.tool
    short = float(gap @ way)
    aside = float(np.linalg.norm(gap - short * way))
    turn = float(np.linalg.norm(turn_to(scene, hand)))
    closing = scene.squeeze > -1 and scene.opening_speed < -0.004  # the gripper still moves inwards
    wide = scene.opening > max(0.06, min(width + 0.012, 0.0765))  # 6 mm per side, or as far as the fingers open
    slack = float(np.clip(0.4 * (0.08 - width), 0.005, 0.015))  # half of what the open fingers leave free
    stopped = float(np.linalg.norm(scene.tool_velocity)) < 0.005 and abs(short) < 0.025  # on the table, or in a corner
    # Exactly there (8 mm, 7 degrees), or stopped by something where the fingers still fit around it.
    there = turn < 0.12 and ((aside < 0.008 and abs(short) < 0.008) or (aside < slack + 0.003 and stopped))
    about = aside < slack + 0.012 and turn < 0.3 and abs(short) < 0.03
    error = (aside - slack + 0.1 * max(0.0, turn - 0.1)) / 0.03 + (0 if wide or about else 1)
    return Approach((there and wide) or (about and closing), float(np.clip(error, 0, 1)))


def path_top(obstacles: np.ndarray, start: np.ndarray, end: np.ndarray, radius: float) -> float:
    """Height of the highest obstacle within ``radius`` metres of the straight way [2] -> [2]; -inf if it is free."""
    beside = _beside(obstacles, start, end)
    return float(obstacles[(beside**2).sum(axis=1) < radius**2, 2].max(initial=-np.inf))


def hand_floor(obstacles: np.ndarray, start: np.ndarray, end: np.ndarray, fingers: np.ndarray) -> float:
    """How high the tool must be for the broad hand above it to pass over all obstacles on the straight way, metres."""
    beside = _beside(obstacles, start, end)
    along = np.abs(beside @ fingers[:2])
    across = np.abs(beside @ np.array([-fingers[1], fingers[0]]))
    return float(obstacles[(along < 0.115) & (across < 0.04), 2].max(initial=-np.inf)) - 0.02


def _beside(obstacles: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Vectors [n, 2] from the nearest point of a way to the obstacles."""
    way = end[:2] - start[:2]
    share = np.clip((obstacles[:, :2] - start[:2]) @ way / (way @ way + 1e-9), 0, 1)
    return obstacles[:, :2] - start[:2] - share[:, None] * way


def over_the_top(
    tool: np.ndarray, goal: np.ndarray, floor: float, error: float, pointing: np.ndarray = DOWNWARD
) -> np.ndarray:
    """The next waypoint [3] towards a goal above which the tool may only travel at ``floor`` metres or higher.

    The way is a function of the present state alone: up first where the tool is too low, across meanwhile as far as it
    is high enough, and down in a funnel over the goal: at an error of 1 the tool stays up, at 0 it may be down. A hand
    that leans comes down, and goes up, in the direction in which it points [3].
    """
    slope = pointing[:2] / pointing[2]
    height = goal[2] + max(0.0, floor - goal[2]) * float(np.clip(error, 0, 1))
    free = float(np.clip(1 - (height - 0.01 - tool[2]) / 0.03, 0, 1))
    across = goal[:2] + (height - goal[2]) * slope - tool[:2]
    return np.array([*(tool[:2] + free * across + (1 - free) * max(0.0, height - tool[2]) * slope), height])
