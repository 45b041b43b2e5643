"""Task definition: sampling of a cell, instruction, outcome.

Everything is sampled from (seed, task, init_state) before the first action, with one random stream per concern, so
every method and every latency sees the same belt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..conveyor.physics import BELT_X
from ..conveyor.task import RELEASED, RESTING, out_of_reach, released, sample_cell
from .physics import FLOOR, PARTS, PackingPhysics
from .suite import TASKS, instruction

SPEEDS = (3.0, 6.0)  # m/min, sampled uniformly unless fixed; at 8 a part is often gone before its turn
TIME_LIMIT_NS = 20_000_000_000  # the expert takes at most 11 s (218 steps)
SUCCESS_RULE = (
    f"all parts rest (< {RESTING:g} m/s) in their slots of the tray, released (fingers open wider than "
    f"{RELEASED * 1000:g} mm), placed one after the other in the order named"
)

_STREAMS = ("parts", "queue", "lighting", "tool", "speed")


@dataclass(frozen=True)
class Sample:
    """One initial state.

    Attributes:
        order: Parts in the order in which they are to be placed.
        speed: Belt speed in m/min.
        poses: Part to (x, y, yaw) on the belt, in metres and radians.
        tool: Initial tool position in metres.
        tool_yaw: Initial tool yaw in radians.
        headlight: Ambient and diffuse intensity of the camera light.
        lamp: Diffuse colour of the lamp.
    """

    order: tuple[str, ...]
    speed: float
    poses: dict[str, tuple[float, float, float]]
    tool: tuple[float, float, float]
    tool_yaw: float
    headlight: tuple[float, float]
    lamp: tuple[float, float, float]

    @property
    def instruction(self) -> str:
        """Instruction for the policy."""
        return instruction(self.order)


def sample(task: str, seed: int, init_state: int, *, speed: float | None, spread: float = 0.03) -> Sample:
    """Samples an initial state.

    The parts lie on the belt in an order of their own, whatever the order named is.

    Args:
        task: One of ``TASKS``.
        seed: Seed of the run.
        init_state: Index of the initial state under that seed.
        speed: Belt speed in m/min, or None to sample it.
        spread: Half range of the tool's start offset in metres.
    """
    cell = (seed, init_state, TASKS.index(task))
    rng = {name: np.random.default_rng([*cell, number]) for number, name in enumerate(_STREAMS)}
    queue = [PARTS[number] for number in rng["queue"].permutation(len(PARTS))]
    poses, y = {}, float(rng["queue"].uniform(-0.22, -0.16))
    for part in queue:
        x, yaw = BELT_X + rng["parts"].uniform(-0.05, 0.05), rng["parts"].uniform(-0.6, 0.6)
        poses[part] = (float(x), y, float(yaw))
        y -= float(rng["queue"].uniform(0.14, 0.17))
    return Sample(order=tuple(task.split("-")), poses=poses, **sample_cell(rng, speed, SPEEDS, spread))


def newly_placed(physics: PackingPhysics, placed: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the parts that rest in the tray, released, and are not among those placed before."""
    return tuple(
        part
        for part in PARTS
        if part not in placed
        and physics.slot_of(part) is not None
        and released(physics)
        and physics.object_speed(part) < RESTING
    )


def solved(physics: PackingPhysics, order: tuple[str, ...], placed: tuple[str, ...]) -> bool:
    """Whether all parts rest in their slots, released, as the world stands, and were placed in the order named."""
    at_rest = all(physics.slot_of(part) == part and physics.object_speed(part) < RESTING for part in order)
    return placed == order and at_rest and released(physics)


def outcome(
    physics: PackingPhysics, order: tuple[str, ...], placed: tuple[str, ...], time_ns: int, *, together: bool = False
) -> str | None:
    """Returns how the episode has ended, or None while it goes on.

    Args:
        physics: The cell after a control step.
        order: Parts in the order in which they are to be placed.
        placed: Parts in the order in which they came to rest in the tray.
        time_ns: Simulated time since the start.
        together: Whether several parts came to count as placed in this control step: they were laid down with a closed
            gripper, so none was placed before the other.

    Returns:
        ``success``; ``order`` (a part was placed before its turn, or together with another); ``slot`` (a placed part is
        not in its own slot); ``lost`` (left the reach on the belt, or fell); ``time``; or None.
    """
    if together or placed != order[: len(placed)]:
        return "order"
    if any(physics.slot_of(part) != part for part in placed):
        return "slot"
    if placed == order:
        return "success"
    positions = [physics.object_position(part) for part in order]
    if any(out_of_reach(position) or position[2] < FLOOR - 0.03 for position in positions):
        return "lost"
    return "time" if time_ns >= TIME_LIMIT_NS else None
