"""Coloured convex shapes, of which the stand-in objects are put together.

All are described as the object stands on the table: x to the right, y away from the robot, z up, in metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

COLOURS = {
    "beige": (0.91, 0.85, 0.72),
    "black": (0.10, 0.10, 0.11),
    "blue": (0.17, 0.36, 0.80),
    "brown": (0.45, 0.29, 0.17),
    "dark blue": (0.11, 0.16, 0.40),
    "dark gray": (0.27, 0.28, 0.30),
    "dark green": (0.10, 0.35, 0.20),
    "gold": (0.85, 0.68, 0.25),
    "golden brown": (0.80, 0.55, 0.26),
    "gray": (0.55, 0.56, 0.58),
    "green": (0.25, 0.62, 0.30),
    "light blue": (0.55, 0.75, 0.92),
    "light brown": (0.72, 0.55, 0.37),
    "light gray": (0.78, 0.79, 0.80),
    "light green": (0.62, 0.85, 0.55),
    "orange": (0.94, 0.52, 0.15),
    "pink": (0.95, 0.60, 0.72),
    "red": (0.82, 0.14, 0.13),
    "reddish brown": (0.55, 0.24, 0.15),
    "silver": (0.75, 0.76, 0.79),
    "teal": (0.10, 0.55, 0.56),
    "white": (0.95, 0.95, 0.96),
    "yellow": (0.96, 0.83, 0.22),
}
_ROUND = 32  # sides of what is round, as seen
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Part:
    """A convex piece of an object.

    Attributes:
        seen: Mesh that is drawn.
        touched: Mesh whose convex hull collides, or None for what is only painted on.
        colour: Key of ``COLOURS``.
    """

    seen: Any
    touched: Any
    colour: str


def box(colour: str, size: Point, at: Point = (0, 0, 0)) -> Part:
    """Returns a box whose bottom has its middle ``at``."""
    import trimesh

    mesh = trimesh.creation.box(size)
    mesh.apply_translation((at[0], at[1], at[2] + size[2] / 2))
    return Part(mesh, mesh, colour)


def cylinder(
    colour: str, radius: float, height: float, at: Point = (0, 0, 0), axis: str = "z", facets: int = 16
) -> Part:
    """Returns a cylinder along an axis; one end has its middle ``at``. Few facets to touch keep it from rolling."""
    return cone(colour, radius, radius, height, at, axis, facets)


def cone(
    colour: str, bottom: float, top: float, height: float, at: Point = (0, 0, 0), axis: str = "z", facets: int = 16
) -> Part:
    """Returns a cut cone of two radii along an axis; the first end has its middle ``at``."""
    rings = ((bottom, 0.0), (top, height))
    seen, touched = (
        _hull(_place(np.concatenate([_ring(radius, up, sides) for radius, up in rings]), at, axis))
        for sides in (_ROUND, facets)
    )
    return Part(seen, touched, colour)


def dome(colour: str, radius: float, height: float, at: Point = (0, 0, 0)) -> Part:
    """Returns the upper half of a ball, stretched to ``height``; its rim has its middle ``at``."""
    angles = np.linspace(0, np.pi / 2, 7)[:-1]
    rings = [_ring(radius * np.cos(angle), height * np.sin(angle), _ROUND) for angle in angles]
    mesh = _hull(_place(np.concatenate([*rings, [[0, 0, height]]]), at, "z"))
    return Part(mesh, mesh, colour)


def block(colour: str, outline: list[tuple[float, float]], width: float) -> Part:
    """Returns a convex outline in x and z, as seen from the robot, ``width`` deep in y."""
    return solid(colour, [(x, y, z) for x, z in outline for y in (-width / 2, width / 2)])


def solid(colour: str, corners: Any) -> Part:
    """Returns the convex hull of points [n, 3]."""
    mesh = _hull(np.array(corners))
    return Part(mesh, mesh, colour)


def wall(
    colour: str, bottom: float, top: float, height: float, thickness: float, at: Point = (0, 0, 0), sides: int = 20
) -> list[Part]:
    """Returns the round wall of a bowl or cup: outer radii at the bottom and the top, thickness of its slabs."""
    half = np.pi / sides
    slabs = []
    for middle in np.arange(sides) * 2 * half:
        corners = [
            (radius * np.cos(angle), radius * np.sin(angle), z)
            for z, outer in ((0, bottom), (height, top))
            for radius in (outer - thickness, outer)
            for angle in (middle - half, middle + half)
        ]
        slabs.append(solid(colour, np.array(corners) + at))
    return slabs


def tub(colour: str, size: Point, thickness: float, flare: float = 0.0) -> list[Part]:
    """Returns an open box.

    Args:
        colour: Key of ``COLOURS``.
        size: Outer size, at the bottom.
        thickness: Of its floor and walls.
        flare: How far the walls lean outwards at the top.
    """
    width, depth, height = size
    parts = [box(colour, (width, depth, thickness))]
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        corners = []
        for z, out in ((0, 0.0), (height, flare)):
            for inwards in (0.0, thickness):
                for along in (-1, 1):
                    away = (width if x else depth) / 2 + out - inwards
                    beside = along * ((depth if x else width) / 2 + out)
                    corners.append((x * away, beside, z) if x else (beside, y * away, z))
        parts.append(solid(colour, corners))
    return parts


def painted(part: Part) -> Part:
    """Returns the part as paint: seen, but not touched."""
    return Part(part.seen, None, part.colour)


def lifted(part: Part, height: float) -> Part:
    """Returns the part, ``height`` higher."""
    import trimesh

    matrix = trimesh.transformations.translation_matrix((0, 0, height))
    return Part(part.seen.copy().apply_transform(matrix), part.touched.copy().apply_transform(matrix), part.colour)


def turned(part: Part, angle: float, axis: Point, about: Point = (0, 0, 0)) -> Part:
    """Returns the part turned by ``angle`` (radians) about an axis through a point."""
    import trimesh

    matrix = trimesh.transformations.rotation_matrix(angle, axis, about)
    return Part(part.seen.copy().apply_transform(matrix), part.touched.copy().apply_transform(matrix), part.colour)


def _ring(radius: float, height: float, sides: int) -> np.ndarray:
    angles = (np.arange(sides) + 0.5) * 2 * np.pi / sides
    return np.stack([radius * np.cos(angles), radius * np.sin(angles), np.full(sides, height)], axis=1)


def _place(points: np.ndarray, at: Point, axis: str) -> np.ndarray:
    turns = {"x": [2, 0, 1], "y": [1, 2, 0], "z": [0, 1, 2]}  # which of a point's coordinates become x, y and z
    return points[:, turns[axis]] + at


def _hull(points: np.ndarray) -> Any:
    import trimesh

    return trimesh.convex.convex_hull(points)
