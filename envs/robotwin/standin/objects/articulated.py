"""Objects that RoboTwin reads as URDF: pots, laptops and switches, whose own x points away from the robot and z up."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .model import DOWN, Grasp, frame, grip, mesh_scenes
from .shapes import Part, Point, box, cylinder, painted, turned, wall

AWAY = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], float)  # [.7, 0, 0, .7]: x away, y to the left, z up


@dataclass(frozen=True)
class Link:
    """A rigid piece.

    Attributes:
        name: Of the link.
        parts: Convex pieces, as the whole object stands with its joint at zero.
        grasps: Where it is gripped or pushed, in the same frame.
    """

    name: str
    parts: Sequence[Part]
    grasps: Sequence[Grasp] = ()


@dataclass(frozen=True)
class Articulated:
    """A base and a link that turns on it.

    Attributes:
        base: Link that stands on the table.
        moving: Link that turns.
        hinge: Point on the axis.
        axis: Unit vector about which it turns.
        limits: Least and greatest angle (radians).
        stiff: Friction of the joint (newton metres), so that it stays where it is left.
    """

    base: Link
    moving: Link
    hinge: Point
    axis: Point
    limits: tuple[float, float]
    stiff: float


def pot(colour: str) -> Articulated:
    """A cooking pot with a lid that turns a little, and an ear on either side: grasps 0 and 1."""
    radius, ear = 0.085, 0.062
    parts = [cylinder(colour, radius - 0.002, 0.005), *wall(colour, radius, radius, 0.085, 0.004)]
    parts += [box("black", (0.055, 0.018, 0.016), (side * (radius + 0.025), 0, ear)) for side in (-1, 1)]
    grasps = [Grasp((side * (radius + 0.036), 0, ear + 0.012), DOWN, np.array([0.0, -side, 0.0])) for side in (-1, 1)]
    lid = [cylinder(colour, radius, 0.006, (0, 0, 0.086)), cylinder("black", 0.012, 0.018, (0, 0, 0.092))]
    return Articulated(Link("pot", parts, grasps), Link("lid", lid), (0, 0, 0.086), (0, 0, 1), (-0.1, 0.1), 0.01)


def laptop(colour: str) -> Articulated:
    """A laptop; its lid is gripped at the middle of its free edge (grasp 0) and dragged up (grasp 1, a turn ahead)."""
    width, depth, thick, hinge = 0.26, 0.18, 0.008, 0.020
    base = [box(colour, (width, depth, 0.016)), box("dark gray", (width - 0.03, 0.09, 0.001), (0, 0.02, 0.016))]
    middle = (0, depth / 2, hinge)
    lid = [
        box(colour, (width, depth, thick), (0, 0, hinge)),
    ]
    at, ahead = (0.0, -depth / 2 + 0.022, hinge + thick / 2), 0.30
    edge = Grasp(at, np.array([0.0, 1, 0]), np.array([0.0, 0, 1]))
    return Articulated(
        Link("base", base),
        Link("lid", lid, [edge, ahead_of(edge, middle, -ahead)]),
        middle,
        (-1, 0, 0),
        (0.0, 2.2),
        0.02,
    )


def ahead_of(grasp: Grasp, about: Point, angle: float) -> Grasp:
    """Returns the grasp turned about an axis along x through a point."""
    cosine, sine = np.cos(angle), np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])
    at = turn @ (np.array(grasp.at) - about) + about
    return Grasp((at[0], at[1], at[2]), turn @ grasp.approach, turn @ grasp.across)


def switch(body: str, rocker: str) -> Articulated:
    """A rocker switch on a post; pushing the rocker's upper half turns it on."""
    lean = 0.35
    base = [
        box(body, (0.07, 0.03, 0.08), (0, 0.028, -0.04)),
        box(body, (0.02, 0.02, 0.04), (0, 0.028, -0.07)),
        painted(box(body, (0.024, 0.016, 0.008), (0, 0.006, -0.004))),
    ]
    plate = turned(box(rocker, (0.036, 0.010, 0.060), (0, -0.005, -0.030)), lean, (1, 0, 0))
    push = Grasp((0, -0.031, 0.020), np.array([0.0, 1, 0]), np.array([-1.0, 0, 0]))
    return Articulated(
        Link("base", base), Link("rocker", [plate], [push]), (0, 0, 0), (-1, 0, 0), (0.0, 2 * lean), 0.01
    )


def write_articulated(model: Articulated, folder: Path, index: int) -> None:
    """Writes ``N/mobility.urdf`` with its meshes, and ``N/model_data.json``."""
    place = folder / str(index)
    robot = ET.Element("robot", name=folder.name)
    points = []
    for link in (model.base, model.moving):
        origin = np.array(model.hinge if link is model.moving else (0, 0, 0), float)
        element = ET.SubElement(robot, "link", name=link.name)
        for kind, scene in mesh_scenes(link.parts, AWAY, origin).items():
            (place / kind).mkdir(parents=True, exist_ok=True)
            scene.export(place / kind / f"{link.name}.glb")
            shape = ET.SubElement(ET.SubElement(element, kind), "geometry")
            ET.SubElement(shape, "mesh", filename=f"{kind}/{link.name}.glb")
        for grasp in link.grasps:
            points.append({"base": link.name, "matrix": frame(AWAY, np.array(grasp.at) - origin, grip(grasp))})
    joint = ET.SubElement(robot, "joint", name="hinge", type="revolute")
    ET.SubElement(joint, "parent", link=model.base.name)
    ET.SubElement(joint, "child", link=model.moving.name)
    ET.SubElement(joint, "origin", xyz=_text(AWAY.T @ np.array(model.hinge, float)), rpy="0 0 0")
    ET.SubElement(joint, "axis", xyz=_text(AWAY.T @ np.array(model.axis, float)))
    lower, upper = model.limits
    ET.SubElement(joint, "limit", lower=str(lower), upper=str(upper), effort="100", velocity="10")
    ET.SubElement(joint, "dynamics", damping="0.01", friction=str(model.stiff))
    ET.indent(robot)
    ET.ElementTree(robot).write(place / "mobility.urdf")
    data = {
        "scale": 1.0,
        "contact_points": points,
        "functional_points": [],
        "target_points": [],
        "orientation_point": [],
        "transform_matrix": np.eye(4).tolist(),
        "init_qpos": [],
        "mass": {},
    }
    (place / "model_data.json").write_text(json.dumps(data), encoding="utf-8")


def _text(values: np.ndarray) -> str:
    return " ".join(f"{round(float(value), 6) + 0.0:g}" for value in values)


_POTS = ("gray", "gray", "silver", "teal", "black", "gray", "gray", "silver")
_LAPTOPS = ("silver", "silver", "silver", "black", "black", "black", "orange", "black", "black", "black", "silver")
_SWITCHES = (("black", "red"), ("beige", "brown"), ("beige", "brown"), ("black", "dark gray"))
_SWITCHES += (("black", "red"), ("gray", "light gray"), ("gray", "red"), ("gray", "light gray"))
MODELS = {
    "060_kitchenpot": {index: pot(colour) for index, colour in enumerate(_POTS)},
    "015_laptop": {index: laptop(colour) for index, colour in enumerate(_LAPTOPS)},
    "056_switch": {index: switch(*colours) for index, colours in enumerate(_SWITCHES)},
}
