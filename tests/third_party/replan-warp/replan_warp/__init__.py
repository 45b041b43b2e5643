"""Few denoising steps, unevenly spaced: a method of another author's package."""

from __future__ import annotations

from replan.policies.flow import FlowSpec, Schedule
from replan.policies.policy import Policy
from replan.policies.round import Call
from replan.policies.seams import Method, Seam


class Warp(Method):
    """Denoising steps whose progress is (i / steps) ** power; power 1 is exactly few_step.

    Args:
        steps: Denoising steps.
        power: Above 1, the steps near the noise are the short ones.

    Raises:
        ValueError: An option is out of range.
    """

    name = "warp"
    claims = frozenset({Seam.SCHEDULE})
    activity_counters = ("steps_saved",)

    def __init__(self, steps: int = 4, power: float = 2.0) -> None:
        if steps < 1 or not power > 0:
            raise ValueError(f"warp needs at least 1 step and a power above 0, got {steps} and {power}")
        self.steps, self.power, self._saved = steps, power, 0

    def attach(self, policy: Policy) -> None:
        self._flow = policy.model.flow

    def begin(self) -> None:
        self._saved = 0

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        if self.power == 1:
            return flow.schedule(self.steps)
        progress = [(i / self.steps) ** self.power for i in range(self.steps + 1)]
        return Schedule(tuple(flow.time(each) for each in progress), (True,) * self.steps)

    def observe_full(self, call: Call) -> None:
        dense = self._flow.schedule().starting_at(call.schedule.times[0])  # from where another method may have started
        self._saved += max(len(dense.computed) - len(call.schedule.computed), 0)

    def counters(self) -> dict[str, float]:
        return {"steps_saved": self._saved}
