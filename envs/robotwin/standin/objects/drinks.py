"""Bottles and cans."""

from __future__ import annotations

from .model import BOTTOM, Model, around, tops, variants
from .shapes import cone, cylinder

# Colours of body and cap, by number.
_BOTTLES = [("red", "red"), ("yellow", "white"), ("black", "yellow"), ("yellow", "white"), ("orange", "white")]
_BOTTLES += [("orange", "yellow"), ("orange", "yellow"), ("orange", "yellow"), ("brown", "white"), ("brown", "green")]
_BOTTLES += [("brown", "green"), ("yellow", "white"), ("green", "yellow"), ("brown", "red"), ("blue", "white")]
_BOTTLES += [("brown", "white"), ("green", "white"), ("white", "white"), ("gray", "white"), ("blue", "white")]
_BOTTLES += [("white", "white"), ("pink", "white"), ("light green", "green")]
_PILLS = {1: ("white", "orange"), 2: ("white", "white"), 3: ("orange", "white"), 4: ("brown", "white")}
_PILLS[5] = ("teal", "teal")
_CANS = {0: "white", 1: "red", 2: "green", 3: "red", 5: "light brown", 6: "red"}


def bottle(body: str, cap: str) -> Model:
    """A plastic drink bottle."""
    parts = [
        cylinder(body, 0.027, 0.115),
        cone(body, 0.027, 0.013, 0.03, (0, 0, 0.115)),
        cylinder(cap, 0.014, 0.025, (0, 0, 0.145)),
    ]
    return Model(parts, around((0, 0, 0.075)), [BOTTOM])


def pill_bottle(body: str, cap: str) -> Model:
    """A medicine bottle with a wide cap."""
    parts = [cylinder(body, 0.024, 0.07), cylinder(cap, 0.025, 0.02, (0, 0, 0.07))]
    return Model(parts, tops((0, 0, 0.062)), [BOTTOM])


def can(colour: str) -> Model:
    """A slim drink can."""
    parts = [cylinder(colour, 0.028, 0.10), cylinder("silver", 0.024, 0.005, (0, 0, 0.10))]
    return Model(parts, tops((0, 0, 0.08)), [BOTTOM])


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    return {
        "001_bottle": variants(bottle, _BOTTLES),
        "080_pillbottle": variants(pill_bottle, _PILLS),
        "071_can": variants(can, _CANS),
    }
