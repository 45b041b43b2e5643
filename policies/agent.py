"""An agent that executes chunks: it calls its policy when its queue is empty, and not before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .call import call_policy, dense_chunk
from .policy import Policy
from .round import Round
from .seams import Method, Methods


class ChunkAgent:
    """Acts in any environment whose observations the policy's processor reads.

    Args:
        policy: The dense policy.
        methods: Acceleration methods with disjoint claims; none is dense.
        window: Actions executed before the next round, unless a method says otherwise; the policy's own if None.

    Attributes:
        round: The round that the last ``act`` ran, or None where it took an action that was already planned.

    Raises:
        ValueError: The window does not fit the chunk, two methods claim the same seam, or a method does not fit the
            policy.
    """

    def __init__(self, policy: Policy, methods: Iterable[Method] = (), window: int | None = None) -> None:
        self.policy, self.methods = policy, Methods(methods)
        self.window = policy.processor.replan if window is None else window
        if not 1 <= self.window <= policy.model.horizon:
            raise ValueError(f"the replan window must be 1..{policy.model.horizon} actions, got {self.window}")
        self.methods.attach(policy)
        self.window = self.methods.window(self.window)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Starts an episode; ``seed`` keys its noise."""
        self._seed, self._step = seed, 0
        self._queue: list[np.ndarray] = []
        self._executed: list[np.ndarray] = []
        self._observation: Mapping[str, Any] = {}
        self._asked_at = 0
        self.round: Round | None = None
        self.methods.begin()

    @property
    def needs_observation(self) -> bool:
        """Whether the next ``act`` runs a round; otherwise the observation's images are not read."""
        return not self._queue

    def act(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns the next action, float32 [A]; ``round`` is the round that it took, or None."""
        self.round = None
        if not self._queue:
            self._observation, self._asked_at = observation, self._step
            executed = np.array(self._executed) if self._executed else None
            self.round = call_policy(
                self.policy, self.methods, observation, self._noise(self._step), self._step, executed, self.window
            )
            self._queue, self._executed = list(self.round.actions), []
        self._step += 1
        self._executed.append(self._queue.pop(0))
        return self._executed[-1]

    def idle(self, budget_ns: int) -> None:
        """Lets the methods prepare what comes next while the robot moves for so many nanoseconds."""
        self.methods.idle(budget_ns)

    def end(self, success: bool) -> None:
        """Tells the methods how the episode ended."""
        self.methods.end(success)

    def counters(self) -> dict[str, float]:
        """Returns what the methods did since ``reset``."""
        return self.methods.counters()

    def dense_error(self) -> float:
        """Returns the RMS distance of the last round's executable actions to the dense policy's under the same noise.

        Measured in the policy's normalised action space, over the continuous channels. Runs the dense policy once more.

        Raises:
            ValueError: The last ``act`` ran no round.
        """
        if self.round is None:
            raise ValueError("the last act() ran no round, so there is nothing to compare")
        # From what the agent holds: a method has the round's tensors in its hands and may write into them.
        chunk = dense_chunk(self.policy, self._observation, self._noise(self._asked_at))
        channels = self.policy.processor.continuous
        length = len(self.round.actions)
        difference = (self.round.chunk - chunk)[0, :length, channels]
        return float(difference.square().mean().sqrt())

    def _noise(self, step: int) -> torch.Tensor:
        """Noise keyed by (episode, control step): methods whose rounds fall on the same step share it."""
        words = np.random.SeedSequence([self._seed, step]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]) >> 1)  # torch takes 63-bit seeds
        return torch.randn((1, *self.policy.model.noise_shape), generator=generator).to(self.policy.model.device)
