"""Bins, and the bottles and cans that go with them."""

from __future__ import annotations

import numpy as np

from .model import BOTTOM, FACING, Model, around, rim, tops, variants
from .shapes import box, cone, cylinder, wall

_TURN = np.deg2rad(45.65)  # of the table bin, by the pose that task code gives it
_DIAGONAL = np.array([[np.cos(_TURN), 0, np.sin(_TURN)], [np.sin(_TURN), 0, -np.cos(_TURN)], [0, 1, 0]])


def dustbin() -> Model:
    """A bin that stands on the floor beside the table; its inner bottom is raised, as upstream's checks expect."""
    width, depth, low, high = 0.29, 0.50, 0.185, 0.70
    parts = [box("black", (width, depth, low))]
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        size = (0.008, depth, high - low) if x else (width, 0.008, high - low)
        parts.append(box("black", size, (x * (width / 2 - 0.004), y * (depth / 2 - 0.004), low)))
    return Model(parts)


def table_bin(colour: str) -> Model:
    """A small open bin; task code grips its left rim by 1 and its right rim by 3."""
    funnel = wall(colour, 0.010, 0.044, 0.012, 0.009)  # balls come to rest in it
    parts = [cylinder(colour, 0.044, 0.003), *funnel, *wall(colour, 0.044, 0.056, 0.095, 0.004)]
    right, far, left, near = rim(0.052, 0.072)
    return Model(parts, [far, left, near, right], [BOTTOM], _DIAGONAL)


def tall_bottle(body: str, cap: str) -> Model:
    """A slender bottle that two grippers can hold at once, one above the other."""
    parts = [
        cylinder(body, 0.025, 0.165),
        cone(body, 0.025, 0.012, 0.015, (0, 0, 0.165)),
        cylinder(cap, 0.013, 0.015, (0, 0, 0.18)),
    ]
    return Model(parts, around((0, 0, 0.09)), [BOTTOM], FACING)


def sauce_can(colour: str, lid: str) -> Model:
    """A small can of sauce."""
    parts = [cylinder(colour, 0.026, 0.08), cylinder(lid, 0.027, 0.012, (0, 0, 0.08))]
    return Model(parts, tops((0, 0, 0.066)), [BOTTOM])


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    bins = {0: "orange", 3: "gray", 7: "light gray", 8: "light gray", 9: "white", 10: "light gray"}
    bottles = {1: ("yellow", "green"), 2: ("light blue", "white"), 3: ("red", "black")}
    cans = {0: ("yellow", "brown"), 2: ("white", "brown"), 4: ("brown", "brown"), 5: ("red", "gold")}
    return {
        "011_dustbin": {0: dustbin()},
        "063_tabletrashbin": variants(table_bin, bins),
        "114_bottle": variants(tall_bottle, bottles),
        "105_sauce-can": variants(sauce_can, {**cans, 6: ("orange", "red")}),
    }
