"""Bread, burgers and fries, and what they are served in."""

from __future__ import annotations

import numpy as np

from .model import BACKWARDS, BOTTOM, DOWN, FACING, UP, Model, Place, both, down, variants
from .shapes import box, cylinder, dome, solid, tub, wall


def bread(colour: str) -> Model:
    """A small loaf, its long side along y."""
    corners = [
        (x, y, z)
        for z, half in ((0, 0.022), (0.008, 0.026), (0.028, 0.026), (0.040, 0.016))
        for x in (-half, half)
        for y in (-0.042, 0.042)
    ]
    return Model([solid(colour, corners)], both((0, 0, 0.034)), [BOTTOM], FACING)


def bread_basket(colour: str) -> Model:
    """A round shallow basket."""
    parts = [cylinder(colour, 0.098, 0.006), *wall(colour, 0.10, 0.115, 0.035, 0.006)]
    return Model(parts, [down((0, 0, 0.03))], [Place((0, 0, 0.006), UP)])


def skillet(colour: str) -> Model:
    """A small frying pan, its handle towards the robot and heavy enough to balance the pan."""
    parts = [
        cylinder(colour, 0.062, 0.002),
        *wall(colour, 0.062, 0.070, 0.026, 0.0025),
        box(colour, (0.018, 0.115, 0.024), (0, -0.1225, 0.014)),
    ]
    return Model(parts, both((0, -0.105, 0.036)), [Place((0, 0, 0.002), UP)], BACKWARDS)


def burger(bun: str, filling: str) -> Model:
    """A hamburger."""
    parts = [
        cylinder(bun, 0.029, 0.015),
        cylinder(filling, 0.029, 0.014, (0, 0, 0.015)),
        dome(bun, 0.029, 0.022, (0, 0, 0.029)),
    ]
    return Model(parts, [*both((0, 0, 0.033)), *both((0, 0, 0.033), (0, 1))], [BOTTOM])


def fries() -> Model:
    """Fries in a red paper box; upstream stands it by its own z."""
    parts = [box("red", (0.05, 0.03, 0.055))]
    parts += [
        box("yellow", (0.007, 0.007, 0.03), (x, y, 0.055)) for x in np.linspace(-0.02, 0.02, 5) for y in (-0.008, 0.006)
    ]
    return Model(parts, both((0, 0, 0.045), (0, 1)), [BOTTOM], np.eye(3))


def tray(colour: str) -> Model:
    """A serving tray; place 0 is its left half, place 1 its right."""
    parts = tub(colour, (0.30, 0.18, 0.014), 0.006, flare=0.006)
    return Model(parts, [down((0, 0, 0.02))], [Place((-0.07, 0, 0.006), DOWN), Place((0.07, 0, 0.006), DOWN)], FACING)


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    burgers = [("golden brown", "reddish brown"), ("orange", "yellow"), ("white", "yellow"), ("white", "golden brown")]
    burgers += [("yellow", "orange"), ("green", "yellow")]  # those in paper and in boxes have its colours
    return {
        "075_bread": {index: bread("golden brown") for index in (0, 1, 3, 5, 6)},
        "076_breadbasket": variants(bread_basket, ["beige", "beige", "light brown", "brown", "beige"]),
        "106_skillet": variants(skillet, ["dark gray", "black", "black", "dark gray"]),
        "006_hamburg": variants(burger, burgers),
        "005_french-fries": {0: fries(), 1: fries()},
        "008_tray": variants(tray, ["beige", "orange", "dark green", "brown"]),
    }
