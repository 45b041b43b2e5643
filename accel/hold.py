"""What is left of the last chunk, executed in place of a new one: the baseline of every method that answers faster."""

from __future__ import annotations

from ..policies.policy import Policy
from ..policies.round import FULL, Call, Proposal
from ..policies.seams import Method, Seam
from .last_chunk import LastChunk

HELD = "held"


class Hold(Method):
    """Goes on with the last full round's chunk where the policy would be called; nothing is encoded.

    Args:
        rounds: Rounds in a row that may do so while actions are left. 0 is exactly dense.

    Raises:
        ValueError: ``rounds`` is negative; on ``attach``, actions are relative to the state of their round.
    """

    name = "hold"
    claims = frozenset({Seam.ROUND})
    activity_counters = ("held_rounds",)
    routes = (FULL, HELD)
    limit = "rounds=0"

    def __init__(self, rounds: int = 1) -> None:
        if rounds < 0:
            raise ValueError(f"hold takes 0 or more rounds, got {rounds}")
        self.rounds, self._last = rounds, LastChunk(self.name)
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Checks that actions mean the same in a later round."""
        self._last.check(policy)

    def begin(self) -> None:
        """Forgets the last episode."""
        self._last.forget()
        self._in_a_row = self._held = self._actions = 0

    def propose(self, call: Call) -> Proposal | None:
        """The actions that are left, if there are any."""
        rest = self._last.left(call) if self._in_a_row < self.rounds else None
        if rest is None:
            return None
        chunk, left = rest
        length = min(left, call.window)
        self._in_a_row += 1
        self._held += 1
        self._actions += length
        return Proposal(chunk, length, HELD)

    def observe_full(self, call: Call) -> None:
        """Keeps the chunk."""
        self._in_a_row = 0
        self._last.keep(call)

    def counters(self) -> dict[str, float]:
        """Rounds that went on with a chunk, and how many actions they took of it."""
        return {"held_rounds": self._held, "held_actions": self._actions}
