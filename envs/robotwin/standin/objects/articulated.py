"""Objects that RoboTwin reads as URDF because something on them moves. Their own x points away from the robot, z up."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .model import DOWN, Grasp, frame, grip, mesh_scenes, variants
from .shapes import Part, Point, box, cylinder, lifted, painted, tub, turned, wall

AWAY = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]], float)  # [.7, 0, 0, .7]: x away, y to the left, z up

_REACH = 0.033  # metres from a surface to the grasp at which the fingertips nearly touch it


@dataclass(frozen=True)
class Link:
    """A rigid piece.

    Attributes:
        name: Of the link.
        parts: Convex pieces, as the whole object stands with its joint at zero.
        grasps: Where it is gripped or pushed, in the same frame.
        places: Points at which something is put on or into it, z up.
    """

    name: str
    parts: Sequence[Part]
    grasps: Sequence[Grasp] = ()
    places: Sequence[Point] = ()


@dataclass(frozen=True)
class Articulated:
    """A base and a link that moves on it.

    Attributes:
        base: Link that stands on the table.
        moving: Link that turns, or slides.
        hinge: Point on the axis.
        axis: Unit vector about which it turns, or along which it slides.
        limits: Least and greatest angle (radians) or way (metres).
        slides: Whether it slides.
    """

    base: Link
    moving: Link
    hinge: Point
    axis: Point
    limits: tuple[float, float]
    slides: bool = False


def pot(colour: str) -> Articulated:
    """A cooking pot with a lid that turns a little, and an ear on either side: grasps 0 and 1."""
    radius, ear = 0.085, 0.062
    parts = [cylinder(colour, radius - 0.002, 0.005), *wall(colour, radius, radius, 0.085, 0.004)]
    parts += [box("black", (0.055, 0.018, 0.016), (side * (radius + 0.025), 0, ear)) for side in (-1, 1)]
    grasps = [Grasp((side * (radius + 0.036), 0, ear + 0.012), DOWN, np.array([0.0, -side, 0.0])) for side in (-1, 1)]
    lid = [cylinder(colour, radius, 0.006, (0, 0, 0.086)), cylinder("black", 0.012, 0.018, (0, 0, 0.092))]
    return Articulated(Link("pot", parts, grasps), Link("lid", lid), (0, 0, 0.086), (0, 0, 1), (-0.1, 0.1))


def laptop(colour: str) -> Articulated:
    """A laptop; its lid is gripped at the middle of its free edge (grasp 0) and dragged up (grasp 1, a turn ahead)."""
    width, depth, thick, hinge = 0.26, 0.18, 0.008, 0.020
    base = [box(colour, (width, depth, 0.016)), box("dark gray", (width - 0.03, 0.09, 0.001), (0, 0.02, 0.016))]
    middle = (0, depth / 2, hinge)
    lid = [box(colour, (width, depth, thick), (0, 0, hinge))]
    at, ahead = (0.0, -depth / 2 + 0.022, hinge + thick / 2), 0.30
    edge = Grasp(at, np.array([0.0, 1, 0]), np.array([0.0, 0, 1]))
    return Articulated(
        Link("base", base),
        Link("lid", lid, [edge, _turned(edge, middle, (-1, 0, 0), ahead)]),
        middle,
        (-1, 0, 0),
        (0.0, 2.2),
    )


def microwave(colour: str) -> Articulated:
    """A small microwave oven, its door hinged on the left. Grasp 0 holds the handle; 4 is the same some way further on.

    Upstream's second way, when the first gets stuck, pushes the door from inside (1 and 2).
    """
    width, depth, bottom, high, door = 0.30, 0.20, -0.058, 0.19, 0.012
    front = -depth / 2
    body = box(colour, (width, depth - door, high), (0, door / 2, bottom))
    panel = box("dark gray", (0.07, 0.002, high - 0.02), (width / 2 - 0.04, front + door - 0.001, bottom + 0.01))
    hinge, edge = -width / 2 + 0.004, width / 2 - 0.08
    middle, across = (hinge + edge) / 2, edge - hinge
    bar = (edge - 0.02, front - 0.022)
    leaf = [
        box(colour, (across, door, high), (middle, front + door / 2, bottom)),
        painted(box("black", (across - 0.06, 0.001, high - 0.05), (middle - 0.01, front, bottom + 0.025))),
        cylinder("silver", 0.007, 0.11, (*bar, bottom + 0.05)),
        *(box("silver", (0.008, 0.024, 0.008), (bar[0], front - 0.011, bottom + z)) for z in (0.05, 0.152)),
    ]
    hold = Grasp((bar[0], front - _REACH, bottom + 0.105), np.array([0.0, 1, 0]), np.array([-1.0, 0, 0]))
    axis, at = (0, 0, -1), (hinge, front, 0)
    inside = Grasp((edge, front + 0.02, bottom + 0.105), np.array([0.0, 1, 0]), np.array([-1.0, 0, 0]))
    ahead = [_turned(grasp, at, axis, 0.2) for grasp in (inside, hold)]
    grasps = [hold, inside, ahead[0], hold, ahead[1]]
    return Articulated(Link("body", [body, painted(panel)]), Link("door", leaf, grasps), at, axis, (0.0, 1.6))


def cabinet() -> Articulated:
    """A wooden cabinet with one drawer, pulled out by its knob."""
    wood, dark = "light brown", "brown"
    width, depth, low, tall = 0.26, 0.20, 0.055, 0.065
    above = low + tall + 0.008
    body = [
        box(wood, (width, depth, low - 0.004)),
        box(wood, (width, depth, 0.05), (0, 0, above)),
        *(box(wood, (0.012, depth, above), (side * (width / 2 - 0.006), 0, 0)) for side in (-1, 1)),
        box(wood, (width, 0.01, above), (0, depth / 2 - 0.005, 0)),
    ]
    inner = width - 0.032
    drawer = [lifted(part, low) for part in tub(dark, (inner, 0.17, tall - 0.02), 0.006)]
    front = -depth / 2 - 0.004
    drawer += [
        box(dark, (inner, 0.008, tall), (0, front + 0.004, low)),
        box("gold", (0.018, 0.028, 0.024), (0, front - 0.014, low + 0.02)),
    ]
    knob = Grasp((0, front - _REACH, low + 0.032), np.array([0.0, 1, 0]), np.array([-1.0, 0, 0]))
    inside = (0, -0.03, low + 0.006)
    return Articulated(
        Link("body", body), Link("drawer", drawer, [knob], [inside]), (0, 0, 0), (0, -1, 0), (0.0, 0.17), slides=True
    )


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
    return Articulated(Link("base", base), Link("rocker", [plate], [push]), (0, 0, 0), (-1, 0, 0), (0.0, 2 * lean))


def write(model: Articulated, folder: Path, index: int) -> None:
    """Writes ``N/mobility.urdf`` with its meshes, and ``N/model_data.json``."""
    place = folder / str(index)
    robot = ET.Element("robot", name=folder.name)
    contacts, places = [], []
    for link, origin in ((model.base, np.zeros(3)), (model.moving, np.array(model.hinge, float))):
        element = ET.SubElement(robot, "link", name=link.name)
        for kind, scene in mesh_scenes(link.parts, AWAY, origin).items():
            (place / kind).mkdir(parents=True, exist_ok=True)
            scene.export(place / kind / f"{link.name}.glb")
            shape = ET.SubElement(ET.SubElement(element, kind), "geometry")
            ET.SubElement(shape, "mesh", filename=f"{kind}/{link.name}.glb")
        for grasp in link.grasps:
            contacts.append({"base": link.name, "matrix": frame(AWAY, np.array(grasp.at) - origin, grip(grasp))})
        for point in link.places:
            places.append({"base": link.name, "matrix": frame(AWAY, np.array(point) - origin, np.eye(3))})
    joint = ET.SubElement(robot, "joint", name="joint", type="prismatic" if model.slides else "revolute")
    ET.SubElement(joint, "parent", link=model.base.name)
    ET.SubElement(joint, "child", link=model.moving.name)
    ET.SubElement(joint, "origin", xyz=_text(AWAY.T @ np.array(model.hinge, float)), rpy="0 0 0")
    ET.SubElement(joint, "axis", xyz=_text(AWAY.T @ np.array(model.axis, float)))
    lower, upper = model.limits
    ET.SubElement(joint, "limit", lower=str(lower), upper=str(upper), effort="100", velocity="10")
    ET.SubElement(joint, "dynamics", damping="0.01", friction="0.01")
    ET.indent(robot)
    ET.ElementTree(robot).write(place / "mobility.urdf")
    data = {
        "scale": 1.0,
        "contact_points": contacts,
        "functional_points": places,
        "target_points": [],
        "orientation_point": [],
        "transform_matrix": np.eye(4).tolist(),
        "init_qpos": [],
        "mass": {},
    }
    (place / "model_data.json").write_text(json.dumps(data), encoding="utf-8")


def _turned(grasp: Grasp, about: Point, axis: Point, angle: float) -> Grasp:
    """Returns the grasp turned about an axis (a unit vector) through a point."""
    from transforms3d.axangles import axangle2mat

    turn = axangle2mat(axis, angle, is_normalized=True)
    at = turn @ (np.array(grasp.at) - about) + about
    return Grasp((at[0], at[1], at[2]), turn @ grasp.approach, turn @ grasp.across)


def _text(values: np.ndarray) -> str:
    return " ".join(f"{round(float(value), 6) + 0.0:g}" for value in values)


def models() -> dict[str, dict[int, Articulated]]:
    """Returns each object's variants."""
    laptops = ["silver", "silver", "silver", "black", "black", "black", "orange", "black", "black", "black", "silver"]
    switches = [("black", "red"), ("beige", "brown"), ("beige", "brown"), ("black", "dark gray"), ("black", "red")]
    switches += [("gray", "light gray"), ("gray", "red"), ("gray", "light gray")]
    return {
        "060_kitchenpot": variants(pot, ["gray", "gray", "silver", "teal", "black", "gray", "gray", "silver"]),
        "015_laptop": variants(laptop, laptops),
        "056_switch": variants(switch, switches),
        "044_microwave": variants(microwave, ["gray", "dark gray"]),
        "036_cabinet": {46653: cabinet()},  # the number that upstream knows it by
    }
