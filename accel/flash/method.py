"""The FLASH round: draft, batched verification, prefix acceptance, phase-aware fallback (sections 3.2 to 3.5)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...policies.pi0 import Context, Inputs
from ...policies.policy import Call, Policy, Proposal
from ...policies.seams import Method, Seam
from .draft import Draft, draft_path, load_draft


class Verdict(NamedTuple):
    """What verification found.

    Attributes:
        distance: [K, H] distance of the draft to each reconstructed endpoint, RMS over the continuous channels.
        endpoints: [K, H, A], normalised.
    """

    distance: Tensor
    endpoints: Tensor


class Flash(Method):
    """Speculative rounds. The context of the last full round is reused, the robot state is always fresh.

    Args:
        delta: Largest distance of an accepted action (normalised space). 0 is exactly dense, unless ``reject`` is
            ``next``.
        tau: Verification points as progress from noise (0) to action (1).
        refresh: A full round after so many flash rounds (the paper's PF); 0 means never for this reason.
        gripper: Whether a gripper switch in the window sends the round to the full path.
        max_age: Control steps after which the reused context is too old; 0 means no cap. Not in the paper. With a
            window of 10 whose drafts are accepted whole, 60 is at most five flash rounds in a row.
        blind: A view whose contrast has fallen below this share of what it was in the last full round counts as a
            failed camera, and the context is not reused; 0 switches the test off. Not in the paper: verification
            against a stale context cannot see a camera fail.
        reject: ``now`` runs the full path in the round that rejects (the paper); ``next`` executes the first action of
            the draft and runs it in the next round (the authors' public code).

    Raises:
        ValueError: An option is out of range.
    """

    name = "flash"
    claims = frozenset({Seam.ROUND})
    activity_counters = ("flash_rounds",)
    routes = ("full", "flash", "fallback")

    def __init__(
        self,
        delta: float = 0.15,
        tau: tuple[float, ...] = (0.90, 0.95),
        refresh: int = 0,
        gripper: bool = True,
        max_age: int = 60,
        blind: float = 0.25,
        reject: str = "now",
    ) -> None:
        """See the class."""
        if not delta >= 0:
            raise ValueError(f"delta must be at least 0, got {delta}")
        if not tau or not all(0 <= point < 1 for point in tau):
            raise ValueError(f"tau must be points in [0, 1), got {tau}")
        if min(refresh, max_age, blind) < 0:
            raise ValueError(f"refresh, max_age and blind must be at least 0, got {refresh}, {max_age}, {blind}")
        if reject not in ("now", "next"):
            raise ValueError(f"reject must be 'now' or 'next', got {reject!r}")
        self.delta, self.tau, self.refresh, self.gripper = delta, tau, refresh, gripper
        self.max_age, self.blind, self.reject = max_age, blind, reject
        self.draft: Draft | None = None
        self.begin()

    @staticmethod
    def files(policy: Path) -> list[Path]:
        """The draft."""
        return [draft_path(policy)]

    def attach(self, policy: Policy) -> None:
        """Loads the draft that lies beside the policy."""
        self._policy = policy
        weight = policy.model.action_in.weight
        self.draft = load_draft(draft_path(policy.path), policy.model.config, policy.path).to(
            weight.device, weight.dtype
        )

    def begin(self) -> None:
        """Forgets context and counters."""
        self._context: Context | None = None
        self._contrast: Tensor | None = None
        self._context_step = 0
        self._since_full = 0
        self._owed = False
        self._count: Counter[str] = Counter()

    def propose(self, call: Call) -> Proposal | None:
        """Drafts and verifies; None where the round goes to the full path without a draft."""
        reason = self._unusable(call)
        if reason:
            self._count[reason] += 1
            return None
        assert self.draft is not None and self._context is not None
        with call.stage("draft"):
            chunk = self.draft(call.prefix, call.inputs.state)
        self._count["drafted"] += 1
        if self._switches(call, chunk):
            self._count["gripper_fallbacks"] += 1  # no verification could save it, so none is paid for
            return Proposal(chunk, length=0, accepted=0)
        with call.stage("verify"):
            verdict = self.verify(call, chunk)
            accepted = accepted_prefix(verdict.distance[:, : call.window], self.delta)
        call.extra["distance"] = float(verdict.distance[:, : call.window].max())
        if self._switches(call, verdict.endpoints):
            self._count["gripper_fallbacks"] += 1
            return Proposal(chunk, length=0, accepted=0)
        if accepted == 0:
            self._count["rejected"] += 1
            self._owed = self.reject == "next"
        length = max(accepted, int(self._owed))
        if length:
            self._since_full += 1
            self._count["flash_rounds"] += 1
            self._count["accepted_actions"] += accepted
        return Proposal(chunk, length, accepted)

    def verify(self, call: Call, chunk: Tensor) -> Verdict:
        """Reconstructs the endpoint from every verification point, as one batch (algorithm 1).

        Args:
            call: The round; its noise is shared by all points.
            chunk: [1, H, A] draft.
        """
        model, processor = self._policy.model, self._policy.processor
        assert self._context is not None
        context = model.see_state(self._context, call.inputs.state).expand(len(self.tau))
        times = torch.tensor([model.flow.time(point) for point in self.tau], device=chunk.device)
        column = times[:, None, None]
        x = model.flow.mix(chunk, call.noise, column)
        endpoints = model.flow.endpoint(x, model.step(x, times, context), column)
        distance = (endpoints - chunk)[..., processor.continuous].square().mean(-1).sqrt()
        return Verdict(distance, endpoints)

    def observe_full(self, call: Call) -> None:
        """Keeps the context of a full round."""
        self._context, self._context_step = call.context, call.control_step
        self._contrast = _contrast(call.inputs)
        self._since_full, self._owed = 0, False
        self._count["full_rounds"] += 1

    def counters(self) -> dict[str, float]:
        """Rounds by route, and why full rounds were full."""
        return dict(self._count)

    def _unusable(self, call: Call) -> str | None:
        """Says why the kept context may not be reused, or None."""
        if self._context is None:
            return "first"
        if self._owed:
            return "owed"
        if self.refresh and self._since_full >= self.refresh:
            return "periodic"
        if self.max_age and call.control_step - self._context_step >= self.max_age:
            return "stale"
        if self.blind:
            assert self._contrast is not None
            if bool((_contrast(call.inputs) < self.blind * self._contrast).any()):
                return "blind"
        return None

    def _switches(self, call: Call, chunks: Tensor) -> bool:
        """Whether a gripper of any chunk [K, H, A] changes inside the window, or against the last command."""
        if not self.gripper:
            return False
        closed = chunks[:, : call.window, list(self._policy.processor.gripper)] > 0  # [K, W, G]
        first = closed[:1, :1] if call.last_gripper is None else call.last_gripper.to(chunks.device) > 0
        return bool((closed != first).any())


def accepted_prefix(distance: Tensor, delta: float) -> int:
    """Returns the longest prefix that every branch accepts: [K, W] distances -> 0..W (algorithm 1)."""
    return int((distance <= delta).all(0).long().cumprod(0).sum())


def _contrast(inputs: Inputs) -> Tensor:
    """Standard deviation of each view's pixels, [V]."""
    return inputs.images[0].float().flatten(1).std(1)
