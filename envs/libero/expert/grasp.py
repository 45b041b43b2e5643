"""Where to take hold of an object: vertical grasps found on its point cloud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .scene import Scene

WIDEST = 0.074  # metres; widest body that fits between the fingers
REACH = 0.72  # metres from the base; beyond, the arm with the hand down is nearly stretched and drifts
# The tool's rotation when the hand points down and the arm is at rest: fingers along y.
DOWN = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])


@dataclass(frozen=True)
class Grasp:
    """A vertical grasp, and the object's pose it was planned for.

    Attributes:
        offset: Tool position less the object's position [3], metres.
        yaw: Turn of the hand from its rest orientation, radians in [-pi/2, pi/2].
        width: Distance of the pads when the object is held, metres.
        position: The object's position [3] then.
        rotation: The object's rotation [3, 3] then.
    """

    offset: np.ndarray
    yaw: float
    width: float
    position: np.ndarray
    rotation: np.ndarray

    def fits(self, position: np.ndarray, rotation: np.ndarray) -> bool:
        """Whether the object still lies as it did, apart from a small shift."""
        shift, turn = np.abs(position - self.position), np.trace(rotation.T @ self.rotation)
        return bool(shift[:2].max() < 0.02 and shift[2] < 0.01 and turn > 1 + 2 * np.cos(0.15))


def hand_rotation(yaw: float) -> np.ndarray:
    """The tool's rotation [3, 3] with the hand pointing down, turned by ``yaw`` radians from rest."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]]) @ DOWN


def plan_grasp(scene: Scene, name: str) -> Grasp:
    """The best grasp of an object as it lies: around its body where that fits, else over its rim.

    Preferred are small turns of the hand and free space for fingers and hand, so that the same scene always gets the
    same grasp.
    """
    cloud, position = scene.cloud(name), scene.position(name)
    bottom = cloud[:, 2].min()
    obstacles = scene.obstacles(name)
    obstacles = obstacles[obstacles[:, 2] > bottom + 0.004]
    best = _around_body(cloud, obstacles) or _over_rim(cloud, obstacles, scene.base)
    _, yaw, width, tool = best
    return Grasp(tool - position, yaw, width, position, scene.rotation(name))


_Candidate = tuple[float, float, float, np.ndarray]  # cost, yaw, width, tool


def _around_body(cloud: np.ndarray, obstacles: np.ndarray) -> _Candidate | None:
    top, bottom = cloud[:, 2].max(), cloud[:, 2].min()
    height = top - bottom
    z = max(top - 0.032, bottom + 0.012) if height > 0.05 else bottom + max(0.008, height * 0.4)
    band = cloud[np.abs(cloud[:, 2] - z) < 0.02]
    band = band if len(band) >= 8 else cloud
    candidates: list[_Candidate] = []
    for yaw in np.deg2rad(np.arange(-85, 91, 5)):
        fingers, across = _axes(yaw)
        along, beside = band[:, :2] @ fingers, band[:, :2] @ across
        width = float(np.ptp(along))
        if width > WIDEST:
            continue
        centre = fingers * (along.max() + along.min()) / 2 + across * (beside.max() + beside.min()) / 2
        cost = width * 0.5 + 0.03 * abs(yaw) + _clash(obstacles, centre, fingers, z)
        candidates.append((cost, float(yaw), width, np.array([*centre, z])))
    return min(candidates, key=lambda candidate: candidate[0], default=None)


def _over_rim(cloud: np.ndarray, obstacles: np.ndarray, base: np.ndarray) -> _Candidate:
    top = cloud[:, 2].max()
    z = top - 0.022
    rim = cloud[cloud[:, 2] > top - 0.012][:, :2]
    centre = (rim.max(axis=0) + rim.min(axis=0)) / 2
    candidates: list[_Candidate] = []
    for angle in np.deg2rad(np.arange(-180, 180, 15)):
        fingers, across = _axes(angle)
        along, beside = (rim - centre) @ fingers, (rim - centre) @ across
        wall = along[(np.abs(beside) < 0.02) & (along > 0)]
        radius = float(np.median(wall if len(wall) else np.linalg.norm(rim - centre, axis=1)))
        point = centre + fingers * radius
        yaw = float((angle + np.pi / 2) % np.pi - np.pi / 2)
        cost = 0.08 * abs(yaw) + _clash(obstacles, point, fingers, z) + 0.05 * abs(point[1])
        cost += 4.0 * max(0.0, float(np.linalg.norm(point - base)) - REACH)
        candidates.append((cost, yaw, 0.004, np.array([*point, z])))
    return min(candidates, key=lambda candidate: candidate[0])


def _axes(yaw: float) -> tuple[np.ndarray, np.ndarray]:
    """Directions in the plane along which the fingers move, and across."""
    return np.array([-np.sin(yaw), np.cos(yaw)]), np.array([np.cos(yaw), np.sin(yaw)])


def _clash(obstacles: np.ndarray, tool: np.ndarray, fingers: np.ndarray, z: float) -> float:
    """What stands where the open fingers and the hand would be: 0 if nothing does."""
    across = np.array([-fingers[1], fingers[0]])
    offset = obstacles[:, :2] - tool
    along, beside = np.abs(offset @ fingers), np.abs(offset @ across)
    at_fingers = (obstacles[:, 2] > z - 0.015) & (along > 0.034) & (along < 0.070) & (beside < 0.020)
    at_hand = (obstacles[:, 2] > z + 0.045) & (along < 0.112) & (beside < 0.040)
    count = int(at_fingers.sum() + at_hand.sum())
    return 0.5 * bool(at_fingers.any()) + 1.0 * bool(at_hand.any()) + 0.002 * min(count, 200)
