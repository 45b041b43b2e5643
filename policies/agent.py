"""An agent that executes chunks: it calls its policy when its queue is empty, and not before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .policy import OFFERED, Policy, Round, call_policy, dense_chunk
from .seams import Method, compose


class ChunkAgent:
    """Acts in any environment whose observations the policy's processor reads.

    Args:
        policy: The dense policy.
        methods: Acceleration methods with disjoint claims; none is dense.
        window: Actions executed before the next call; the policy's own if None.

    Raises:
        ValueError: Two methods claim the same seam, a claimed seam is not offered, or the window does not fit the
            chunk.
    """

    def __init__(self, policy: Policy, methods: Sequence[Method] = (), window: int | None = None) -> None:
        """Attaches the methods."""
        self.policy, self.methods = policy, tuple(methods)
        self.window = policy.processor.replan if window is None else window
        if not 1 <= self.window <= policy.model.config.horizon:
            raise ValueError(f"the replan window must be 1..{policy.model.config.horizon} actions, got {self.window}")
        for seam, method in compose(self.methods).items():
            if seam not in OFFERED:
                raise ValueError(
                    f"{method.name!r} replaces the {seam.value!r} seam, which {policy.name} does not offer"
                )
        for method in self.methods:
            method.attach(policy)
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Starts an episode; ``seed`` keys its noise."""
        self._seed, self._step = seed, 0
        self._queue: list[np.ndarray] = []
        self._last: np.ndarray | None = None
        self.round: Round | None = None
        for method in self.methods:
            method.begin()

    @property
    def needs_observation(self) -> bool:
        """True when the next ``act`` will call the policy; otherwise nobody looks at the images."""
        return not self._queue

    def act(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns the next action, float32 [A]; ``round`` is the call that it took, or None."""
        self.round = None
        if not self._queue:
            self.round = call_policy(
                self.policy, self.methods, observation, self._noise(), self._step, self._last_gripper(), self.window
            )
            self._queue = list(self.round.actions)
        self._step += 1
        self._last = self._queue.pop(0)
        return self._last

    def idle(self, budget_ns: int) -> None:
        """Lets the methods prepare what comes next while the robot moves for so many nanoseconds."""

    def end(self, success: bool) -> None:
        """Tells the methods how the episode ended."""

    def counters(self) -> dict[str, float]:
        """Returns what the methods did since ``reset``."""
        return {name: value for method in self.methods for name, value in method.counters().items()}

    def dense_error(self) -> float:
        """Returns the RMS distance of the last call's executable actions to the dense policy's under the same noise.

        Measured in the policy's normalised action space, over the continuous channels. Runs the dense policy once more.
        """
        if self.round is None:
            raise ValueError("the last act() made no policy call, so there is nothing to compare")
        dense, channels = dense_chunk(self.policy, self.round), self.policy.processor.continuous
        length = len(self.round.actions)
        difference = (self.round.chunk - dense)[0, :length, channels]
        return float(difference.square().mean().sqrt())

    def _noise(self) -> torch.Tensor:
        """Noise keyed by (episode, control step): methods whose calls fall on the same step share it."""
        words = np.random.SeedSequence([self._seed, self._step]).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]) >> 1)
        config = self.policy.model.config
        weight = self.policy.model.action_in.weight
        return torch.randn((1, config.horizon, config.action_dim), generator=generator).to(weight.device)

    def _last_gripper(self) -> torch.Tensor | None:
        return None if self._last is None else self.policy.processor.normalise_gripper(self._last)
