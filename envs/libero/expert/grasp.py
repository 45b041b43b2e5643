"""Where to take hold of an object: vertical grasps found on its point cloud."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .scene import Scene

WIDEST = 0.074  # metres; widest body that fits between the fingers
REACH = 0.72  # metres from the base; beyond, the arm with the hand down is nearly stretched and drifts
PALM = 0.03  # metres from the tool up to the hand
DEPTH = 0.026  # metres that the fingers reach down over a rim or a handle
# The tool's rotation when the hand points down and the arm is at rest: fingers along y.
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])


@dataclass(frozen=True)
class Grasp:
    """A grasp from above, and the object's pose it was planned for.

    Attributes:
        offset: Tool position less the object's position [3], metres.
        hand: Rotation of the tool [3, 3].
        width: Distance of the pads when the object is held, metres.
        position: The object's position [3] then.
        rotation: The object's rotation [3, 3] then.
    """

    offset: np.ndarray
    hand: np.ndarray
    width: float
    position: np.ndarray
    rotation: np.ndarray

    def fits(self, position: np.ndarray, rotation: np.ndarray) -> bool:
        """Whether the object still lies as it did, apart from a small shift."""
        shift, turn = np.abs(position - self.position), np.trace(rotation.T @ self.rotation)
        return bool(shift[:2].max() < 0.02 and shift[2] < 0.01 and turn > 1 + 2 * np.cos(0.15))


def hand_rotation(yaw: float, lean: float = 0.0) -> np.ndarray:
    """The tool's rotation [3, 3] with the hand pointing down, turned by ``yaw`` radians from rest.

    With a positive ``lean``, in radians, the wrist leans over in the direction of the tool's first axis.
    """
    cos, sin = np.cos(yaw), np.sin(yaw)
    upright = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]) @ DOWN
    cos, sin = np.cos(lean), np.sin(lean)
    return upright @ np.array([[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]])


def plan_grasp(scene: Scene, name: str, spot: np.ndarray) -> Grasp:
    """The best grasp of an object as it lies: around its body where that fits, else over its rim or by its handle.

    Preferred are small turns of the hand and free space for fingers and hand, here and at the ``spot`` [3] where the
    object's bottom is to go, so that the same scene always gets the same grasp.
    """
    cloud, position = scene.cloud(name), scene.position(name)
    bottom = cloud[:, 2].min()
    everything = scene.obstacles(name)
    obstacles = everything[everything[:, 2] > bottom + 0.004]
    shift = spot - [position[0], position[1], bottom]

    there = everything[everything[:, 2] > spot[2] + 0.03]

    ground = min(bottom, everything[:, 2].min(initial=np.inf))

    def clash(tool: np.ndarray, hand: np.ndarray) -> float:
        under = _lowest(tool, hand) < ground
        return _clash(obstacles, tool, hand) + _clash(there, tool + shift, hand) + 1.0 * under

    candidates = _around_body(cloud, clash) or _over_rim(cloud, clash, scene.base, ground) + _by_handle(cloud, clash)
    candidates = candidates or [_over_middle(cloud)]  # nothing fits, and an attempt may still move it
    _, hand, width, tool = min(candidates, key=lambda candidate: candidate[0])
    return Grasp(tool - position, hand, width, position, scene.rotation(name))


_Clash = Callable[[np.ndarray, np.ndarray], float]
_Candidate = tuple[float, np.ndarray, float, np.ndarray]  # cost, rotation of the hand, width, position of the tool


def _around_body(cloud: np.ndarray, clash: _Clash) -> list[_Candidate]:
    top, bottom = cloud[:, 2].max(), cloud[:, 2].min()
    height = top - bottom
    # As deep as the hand lets the fingers reach: what stands out above, as a carton's gable, hooks onto their tips.
    z = max(top - PALM, bottom + 0.012) if height > 0.05 else bottom + max(0.008, height * 0.4)
    band = cloud[np.abs(cloud[:, 2] - z) < 0.02]
    band = band if len(band) >= 8 else cloud
    candidates: list[_Candidate] = []
    for yaw in np.deg2rad(np.arange(-85, 91, 5)):
        hand = hand_rotation(float(yaw))
        along, beside = band[:, :2] @ hand[:2, 0], band[:, :2] @ hand[:2, 1]
        width = float(np.ptp(along))
        if width > WIDEST:
            continue
        middle = (along.max() + along.min()) / 2 * hand[:2, 0] + (beside.max() + beside.min()) / 2 * hand[:2, 1]
        tool = np.array([*middle, z])
        candidates.append((width * 0.5 + 0.03 * abs(yaw) + clash(tool, hand), hand, width, tool))
    return candidates


def _over_rim(cloud: np.ndarray, clash: _Clash, base: np.ndarray, ground: float) -> list[_Candidate]:
    # Deep, because a thin wall is held with little force and creeps out of the fingers.
    z = max(cloud[:, 2].max() - DEPTH, cloud[:, 2].min() + 0.012)
    rim = cloud[np.abs(cloud[:, 2] - z) < 0.010][:, :2]
    if not len(rim):
        return []
    centre = (rim.max(axis=0) + rim.min(axis=0)) / 2
    middle = cloud[np.linalg.norm(cloud[:, :2] - centre, axis=1) < 0.02, 2]
    solid = 0.4 if len(middle) and middle.max() > z + 0.005 else 0.0  # no room for the inner finger
    candidates: list[_Candidate] = []
    for angle in np.deg2rad(np.arange(-180, 180, 15)):
        out = np.array([-np.sin(angle), np.cos(angle)])
        along, beside = (rim - centre) @ out, (rim - centre) @ np.array([out[1], -out[0]])
        wall = along[(np.abs(beside) < 0.02) & (along > 0.6 * along.max())]
        if not len(wall):
            continue
        point = np.array([*(centre + out * float(np.median(wall))), z])
        yaw = float((angle + np.pi / 2) % np.pi - np.pi / 2)
        # Always the same side, if nothing speaks against it.
        cost = solid + 0.08 * abs(yaw) + 0.03 * (1 - out[1])
        cost += 4.0 * max(0.0, float(np.linalg.norm(point[:2] - base)) - REACH)
        outward = 1.0 if np.cos(yaw - angle) > 0 else -1.0
        for lean in (0.0, 0.35, 0.5, 0.7):
            hand = hand_rotation(yaw, outward * lean)
            tool = point + [0.0, 0.0, float(np.clip(ground + 0.004 - _lowest(point, hand), 0.0, 0.01))]
            candidates.append((cost + 0.5 * lean + clash(tool, hand), hand, 0.004, tool))
    return candidates


def _by_handle(cloud: np.ndarray, clash: _Clash) -> list[_Candidate]:
    top, bottom = cloud[:, 2].max(), cloud[:, 2].min()
    z = max(top - DEPTH, bottom + 0.012)
    band = cloud[np.abs(cloud[:, 2] - z) < 0.012][:, :2]
    if not len(band):
        return []
    centre = (band.max(axis=0) + band.min(axis=0)) / 2
    candidates: list[_Candidate] = []
    for yaw in np.deg2rad(np.arange(-90, 90, 10)):
        hand = hand_rotation(float(yaw))
        along, beside = (band - centre) @ hand[:2, 0], (band - centre) @ hand[:2, 1]
        for offset in np.arange(-0.1, 0.11, 0.01):
            part = along[np.abs(beside - offset) < 0.018]
            outer = along[np.abs(beside - offset - np.sign(offset) * 0.009) < 0.009]
            # Not the rounded edge of something wide, which slips out.
            if len(outer) < 3 or np.ptp(part) > 0.03 or np.ptp(outer) < 0.6 * np.ptp(part):
                continue
            middle = centre + (part.max() + part.min()) / 2 * hand[:2, 0] + offset * hand[:2, 1]
            tool = np.array([*middle, z])
            cost = 0.1 + 1.5 * abs(offset) + 0.08 * abs(yaw) + clash(tool, hand)
            candidates.append((cost, hand, float(np.ptp(part)), tool))
    return candidates


def _over_middle(cloud: np.ndarray) -> _Candidate:
    """Across the narrowest side, at the depth of any other grasp, whether or not it fits between the fingers."""
    low, high = cloud.min(axis=0), cloud.max(axis=0)
    hands = [hand_rotation(float(yaw)) for yaw in np.deg2rad(np.arange(-90, 90, 15))]
    hand = min(hands, key=lambda hand: float(np.ptp(cloud @ hand[:, 0])))
    return 0.0, hand, WIDEST, np.array([*(low + high)[:2] / 2, max(high[2] - DEPTH, low[2] + 0.012)])


def _clash(obstacles: np.ndarray, tool: np.ndarray, hand: np.ndarray) -> float:
    """What stands where the open fingers and the hand would be: 0 if nothing does."""
    along, beside, depth = ((obstacles - tool) @ hand).T
    along, beside = np.abs(along), np.abs(beside)
    # The shapes of finger and hand, and half the grid of the obstacles' points around them.
    at_fingers = (depth < 0.012) & (along < 0.068) & (beside < 0.017)
    at_hand = (depth < -PALM) & (along < 0.112) & (beside < np.where(depth < -0.07, 0.042, 0.030))
    count = int(at_fingers.sum() + at_hand.sum())
    return 0.5 * bool(at_fingers.any()) + 0.3 * bool(at_hand.any()) + 0.02 * min(count, 50)


def _lowest(tool: np.ndarray, hand: np.ndarray) -> float:
    """Height of the lowest corner of the broad hand, metres."""
    return float(tool[2] - PALM * hand[2, 2] - 0.112 * abs(hand[2, 0]) - 0.030 * abs(hand[2, 1]))
