"""What a library keeps of an execution: an entry per round, noted while the dense policy acts."""

from __future__ import annotations

import torch

from ...policies.model import Ops
from ...policies.policy import Policy
from ...policies.round import Call
from ...policies.seams import Method, Seam
from ..library import Entry, as_bits, query_of
from .action_cache import SelectedNeurons, halves

RATIOS = (0.25, 0.5, 0.75)
"""Shares of neurons in the paper's presets."""


class Recording(Method):
    """The dense policy, bit for bit; ``entries`` has the rounds of the episode so far.

    Args:
        ratios: Shares of neurons for which entries have masks.

    Attributes:
        entries: A round each.
        neurons: Neurons of a layer; 0 before a round.
        anchors: Steps at which the groups of the masks begin.

    Raises:
        ValueError: A ratio is not between 0 and 1.
    """

    name = "recording"
    claims = frozenset({Seam.STEP_FFN})

    def __init__(self, ratios: tuple[float, ...] = RATIOS) -> None:
        if not ratios or not all(0 < ratio < 1 for ratio in ratios):
            raise ValueError(f"the shares of neurons must be between 0 and 1, got {ratios}")
        self._ratios, self._ops = ratios, SelectedNeurons(1, scores=True)
        self.neurons = 0
        self.begin()

    def attach(self, policy: Policy) -> None:
        """Places the anchors."""
        self.anchors = self._ops.anchors = halves(policy.model.flow)

    def begin(self) -> None:
        """Forgets the last episode."""
        self.entries: list[Entry] = []
        self._ops.begin()

    def step_ops(self) -> Ops:
        """Notes the contributions of neurons."""
        return self._ops

    def observe_full(self, call: Call) -> None:
        """Adds an entry."""
        every = self._ops.important(1)
        assert every is not None
        self.neurons = every[0].shape[-1]
        self.entries.append(entry_of(call, self._ops, self._ratios, self.neurons))


def entry_of(call: Call, neurons: SelectedNeurons, ratios: tuple[float, ...], count: int) -> Entry:
    """Returns what a library keeps of a round whose full path has run.

    Args:
        call: The round.
        neurons: What noted the contributions of its neurons.
        ratios: Shares for which the entry has masks.
        count: Neurons of a layer.
    """
    cpu, masks = torch.device("cpu"), []
    for ratio in ratios:
        groups = neurons.important(ratio)
        assert groups is not None
        some = next(each for each in groups if len(each))  # stands in for groups of which no step was computed
        masks.append(as_bits(torch.stack([each if len(each) else some for each in groups]), count))
    query = query_of(call.prefix).to(cpu, torch.float16).clone()
    return Entry(call.inputs.to(cpu, torch.float32), query, torch.stack(masks))
