"""After ProbeFlow: two predictions at the noise say how straight the flow is, and so how many steps it needs.

Fang, Wang, Zhou, Shi: "ProbeFlow: Training-Free Adaptive Flow Matching for Vision-Language-Action Models", arXiv
2603.17850. How its cosine becomes a number of steps was not read: a clipped linear map stands in.
"""

from __future__ import annotations

import torch

from ..policies.flow import FlowSpec, Schedule
from ..policies.model import DENSE
from ..policies.policy import Policy
from ..policies.round import Call, Start
from ..policies.seams import Method, Seam


class ProbeFlow(Method):
    """Integrates in ``least`` to ``most`` uniform steps, the more the two first predictions of the dense policy differ.

    The first prediction is also that of the first step, and the second one that of the second step where both lie at
    the same time.

    Args:
        least: Steps where the predictions agree.
        most: Steps where they do not; None is the policy's own number.
        low: Difference (1 - cosine) up to which ``least`` are taken.
        high: Difference from which ``most`` are taken. ``least`` and ``most`` at the policy's number are exactly dense.

    Raises:
        ValueError: An option is out of range; on ``attach``, the policy takes fewer steps.
    """

    name = "probe_flow"
    claims = frozenset({Seam.SCHEDULE, Seam.INIT})  # INIT: it probes at the noise, where denoising has to start
    activity_counters = ("steps_saved",)
    limit = "least = the policy's steps"
    papers = ("2603.17850",)

    def __init__(self, least: int = 2, most: int | None = None, low: float = 0.0, high: float = 0.05) -> None:
        if least < 1 or (most is not None and most < least):
            raise ValueError(f"probe_flow takes at least 1 step and no fewer than that at most, got {least} and {most}")
        if not 0 <= low < high <= 2:
            raise ValueError(f"low and high are differences from 0 to 2, the first one smaller, got {low} and {high}")
        self._least, self._most, self._low, self._high = least, most, low, high
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Checks that the policy takes as many steps."""
        self._model, steps = policy.model, policy.model.flow.steps
        if max(self._least, self._most or 0) > steps:
            raise ValueError(
                f"probe_flow takes {self._least} to {self._most or steps} steps, but {policy.name} has {steps}"
            )

    def begin(self) -> None:
        """Zeroes the counter."""
        self._saved = 0

    def init(self, call: Call, flow: FlowSpec) -> Start | None:
        """The noise."""
        return None

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """As many uniform steps as the probe asks for."""
        dense, noise, run = flow.schedule(), call.noise, call.stages
        if flow.steps == 1:
            return dense
        context = run.condition(call.context, call.inputs)
        first = run.step(noise, dense.times[0], context, DENSE)
        ahead = flow.advance(noise, first, noise, dense.times[0], dense.times[1])
        second = run.step(ahead, dense.times[1], context, DENSE)
        difference = 1 - float(torch.cosine_similarity(first.flatten(), second.flatten(), 0))
        share = min(max((difference - self._low) / (self._high - self._low), 0.0), 1.0)
        steps = self._least + round(((self._most or flow.steps) - self._least) * share)
        call.extra["difference"], call.extra["steps"] = difference, steps
        chosen, given = flow.schedule(steps), {0: first}
        if steps == flow.steps:
            given[1] = second
        predicted = steps - len(given) + 2
        self._saved += max(flow.steps - predicted, 0)
        return Schedule(chosen.times, tuple(step not in given for step in range(steps)), given)

    def counters(self) -> dict[str, float]:
        """Predictions that a dense round would have computed besides, those of the probe taken into account."""
        return {"steps_saved": self._saved}
