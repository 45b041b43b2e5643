"""The convention of a flow-matching model, in one object: which way time runs and what the network predicts.

Papers let time run from noise (0) to action (1); openpi's code runs it from 1 (noise) to 0. Confusing the two is the
most common porting error, so nothing outside this file does arithmetic on flow times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

Number = TypeVar("Number", float, Tensor)

PREDICTIONS = ("velocity", "action")
SAMPLERS = ("euler", "renoise")


@dataclass(frozen=True)
class Schedule:
    """How a flow is integrated.

    Attributes:
        times: [N + 1] flow times, from noise to action.
        computed: [N] whether the prediction of a step is computed. Where it is not, and none is given, the latest
            prediction stands in.
        given: Predictions [1, H, A] that are used in place of computed ones, by step.

    Raises:
        ValueError: The lengths do not fit, the times are not finite or do not run one way, the first step has no
            prediction, or one is given for a step that does not exist.
    """

    times: tuple[float, ...]
    computed: tuple[bool, ...]
    given: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.times) != len(self.computed) + 1 or not self.computed:
            raise ValueError(f"{len(self.computed)} steps need {len(self.computed) + 1} times, got {len(self.times)}")
        strides = [later - time for time, later in zip(self.times[:-1], self.times[1:], strict=True)]
        if not all(math.isfinite(stride) and stride * strides[0] > 0 for stride in strides):
            raise ValueError(f"times must be finite and run one way, got {self.times}")
        if outside := sorted(step for step in self.given if not 0 <= step < len(self.computed)):
            raise ValueError(f"predictions are given for steps {outside}, but there are {len(self.computed)} steps")
        if not (self.computed[0] or 0 in self.given):
            raise ValueError("the first denoising step must be computed or given: no earlier prediction can stand in")

    def starting_at(self, time: float) -> Schedule:
        """Returns the rest of the schedule from a time on; its first step starts there and is computed unless given.

        Raises:
            ValueError: The time lies outside of the schedule, or at its end.
        """
        # Times are accumulated in float32: one that is meant is taken, so that no step of 1e-8 is left before it.
        time = next((each for each in self.times if abs(each - time) < 1e-6), time)
        first, last = self.times[0], self.times[-1]
        if not min(first, last) <= time <= max(first, last) or time == last:
            raise ValueError(f"denoising cannot start at time {time}: the schedule runs from {first} to {last}")
        if time == first:
            return self
        ahead = [step for step, end in enumerate(self.times[1:]) if (end - time) * (last - first) > 0]
        begin = ahead[0]
        return Schedule(
            (time, *self.times[begin + 1 :]),
            (begin not in self.given, *self.computed[begin + 1 :]),
            {step - begin: prediction for step, prediction in self.given.items() if step >= begin},
        )


@dataclass(frozen=True)
class FlowSpec:
    """Linear paths ``x = (1 - s) * noise + s * action`` between noise and action, with progress s in [0, 1].

    Attributes:
        noise_time: The model's time at pure noise, 1 (openpi) or 0 (GR00T); the action lies at ``1 - noise_time``.
        prediction: ``velocity`` (dx/dtime) or ``action`` (the clean action, as in X-VLA).
        steps: Denoising steps of the dense policy.
        sampler: ``euler`` follows the velocity from x. ``renoise`` (X-VLA) mixes the predicted action anew with the
            starting noise at the next time. For an exact prediction both are the same, and only for one.
        shift: Moves steps towards the noise: the noise level u becomes ``shift * u / (1 + (shift - 1) * u)``
            (Fast-WAM has 5). 1 is uniform.

    Raises:
        ValueError: A value is out of range.
    """

    noise_time: float = 1.0
    prediction: str = "velocity"
    steps: int = 10
    sampler: str = "euler"
    shift: float = 1.0

    def __post_init__(self) -> None:
        if self.noise_time not in (0.0, 1.0):
            raise ValueError(f"noise_time must be 0 or 1, got {self.noise_time}")
        if self.prediction not in PREDICTIONS or self.sampler not in SAMPLERS:
            raise ValueError(
                f"prediction must be one of {', '.join(PREDICTIONS)} and sampler one of {', '.join(SAMPLERS)}, "
                f"got {self.prediction!r} and {self.sampler!r}"
            )
        if self.steps < 1 or not 0 < self.shift < math.inf:
            raise ValueError(f"steps must be at least 1 and shift above 0, got {self.steps} and {self.shift}")

    def schedule(self, steps: int | None = None) -> Schedule:
        """Returns steps that are uniform before the shift.

        Unshifted times are accumulated in float32, as openpi does: its time embedding resolves the difference to exact
        ones.
        """
        n = steps or self.steps
        if self.shift != 1:
            levels = [self.shift * u / (1 + (self.shift - 1) * u) for u in (1 - step / n for step in range(n + 1))]
            return Schedule(tuple(self.time(1.0 - level) for level in levels), (True,) * n)
        times = [torch.tensor(self.noise_time)]
        stride = torch.tensor((1.0 if self.noise_time == 0 else -1.0) / n)
        for _ in range(n):
            times.append(times[-1] + stride)
        return Schedule(tuple(float(t) for t in times), (True,) * n)

    def progress(self, time: Tensor | float) -> Tensor | float:
        """Returns the share of the action in x at a time: 0 at noise, 1 at the action."""
        return time if self.noise_time == 0 else 1.0 - time

    def time(self, progress: Number) -> Number:
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

    def advance(self, x: Tensor, prediction: Tensor, noise: Tensor, time: float, next_time: float) -> Tensor:
        """Returns x one step later.

        Args:
            x: Point of the path at ``time``.
            prediction: The network's, at x.
            noise: The starting noise, which ``renoise`` mixes in again.
            time: Flow time of x.
            next_time: Flow time to reach.
        """
        if self.sampler == "renoise":
            return self.mix(self.endpoint(x, prediction, time), noise, next_time)
        return x + (next_time - time) * self.velocity(x, prediction, time)

    def endpoint(self, x: Tensor, prediction: Tensor, time: Tensor | float) -> Tensor:
        """Returns the action that the path leads to from x along this prediction (FLASH, section 3.4)."""
        if self.prediction == "action":
            return prediction
        return x + self.remaining(time) * prediction

    def remaining(self, time: Tensor | float) -> Any:
        """Returns the time from a time to the action, with its sign."""
        return (1.0 - self.noise_time) - time

    def velocity(self, x: Tensor, prediction: Tensor, time: Tensor | float) -> Tensor:
        """Returns dx/dtime at x and a time that the prediction stands for."""
        if self.prediction == "velocity":
            return prediction
        return (prediction - x) / self.remaining(time)


def time_embedding(time: Tensor, width: int, shortest: float = 4e-3, longest: float = 4.0) -> Tensor:
    """Returns [B, width] sines and cosines of the flow time; the default periods are openpi's."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    period = shortest * (longest / shortest) ** fraction
    angle = time.double()[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], 1).float()
