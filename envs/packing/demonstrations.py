"""Recorded episodes of conveyor packing: recorded like conveyor sorting, at slower belts and for longer."""

from __future__ import annotations

import functools

from ..conveyor import demonstrations

SPEEDS = (2.5, 6.5)  # m/min; a little beyond what is evaluated (3 to 6)
STEPS = 360  # 18 s of the 20 s that an evaluated episode may last

episode = functools.partial(demonstrations.episode, speeds=SPEEDS, longest=STEPS)
