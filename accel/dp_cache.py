"""DP-Cache as rMuscle compares with it: most denoising steps reuse the latest computed prediction."""

from __future__ import annotations

from ..policies.flow import FlowSpec, Schedule
from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam

COMPUTED, OF = (0, 1, 2, 6, 8, 9), 10  # steps, as rMuscle configures its DP-Cache baseline


class DPCache(Method):
    """Computes the denoising steps in ``keep`` and reuses the latest prediction at the others; prefill stays dense.

    Args:
        keep: Steps to compute, counted from 0. All of them is exactly dense. None: rMuscle's, which are of ten; of
            another number of steps those in which one of these begins (0, 2 and 3 of four).

    Raises:
        ValueError: Step 0 is not kept, or a step is negative; on ``attach``, the policy takes fewer steps.
    """

    name = "dp_cache"
    claims = frozenset({Seam.SCHEDULE})
    activity_counters = ("predictions_reused",)
    limit = "keep = all steps"
    papers = ("2609.19104",)

    def __init__(self, keep: tuple[int, ...] | None = None) -> None:
        if keep is not None and (0 not in keep or min(keep) < 0):
            raise ValueError(f"dp_cache must compute step 0 and none before it, got keep={'/'.join(map(str, keep))}")
        self._given, self._reused = keep, 0

    def attach(self, policy: Policy) -> None:
        """Chooses the steps, or checks that the policy takes those that were given."""
        steps = policy.model.flow.steps
        chosen = [step * steps // OF for step in COMPUTED] if self._given is None else self._given
        self.keep = frozenset(chosen)
        if max(self.keep) >= steps:
            raise ValueError(
                f"dp_cache keeps step {max(self.keep)}, but the policy has {steps} steps: name some of 0 to "
                f"{steps - 1}, as in dp_cache:keep=0/2"
            )

    def begin(self) -> None:
        """Zeroes the counter."""
        self._reused = 0

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """The dense times with some predictions reused."""
        dense = flow.schedule()
        return Schedule(dense.times, tuple(step in self.keep for step in range(flow.steps)))

    def observe_full(self, call: Call) -> None:
        """Counts the reused predictions among the steps that were taken: a later start leaves some of them out."""
        assert call.schedule is not None
        self._reused += call.schedule.computed.count(False)

    def counters(self) -> dict[str, float]:
        """Denoising steps at which an older prediction stood in."""
        return {"predictions_reused": self._reused}
