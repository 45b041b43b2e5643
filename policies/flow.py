"""The convention of a flow-matching model, in one object: which way time runs and what the network predicts.

Papers let time run from noise (0) to action (1); openpi code runs it from 1 (noise) to 0. Mixing the two up is the
commonest porting error, so nothing outside this file does arithmetic on flow times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Schedule:
    """How a flow is integrated.

    Attributes:
        times: [N + 1] flow times, from noise to action.
        computed: [N] whether the prediction of a step is computed; where not, the latest computed one stands in.

    Raises:
        ValueError: The lengths do not fit, or the first step is not computed.
    """

    times: tuple[float, ...]
    computed: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Refuses a schedule that has nothing to start from."""
        if len(self.times) != len(self.computed) + 1 or not self.computed:
            raise ValueError(f"{len(self.computed)} steps need {len(self.computed) + 1} times, got {len(self.times)}")
        if not self.computed[0]:
            raise ValueError("the first denoising step must be computed: nothing stands in for it")


@dataclass(frozen=True)
class FlowSpec:
    """Linear paths ``x = (1 - s) * noise + s * action`` between noise and action, with progress s in [0, 1].

    Attributes:
        noise_time: The model's time at pure noise, 1 (openpi) or 0 (GR00T); the action lies at ``1 - noise_time``.
        prediction: ``velocity`` (dx/dtime) or ``action`` (the clean action, as in X-VLA).
        steps: Denoising steps of the dense policy.
    """

    noise_time: float = 1.0
    prediction: str = "velocity"
    steps: int = 10

    def schedule(self, steps: int | None = None) -> Schedule:
        """Returns uniform steps, accumulated in float32 as openpi does (its embedding resolves the difference)."""
        n = steps or self.steps
        times = [torch.tensor(self.noise_time)]
        stride = torch.tensor((1.0 if self.noise_time == 0 else -1.0) / n)
        for _ in range(n):
            times.append(times[-1] + stride)
        return Schedule(tuple(float(t) for t in times), (True,) * n)

    def progress(self, time: Tensor | float) -> Tensor | float:
        """Returns how much of the action x holds at a time: 0 at noise, 1 at the action."""
        return time if self.noise_time == 0 else 1.0 - time

    def time(self, progress: float) -> float:
        """Returns the model's time at a progress in [0, 1]."""
        return progress if self.noise_time == 0 else 1.0 - progress

    def mix(self, action: Tensor, noise: Tensor, time: Tensor | float) -> Tensor:
        """Returns the point of the path at a time (broadcast against the action)."""
        s = self.progress(time)
        return s * action + (1.0 - s) * noise

    def target(self, action: Tensor, noise: Tensor) -> Tensor:
        """Returns what the network should predict on the path between this noise and this action."""
        if self.prediction == "action":
            return action
        return action - noise if self.noise_time == 0 else noise - action

    def advance(self, x: Tensor, prediction: Tensor, time: float, next_time: float) -> Tensor:
        """Returns x one Euler step later."""
        return x + (next_time - time) * self._velocity(x, prediction, time)

    def endpoint(self, x: Tensor, prediction: Tensor, time: Tensor | float) -> Tensor:
        """Returns the action that the path leads to from x along this prediction (FLASH, section 3.4)."""
        if self.prediction == "action":
            return prediction
        return x + ((1.0 - self.noise_time) - time) * prediction

    def _velocity(self, x: Tensor, prediction: Tensor, time: float) -> Tensor:
        if self.prediction == "velocity":
            return prediction
        return (prediction - x) / ((1.0 - self.noise_time) - time)
