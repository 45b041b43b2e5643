"""The packing cell: the conveyor's arm and belt, with a tray of three slots next to the belt and three furniture parts.

The tray stands as high as the belt, because the tool does not go lower; parts are placed into it, not dropped.
"""

from __future__ import annotations

import functools

from ..conveyor.physics import BELT_TOP, ConveyorPhysics, object_xml, scene_xml
from .suite import PARTS

FLOOR = BELT_TOP  # height of the tray's floor
TRAY = (0.24, 0.33)
SLOT_HALF = (0.085, 0.045)  # the open fingers span 85 mm along y
# A slot a part, along y. The floor of a slot has the colour of its part, darker.
SLOTS = {part: (TRAY[0], TRAY[1] + 2 * SLOT_HALF[1] * (number - 1)) for number, part in enumerate(PARTS)}
_COLOURS = {"leg": (0.85, 0.45, 0.12), "top": (0.90, 0.90, 0.92), "screw": (0.20, 0.70, 0.30)}
_RIM = 0.012  # low, so that the fingers pass over it

# Boxes as (half sizes, position, colour, mass), long along x, so that the fingers close across them.
GEOMS = {
    "leg": (
        ((0.060, 0.013, 0.013), (0, 0, 0.013), _COLOURS["leg"], 0.060),
        ((0.010, 0.017, 0.017), (0.050, 0, 0.017), (0.55, 0.28, 0.08), 0.015),
    ),
    "top": (
        ((0.055, 0.022, 0.008), (0, 0, 0.008), _COLOURS["top"], 0.080),
        ((0.040, 0.014, 0.003), (0, 0, 0.019), (0.60, 0.62, 0.70), 0.010),
    ),
    "screw": (
        ((0.026, 0.015, 0.015), (0, 0, 0.015), _COLOURS["screw"], 0.040),
        ((0.012, 0.010, 0.004), (0, 0, 0.034), (0.10, 0.30, 0.15), 0.005),
    ),
}


def _tray_xml() -> str:
    (x, y), (half_x, half_y), wall = TRAY, (SLOT_HALF[0], SLOT_HALF[1] * len(PARTS)), 0.004

    def box(sizes: tuple[float, float, float], place: tuple[float, float, float], rgba: str) -> str:
        return f'<geom class="static" type="box" size="{_row(sizes)}" pos="{_row(place)}" rgba="{rgba}"/>'

    floors = "".join(
        box(
            (half_x, SLOT_HALF[1] - 0.002, 0.005),
            (0, SLOTS[part][1] - y, FLOOR - 0.005),
            f"{_row(tuple(0.6 * channel for channel in _COLOURS[part]))} 1",
        )
        for part in PARTS
    )
    stand = box((half_x, half_y, FLOOR / 2 - 0.002), (0, 0, FLOOR / 2 - 0.002), ".12 .12 .14 1")
    walls = "".join(
        box((size_x, size_y, _RIM / 2), (at_x, at_y, FLOOR + _RIM / 2), ".12 .12 .14 1")
        for at_x, at_y, size_x, size_y in (
            (half_x + wall, 0, wall, half_y + 2 * wall),
            (-half_x - wall, 0, wall, half_y + 2 * wall),
            (0, half_y + wall, half_x, wall),
            (0, -half_y - wall, half_x, wall),
        )
    )
    return f'<body name="tray" pos="{x} {y} 0">{stand}{floors}{walls}</body>'


def _row(numbers: tuple[float, ...]) -> str:
    return " ".join(f"{number:.4g}" for number in numbers)


@functools.cache
def model_xml() -> str:
    """Returns the cell as MJCF, with the meshes by file name: all that decides how it moves and looks."""
    return scene_xml(_tray_xml(), "".join(object_xml(part, GEOMS[part]) for part in PARTS))


class PackingPhysics(ConveyorPhysics):
    """State and motion of the cell: the conveyor's, in another scene.

    Args:
        speed: Belt speed in m/s.
        tool: Initial tool position in metres.
        tool_yaw: Initial tool yaw in radians.
        poses: Part to (x, y, yaw) on the belt.
    """

    def __init__(
        self,
        speed: float,
        tool: tuple[float, float, float],
        tool_yaw: float,
        poses: dict[str, tuple[float, float, float]],
    ) -> None:
        """Places everything, and lets the parts settle for 10 ms."""
        super().__init__(PARTS, speed, tool, tool_yaw, poses, model_xml())

    def slot_of(self, part: str) -> str | None:
        """Returns the slot that a part lies in, or None where it lies in none."""
        position = self.object_position(part)
        if not -0.01 < position[2] - FLOOR < 0.03:  # above: the part is held, or lies on another
            return None
        for slot, (x, y) in SLOTS.items():
            if abs(position[0] - x) < SLOT_HALF[0] and abs(position[1] - y) < SLOT_HALF[1]:
                return slot
        return None
