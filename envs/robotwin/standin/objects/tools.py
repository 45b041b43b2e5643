"""Tools of workshop and kitchen."""

from __future__ import annotations

import numpy as np

from .model import BACKWARDS, BOTTOM, DOWN, SIDEWAYS, Model, Place, both, down, variants
from .shapes import box, cylinder, turned

_HAMMER_Z = 0.042  # metres of the origin above the table, by the pose that task code gives it


def hammer() -> Model:
    """A hammer that rests on its face and the end of its handle, head away from the robot."""
    slope = 0.17  # radians by which the handle falls towards its end
    parts = [
        box("silver", (0.03, 0.03, 2 * _HAMMER_Z), (0, 0.07, -_HAMMER_Z)),
        turned(box("brown", (0.02, 0.17, 0.03), (0, -0.03, -0.015)), slope, (1, 0, 0), (0, 0.055, 0)),
    ]
    at = (0, -0.02, -0.015)
    return Model(parts, both(at), [Place((0, 0.07, -_HAMMER_Z), DOWN)], _hammer_axes())


def _hammer_axes() -> np.ndarray:
    """Returns what the quaternion [0, 0, 0.995, 0.105] turns the axes into."""
    y, z = np.array([0.995, 0.105]) / np.hypot(0.995, 0.105)
    return np.array([[-1, 0, 0], [0, y * y - z * z, 2 * y * z], [0, 2 * y * z, z * z - y * y]])


def roller(axes: np.ndarray) -> Model:
    """A rolling pin along x; grasps 0 and 1 hold its left and right handle."""
    parts = [cylinder("light brown", 0.022, 0.20, (-0.10, 0, 0.022), "x", facets=8)]
    for side in (-1, 1):
        start = (0.10 if side > 0 else -0.16, 0, 0.022)
        parts.append(cylinder("brown", 0.012, 0.06, start, "x"))
    return Model(parts, [down((-0.13, 0, 0.03), (0, 1)), down((0.13, 0, 0.03), (0, -1))], [BOTTOM], axes)


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    return {"020_hammer": {0: hammer()}, "102_roller": variants(roller, {0: SIDEWAYS, 2: BACKWARDS})}
