"""rMuscle's Action Cache: in denoising, most steps compute the important FFN neurons only, as changes to an anchor."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...policies.flow import FlowSpec
from ...policies.model import Ops
from ...policies.policy import Policy
from ...policies.round import Call
from ...policies.seams import Method, Seam

Masks = Sequence[Tensor]
"""Per group of steps: indices [layers, K] of the important neurons. A group with none of them is dense."""


class ActionCache(Method):
    """Computes, in the steps between anchors, the neurons that were important in the last round.

    The first computed step of every group is its anchor, and dense. The first round of an episode or of an instruction
    is dense in all steps. Attention is dense.

    Args:
        ratio: Share of the neurons that a step between anchors computes (rho_n). 1 is exactly dense.
        anchors: Steps at which groups begin, counted from 0; None is two groups of equal length: 0 and 5 of ten.

    Raises:
        ValueError: The ratio is not in 0..1, or the first anchor is not step 0; on ``attach``, the policy takes fewer
            steps.
    """

    name = "action_cache"
    claims = frozenset({Seam.STEP_FFN})
    activity_counters = ("neurons_reused",)
    limit = "ratio=1"
    papers = ("2609.19104",)

    def __init__(self, ratio: float = 0.5, anchors: tuple[int, ...] | None = None) -> None:
        self._anchors, self._neurons = check_anchors(anchors), SelectedNeurons(ratio, scores=True)

    def attach(self, policy: Policy) -> None:
        """Places the anchors."""
        self._neurons.anchors = place_anchors(self.name, self._anchors, policy.model.flow)

    def begin(self) -> None:
        """Forgets the last episode."""
        self._instruction: str | None = None
        self._neurons.begin()

    def look(self, call: Call) -> None:
        """Takes the masks from the last round, if it had the same instruction."""
        known = call.instruction == self._instruction
        self._neurons.masks = self._neurons.important() if known else None
        self._instruction = call.instruction

    def step_ops(self) -> Ops:
        """Updates what an anchor computed by the change of important neurons."""
        return self._neurons

    def observe_full(self, call: Call) -> None:
        """Reports the share of neurons that were computed in this round."""
        self._neurons.report(call)

    def counters(self) -> dict[str, float]:
        """Neurons, summed over layers and steps."""
        return self._neurons.counters()


def check_anchors(anchors: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Returns anchors as a user gave them.

    Raises:
        ValueError: They do not rise from step 0.
    """
    if anchors is not None and (anchors[0] != 0 or list(anchors) != sorted(set(anchors))):
        raise ValueError(f"anchors must be steps in rising order that begin with 0, got {anchors}")
    return anchors


def place_anchors(method: str, anchors: tuple[int, ...] | None, flow: FlowSpec) -> tuple[int, ...]:
    """Returns the anchors in a flow: those that were given, or of two groups of equal length.

    Raises:
        ValueError: The flow has too few steps.
    """
    placed = anchors or halves(flow)
    if placed[-1] >= flow.steps:
        raise ValueError(f"{method} has an anchor at step {placed[-1]} of {flow.steps}")
    return placed


def halves(flow: FlowSpec) -> tuple[int, ...]:
    """Returns the anchors of two groups of equal length: 0 and 5 of ten steps, as the paper has them."""
    return tuple(sorted({0, flow.steps // 2}))


class SelectedNeurons(Ops):
    """The FFN of important neurons, as a change to the output of an anchor (rMuscle, equation 4).

    It works on every :class:`~replan.policies.neurons.NeuronFFN`.

    Args:
        ratio: Share of the neurons that steps between anchors compute.
        scores: Whether the importance of neurons is noted in every step, so that ``important`` can answer.

    Attributes:
        anchors: Steps at which groups begin.
        masks: The important neurons; None computes all of them.
        anchor: Whether the present step is the anchor of its group.

    Raises:
        ValueError: The ratio is not in 0..1.
    """

    anchors: tuple[int, ...] = (0,)

    def __init__(self, ratio: float, scores: bool) -> None:
        if not 0 <= ratio <= 1:
            raise ValueError(f"the share of neurons to compute is from 0 to 1, got {ratio}")
        self.ratio, self._noting = ratio, scores
        self._down: dict[int, Tensor] = {}  # per layer [H, width]: a neuron's outgoing weights lie side by side
        self._norms: dict[int, Tensor] = {}  # per layer [H] float32: size of these
        self.begin()

    def begin(self) -> None:
        """Forgets masks, scores and counts."""
        self.masks: Masks | None = None
        self.reused = self.computed = 0
        self._steps: list[list[list[Tensor]]] = []  # of the last round, per group, step and layer: scores [H]

    def important(self, ratio: float | None = None) -> Masks | None:
        """Returns the important neurons of the last round, ``ratio`` of all; None before one."""
        if not any(self._steps):
            return None
        share = self.ratio if ratio is None else ratio
        none = torch.empty(0, dtype=torch.int64)
        return [
            important(torch.stack([torch.stack(step) for step in group]), share) if group else none
            for group in self._steps
        ]

    def contributions(self) -> Tensor:
        """Returns [steps, layers, H] the contributions of the last round, of the steps that were computed."""
        return torch.stack([torch.stack(step) for group in self._steps for step in group])

    def start(self, call: Call) -> None:
        """Waits for the first anchor."""
        self._group, self._steps, self._kept = -1, [[] for _ in self.anchors], dict[int, _Kept]()
        self._before = self.reused, self.computed

    def at(self, step: int) -> None:
        """Begins a group with its first step that is computed."""
        group = bisect(self.anchors, step) - 1
        self.anchor = group != self._group
        if self.anchor:
            self._group, self._kept = group, {}
        self._steps[group].append([])

    def ffn(self, layer: int, x: Tensor, ffn: Any, rows: Tensor | None) -> Tensor:
        """Returns the anchor's output, updated by the change of the important neurons; or the dense output."""
        total, kept = ffn.down.in_features, self._kept.get(layer)
        count = math.ceil(self.ratio * total)
        masks = () if self.masks is None else self.masks[self._group]
        if not len(masks) or count == total or rows is not None or kept is None:
            self.computed += total
            hidden = ffn.hidden(x)
            out = ffn.down(hidden)
            score = self._score(layer, hidden, ffn)
            if len(masks) and rows is None:
                self._kept[layer] = self._anchor(layer, masks[layer], ffn, hidden, out, score)
        else:
            self.computed, self.reused = self.computed + count, self.reused + total - count
            hidden = ffn.hidden(x, kept.incoming)
            out = ffn.changed(kept.out, kept.hidden, hidden, kept.outgoing)
            score = self._score(layer, hidden, ffn, kept)
        if score is not None:
            self._steps[self._group][-1].append(score)
        return out

    def _anchor(
        self, layer: int, neurons: Tensor, ffn: Any, hidden: Tensor, out: Tensor, score: Tensor | None
    ) -> _Kept:
        """Gathers, once per group, the weights of the important neurons and what they contributed to the anchor."""
        if layer not in self._down:
            self._down[layer] = ffn.down.weight.T.contiguous()
        outgoing = ffn.outgoing(self._down[layer], neurons)
        return _Kept(out, neurons, hidden[..., neurons], ffn.incoming(neurons), outgoing, score)

    def _score(self, layer: int, hidden: Tensor, ffn: Any, kept: _Kept | None = None) -> Tensor | None:
        """Returns [H] the contribution of every neuron; those that were not computed have that of the anchor."""
        if not self._noting:
            return None
        if layer not in self._norms:
            self._norms[layer] = ffn.down.weight.float().norm(dim=0)
        norms = self._norms[layer]
        if kept is None:
            return contribution(hidden, norms)
        assert kept.score is not None
        return kept.score.index_copy(0, kept.neurons, contribution(hidden, norms[kept.neurons]))

    def report(self, call: Call) -> None:
        """Writes the share of neurons that were computed in this round."""
        reused, computed = self.reused - self._before[0], self.computed - self._before[1]
        if reused + computed:
            call.extra["neurons"] = computed / (reused + computed)

    def counters(self) -> dict[str, float]:
        """Returns how many neurons were taken over and computed, summed over layers and steps."""
        return {"neurons_reused": self.reused, "neurons_computed": self.computed}


class _Kept(NamedTuple):
    """What an anchor leaves to the steps of its group, in one layer.

    Attributes:
        out: [1, S, width] output.
        neurons: [K] the important ones.
        hidden: [1, S, K] their activations.
        incoming: Their weights before the activation, as the FFN gives them.
        outgoing: Their weights behind it, likewise.
        score: [H] contributions of all neurons, where they are noted.
    """

    out: Tensor
    neurons: Tensor
    hidden: Tensor
    incoming: Any
    outgoing: Any
    score: Tensor | None


def contribution(hidden: Tensor, norms: Tensor) -> Tensor:
    """Returns [H] the contribution of neurons to an FFN's output: rMuscle's equation 1.

    Args:
        hidden: [.., H] activations.
        norms: [H] size of each neuron's outgoing weights.
    """
    return hidden.abs().flatten(0, -2).float().sum(0) * norms


def important(scores: Tensor, ratio: float) -> Tensor:
    """Returns the neurons that all steps of a group compute: [steps, layers, H] contributions -> indices [layers, K].

    The candidates are the K largest of any step; of them, those with the largest sum over the steps are taken.
    """
    count = math.ceil(ratio * scores.shape[-1])
    candidates = torch.zeros_like(scores, dtype=torch.bool)
    candidates.scatter_(-1, scores.topk(count).indices, value=True)
    total = scores.sum(0).masked_fill(~candidates.any(0), -math.inf)
    return total.topk(count).indices
