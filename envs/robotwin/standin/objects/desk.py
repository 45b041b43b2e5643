"""What lies on a desk: bells, clocks, staplers, cards and the like."""

from __future__ import annotations

import numpy as np

from .model import (
    BACKWARDS,
    BOTTOM,
    FACING,
    LEFTWARDS,
    NEAR,
    SIDEWAYS,
    UNDERSIDE_UP,
    UP,
    Model,
    Place,
    around,
    both,
    down,
    variants,
)
from .shapes import block, box, cone, cylinder, dome, painted, turned


def bell(dome_colour: str, base: str) -> Model:
    """A reception bell. Task code presses where it also grips, so the frame lies in the dome's middle."""
    parts = [
        cylinder(base, 0.034, 0.01),
        cylinder(dome_colour, 0.027, 0.02, (0, 0, 0.01)),
        dome(dome_colour, 0.027, 0.03, (0, 0, 0.03)),
        cylinder("silver", 0.008, 0.014, (0, 0, 0.058)),
    ]
    return Model(parts, [down((0, 0, 0.043))], [BOTTOM])


def alarm_clock(body: str, face: str) -> Model:
    """A desk clock with a snooze button on top."""
    parts = [
        box(body, (0.09, 0.045, 0.07)),
        painted(box(face, (0.076, 0.004, 0.055), (0, -0.0235, 0.007))),
        cylinder("red", 0.02, 0.012, (0, 0, 0.07)),
    ]
    return Model(parts, [down((0, 0, 0.07))], [BOTTOM])


def stapler(colour: str) -> Model:
    """A stapler, its long side along x; grasps 0 and 1 hold it across, grasp 2 presses its head."""
    parts = [
        box("dark gray", (0.12, 0.034, 0.010)),
        block("silver", [(-0.055, 0.010), (-0.055, 0.028), (0.052, 0.020), (0.052, 0.010)], 0.022),
        block(colour, [(-0.058, 0.026), (-0.055, 0.05), (0.05, 0.036), (0.055, 0.022)], 0.030),
    ]
    return Model(parts, [*both((0, 0, 0.033), (0, 1)), down((-0.02, 0, 0.046), (0, 1))], [BOTTOM])


def mouse(colour: str) -> Model:
    """A computer mouse, its buttons to the right."""
    low, high = 0.022, 0.034
    parts = [
        block(colour, [(-0.046, 0.0), (0.046, 0.0), (0.046, 0.014), (0.03, low), (-0.03, low), (-0.046, 0.014)], 0.054),
        block(colour, [(-0.036, 0.0), (0.036, 0.0), (0.024, high), (-0.024, high)], 0.040),
        box("black", (0.012, 0.006, 0.006), (0.026, 0, 0.030)),
    ]
    return Model(parts, both((0, 0, 0.032), (0, 1)), [BOTTOM])


def playing_cards(colour: str) -> Model:
    """A box of cards, lying."""
    parts = [box(colour, (0.057, 0.088, 0.018)), painted(box("white", (0.045, 0.074, 0.001), (0, 0, 0.018)))]
    return Model(parts, both((0, 0, 0.031)), [BOTTOM])


def microphone(body: str, head: str) -> Model:
    """A hand-held microphone, lying with its head away from the robot; its handle's end is what points down later."""
    parts = [
        cone(body, 0.014, 0.019, 0.13, (0, -0.09, 0.024), "y"),
        cylinder("black", 0.023, 0.012, (0, 0.04, 0.024), "y"),
        cone(head, 0.022, 0.024, 0.02, (0, 0.052, 0.024), "y"),
        cone(head, 0.024, 0.016, 0.02, (0, 0.072, 0.024), "y"),
    ]
    first, second = around((0, -0.045, 0.03), "y", 8), around((0, 0.02, 0.03), "y", 8)
    grasps = [second[0], first[0], *second[1:], *first[1:]]
    return Model(parts, grasps, [Place((0, -0.09, 0.024), NEAR)], FACING)


def fan(body: str, grille: str) -> Model:
    """A small desk fan that faces away from the robot until it is placed, held by its head."""
    parts = [
        cylinder(body, 0.032, 0.012),
        cylinder(body, 0.008, 0.04, (0, 0, 0.012)),
        cylinder(body, 0.038, 0.026, (0, -0.013, 0.085), "y"),
        cylinder(grille, 0.032, 0.004, (0, 0.013, 0.085), "y"),
    ]
    return Model(parts, both((0, 0, 0.09), (0, 1)), [BOTTOM], BACKWARDS)


def seal(colour: str) -> Model:
    """A stamp: a square foot and a round handle. Task code grips by 4 to 7."""
    parts = [box(colour, (0.026, 0.026, 0.022)), cylinder(colour, 0.011, 0.043, (0, 0, 0.022))]
    hold = (0, 0, 0.047)
    above = [down(hold, across) for across in ((-1, 0), (0, -1), (1, 0), (0, 1))]
    return Model(parts, [*around(hold, "z", 4), *above], [BOTTOM])


def payment_sign(frame: str, panel: str) -> Model:
    """A stand with a code to scan, which faces away from the robot until it is turned."""
    plate = box(frame, (0.085, 0.008, 0.10), (0, 0, 0.006))
    code = painted(box("black", (0.03, 0.002, 0.03), (0, 0.005, 0.05)))
    label = painted(box(panel, (0.07, 0.001, 0.08), (0, 0.0045, 0.016)))
    parts = [box(frame, (0.09, 0.05, 0.008)), plate, label, code]
    return Model(parts, both((0, 0, 0.085), (0, 1)), [BOTTOM], BACKWARDS)


def scale(pan: str) -> Model:
    """A flat electronic scale."""
    parts = [
        box("white", (0.15, 0.12, 0.014)),
        box(pan, (0.13, 0.10, 0.006), (0, 0.005, 0.014)),
        painted(box("black", (0.05, 0.008, 0.001), (0, -0.053, 0.014))),
    ]
    return Model(parts, [down((0, 0, 0.03))], [Place((0, 0.005, 0.020), UP)])


def display_stand(colour: str) -> Model:
    """A low pedestal."""
    parts = [box(colour, (0.11, 0.11, 0.010)), box(colour, (0.09, 0.09, 0.020), (0, 0, 0.010))]
    return Model(parts, [down((0, 0, 0.03))], [Place((0, 0, 0.030), UP)], FACING)


def remote_control(colour: str) -> Model:
    """A remote control, its long side along y."""
    button = "white" if colour == "black" else "black"
    parts = [box(colour, (0.042, 0.15, 0.02)), painted(box(button, (0.026, 0.06, 0.001), (0, 0.02, 0.02)))]
    return Model(parts, both((0, 0, 0.031)), [BOTTOM], FACING)


def phone(body: str, axes: np.ndarray) -> Model:
    """A phone on its back, its lower end towards the robot. Its origin is in the middle of its thickness."""
    width, length, thick = 0.060, 0.125, 0.009
    parts = [
        box(body, (width, length, thick), (0, 0, -thick / 2)),
        painted(box("dark gray", (width - 0.006, length - 0.016, 0.0006), (0, 0, thick / 2))),
    ]
    return Model(parts, both((0, 0, 0.027)), [Place((0, -length / 2, 0), NEAR)], axes)


def phone_stand(colour: str) -> Model:
    """A rest whose plate leans away from the robot; the phone's lower end comes to lie on its ledge."""
    lean, ledge = 0.40, 0.020
    plate = box(colour, (0.044, 0.006, 0.10), (0, 0.012, ledge))
    parts = [
        box(colour, (0.075, 0.10, 0.008), (0, 0.025, 0)),
        box(colour, (0.044, 0.05, ledge - 0.008), (0, 0, 0.008)),
        turned(plate, -lean, (1, 0, 0), (0, 0.009, ledge)),
    ]
    along = np.array([0.0, -np.sin(lean), -np.cos(lean)])
    return Model(parts, [], [Place((0, 0, ledge + 0.002), along)], FACING)


def models() -> dict[str, dict[int, Model]]:
    """Returns each object's variants."""
    microphones = {0: ("teal", "white"), 4: ("dark blue", "gray"), 5: ("black", "white")}
    seals = {0: "red", 2: "reddish brown", 3: "brown", 4: "brown", 6: "yellow"}
    signs = [("beige", "white"), ("blue", "white"), ("gray", "light gray"), ("white", "white")]
    phones = {0: ("white", FACING), 1: ("silver", SIDEWAYS), 2: ("black", LEFTWARDS), 4: ("black", UNDERSIDE_UP)}
    remotes = ["black", "white", "black", "black", "white", "white", "black"]
    return {
        "050_bell": variants(bell, [("white", "black"), ("blue", "brown")]),
        "046_alarm-clock": variants(alarm_clock, {1: ("black", "light gray"), 3: ("dark blue", "white")}),
        "048_stapler": variants(stapler, ["blue", "black", "blue", "white", "red", "red", "blue"]),
        "047_mouse": variants(mouse, ["dark gray", "dark gray", "gray"]),
        "081_playingcards": variants(playing_cards, ["blue", "red", "black"]),
        "018_microphone": variants(microphone, microphones),
        "099_fan": variants(fan, {4: ("white", "gray"), 5: ("white", "beige")}),
        "100_seal": variants(seal, seals),
        "070_paymentsign": variants(payment_sign, signs),
        "077_phone": variants(phone, phones),
        "078_phonestand": variants(phone_stand, {1: "green", 2: "light brown"}),
        "072_electronicscale": variants(scale, {0: "white", 1: "black", 5: "black", 6: "gold"}),
        "074_displaystand": variants(display_stand, ["black", "black", "brown", "black", "black"]),
        "079_remotecontrol": variants(remote_control, remotes),
    }
