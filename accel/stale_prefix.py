"""A context that is read for several rounds, while state and denoising are fresh: what every cache has to beat."""

from __future__ import annotations

import torch

from ..policies.model import FlowModel
from ..policies.round import FULL, Call, Proposal
from ..policies.seams import Method, Seam

STALE = "stale"
LEVELS = 127.5
"""Levels of a pixel per unit of the model's images, which lie in [-1, 1]."""


class StalePrefix(Method):
    """Encodes and prefills in every ``every``-th round; the rounds between read the context that is kept.

    A prompt with other tokens makes the round full, and so does a camera that appears or disappears.

    Args:
        every: Rounds from one prefill to the next. 1 is exactly dense.
        trigger: Mean absolute change of a view's pixels since the context was made, in levels of 255, above which the
            round is full; None for no such test.

    Raises:
        ValueError: An option is out of range; the policy's state enters with the prefix.
    """

    name = "stale_prefix"
    claims = frozenset({Seam.ROUND, Seam.CONTEXT})  # ROUND: no other method may count on how old a context is
    activity_counters = ("stale_rounds",)
    routes = (FULL, STALE)
    limit = "every=1"

    def __init__(self, every: int = 2, trigger: float | None = None) -> None:
        if every < 1:
            raise ValueError(f"stale_prefix needs a prefill every 1 or more rounds, got {every}")
        if trigger is not None and not trigger >= 0:
            raise ValueError(f"trigger is a number of levels and at least 0, got {trigger}")
        self.every, self.trigger = every, trigger
        self.begin()

    @classmethod
    def misfit(cls, model: type[FlowModel]) -> str | None:
        """A context that contains the state would be read with an old state."""
        return "its state enters with the prefix, and would be as old as that" if model.state_in_prefix else None

    def begin(self) -> None:
        """Forgets the last episode."""
        self._kept: Call | None = None
        self._stale = False
        self._age = self._rounds = self._triggered = 0

    def propose(self, call: Call) -> Proposal | None:
        """Nothing: every round denoises."""
        return None

    def context(self, call: Call) -> object | None:
        """The kept one while it is young enough and shows what the cameras see."""
        self._stale = self._is_readable(call)
        if not self._stale:
            return None
        self._age += 1
        self._rounds += 1
        assert self._kept is not None
        return self._kept.context

    def observe_full(self, call: Call) -> None:
        """Keeps the round whose context is new."""
        if not self._stale:
            self._kept, self._age = call, 0

    def route(self, call: Call) -> str | None:
        """``stale`` where a kept context was read."""
        return STALE if self._stale else None

    def counters(self) -> dict[str, float]:
        """Rounds that read a kept context, and rounds in which ``trigger`` called for a new one."""
        return {"stale_rounds": self._rounds, "triggered": self._triggered}

    def _is_readable(self, call: Call) -> bool:
        if self._kept is None or self._age + 1 >= self.every:
            return False
        now, then = call.inputs, self._kept.inputs
        for new, old in ((now.tokens, then.tokens), (now.view_mask, then.view_mask)):
            if (new is None) != (old is None) or (new is not None and old is not None and not torch.equal(new, old)):
                return False
        if self.trigger is None:
            return True
        moved = (now.images - then.images).abs().float().mean((0, 2, 3, 4)).max() * LEVELS
        call.extra["moved"] = float(moved)
        self._triggered += (changed := float(moved) > self.trigger)
        return not changed
