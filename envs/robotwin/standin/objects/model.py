"""An object as RoboTwin reads it: two meshes and the frames where it is gripped, stood and pressed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .shapes import COLOURS, Part, Point

# How an object's own axes lie when it stands as it was described (columns: where its x, y and z point). Upstream's task
# code fixes them by the quaternion that it places the object with; y is up in most.
SIDEWAYS = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], float)  # [.5, .5, .5, .5]: x away, z to the right
FACING = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], float)  # [.7, .7, 0, 0]: x to the right, z towards the robot
BACKWARDS = np.array([[-1, 0, 0], [0, 0, 1], [0, 1, 0]], float)  # [0, 0, .7, .7]: x to the left, z away
LEFTWARDS = np.array(
    [[0, 0, -1], [-1, 0, 0], [0, 1, 0]], float
)  # [.5, .5, -.5, -.5]: x towards the robot, z to the left
_GRIPPER = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], float)  # a contact frame times this is the gripper's frame
_WAYS = {"up": np.array([0.0, 0, 1]), "down": np.array([0.0, 0, -1]), "near": np.array([0.0, -1, 0])}


@dataclass(frozen=True)
class Grasp:
    """Where and how a gripper takes hold.

    Attributes:
        at: Point between the fingers, in metres.
        approach: Unit vector along the fingers, towards the object.
        across: Unit vector from finger to finger.
    """

    at: Point
    approach: np.ndarray
    across: np.ndarray


@dataclass(frozen=True)
class Model:
    """One variant of an object, described as it stands on the table (x right, y away, z up, metres).

    Attributes:
        parts: Convex pieces.
        grasps: In the order that task code counts them.
        places: Frames at which it is stood on something or something is stood on it, in the same order: a point, and
            the way z points there (``up``, ``down``, or ``near``: towards the robot).
        axes: How its own axes lie (one of the constants above).
    """

    parts: Sequence[Part]
    grasps: Sequence[Grasp] = ()
    places: Sequence[tuple[Point, str]] = ()
    axes: np.ndarray = field(default_factory=lambda: SIDEWAYS)


def down(at: Point, across: tuple[float, float] = (-1, 0)) -> Grasp:
    """Returns a grasp from above; the fingers close along ``across`` (x, y)."""
    return Grasp(at, _WAYS["down"], np.array([*across, 0.0]) / np.hypot(*across))


def both(at: Point, across: tuple[float, float] = (-1, 0)) -> list[Grasp]:
    """Returns the grasp from above and the same with the gripper turned half around."""
    return [down(at, across), down(at, (-across[0], -across[1]))]


def around(at: Point, axis: str = "z", count: int = 12) -> list[Grasp]:
    """Returns grasps of a rod from all sides, fingers closing across it."""
    along = np.eye(3)["xyz".index(axis)]
    first = np.eye(3)["zxy".index(axis)]
    second = np.cross(along, first)
    angles = 2 * np.pi * np.arange(count) / count
    approaches = [np.cos(angle) * first + np.sin(angle) * second for angle in angles]
    return [Grasp(at, approach, np.cross(along, approach)) for approach in approaches]


def rim(radius: float, height: float) -> list[Grasp]:
    """Returns grasps of a round wall from above: its right, far, left and near side."""
    across = (((radius, 0), (-1, 0)), ((0, radius), (0, -1)), ((-radius, 0), (-1, 0)), ((0, -radius), (0, -1)))
    return [down((x, y, height), fingers) for (x, y), fingers in across]


def row(make: Callable[..., Model], *choices: Any) -> dict[int, Model]:
    """Returns variants 0, 1, ... of an object, made from one choice each."""
    return {index: make(choice) for index, choice in enumerate(choices)}


def write(model: Model, folder: Path, index: int) -> None:
    """Writes ``visual/baseN.glb``, ``collision/baseN.glb`` and ``model_dataN.json`` for the variant N."""
    from trimesh import Scene
    from trimesh.visual import TextureVisuals

    own = np.eye(4)
    own[:3, :3] = model.axes.T
    scenes = {"visual": Scene(), "collision": Scene()}
    for number, part in enumerate(model.parts):
        for kind, mesh in (("visual", part.seen), ("collision", part.touched)):
            if mesh is not None:
                moved = mesh.copy().apply_transform(own)
                moved.visual = TextureVisuals(material=_paint(part.colour))
                scenes[kind].add_geometry(moved, geom_name=f"part{number:03d}")
    for kind, scene in scenes.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        scene.export(folder / kind / f"base{index}.glb")
    low, high = scenes["collision"].bounds
    contacts = [_frame(model.axes, grasp.at, _grip(grasp) @ _GRIPPER.T) for grasp in model.grasps]
    data = {
        "center": _rounded((low + high) / 2),
        "extents": _rounded(high - low),
        "scale": [1, 1, 1],
        "contact_points_pose": contacts,
        "contact_points_group": [list(range(len(contacts)))],
        "contact_points_mask": [True],
        "functional_matrix": [_frame(model.axes, at, _place(model.axes, way)) for at, way in model.places],
        "target_pose": [],
        "orientation_point": [],
        "transform_matrix": np.eye(4).tolist(),
    }
    (folder / f"model_data{index}.json").write_text(json.dumps(data), encoding="utf-8")


def _grip(grasp: Grasp) -> np.ndarray:
    return np.stack([grasp.approach, grasp.across, np.cross(grasp.approach, grasp.across)], axis=1)


def _place(axes: np.ndarray, way: str) -> np.ndarray:
    """Returns a frame [3, 3] whose x is the object's own x, and whose z points that way."""
    z = _WAYS[way]
    return np.stack([axes[:, 0], np.cross(z, axes[:, 0]), z], axis=1)


def _frame(axes: np.ndarray, at: Point, rotation: np.ndarray) -> list[list[float]]:
    """Returns the frame [4, 4] in the object's own axes."""
    matrix = np.eye(4)
    matrix[:3, :3] = axes.T @ rotation
    matrix[:3, 3] = axes.T @ np.array(at, float)
    return [_rounded(row) for row in matrix]


def _paint(colour: str) -> Any:
    from trimesh.visual.material import PBRMaterial

    shade = [round(255 * value) for value in COLOURS[colour]]
    return PBRMaterial(baseColorFactor=[*shade, 255], metallicFactor=0.1, roughnessFactor=0.5)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 6) + 0.0 for value in values]
