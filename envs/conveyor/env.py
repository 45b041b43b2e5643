"""Conveyor sorting as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import flag
from . import task as rules
from .cell import ArmEnv
from .expert import GRASPS, SEVERAL_GRASPS, plan
from .physics import BINS, ConveyorPhysics, model_xml
from .suite import EITHER_TASKS, TASKS


class ConveyorSorting(ArmEnv[rules.Draw, ConveyorPhysics]):
    """Pick the named object off the belt and put it into the named bin.

    After the real-world task of Realtime-VLA FLASH (section 4.3). The arm is position controlled at 20 Hz on a physics
    of 2 ms ticks. The belt moves while the policy computes where the caller uses :meth:`hold` or the ``RealTime``
    wrapper; the arm then holds its last target.

    Observation: ``third`` and ``wrist`` uint8 [image_size, image_size, 3]; ``state`` float32 [11] = tool target xyz,
    tool xyz (m), sine and cosine of the tool yaw, distance of the fingers (m), last gripper command, belt speed (m/s);
    ``instruction``. Action: float32 [7] in [-1, 1] = translation (1 is 30 mm), rotation vector (1 is 0.2 rad) in the
    world frame, gripper (-1 open, +1 closed). The reward is 1 on success and 0 before.

    Args:
        distractor: The other object travels on the belt too, and objects have several valid grasps (the ``hard``
            variant).
        speed: Belt speed in m/min; None samples it from 6 to 15 with the cell.
        image_size: Side of both images in pixels.
        render_mode: ``rgb_array``, or None.
        either: The instruction names no bin, and both are right (the ``either`` variant).

    Raises:
        ValueError: A setting is out of range or of another type.

    Example:
        >>> import gymnasium
        >>> env = gymnasium.make("replan/ConveyorSorting-v0", speed=10)
        >>> observation, info = env.reset(seed=0, options={"task": "dog-red", "init_state": 3})
        >>> observation["instruction"]
        'put the toy dog in the red bin'
        >>> env.close()
    """

    def __init__(
        self,
        distractor: bool = False,
        speed: float | None = None,
        image_size: int = 64,
        render_mode: str | None = None,
        either: bool = False,
    ) -> None:
        tasks = EITHER_TASKS if flag("either", either) else TASKS
        super().__init__(tasks, speed=speed, image_size=image_size, render_mode=render_mode)
        self.distractor = flag("distractor", distractor)

    def _begin(self, task: str, init_state: int, seed: int) -> dict[str, Any]:
        self._start = start = rules.sample(
            task, seed, init_state, distractor=self.distractor, speed=self.speed, spread=self.start_spread
        )
        objects = tuple(sorted(start.poses))
        self._physics = ConveyorPhysics(objects, start.speed / 60, start.tool, start.tool_yaw, start.poses)
        return self._manifest(model_xml(objects), rules.TIME_LIMIT_NS, start.success_rule)

    def _outcome(self) -> str | None:
        return rules.outcome(self._physics, self._start, self.time_ns)

    def _solved(self) -> bool:
        return rules.solved(self._physics, self._start)

    def expert_chunk(self, horizon: int) -> np.ndarray:
        """Returns the actions [horizon, 7] that the scripted expert would take from here; it sees the true state."""
        self._require_start()
        start = self._start
        grasps = (SEVERAL_GRASPS if self.distractor else GRASPS)[start.target]
        place = BINS[rules.bin_of_the_expert(self._physics.tool_position, start)]
        return plan(self._view(start.target, place, grasps), horizon)
