"""rMuscle's Context Cache: in prefill, visual tokens whose FFN input has drifted little take over a known output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...policies.model import FlowModel, Inputs, Ops, Prefix
from ...policies.round import Call
from ...policies.seams import Method, Seam
from ..rows import drift

States = Sequence[tuple[Tensor, Tensor]]
"""Per FFN layer: inputs after the norm and outputs of the visual tokens, each [P, width]."""


class ContextCache(Method):
    """Computes, in every FFN of the prefill, the visual tokens whose inputs have drifted most from the last round's.

    The reference of a token is the round in which it was last computed. The first round of an episode or of an
    instruction is dense. Attention is dense, and so are all tokens that are not visual.

    Args:
        ratio: Share of the visual tokens that every layer computes (rho_p). 1 is exactly dense.

    Raises:
        ValueError: The ratio is not in 0..1.
    """

    name = "context_cache"
    claims = frozenset({Seam.PREFILL_FFN})
    activity_counters = ("ffn_rows_reused",)
    limit = "ratio=1"
    papers = ("2609.19104",)

    def __init__(self, ratio: float = 0.4) -> None:
        self._rows = SplicedRows(ratio, keeps=True)
        self.begin()

    def begin(self) -> None:
        """Forgets the last episode."""
        self._key: tuple[str, torch.Size] | None = None
        self._rows.begin()

    def look(self, call: Call) -> None:
        """Drops a reference that belongs to another instruction."""
        key = (call.instruction, call.prefix.embeddings.shape)
        self._rows.reference = self._rows.seen if key == self._key else None
        self._key = key

    def prefill_ops(self) -> Ops:
        """Splices computed rows into the outputs of the reference."""
        return self._rows

    def observe_full(self, call: Call) -> None:
        """Reports the share of visual rows that were computed in this round."""
        self._rows.report(call)

    def counters(self) -> dict[str, float]:
        """Visual rows, summed over layers."""
        return self._rows.counters()


class SplicedRows(Ops):
    """The FFN of chosen rows, spliced into the output of a reference (rMuscle, equations 2 and 3).

    Args:
        ratio: Share of the visual rows that are computed.
        keeps: Whether ``seen`` is written.

    Attributes:
        reference: What the visual rows were in the reference; None computes all of them.
        seen: Of the walk that ran last: of each row, input and output where it was last computed.

    Raises:
        ValueError: The ratio is not in 0..1.
    """

    def __init__(self, ratio: float, keeps: bool) -> None:
        if not 0 <= ratio <= 1:
            raise ValueError(f"the share of visual tokens to compute is from 0 to 1, got {ratio}")
        self.ratio, self.keeps = ratio, keeps
        self.begin()

    def begin(self) -> None:
        """Forgets references and counts."""
        self.reference: States | None = None
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.reused = self.computed = 0

    def start(self, call: Call) -> None:
        """Notes which rows are visual."""
        self._before = self.reused, self.computed
        self.walk(call.prefix)

    def walk(self, prefix: Prefix) -> None:
        """Prepares for the layers of a prefill."""
        visual = prefix.visual_rows()
        self.seen, self._visual = [], visual
        # Of every row its place among the visual ones, or -1.
        self._place = torch.full((prefix.embeddings.shape[1],), -1, device=visual.device)
        self._place[visual] = torch.arange(len(visual), device=visual.device)
        self._others = (self._place < 0).nonzero()[:, 0]

    def ffn(self, layer: int, x: Tensor, ffn: nn.Module, rows: Tensor | None) -> Tensor:
        """Returns the outputs that are computed, among those of the reference."""
        at, others = self._visual, self._others  # rows of x that are visual, and that are not
        places = None
        if rows is not None:  # another method has left rows out
            inside = self._place[rows]
            at, others = (inside >= 0).nonzero()[:, 0], (inside < 0).nonzero()[:, 0]
            places = inside[at]
        count = math.ceil(self.ratio * len(at))
        if self.reference is None or count == len(at):
            self.computed += len(at)
            out = ffn(x)
        else:
            self.computed, self.reused = self.computed + count, self.reused + len(at) - count
            old_x, old_y = self.reference[layer]
            if places is not None:
                old_x, old_y = old_x[places], old_y[places]
            chosen = drift(x[0, at], old_x).topk(count).indices
            out = torch.empty_like(x)
            out[0, at] = old_y
            at, places = at[chosen], chosen if places is None else places[chosen]
            computed = torch.cat([at, others])
            out[:, computed] = ffn(x[:, computed])
        if self.keeps:
            self._keep(layer, places, x[0, at], out[0, at])
        return out

    def _keep(self, layer: int, places: Tensor | None, x: Tensor, y: Tensor) -> None:
        """Adds a layer to ``seen``: its rows that were computed, and the others as the reference has them."""
        if self.reference is not None and places is not None:
            old_x, old_y = self.reference[layer]
            x, y = old_x.index_copy(0, places, x), old_y.index_copy(0, places, y)
        self.seen.append((x, y))

    def report(self, call: Call) -> None:
        """Writes the share of visual rows that were computed in this round."""
        reused, computed = self.reused - self._before[0], self.computed - self._before[1]
        if reused + computed:
            call.extra["ffn_rows"] = computed / (reused + computed)

    def counters(self) -> dict[str, float]:
        """Returns how many visual rows were taken over and computed, summed over layers."""
        return {"ffn_rows_reused": self.reused, "ffn_rows_computed": self.computed}


def states(model: FlowModel, inputs: Inputs) -> States:
    """Returns the FFN states of an observation from a dense encoding and prefill, which change nothing else."""
    prefix, recorder = model.encode(inputs), SplicedRows(1, keeps=True)
    recorder.walk(prefix)
    model.prefill(prefix, recorder)
    return recorder.seen
