"""The chunk of the last full round, for methods that go on with it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..policies.policy import Policy
from ..policies.round import Call


class LastChunk:
    """What is left of the last full round's chunk.

    Args:
        method: Name of the method, for messages.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self.forget()

    def forget(self) -> None:
        """Starts an episode."""
        self._chunk: Tensor | None = None

    def check(self, policy: Policy) -> None:
        """Raises ValueError where actions are differences to the state of their own round, and mean nothing later."""
        if getattr(policy.processor, "relative", False):
            raise ValueError(
                f"{self._method!r} cannot go on with the chunks of {policy.name}: its actions are relative to the "
                "state in which a round began"
            )

    def keep(self, call: Call) -> None:
        """Takes the chunk of a full round."""
        self._chunk, self._step, self._instruction = call.chunk, call.control_step, call.instruction

    def left(self, call: Call) -> tuple[Tensor, int] | None:
        """Returns the chunk [1, H, A] without what the time of its actions has passed, and how many are left.

        The last action is repeated behind them. None where none is left, or the instruction is another one.
        """
        if self._chunk is None or call.instruction != self._instruction:
            return None
        passed = call.control_step - self._step
        left = self._chunk.shape[1] - passed
        if left <= 0:
            return None
        return torch.cat([self._chunk[:, passed:], self._chunk[:, -1:].expand(-1, passed, -1)], 1), left
