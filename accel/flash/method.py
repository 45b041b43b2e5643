"""The FLASH round: draft, batched verification, prefix acceptance, phase-aware fallback (sections 3.2 to 3.5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...kernels.decision import Channels, Decision, switches
from ...policies.model import DENSE, Context, FlowModel, Inputs
from ...policies.policy import Policy
from ...policies.round import Call, Proposal
from ...policies.seams import Method, Seam
from ...policies.weights import CheckpointError
from .draft import Draft, DraftConfig, check_family, draft_path, load_draft, misfit, save_draft
from .strain import Strain

MOST_POINTS = 32
"""Verification is one batch of as many branches; the paper has 4 at most."""


class Flash(Method):
    """Speculative rounds. The context of the last full round is reused, the robot state is always fresh.

    Args:
        delta: Largest distance of an accepted action (normalised space). 0 is exactly dense, unless ``reject`` is
            ``next``.
        tau: Verification points as progress from noise (0) to action (1).
        refresh: A full round after this many flash rounds (the paper's PF); 0 means never for this reason.
        gripper: Whether a gripper switch in the window sends the round to the full path.
        max_age: Control steps after which the reused context is too old; 0 means no cap. Not in the paper. With a
            window of 10 whose drafts are accepted whole, 60 is at most five flash rounds in a row.
        blind: A view whose contrast has fallen below this share of what it was in the last full round counts as a
            failed camera, and the context is not reused; 0 switches the test off. Not in the paper: verification
            against a stale context cannot see a camera fail.
        reject: ``now`` runs the full path in the round that rejects (the paper); ``next`` executes the first action of
            the draft and runs it in the next round (the authors' public code).
        verify: ``always`` verifies every draft (the paper); ``unless_switching`` saves the verification of a draft that
            switches the gripper, which the full path replaces whatever verification says. The actions are the same.
            Such a round takes the route ``unverified``, since it costs less than a fallback.
        adapt: How much ``delta`` follows the moment (the paper's future work): tighter where the views have changed
            more since the kept context, or the draft bends more, than so far in the episode, and looser where less, by
            a factor of 2 at most. 0 is the paper's fixed threshold.

    Raises:
        ValueError: An option is out of range.
    """

    name = "flash"
    claims = frozenset({Seam.ROUND})
    activity_counters = ("flash_rounds",)
    limit = "delta=0"
    papers = ("2605.13778",)

    def __init__(
        self,
        delta: float = 0.15,
        tau: tuple[float, ...] = (0.90, 0.95),
        refresh: int = 0,
        gripper: bool = True,
        max_age: int = 60,
        blind: float = 0.25,
        reject: str = "now",
        verify: str = "always",
        adapt: float = 0.0,
    ) -> None:
        if not delta >= 0:
            raise ValueError(f"delta must be at least 0, got {delta}")
        if not 1 <= len(tau) <= MOST_POINTS or not all(0 <= point < 1 for point in tau):
            raise ValueError(f"tau must be 1 to {MOST_POINTS} points in [0, 1), got {tau}")
        if not all(each >= 0 for each in (refresh, max_age, blind)):
            raise ValueError(f"refresh, max_age and blind must be at least 0, got {refresh}, {max_age}, {blind}")
        if reject not in ("now", "next"):
            raise ValueError(f"reject must be 'now' or 'next', got {reject!r}")
        if verify not in ("always", "unless_switching"):
            raise ValueError(f"verify must be 'always' or 'unless_switching', got {verify!r}")
        self.routes = ("full", "flash", "fallback") + ("unverified",) * (verify == "unless_switching")
        self.always = verify == "always"
        self.delta, self.tau, self.refresh, self.gripper = delta, tau, refresh, gripper
        self.max_age, self.blind, self.reject = max_age, blind, reject
        self.strain = Strain(adapt)

    @classmethod
    def misfit(cls, model: type[FlowModel]) -> str | None:
        """There is no layer from which a draft could start."""
        return misfit(model)

    def files(self, policy: Path) -> list[Path]:
        """The draft."""
        return [draft_path(policy)]

    def make_files(self, policy: Policy) -> None:
        """Writes a draft that starts from the policy's first layer."""
        check_family(policy.model)
        draft = Draft(DraftConfig.of(policy.model.config))
        draft.start_from(cast("Any", policy.model).vlm[0], torch.Generator().manual_seed(0))
        save_draft(draft_path(policy.path), draft, {}, policy.files)

    def attach(self, policy: Policy) -> None:
        """Loads the draft that lies next to the policy.

        Raises:
            CheckpointError: There is none, or it has other dimensions than the policy.
        """
        self._policy = policy
        model, path = policy.model, draft_path(policy.path)
        draft = load_draft(path, policy.files, model.dtype)
        own = asdict(draft.config)
        if misfits := {name: value for name, value in own.items() if getattr(model.config, name, value) != value}:
            wanted = {name: getattr(model.config, name) for name in misfits}
            raise CheckpointError(f"{path} is a draft with {misfits}, but {policy.path} has {wanted}")
        self.draft = draft.to(model.device)
        flags, processor = torch.zeros(2, model.action_dim, dtype=torch.bool), policy.processor
        flags[0, list(processor.continuous)] = True
        flags[1, list(processor.gripper)] = self.gripper
        self.channels = Channels(*flags.to(model.device))
        # As numbers for the model, which keeps what they make of it, and as a tensor for arithmetic with points.
        self._times = tuple(model.flow.time(point) for point in self.tau)
        self._column = torch.tensor(self._times, device=model.device)

    def begin(self) -> None:
        """Forgets the context, without which nothing else that a full round leaves is read, and the counters."""
        self._context: Context | None = None
        self._count: Counter[str] = Counter()
        self.strain.begin()

    def propose(self, call: Call) -> Proposal | None:
        """Drafts and verifies; None where the round goes to the full path without a draft."""
        reason = self._unusable(call)
        if reason:
            self._count[reason] += 1
            return None
        with call.stage("draft"):
            chunk = self.draft(call.prefix, call.inputs.state)
        self._count["drafted"] += 1
        if not self.always and bool(switches(chunk, self.channels, self.command(call, chunk), call.window)):
            self._count["gripper_fallbacks"] += 1
            return Proposal(chunk, length=0, route="unverified")
        with call.stage("verify"):
            delta = self._threshold(call, chunk)
            # All that the round asks of it at once: the host waits for the device here.
            numbers = self.verify(call, chunk, delta).numbers.tolist()
        accepted, switching, call.extra["distance"] = int(numbers[0]), bool(numbers[1]), numbers[2]
        if switching:
            self._count["gripper_fallbacks"] += 1
            return Proposal(chunk, length=0, route="fallback", accepted=0, drafted=call.window)
        if accepted == 0:
            self._count["rejected"] += 1
            self._owed = self.reject == "next"
        length = max(accepted, int(self._owed))
        if length:
            self._since_full += 1
            self._count["flash_rounds"] += 1
            self._count["accepted_actions"] += accepted
        return Proposal(chunk, length, "flash" if length else "fallback", accepted, call.window)

    def verify(self, call: Call, chunk: Tensor, delta: float) -> Decision:
        """Reconstructs the endpoint from every verification point, as one batch, and judges the draft (algorithm 1).

        Args:
            call: The round; its noise is shared by all points.
            chunk: [1, H, A] draft.
            delta: Largest distance of an accepted action.
        """
        flow = self._policy.model.flow
        assert self._context is not None
        context = call.stages.condition(self._context, call.inputs).expand(len(self.tau))
        column = self._column[:, None, None]
        x = flow.mix(chunk, call.noise, column)
        velocity = flow.velocity(x, call.stages.step(x, self._times, context, DENSE), column)
        given = x, velocity, flow.remaining(self._column), chunk, self.channels, self.command(call, chunk)
        return call.stages.decide(*given, call.window, delta)

    def command(self, call: Call, chunk: Tensor) -> Tensor:
        """Returns [A] the last command in the policy's space, where it is a gripper's; the draft's first without one.

        Args:
            call: The round.
            chunk: [1, H, A] draft.
        """
        if not len(call.executed):
            return chunk[0, 0]
        processor = self._policy.processor
        command = torch.zeros(chunk.shape[-1])
        command[list(processor.gripper)] = processor.normalise_gripper(call.executed[-1])
        return command.to(chunk.device)

    def observe_full(self, call: Call) -> None:
        """Keeps the context of a full round."""
        self._context, self._context_step = call.context, call.control_step
        self._instruction = call.instruction
        self._images, self._contrast = call.inputs.images, _contrast(call.inputs)
        self._since_full, self._owed = 0, False
        self._count["full_rounds"] += 1

    def counters(self) -> dict[str, float]:
        """Rounds by route, and why full rounds were full."""
        return dict(self._count)

    def _threshold(self, call: Call, chunk: Tensor) -> float:
        """Returns the largest distance of an accepted action in this round, and reports it where it adapts."""
        if not self.strain.power:
            return self.delta
        motion = chunk[0, : call.window, self._policy.processor.continuous]
        call.extra["delta"] = self.delta * self.strain.relief(call, self._images, motion)
        return call.extra["delta"]

    def _unusable(self, call: Call) -> str | None:
        """Returns the counter of the reason why the kept context may not be reused, or None."""
        if self._context is None or call.instruction != self._instruction:
            return "first"
        if self._owed:
            return "owed"
        if self.refresh and self._since_full >= self.refresh:
            return "periodic"
        if self.max_age and call.control_step - self._context_step >= self.max_age:
            return "stale"
        if self.blind and bool((_contrast(call.inputs) < self.blind * self._contrast).any()):
            return "blind"
        return None


def _contrast(inputs: Inputs) -> Tensor:
    """Standard deviation of each view's pixels, [V]."""
    return inputs.images[0].float().flatten(1).std(1)
