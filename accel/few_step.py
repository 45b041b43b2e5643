"""Dense with fewer denoising steps: the trivial baseline that every method of this kind has to beat."""

from __future__ import annotations

from ..policies.flow import FlowSpec, Schedule
from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam

MOST = 1000
"""More steps than any published sampler takes by far: a mistyped number must not keep a worker busy for hours."""


class FewStep(Method):
    """Integrates the flow in ``steps`` uniform steps.

    Args:
        steps: Denoising steps; the policy's own number is exactly dense.

    Raises:
        ValueError: ``steps`` is not in 1..1000.
    """

    name = "few_step"
    claims = frozenset({Seam.SCHEDULE})
    activity_counters = ("steps_saved",)
    limit = "steps = the policy's steps"

    def __init__(self, steps: int = 2) -> None:
        if not 1 <= steps <= MOST:
            raise ValueError(f"few_step takes 1 to {MOST} steps, got {steps}")
        self.steps, self._saved = steps, 0

    def attach(self, policy: Policy) -> None:
        """Keeps the convention of the flow, which says how many steps the dense policy takes."""
        self._flow = policy.model.flow

    def begin(self) -> None:
        """Zeroes the counter."""
        self._saved = 0

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """Uniform times."""
        return flow.schedule(self.steps)

    def observe_full(self, call: Call) -> None:
        """Counts the steps that this round did not take and would have taken from the same start."""
        assert call.schedule is not None
        dense = self._flow.schedule().starting_at(call.schedule.times[0])
        self._saved += max(len(dense.computed) - len(call.schedule.computed), 0)

    def counters(self) -> dict[str, float]:
        """Denoising steps not taken."""
        return {"steps_saved": self._saved}
