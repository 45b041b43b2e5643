"""Which rows of a prefix to compute: scores of visual tokens, the choice by a share, and the common part of ops.

A method of this kind is a :class:`RowsMethod` around its :class:`PrefixRows`, or around :class:`KeptRows` where keys
and values outlive the round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..policies.model import FlowModel, Ops
from ..policies.round import FULL, Call
from ..policies.seams import Method, Seam

SPARSE = "sparse"
"""Route of a round in whose prefill some layer left visual rows out."""
_LEAST = 1e-6  # keeps the movement of a zero vector to another finite; rMuscle has the same one


def movement(now: Tensor, reference: Tensor) -> Tensor:
    """Returns [P] how far vectors [P, D] have moved, relative to their size: WAM-Cache's surprise (section 4.2)."""
    size = 0.5 * (now.norm(dim=-1) + reference.norm(dim=-1))
    return (now - reference).norm(dim=-1) / (size + _LEAST)


def drift(now: Tensor, reference: Tensor) -> Tensor:
    """Returns [P] the RMS by which vectors [P, D] differ from others, relative to theirs: rMuscle's equation 2."""
    size = now.square().mean(-1).sqrt().clamp_min(_LEAST)
    return (now - reference).square().mean(-1).sqrt() / size


def attention(q: Tensor, k: Tensor) -> Tensor:
    """Returns [heads, R, S] float32 the weights of scaled attention without a mask.

    Args:
        q: [1, R, heads, head_dim].
        k: [1, S, heads, head_dim], or [1, S, head_dim] where all heads share one.
    """
    queries = q[0].transpose(0, 1).float()  # [heads, R, head_dim]
    keys = (k[0, :, None] if k.ndim == 3 else k[0]).permute(1, 2, 0).float()  # [heads or 1, head_dim, S]
    return (queries @ keys / q.shape[-1] ** 0.5).softmax(-1)


def attention_mass(q: Tensor, k: Tensor, first: int) -> Tensor:
    """Returns [first] the attention that the first keys receive, averaged over heads and queries.

    Args:
        q: As for ``attention``.
        k: As for ``attention``.
        first: Number of keys to report; the others take their part of the attention, too.
    """
    return attention(q, k)[..., :first].mean((0, 1))


def largest(scores: Tensor, share: float) -> Tensor:
    """Returns [P] bool, the share of rows with the largest scores: at least one, none for a share of 0."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.topk(budget(share, len(scores))).indices] = True
    return chosen


def budget(share: float, count: int) -> int:
    """Returns how many of ``count`` rows a share is: at least one, none for a share of 0."""
    return max(1, round(share * count)) if share > 0 else 0


def check_share(method: str, option: str, value: float) -> float:
    """Returns an option of a method that is a share.

    Raises:
        ValueError: It is not in 0..1.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{method} takes a share from 0 to 1 as {option}, got {value}")
    return value


def pixels(model: FlowModel, call: Call) -> Tensor:
    """Returns [P, n] the pixels in [-1, 1] of each visual token of a round; those of missing cameras are left out."""
    images, seen = call.inputs.images, call.inputs.view_mask
    each = model.patches(images)[0]
    if seen is not None and len(each) != call.prefix.visual:
        each = each[seen[0].repeat_interleave(len(each) // images.shape[1])]
    return each


class FirstStep(Ops):
    """The attention that each visual token receives from the actions at the first denoising step that is computed.

    Args:
        layers: Leading layers to read; None is all of them.

    Attributes:
        mass: [P] summed over the layers, averaged over heads and actions; None before the first round.
    """

    def __init__(self, layers: int | None = None) -> None:
        self.mass: Tensor | None = None
        self._layers = layers

    def start(self, call: Call) -> None:
        """Notes which keys are visual."""
        self._visual, self._watched = call.prefix.visual, False

    def at(self, step: int) -> None:
        """Watches the first step, which is not step 0 where another method gives that one's prediction."""
        self._watching, self._watched = not self._watched, True
        if self._watching:
            self.mass = None

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        """Adds a layer."""
        if self._watching and (self._layers is None or layer < self._layers):
            received = attention_mass(q, k, self._visual)
            self.mass = received if self.mass is None else self.mass + received  # a mean ranks as the sum does


class PrefixRows(Ops):
    """Ops that compute some visual rows of a prefill per layer, and every other row.

    Attributes:
        computed: Visual rows that were computed since ``begin``, summed over calls of ``take``.
        left_out: Visual rows that were not.
    """

    def begin(self) -> None:
        """Starts an episode."""
        self.computed = self.left_out = 0
        self._key: tuple[str, torch.Size] | None = None

    def start(self, call: Call) -> None:
        """Notes which rows are visual."""
        prefix = call.prefix
        self.visual = prefix.visual
        self.others = torch.arange(prefix.visual, prefix.embeddings.shape[1], device=prefix.embeddings.device)
        self._before = self.computed, self.left_out

    def known(self, call: Call) -> bool:
        """Returns whether the round before had this instruction and a prefix of this length; call it once per round."""
        before, self._key = self._key, (call.instruction, call.prefix.embeddings.shape)
        return self._key == before

    def take(self, chosen: Tensor | None) -> Tensor | None:
        """Counts the visual rows [R] of a layer and returns them with all others; None, all of them, stays None."""
        if chosen is None:
            self.computed += self.visual
            return None
        self.computed += len(chosen)
        self.left_out += self.visual - len(chosen)
        return torch.cat([chosen, self.others])

    def share(self) -> float:
        """Returns which share of the visual rows of this round was computed, averaged over layers."""
        computed, left_out = self.computed - self._before[0], self.left_out - self._before[1]
        return computed / (computed + left_out) if computed + left_out else 1.0


class KeptRows(PrefixRows):
    """Rows that are not computed keep the keys and values of the round in which they last were."""

    def begin(self) -> None:
        """Starts an episode without keys and values."""
        super().begin()
        self.kept: list[tuple[Tensor, Tensor]] = []

    def keys_values(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Puts those of computed rows among those that are kept."""
        if rows is not None:
            old_k, old_v = self.kept[layer]
            k, v = old_k.index_copy(1, rows, k), old_v.index_copy(1, rows, v)
        self.kept[layer : layer + 1] = [(k, v)]
        return k, v


class RowsMethod(Method):
    """A method that is its prefill's rows. The first of ``activity_counters`` counts those that were left out.

    Args:
        rows: What answers the prefill.
    """

    claims = frozenset({Seam.PREFILL_ROWS})
    activity_counters = ("rows_reused",)
    routes = (FULL, SPARSE)

    def __init__(self, rows: PrefixRows) -> None:
        self._rows = rows
        rows.begin()

    def prefill_ops(self) -> Ops:
        """Chooses rows."""
        return self._rows

    def begin(self) -> None:
        """Forgets the last episode."""
        self._rows.begin()

    def observe_full(self, call: Call) -> None:
        """Reports the share of visual rows that this round computed."""
        call.extra["refreshed"] = self._rows.share()

    def route(self, call: Call) -> str | None:
        """``sparse`` where some layer left rows out."""
        return SPARSE if self._rows.share() < 1 else None

    def counters(self) -> dict[str, float]:
        """Visual rows that were left out and that were computed."""
        return {self.activity_counters[0]: self._rows.left_out, "rows_computed": self._rows.computed}
