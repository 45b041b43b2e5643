"""Conveyor packing as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..conveyor.cell import ArmEnv
from . import task as rules
from .expert import GRASPS, plan
from .physics import SLOTS, PackingPhysics, model_xml
from .suite import TASKS


class ConveyorPacking(ArmEnv[rules.Sample, PackingPhysics]):
    """Pick three furniture parts off the belt and place them into the tray in the order named.

    After the real-world task of rMuscle (section 6, conveyor furniture packing). Arm, belt, observation and action are
    those of :class:`~replan.envs.conveyor.env.ConveyorSorting`. A cell is (task, init_state, seed); the parts lie on
    the belt in an order that has nothing to do with the one named.

    Args:
        speed: Belt speed in m/min; None samples it from 3 to 6 with the cell.
        image_size: Side of both images in pixels.
        render_mode: ``rgb_array``, or None.

    Raises:
        ValueError: A setting is out of range or of another type.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("replan/ConveyorPacking-v0", speed=3)
        >>> observation, info = env.reset(seed=0, options={"task": "leg-top-screw", "init_state": 3})
        >>> observation["instruction"]
        'pack the leg then the top then the screw'
        >>> env.close()
    """

    def __init__(self, speed: float | None = None, image_size: int = 64, render_mode: str | None = None) -> None:
        super().__init__(TASKS, speed=speed, image_size=image_size, render_mode=render_mode)

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        self._start = start = rules.sample(task, seed, init_state, speed=self.speed, spread=self.start_spread)
        self._physics = PackingPhysics(start.speed / 60, start.tool, start.tool_yaw, start.poses)
        self._placed: tuple[str, ...] = ()
        return self._manifest(model_xml(), rules.TIME_LIMIT_NS, rules.SUCCESS_RULE)

    def _outcome(self) -> str | None:
        new = rules.newly_placed(self._physics, self._placed)
        self._placed += new
        return rules.outcome(self._physics, self._start.order, self._placed, self.time_ns, together=len(new) > 1)

    def _solved(self) -> bool:
        return rules.solved(self._physics, self._start.order, self._placed)

    def _state(self) -> np.ndarray:
        """Returns the simulator's state, and the order in which parts were placed."""
        placed = [rules.PARTS.index(part) for part in self._placed]
        return np.concatenate([super()._state(), placed, [-1.0] * (len(rules.PARTS) - len(placed))])

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns the actions [horizon, 7] that the scripted expert would take from here; it sees the true state."""
        self._require_start()
        order = self._start.order
        pending = [part for part in order if part not in self._placed] or order[-1:]
        return plan([self._view(part, SLOTS[part], GRASPS[part]) for part in pending], horizon)
