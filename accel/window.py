"""The policy's own chunks, of which more or fewer actions are executed: the baseline that costs nothing."""

from __future__ import annotations

from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam


class Window(Method):
    """Executes the first ``execute`` actions of a chunk before the next round.

    Args:
        execute: Actions. The policy's own replan window is exactly dense.

    Raises:
        ValueError: ``execute`` is less than 1; on ``attach``, the policy's chunks are shorter.
    """

    name = "window"
    claims = frozenset({Seam.WINDOW})
    activity_counters = ("rewindowed_rounds",)
    limit = "execute = the policy's window"

    def __init__(self, execute: int) -> None:
        if execute < 1:
            raise ValueError(f"window executes at least 1 action of a chunk, got {execute}")
        self.execute = execute
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Checks that a chunk has as many actions."""
        if self.execute > policy.model.horizon:
            raise ValueError(
                f"window cannot execute {self.execute} actions: the chunks of {policy.name} have {policy.model.horizon}"
            )

    def window(self, window: int) -> int:
        """The option's."""
        self._own = window
        return self.execute

    def begin(self) -> None:
        """Zeroes the counter."""
        self._rounds = 0

    def look(self, call: Call) -> None:
        """Counts rounds with another window than the policy's."""
        self._rounds += call.window != self._own

    def counters(self) -> dict[str, float]:
        """Rounds whose window is not the policy's own."""
        return {"rewindowed_rounds": self._rounds}
