"""What stands on a dining table: cups, bowls, plates and the like."""

from __future__ import annotations

import numpy as np

from .model import BOTTOM, DOWN, FACING, FAR, RIGHT, UP, Model, Place, down, rim, variants
from .shapes import box, cylinder, turned, wall

_COS, _SIN = np.array([0.67**2 - 0.22**2, 2 * 0.22 * 0.67]) / (0.22**2 + 0.67**2)
_RACK = np.array([[-_COS, 0, -_SIN], [-_SIN, 0, _COS], [0, 1, 0]])  # by the pose that task code gives it


def bowl(colour: str, bottom: str) -> Model:
    """A bowl whose wall leans outwards, so that bowls nest."""
    parts = [cylinder(bottom, 0.044, 0.006), *wall(colour, 0.045, 0.065, 0.055, 0.004)]
    return Model(parts, rim(0.057, 0.04), [BOTTOM])


def cup(colour: str, radius: float, height: float) -> Model:
    """A cup without a handle."""
    parts = [cylinder(colour, radius - 0.003, 0.005), *wall(colour, radius - 0.002, radius, height, 0.004, sides=16)]
    return Model(parts, rim(radius - 0.002, height - 0.02), [BOTTOM])


def mug(colour: str) -> Model:
    """A mug, its handle away from the robot; a peg goes through the handle from the left."""
    radius, height, reach, low, high = 0.031, 0.085, 0.034, 0.014, 0.066
    parts = [cylinder(colour, radius - 0.002, 0.005), *wall(colour, radius, radius, height, 0.004, sides=16)]
    parts += [box(colour, (0.010, reach, 0.008), (0, radius + reach / 2 - 0.002, z)) for z in (low, high)]
    parts.append(box(colour, (0.010, 0.008, high - low + 0.008), (0, radius + reach - 0.004, low)))
    hole = (0, radius + 0.013, (low + high) / 2 + 0.004)
    return Model(parts, [down((0, 0, 0.072))], [Place(hole, RIGHT, FAR)], FACING)


def rack() -> Model:
    """A stand with one level peg for mugs, which points to the left and towards the robot."""
    height, tip, post = 0.20, 0.10, -0.035  # metres; the latter two along the peg from the origin
    along = _RACK[:, 0]
    foot, peg = post * along, cylinder("dark gray", 0.004, tip - post, (post, 0, height), "x")
    parts = [
        cylinder("dark gray", 0.07, 0.012, (foot[0], foot[1], 0)),
        cylinder("dark gray", 0.010, height + 0.01, (foot[0], foot[1], 0)),
        turned(peg, np.arctan2(along[1], along[0]), (0, 0, 1)),
    ]
    return Model(parts, [], [Place((tip * along[0], tip * along[1], height), -along, UP)], _RACK)


def plate() -> Model:
    """A shallow plate with a raised rim."""
    parts = [cylinder("light gray", 0.07, 0.008), *wall("light gray", 0.07, 0.10, 0.014, 0.006)]
    return Model(parts, [down((0, 0, 0.01))], [Place((0, 0, 0.008), DOWN)])


def coaster() -> Model:
    """A flat disc."""
    return Model([cylinder("gray", 0.05, 0.006)], [down((0, 0, 0.006))], [Place((0, 0, 0.006), DOWN)])


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    bowls = {1: "white", 2: "gray", 3: "blue", 4: "white", 5: "gray", 6: "gray", 7: "light green"}
    painted = {number: (colour, "yellow" if number == 4 else colour) for number, colour in bowls.items()}
    cups = ["light blue", "blue", "brown", "dark green", "white", "gray", "silver", "blue", "light blue", "white"]
    cups += ["white", "black", "black"]
    sizes = [(0.035 + 0.002 * (index % 3), 0.085 + 0.005 * (index % 2)) for index in range(len(cups))]
    mugs = ["black", "black", "light brown", "beige", "white", "blue", "beige", "beige", "green", "white"]
    return {
        "039_mug": variants(mug, mugs),
        "040_rack": {0: rack()},
        "002_bowl": variants(bowl, painted),
        "021_cup": variants(cup, [(colour, *size) for colour, size in zip(cups, sizes, strict=True)]),
        "003_plate": {0: plate()},
        "019_coaster": {0: coaster()},
    }
