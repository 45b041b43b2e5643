"""BAC: every FFN of the action expert has its own steps at which it is computed, and reuses its last output elsewhere.

Ji, Meng, Cui, Li, Hua, Chen, Wang: "Block-wise Adaptive Caching for Accelerating Diffusion Policy", arXiv 2506.13456.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..policies.flow import FlowSpec, Schedule
from ..policies.model import Ops
from ..policies.policy import Policy
from ..policies.round import Call
from ..policies.seams import Method, Seam

Updates = Mapping[int, set[int]]
"""By layer, the steps at which it is computed."""


class BAC(Method):
    """Chooses, from the first rounds of an episode, the steps at which each FFN is computed in the later ones.

    The steps of an FFN are those whose outputs are most like those of the steps that take them over (by cosine, by
    dynamic programming). A step at which no FFN is computed takes the latest prediction over and costs nothing.

    Args:
        updates: Steps at which an FFN is computed. All of the policy's is exactly dense. None: half of them.
        calibrate: Dense rounds from which the steps are chosen, at the beginning of every episode.
        bubble: FFNs, those with the largest errors, that are computed at the steps of all FFNs behind them, too.
        shared: Whether all FFNs have the same steps, which is ``dp_cache`` with these.

    Raises:
        ValueError: An option is out of range; on ``attach``, the policy takes fewer steps.
    """

    name = "bac"
    claims = frozenset({Seam.SCHEDULE, Seam.STEP_FFN})
    activity_counters = ("ffns_reused",)
    limit = "updates = the policy's steps"
    papers = ("2506.13456",)

    def __init__(self, updates: int | None = None, calibrate: int = 1, bubble: int = 1, shared: bool = False) -> None:
        if (updates is not None and updates < 1) or calibrate < 1 or bubble < 0:
            raise ValueError(
                f"bac takes 1 or more updates and rounds to calibrate and 0 or more FFNs to bubble, got "
                f"updates={updates}, calibrate={calibrate} and bubble={bubble}"
            )
        self._given, self._calibrate, self._bubble, self._shared = updates, calibrate, bubble, shared
        self._blocks = _Blocks()
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Chooses the number of updates, or checks that the policy takes as many steps."""
        self._flow = policy.model.flow
        self.updates = (self._flow.steps + 1) // 2 if self._given is None else self._given
        if self.updates > self._flow.steps:
            raise ValueError(
                f"bac updates at {self.updates} steps, but {policy.name} has {self._flow.steps}; give fewer updates"
            )
        self._blocks.steps = self._flow.steps

    def begin(self) -> None:
        """Forgets the last episode, its steps included."""
        self._similarities: list[dict[int, Tensor]] = []
        self._blocks.begin()
        self._reused = 0

    def schedule(self, call: Call, flow: FlowSpec) -> Schedule:
        """The dense times; a step is computed where some FFN is."""
        dense, chosen = flow.schedule(), self._blocks.updates
        if chosen is None:
            return dense
        return Schedule(dense.times, tuple(any(step in each for each in chosen.values()) for step in range(flow.steps)))

    def step_ops(self) -> Ops:
        """Computes an FFN or takes its last output."""
        return self._blocks

    def observe_full(self, call: Call) -> None:
        """Chooses the steps once enough rounds have been seen."""
        blocks = self._blocks
        assert call.schedule is not None
        taken = len(call.schedule.computed)
        if blocks.updates is not None:
            self._reused += len(blocks.updates) * taken - blocks.computed
            call.extra["ffns"] = blocks.computed / (len(blocks.updates) * taken)
        elif taken == self._flow.steps:  # else another method let the round start late
            self._similarities.append({layer: similarities(each) for layer, each in blocks.outputs.items()})
            if len(self._similarities) == self._calibrate:
                blocks.updates = self._choose()

    def _choose(self) -> Updates:
        """Returns the steps of every layer that was seen."""
        layers = list(self._similarities[0])
        mean = torch.stack([torch.stack([each[layer] for layer in layers]) for each in self._similarities]).mean(0)
        if self._shared:
            return dict.fromkeys(layers, best_steps(mean.mean(0), self.updates))
        chosen = bubbled(mean, [best_steps(each, self.updates) for each in mean], self._bubble)
        return dict(zip(layers, chosen, strict=True))

    def counters(self) -> dict[str, float]:
        """FFNs that were not computed, over layers and steps."""
        return {"ffns_reused": self._reused}


class _Blocks(Ops):
    """The FFNs of the steps.

    Attributes:
        steps: Of the dense policy.
        updates: Steps at which each is computed; None computes all of them and notes their outputs.
        outputs: Of a round without updates, by layer and step. Layers that compute some rows only are left as they are.
        computed: FFNs of the round that were computed, of those that have updates.
    """

    steps = 0

    def begin(self) -> None:
        self.updates: Updates | None = None
        self.outputs: dict[int, list[Tensor]] = {}

    def start(self, call: Call) -> None:
        assert call.schedule is not None
        self._late = self.steps - len(call.schedule.computed)  # steps that a later start has left out
        self.outputs, self._kept, self.computed = {}, dict[int, Tensor](), 0

    def at(self, step: int) -> None:
        self._step = self._late + step

    def ffn(self, layer: int, x: Tensor, ffn: Any, rows: Tensor | None) -> Tensor:
        if rows is not None:
            return ffn(x)
        if self.updates is None:
            out = ffn(x)
            self.outputs.setdefault(layer, []).append(out)
            return out
        if layer not in self._kept or self._step in self.updates[layer]:
            self._kept[layer] = ffn(x)
            self.computed += 1
        return self._kept[layer]


def similarities(outputs: Sequence[Tensor]) -> Tensor:
    """Returns [N, N] the cosines of an FFN's outputs at two steps."""
    unit = F.normalize(torch.stack([out.float().flatten() for out in outputs]), dim=-1)
    return (unit @ unit.T).cpu()


def best_steps(similarity: Tensor, count: int) -> set[int]:
    """Returns the ``count`` steps, 0 among them, that stand in best for the others: similarity [N, N].

    Every step takes over the last chosen one before it. The sum of their similarities is the largest possible.
    """
    steps = len(similarity)
    likeness = similarity.double().tolist()
    # By the last chosen step: the sum so far and the chosen steps.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}

    def gain(chosen: int, until: int) -> float:
        return sum(likeness[chosen][step] for step in range(chosen + 1, until))

    for _ in range(count - 1):
        best = {
            step: max(
                (total + gain(last, step), (*chosen, step)) for last, (total, chosen) in best.items() if last < step
            )
            for step in range(1, steps)
            if min(best) < step
        }
    return set(max((total + gain(last, steps), chosen) for last, (total, chosen) in best.items())[1])


def bubbled(similarity: Tensor, updates: Sequence[set[int]], count: int) -> list[set[int]]:
    """Returns the steps of all layers, when the ``count`` layers with the largest errors are computed more often.

    A layer that errs is computed at the steps of all layers behind it, so that these do not compute from its error.

    Args:
        similarity: [layers, N, N].
        updates: The steps of each layer.
        count: How many.
    """

    def error(layer: int) -> float:
        steps = range(similarity.shape[1])
        last = [max(each for each in updates[layer] if each <= step) for step in steps]
        return sum(1 - float(similarity[layer, last[step], step]) for step in steps)

    joined = [set(each) for each in updates]
    for layer in sorted(sorted(range(len(updates)), key=error, reverse=True)[:count], reverse=True):
        joined[layer] = joined[layer].union(*joined[layer + 1 :])
    return joined
