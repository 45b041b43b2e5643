"""What stands on a dining table: cups, bowls, plates and the like."""

from __future__ import annotations

from .model import DOWN, Model, down, rim
from .shapes import cylinder, wall

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
_BOTTOM = ((0, 0, 0), DOWN)


def bowl(colour: str) -> Model:
    """Walls lean outwards, so that bowls nest."""
    parts = [cylinder(colour, 0.044, 0.006), *wall(colour, 0.045, 0.065, 0.055, 0.004)]
    return Model(parts, rim(0.057, 0.04), [_BOTTOM])


def cup(colour: str, radius: float, height: float) -> Model:
    """A cup without a handle."""
    parts = [cylinder(colour, radius - 0.003, 0.005), *wall(colour, radius - 0.002, radius, height, 0.004, sides=16)]
    return Model(parts, rim(radius - 0.002, height - 0.02), [_BOTTOM])


def plate() -> Model:
    """A shallow plate with a raised rim."""
    parts = [cylinder("white", 0.07, 0.008), *wall("white", 0.07, 0.10, 0.014, 0.006)]
    return Model(parts, [down((0, 0, 0.01))], [((0, 0, 0.008), DOWN)])


def coaster() -> Model:
    """A flat wooden disc."""
    return Model([cylinder("brown", 0.05, 0.006)], [down((0, 0, 0.006))], [((0, 0, 0.006), DOWN)])


MODELS = {
    "002_bowl": {index: bowl(colour) for index, colour in enumerate(_BOWLS)},
    "021_cup": {
        index: cup(colour, 0.035 + 0.002 * (index % 3), 0.085 + 0.005 * (index % 2))
        for index, colour in enumerate(_CUPS)
    },
    "003_plate": {0: plate()},
    "019_coaster": {0: coaster()},
}
