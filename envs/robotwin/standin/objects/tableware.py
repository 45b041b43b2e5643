"""What stands on a dining table: cups, bowls, plates and the like."""

from __future__ import annotations

import numpy as np

from .model import BOTTOM, DOWN, FACING, FAR, RIGHT, UP, Model, Place, down, rim
from .shapes import box, cylinder, turned, wall

_BOWLS = ("white", "white", "gray", "blue", "white", "gray", "gray", "light green")
_CUPS = (
    "light blue",
    "white",
    "brown",
    "dark green",
    "white",
    "gray",
    "silver",
    "blue",
    "light blue",
    "white",
    "white",
    "black",
    "black",
)
_MUGS = ("black", "black", "light brown", "beige", "white", "blue", "beige", "beige", "green", "white")
_SIN, _COS = 2 * 0.22 * 0.67 / (0.22**2 + 0.67**2), (0.67**2 - 0.22**2) / (0.22**2 + 0.67**2)
_RACK = np.array([[-_COS, 0, -_SIN], [-_SIN, 0, _COS], [0, 1, 0]])  # by the pose that task code gives it


def bowl(colour: str) -> Model:
    """Walls lean outwards, so that bowls nest."""
    parts = [cylinder(colour, 0.044, 0.006), *wall(colour, 0.045, 0.065, 0.055, 0.004)]
    return Model(parts, rim(0.057, 0.04), [BOTTOM])


def cup(colour: str, radius: float, height: float) -> Model:
    """A cup without a handle."""
    parts = [cylinder(colour, radius - 0.003, 0.005), *wall(colour, radius - 0.002, radius, height, 0.004, sides=16)]
    return Model(parts, rim(radius - 0.002, height - 0.02), [BOTTOM])


def mug(colour: str) -> Model:
    """A mug, its handle away from the robot; a peg goes through the handle from the left."""
    radius, height, reach, low, high = 0.031, 0.085, 0.034, 0.014, 0.066
    bars = ((low, 0.008, 0), (high, 0.008, 0))
    parts = [cylinder(colour, radius - 0.002, 0.005), *wall(colour, radius, radius, height, 0.004, sides=16)]
    parts += [box(colour, (0.010, reach, thick), (0, radius + reach / 2 - 0.002, z)) for z, thick, _ in bars]
    parts.append(box(colour, (0.010, 0.008, high - low + 0.008), (0, radius + reach - 0.004, low)))
    hole = (0, radius + 0.013, (low + high) / 2 + 0.004)
    return Model(parts, [down((0, 0, 0.072))], [Place(hole, RIGHT, FAR)], FACING)


def rack() -> Model:
    """A stand with one level peg for mugs, which points to the left and towards the robot."""
    peg, tip, post = 0.20, 0.10, -0.035
    along = _RACK[:, 0]

    def at(way, z):
        return (along[0] * way, along[1] * way, z)

    turn = np.arctan2(along[1], along[0])
    parts = [
        cylinder("dark gray", 0.07, 0.012, at(post, 0)),
        cylinder("dark gray", 0.010, peg + 0.01, at(post, 0)),
        turned(cylinder("dark gray", 0.004, tip - post, (post, 0, peg), "x"), turn, (0, 0, 1)),
    ]
    return Model(parts, [], [Place(at(tip, peg), -along, UP)], _RACK)


def plate() -> Model:
    """A shallow plate with a raised rim."""
    parts = [cylinder("white", 0.07, 0.008), *wall("white", 0.07, 0.10, 0.014, 0.006)]
    return Model(parts, [down((0, 0, 0.01))], [Place((0, 0, 0.008), DOWN)])


def coaster() -> Model:
    """A flat wooden disc."""
    return Model([cylinder("brown", 0.05, 0.006)], [down((0, 0, 0.006))], [Place((0, 0, 0.006), DOWN)])


MODELS = {
    "039_mug": {index: mug(colour) for index, colour in enumerate(_MUGS)},
    "040_rack": {0: rack()},
    "002_bowl": {index: bowl(colour) for index, colour in enumerate(_BOWLS)},
    "021_cup": {
        index: cup(colour, 0.035 + 0.002 * (index % 3), 0.085 + 0.005 * (index % 2))
        for index, colour in enumerate(_CUPS)
    },
    "003_plate": {0: plate()},
    "019_coaster": {0: coaster()},
}
