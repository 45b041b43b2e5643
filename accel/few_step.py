"""Dense with fewer denoising steps: the trivial baseline that every method of this kind has to beat."""

from __future__ import annotations

from ..policies.flow import FlowSpec, Schedule
from ..policies.seams import Method, Seam


class FewStep(Method):
    """Integrates the flow in ``steps`` uniform steps.

    Args:
        steps: Denoising steps; the policy's own number is exactly dense.

    Raises:
        ValueError: ``steps`` is below 1.
    """

    name = "few_step"
    claims = frozenset({Seam.SCHEDULE})
    activity_counters = ("steps_saved",)

    def __init__(self, steps: int = 2) -> None:
        """See the class."""
        if steps < 1:
            raise ValueError(f"few_step needs at least 1 step, got {steps}")
        self.steps, self._saved = steps, 0

    def begin(self) -> None:
        """Zeroes the counter."""
        self._saved = 0

    def schedule(self, flow: FlowSpec) -> Schedule:
        """Uniform times."""
        self._saved += max(flow.steps - self.steps, 0)
        return flow.schedule(self.steps)

    def counters(self) -> dict[str, float]:
        """Denoising steps not taken."""
        return {"steps_saved": self._saved}
