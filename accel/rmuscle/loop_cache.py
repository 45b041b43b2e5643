"""rMuscle where visual tokens take part in denoising (X-VLA): both caches at once, inside the loop."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...policies.model import FlowModel, Ops
from ...policies.policy import Policy
from ...policies.round import Call
from ...policies.seams import Method, Seam
from ..rows import drift
from .action_cache import SelectedNeurons, check_anchors, place_anchors


class LoopCache(Method):
    """Computes, in the FFNs of denoising steps, the visual tokens that have drifted most, and important neurons only.

    The reference of a token is the same step of the last round in which it was computed there. The first step of every
    group is its anchor: it chooses the group's tokens, layer by layer, and computes all their neurons. The first round
    of an episode or of an instruction is dense. Attention is dense, and so are all tokens that are not visual.

    Args:
        tokens: Share of the visual tokens that every layer computes (rho_p).
        neurons: Share of the neurons that a step between anchors computes (rho_n). Both 1 is exactly dense; ``tokens``
            1 alone is ``action_cache``.
        anchors: Steps at which groups begin, counted from 0; None is two groups of equal length: 0 and 5 of ten.

    Raises:
        ValueError: A share is not in 0..1, or the first anchor is not step 0; on ``attach``, the policy takes fewer
            steps.
    """

    name = "loop_cache"
    claims = frozenset({Seam.STEP_FFN})
    activity_counters = ("ffn_rows_reused", "neurons_reused")
    limit = "tokens=1:neurons=1"
    papers = ("2609.19104",)

    def __init__(self, tokens: float = 0.4, neurons: float = 0.5, anchors: tuple[int, ...] | None = None) -> None:
        self._anchors, self._ops = check_anchors(anchors), _Loop(tokens, neurons)
        if tokens < 1 or neurons < 1:  # a cache that is switched off cannot be active
            used = zip(LoopCache.activity_counters, (tokens < 1, neurons < 1), strict=True)
            self.activity_counters = tuple(name for name, active in used if active)

    @classmethod
    def misfit(cls, model: type[FlowModel]) -> str | None:
        """No visual token takes part in its steps."""
        there = model.visual_in_step is not FlowModel.visual_in_step
        return None if there else "its denoising steps compute no visual tokens; context_cache is for its prefill"

    def attach(self, policy: Policy) -> None:
        """Places the anchors."""
        self._ops.model = policy.model
        self._ops.neurons.anchors = place_anchors(self.name, self._anchors, policy.model.flow)

    def begin(self) -> None:
        """Forgets the last episode."""
        self._key: Any = None
        self._ops.begin()

    def look(self, call: Call) -> None:
        """Takes the masks from the last round, and its states as reference, if it had the same instruction."""
        key = call.instruction, call.inputs.images.shape, call.inputs.tokens.shape
        self._ops.known = key == self._key
        self._ops.neurons.masks = self._ops.neurons.important() if self._ops.known else None
        self._key = key

    def step_ops(self) -> Ops:
        """Computes some rows, and some neurons of them."""
        return self._ops

    def observe_full(self, call: Call) -> None:
        """Reports the shares of rows and neurons that were computed in this round."""
        self._ops.report(call)

    def counters(self) -> dict[str, float]:
        """Visual rows and neurons, summed over layers and steps."""
        rows = {"ffn_rows_reused": self._ops.reused, "ffn_rows_computed": self._ops.computed}
        return {**rows, **self._ops.neurons.counters()}


class _Loop(Ops):
    """The FFN of chosen rows, with chosen neurons, among the outputs that the other rows had a round before.

    Attributes:
        model: Of the policy.
        neurons: What computes the chosen rows.
        known: Whether the states of the last round may be a reference.
    """

    model: FlowModel

    def __init__(self, tokens: float, neurons: float) -> None:
        if not 0 <= tokens <= 1:
            raise ValueError(f"the share of visual tokens to compute is from 0 to 1, got {tokens}")
        self._ratio, self.neurons = tokens, SelectedNeurons(neurons, scores=True)
        self.begin()

    def begin(self) -> None:
        """Forgets references and counts."""
        self.neurons.begin()
        self.known, self.reused, self.computed = False, 0, 0
        # By step and layer: of the visual rows, input and output where they were last computed, each [V, width].
        self._states: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def start(self, call: Call) -> None:
        """Notes which rows are visual."""
        self.neurons.start(call)
        self._before = self.reused, self.computed
        self._visual = self.model.visual_in_step(call.inputs)
        if not self.known:
            self._states = {}

    def at(self, step: int) -> None:
        """Chooses rows anew at an anchor."""
        self._step = step
        self.neurons.at(step)
        if self.neurons.anchor:
            self._chosen: dict[int, Tensor | None] = {}  # by layer, of the group: places among the visual rows

    def ffn(self, layer: int, x: Tensor, ffn: Any, rows: Tensor | None) -> Tensor:
        """Returns the outputs that are computed, among those of the reference."""
        if rows is not None or self._ratio == 1:
            return self.neurons.ffn(layer, x, ffn, rows)
        visual, reference = self._visual, self._states.get((self._step, layer))
        seen = x[0, visual]
        if self.neurons.anchor:
            self._chosen[layer] = self._choose(seen, reference)
        chosen = self._chosen[layer]
        if chosen is None or reference is None:
            self.computed += len(visual)
            # Where the anchor computed fewer rows, its neurons say nothing of the others, and all are dense.
            every = None if chosen is None else torch.arange(x.shape[1], device=x.device)
            out = self.neurons.ffn(layer, x, ffn, every)
            self._states[self._step, layer] = seen, out[0, visual]
            return out
        self.computed += len(chosen)
        self.reused += len(visual) - len(chosen)
        old_x, old_y = reference
        computed = self._with_others(visual[chosen], x.shape[1])
        out = torch.empty_like(x)
        out[0, visual] = old_y
        out[:, computed] = self.neurons.ffn(layer, x[:, computed], ffn, None)
        new_x, new_y = seen[chosen], out[0, visual[chosen]]
        self._states[self._step, layer] = old_x.index_copy(0, chosen, new_x), old_y.index_copy(0, chosen, new_y)
        return out

    def _choose(self, seen: Tensor, reference: tuple[Tensor, Tensor] | None) -> Tensor | None:
        """Returns the places of the visual rows that have drifted most; None is all of them."""
        count = math.ceil(self._ratio * len(seen))
        return None if reference is None or count == len(seen) else drift(seen, reference[0]).topk(count).indices

    def _with_others(self, rows: Tensor, count: int) -> Tensor:
        """Returns chosen visual rows and all of ``count`` rows that are not visual."""
        computed = torch.ones(count, dtype=torch.bool, device=rows.device)
        computed[self._visual] = False
        return torch.cat([rows, computed.nonzero()[:, 0]])

    def report(self, call: Call) -> None:
        """Writes the shares of visual rows and of neurons that were computed in this round."""
        reused, computed = self.reused - self._before[0], self.computed - self._before[1]
        if reused + computed:
            call.extra["ffn_rows"] = computed / (reused + computed)
        self.neurons.report(call)
