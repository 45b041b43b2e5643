"""Denoising that starts from the last chunk instead of noise: what is left of it, noised again to a level."""

from __future__ import annotations

from ..policies.flow import FlowSpec
from ..policies.policy import Policy
from ..policies.round import Call, Start
from ..policies.seams import Method, Seam
from .last_chunk import LastChunk


class WarmStart(Method):
    """Starts at the noise level ``tau`` from the last full round's chunk, less the actions that its time has passed.

    The last action stands in for those that are missing at the end; the round's own noise is mixed in. Only the steps
    that are left from there are taken. The first round of an episode or of an instruction is dense, and so is one in
    which no action is left.

    Args:
        tau: Noise level, above 0. 1 is exactly dense; 0 would be ``hold``.

    Raises:
        ValueError: ``tau`` is out of range; on ``attach``, the policy's actions are relative to the state of their
            round.
    """

    name = "warm_start"
    claims = frozenset({Seam.INIT})
    activity_counters = ("warm_rounds",)
    limit = "tau=1"

    def __init__(self, tau: float = 0.5) -> None:
        if not 0 < tau <= 1:
            raise ValueError(f"tau is a noise level above 0 and at most 1, got {tau}; to start from none, write hold")
        self.tau, self._last = tau, LastChunk(self.name)
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Checks that actions mean the same in a later round."""
        self._last.check(policy)

    def begin(self) -> None:
        """Forgets the last episode."""
        self._last.forget()
        self._rounds = 0

    def init(self, call: Call, flow: FlowSpec) -> Start | None:
        """What is left of the last chunk, at the noise level."""
        rest = self._last.left(call) if self.tau < 1 else None
        if rest is None:
            return None
        self._rounds += 1
        time = flow.time(1.0 - self.tau)
        return Start(flow.mix(rest[0], call.noise, time), time)

    def observe_full(self, call: Call) -> None:
        """Keeps the chunk."""
        self._last.keep(call)

    def counters(self) -> dict[str, float]:
        """Rounds that started from the last chunk."""
        return {"warm_rounds": self._rounds}
