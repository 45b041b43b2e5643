"""Task definition: sampling of initial states, instruction, outcome.

Everything is sampled from (seed, task, init_state) before the first action, with one random stream per concern, so that
every method and every latency gets the same belt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..world import digest
from .physics import BELT_TOP, BELT_WIDTH, BELT_X, BIN_HALF, BINS, OPENING, TOOL_HOME, ConveyorPhysics
from .suite import EITHER, EITHER_TASKS, NAMES, TASKS, instruction

SPEEDS = (6.0, 15.0)  # m/min, sampled uniformly unless fixed
TIME_LIMIT_NS = 10_000_000_000
REACH_Y = 0.50  # an object further down the belt than this is lost
RESTING = 0.05  # m/s; below, an object rests
RELEASED = 0.8 * OPENING  # metres between the fingers; wider, and told to be open, the gripper has released
IN_BIN_Z = 0.09  # metres; below, an object's origin is inside the walls of a bin, and outside the bins it has fallen
SUCCESS_RULE = (
    f"the named object rests (< {RESTING:g} m/s) in the named bin (origin below {IN_BIN_Z:g} m), released (fingers "
    f"open wider than {RELEASED * 1000:g} mm), before it rides past y = {REACH_Y:g} m"
)

_STREAMS = ("target", "lighting", "tool", "speed", "distractor")


@dataclass(frozen=True)
class Draw:
    """One initial state. Manifests hash its repr, so neither its name nor its fields can change.

    Attributes:
        target: Object to sort.
        bin: Bin it belongs in, or ``either``.
        speed: Belt speed in m/min.
        poses: Object name to (x, y, yaw) on the belt, in metres and radians.
        tool: Initial tool position in metres.
        tool_yaw: Initial tool yaw in radians.
        headlight: Ambient and diffuse intensity of the camera light.
        lamp: Diffuse colour of the lamp.
    """

    target: str
    bin: str
    speed: float
    poses: dict[str, tuple[float, float, float]]
    tool: tuple[float, float, float]
    tool_yaw: float
    headlight: tuple[float, float]
    lamp: tuple[float, float, float]

    @property
    def instruction(self) -> str:
        """The instruction for the policy."""
        return instruction(self.target, self.bin)

    @property
    def success_rule(self) -> str:
        """What the manifest says about success."""
        return SUCCESS_RULE.replace("the named bin", "a bin") if self.bin == EITHER else SUCCESS_RULE

    def accepts(self, place: str | None) -> bool:
        """Whether the object belongs in a bin; None is no bin."""
        return place is not None and self.bin in (place, EITHER)


def sample(
    task: str, seed: int, init_state: int, *, distractor: bool, speed: float | None, spread: float = 0.03
) -> Draw:
    """Samples an initial state.

    Args:
        task: One of ``TASKS`` or ``EITHER_TASKS``.
        seed: Seed of the run.
        init_state: Index of the initial state under that seed.
        distractor: Whether the other object travels on the belt too.
        speed: Belt speed in m/min, or None to sample it.
        spread: Half range of the tool's start offset in metres.
    """
    target, bin_name = task.split("-")
    cell = (seed, init_state, (*TASKS, *EITHER_TASKS).index(task))
    rng = {name: np.random.default_rng([*cell, number]) for number, name in enumerate(_STREAMS)}

    def pose(stream: np.random.Generator, low: float, high: float) -> tuple[float, float, float]:
        flip = np.pi if stream.random() < 0.5 else 0.0
        x = BELT_X + stream.uniform(-0.06, 0.06)
        return float(x), float(stream.uniform(low, high)), float(stream.uniform(-0.7, 0.7) + flip)

    poses = {target: pose(rng["target"], -0.50, -0.36)}
    if distractor:
        other = next(name for name in NAMES if name != target)
        ahead = rng["distractor"].random() < 0.5
        gap = pose(rng["distractor"], 0.17, 0.27)
        poses[other] = (gap[0], poses[target][1] + (gap[1] if ahead else -gap[1]), gap[2])
    return Draw(target=target, bin=bin_name, poses=poses, **sample_cell(rng, speed, SPEEDS, spread))


def sample_cell(
    rng: Mapping[str, np.random.Generator], speed: float | None, speeds: tuple[float, float], spread: float
) -> dict[str, Any]:
    """Samples what every task of the arm next to the belt has: speed, tool and light, by the names of the fields.

    Args:
        rng: A stream for each of ``speed``, ``tool`` and ``lighting``.
        speed: Belt speed in m/min, or None to sample it.
        speeds: Range of a sampled speed.
        spread: Half range of the tool's start offset in metres.
    """
    light = rng["lighting"]
    return {
        "speed": float(rng["speed"].uniform(*speeds)) if speed is None else float(speed),
        "tool": _triple(TOOL_HOME + rng["tool"].uniform(-spread, spread, 3)),
        "tool_yaw": float(rng["tool"].uniform(-0.15, 0.15)),
        "headlight": (float(light.uniform(0.35, 0.50)), float(light.uniform(0.40, 0.55))),
        "lamp": _triple(light.uniform(0.15, 0.40) * (1 + light.uniform(-0.1, 0.1, 3))),
    }


def bin_of_the_expert(tool: np.ndarray, start: Draw) -> str:
    """Returns the bin that the expert brings the object to.

    Where either will do, it is one drawn with the cell as long as the tool is above the belt, and then the nearer one:
    so demonstrations of like states go both ways, and what is on its way goes on.

    Args:
        tool: Position [3] of the tool.
        start: The initial state.
    """
    if start.bin != EITHER:
        return start.bin
    if tool[0] > BELT_X - BELT_WIDTH / 2:
        return tuple(BINS)[int(digest(start), 16) % len(BINS)]
    return min(BINS, key=lambda name: abs(BINS[name][1] - tool[1]))


def outcome(physics: ConveyorPhysics, start: Draw, time_ns: int) -> str | None:
    """Returns the outcome of the episode, or None while it goes on.

    ``success``, ``wrong_bin``, ``dropped`` (below 9 cm outside the bins), ``lost`` (left the reach on the belt),
    ``time``.
    """
    position = physics.object_position(start.target)
    where = _bin_of(position)
    if where is not None:
        if _rests_released(physics, start.target):
            return "success" if start.accepts(where) else "wrong_bin"
    elif position[2] < IN_BIN_Z:
        return "dropped"
    if out_of_reach(position):
        return "lost"
    return "time" if time_ns >= TIME_LIMIT_NS else None


def solved(physics: ConveyorPhysics, start: Draw) -> bool:
    """Whether the named object rests in a bin that it belongs in, released, as the world stands."""
    inside = start.accepts(_bin_of(physics.object_position(start.target)))
    return inside and _rests_released(physics, start.target)


def released(physics: ConveyorPhysics) -> bool:
    """Whether the gripper is told to be open and is."""
    return physics.gripper < 0 and physics.width > RELEASED


def out_of_reach(position: np.ndarray) -> bool:
    """Whether something at a position [3] rides on the belt and has left the arm's reach."""
    on_belt = position[2] < BELT_TOP + 0.03 and abs(position[0] - BELT_X) < BELT_WIDTH / 2 + 0.03
    return bool(on_belt and position[1] > REACH_Y)


def _rests_released(physics: ConveyorPhysics, name: str) -> bool:
    return released(physics) and physics.object_speed(name) < RESTING


def _bin_of(position: np.ndarray) -> str | None:
    """Returns the bin that a position [3] is in, or None."""
    for name, (x, y) in BINS.items():
        if abs(position[0] - x) < BIN_HALF and abs(position[1] - y) < BIN_HALF and position[2] < IN_BIN_Z:
            return name
    return None


def _triple(values: np.ndarray) -> tuple[float, float, float]:
    x, y, z = values.tolist()
    return x, y, z
