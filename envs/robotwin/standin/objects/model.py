"""An object as RoboTwin reads it: two meshes and the frames where it is gripped, stood and pressed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .shapes import COLOURS, Part, Point

# How an object's own axes lie when it stands as it was described (columns: where its x, y and z point). Upstream's task
# code fixes them by the quaternion that it places the object with; y is up in most.
SIDEWAYS = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]], float)  # [.5, .5, .5, .5]: x away, z to the right
FACING = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], float)  # [.7, .7, 0, 0]: x to the right, z towards the robot
BACKWARDS = np.array([[-1, 0, 0], [0, 0, 1], [0, 1, 0]], float)  # [0, 0, .7, .7]: x to the left, z away
UNDERSIDE_UP = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], float)  # [.5, -.5, .5, -.5]: y down
LEFTWARDS = np.array([[0, 0, -1], [-1, 0, 0], [0, 1, 0]], float)  # [.5, .5, -.5, -.5]: x to the robot, z to the left
UP, DOWN, RIGHT = np.array([0.0, 0, 1]), np.array([0.0, 0, -1]), np.array([1.0, 0, 0])
FAR, NEAR = np.array([0.0, 1, 0]), np.array([0.0, -1, 0])  # from the robot and towards it
_GRIPPER = np.array([[0, 0, 1], [-1, 0, 0], [0, -1, 0]], float)  # a contact frame times this is the gripper's frame


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


class Place(NamedTuple):
    """Where an object is stood on something, or something on it.

    Attributes:
        at: Point, in metres.
        z: Unit vector; task code brings those of the two objects together.
        x: Unit vector for tasks that align these, too. Unless given, it is the object's own x where z is vertical, and
            else points to the right.
    """

    at: Point
    z: np.ndarray
    x: np.ndarray | None = None


@dataclass(frozen=True)
class Model:
    """One variant of an object, described as it stands on the table (x right, y away, z up, metres).

    Attributes:
        parts: Convex pieces.
        grasps: In the order that task code counts them.
        places: In the order that task code counts them.
        axes: How its own axes lie (one of the constants above).
    """

    parts: Sequence[Part]
    grasps: Sequence[Grasp] = ()
    places: Sequence[Place] = ()
    axes: np.ndarray = field(default_factory=lambda: SIDEWAYS)


T = TypeVar("T")
BOTTOM = Place((0, 0, 0), DOWN)


def down(at: Point, across: tuple[float, float] = (-1, 0)) -> Grasp:
    """Returns a grasp from above; the fingers close along ``across`` (x, y)."""
    return Grasp(at, DOWN, np.array([*across, 0.0]) / np.hypot(*across))


def both(at: Point, across: tuple[float, float] = (-1, 0)) -> list[Grasp]:
    """Returns the grasp from above and the same with the gripper turned half around."""
    return [down(at, across), down(at, (-across[0], -across[1]))]


def tops(at: Point) -> list[Grasp]:
    """Returns grasps from above of something round: twelve ways across."""
    return [down(at, (np.cos(angle), np.sin(angle))) for angle in 2 * np.pi * np.arange(12) / 12]


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


def variants(make: Callable[..., T], choices: Sequence[Any] | Mapping[int, Any]) -> dict[int, T]:
    """Returns an object's variants, made from an argument or a tuple of arguments each; a sequence counts from 0."""
    numbered = choices if isinstance(choices, Mapping) else dict(enumerate(choices))
    return {index: make(*(chosen if isinstance(chosen, tuple) else (chosen,))) for index, chosen in numbered.items()}


def write(model: Model, folder: Path, index: int) -> None:
    """Writes ``visual/baseN.glb``, ``collision/baseN.glb`` and ``model_dataN.json`` for the variant N."""
    scenes = mesh_scenes(model.parts, model.axes)
    for kind, scene in scenes.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        scene.export(folder / kind / f"base{index}.glb")
    low, high = scenes["collision"].bounds
    contacts = [frame(model.axes, grasp.at, grip(grasp)) for grasp in model.grasps]
    data = {
        "center": _rounded((low + high) / 2),
        "extents": _rounded(high - low),
        "scale": [1, 1, 1],
        "contact_points_pose": contacts,
        "contact_points_group": [list(range(len(contacts)))],
        "contact_points_mask": [True],
        "functional_matrix": [frame(model.axes, place.at, _turn(model.axes, place)) for place in model.places],
        "target_pose": [],
        "orientation_point": [],
        "transform_matrix": np.eye(4).tolist(),
    }
    (folder / f"model_data{index}.json").write_text(json.dumps(data), encoding="utf-8")


def mesh_scenes(parts: Sequence[Part], axes: np.ndarray, origin: Point | np.ndarray = (0, 0, 0)) -> dict[str, Any]:
    """Returns the ``visual`` and ``collision`` scene of parts, in the object's own axes about an origin."""
    from trimesh import Scene
    from trimesh.graph import smooth_shade
    from trimesh.visual import TextureVisuals

    own = np.eye(4)
    own[:3, :3] = axes.T
    own[:3, 3] = -axes.T @ np.array(origin, float)
    scenes = {"visual": Scene(), "collision": Scene()}
    for number, part in enumerate(parts):
        for kind, mesh in (("visual", part.seen), ("collision", part.touched)):
            if mesh is not None:
                moved = (smooth_shade(mesh) if kind == "visual" else mesh.copy()).apply_transform(own)
                moved.visual = TextureVisuals(material=_paint(part.colour))
                scenes[kind].add_geometry(moved, geom_name=f"part{number:03d}")
    return scenes


def grip(grasp: Grasp) -> np.ndarray:
    """Returns RoboTwin's contact frame [3, 3] for a grasp."""
    gripper = np.stack([grasp.approach, grasp.across, np.cross(grasp.approach, grasp.across)], axis=1)
    return gripper @ _GRIPPER.T


def frame(axes: np.ndarray, at: Point | np.ndarray, rotation: np.ndarray) -> list[list[float]]:
    """Returns a frame [4, 4] in the object's own axes."""
    matrix = np.eye(4)
    matrix[:3, :3] = axes.T @ rotation
    matrix[:3, 3] = axes.T @ np.array(at, float)
    return [_rounded(row) for row in matrix]


def _turn(axes: np.ndarray, place: Place) -> np.ndarray:
    x, z = place.x, place.z
    if x is None:
        x = axes[:, 0] if abs(z[2]) == 1 else RIGHT
    return np.stack([x, np.cross(z, x), z], axis=1)


def _paint(colour: str) -> Any:
    from trimesh.visual.material import PBRMaterial

    shade = [round(255 * value) for value in COLOURS[colour]]
    return PBRMaterial(baseColorFactor=[*shade, 255], metallicFactor=0.1, roughnessFactor=0.5)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 6) + 0.0 for value in values]
