"""Shoes, toys, and the boxes that things come in or are put into."""

from __future__ import annotations

import numpy as np

from .model import BACKWARDS, BOTTOM, DOWN, FACING, LEFTWARDS, UP, Model, Place, both, down, tops, variants
from .shapes import Point, box, cylinder, painted, solid, tub

_CUBE = ("red", "orange", "blue", "green", "white", "yellow")


def shoe(upper: str, sole: str) -> Model:
    """A child's shoe, its toe towards the robot, held by the upper behind the laces."""
    toe = [
        (x, y, z)
        for y, half, high in ((-0.01, 0.020, 0.072), (-0.082, 0.018, 0.042))
        for x in (-half, half)
        for z in (0.022, high)
    ]
    parts = [
        box(sole, (0.056, 0.18, 0.022)),
        box(upper, (0.040, 0.095, 0.05), (0, 0.038, 0.022)),
        solid(upper, toe),
        box("white", (0.02, 0.03, 0.004), (0, 0.01, 0.071)),
    ]
    return Model(parts, both((0, 0.03, 0.055)), [BOTTOM], FACING)


def shoe_box() -> Model:
    """An open box for two shoes side by side; place 0 is the half towards the robot."""
    parts = tub("orange", (0.26, 0.19, 0.05), 0.004)
    return Model(parts, [], [Place((0, y, 0.004), DOWN) for y in (-0.04, 0.04)], LEFTWARDS)


def plastic_box(colour: str) -> Model:
    """A shallow open box for two cans; place 0 is its right half, place 1 its left."""
    parts = tub(colour, (0.24, 0.13, 0.035), 0.004, flare=0.006)
    return Model(parts, [down((0, 0, 0.035))], [Place((0.06, 0, 0.004), UP), Place((-0.06, 0, 0.004), UP)])


def basket(colour: str) -> Model:
    """A basket with a handle across it from front to back; places 0 and 1 are left and right of the handle."""
    high = 0.13
    parts = tub(colour, (0.24, 0.12, 0.05), 0.005, flare=0.008)
    parts += [box(colour, (0.012, 0.008, high), (0, y, 0)) for y in (-0.062, 0.062)]
    parts.append(box(colour, (0.014, 0.132, 0.016), (0, 0, high)))
    grasps = [grasp for y in (0, -0.03, 0.03) for grasp in both((0, y, high + 0.012))]
    return Model(parts, grasps, [Place((-0.07, 0, 0.005), UP), Place((0.07, 0, 0.005), UP)])


def scanner(colour: str) -> Model:
    """A barcode scanner that stands on its window, its handle up."""
    parts = [
        box(colour, (0.05, 0.05, 0.035)),
        cylinder(colour, 0.013, 0.075, (0, 0, 0.035)),
        painted(box("red", (0.02, 0.0006, 0.01), (0, -0.0253, 0.012))),
    ]
    return Model(parts, tops((0, 0, 0.08)), [BOTTOM], BACKWARDS)


def carton(colour: str, size: Point, lid: str = "white") -> Model:
    """A small carton or a solid block, gripped across x."""
    width, depth, height = size
    parts = [box(colour, size), painted(box(lid, (width - 0.012, depth - 0.012, 0.001), (0, 0, height)))]
    return Model(parts, both((0, 0, max(0.031, height - 0.025))), [BOTTOM, Place((0, 0, 0), UP)])


def toy_car(colour: str) -> Model:
    """A toy car, driving away from the robot."""
    roof = [
        (x, y, z)
        for z, ends in ((0.025, (-0.03, 0.022)), (0.042, (-0.02, 0.01)))
        for y in ends
        for x in (-0.018, 0.018)
    ]
    parts = [box(colour, (0.040, 0.085, 0.018), (0, 0, 0.007)), solid(colour, roof)]
    wheels = [(x, y) for x in (-0.023, 0.017) for y in (-0.026, 0.026)]
    parts += [cylinder("black", 0.009, 0.006, (x, y, 0.009), "x") for x, y in wheels]
    return Model(parts, both((0, 0, 0.032)), [BOTTOM])


def puzzle_cube(turn: int) -> Model:
    """A cube with nine stickers a side; ``turn`` says which colours are seen."""
    side, step, sticker = 0.050, 0.016, 0.014
    parts = [box("black", (side, side, side))]
    for number, (axis, sign) in enumerate(((2, 1), (0, 1), (0, -1), (1, 1), (1, -1))):
        colour = _CUBE[(number + turn) % len(_CUBE)]
        size = np.insert([sticker, sticker], axis, 0.0006)
        for u in (-step, 0, step):
            for v in (-step, 0, step):
                x, y, z = np.insert([u, v], axis, sign * side / 2)
                at = (x, y, z + side / 2 - size[2] / 2)
                parts.append(painted(box(colour, (size[0], size[1], size[2]), at)))
    return Model(parts, both((0, 0, 0.032)), [BOTTOM])


def soap(colour: str) -> Model:
    """A bar of soap with bevelled edges."""
    corners = [
        (x * (0.026 - inset), y * (0.042 - inset), z)
        for z, inset in ((0, 0.004), (0.006, 0), (0.020, 0), (0.026, 0.004))
        for x in (-1, 1)
        for y in (-1, 1)
    ]
    return Model([solid(colour, corners)], both((0, 0, 0.032)), [BOTTOM])


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    shoes = [("black", "white"), ("white", "light gray"), ("white", "brown"), ("white", "black"), ("green", "beige")]
    shoes += [("brown", "black"), ("blue", "white"), ("light brown", "brown"), ("red", "white")]
    shoes += [("white", "light gray")]
    wood, tea, coffee = (0.045, 0.075, 0.04), (0.054, 0.075, 0.06), (0.052, 0.08, 0.07)
    woods = [("brown", "brown"), ("light brown", "light brown"), ("orange", "green")]
    woods += [("light brown", "light brown"), ("brown", "brown")]
    teas = ["green", "red", "black", "yellow", "beige", "gold"]
    coffees = ["brown", "light brown", "white", "brown", "light brown", "red", "light brown"]
    return {
        "110_basket": variants(basket, ["light brown", "yellow"]),
        "024_scanner": variants(scanner, ["black", "black", "black", "gray", "yellow"]),
        "041_shoe": variants(shoe, shoes),
        "007_shoe-box": {0: shoe_box()},
        "062_plasticbox": variants(plastic_box, {3: "light blue", 5: "blue"}),
        "057_toycar": variants(toy_car, ["blue", "blue", "pink", "green", "blue", "teal"]),
        "073_rubikscube": variants(puzzle_cube, [0, 1, 2]),
        "086_woodenblock": variants(carton, [(colour, wood, top) for colour, top in woods]),
        "107_soap": variants(soap, ["yellow", "light gray", "blue", "brown"]),
        "112_tea-box": variants(carton, [(colour, tea) for colour in teas]),
        "113_coffee-box": variants(carton, [(colour, coffee) for colour in coffees]),
    }
