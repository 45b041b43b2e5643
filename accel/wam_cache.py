"""WAM-Cache: keys and values of visual tokens are reused across rounds, and a chosen part of them is computed anew.

Ding, He, Quan, Yang: "WAM-Cache: Staleness-Bounded KV Reuse for Efficient World Action Models", arXiv 2610.11401.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from torch import Tensor

from ..policies.model import FlowModel, Ops
from ..policies.policy import Policy
from ..policies.round import Call
from .rows import FirstStep, KeptRows, RowsMethod, largest, movement, pixels

RULES = ("both", "attention", "surprise", "drift", "pixels", "random")


class WAMCache(RowsMethod):
    """Computes a refresh set of visual tokens per round; their queries see all keys, and the other tokens keep theirs.

    The refresh set joins the tokens that the action expert attended to most at the first denoising step of the round
    before, those whose embeddings have moved most since they were last computed, and those that have been reused
    ``age`` times in a row. The first round of an episode or of an instruction is dense. Tokens that are not visual are
    always computed.

    Args:
        attention: Share of the visual tokens that attention chooses (b_a). 1 is exactly dense.
        surprise: Share that surprise chooses (b_s).
        age: Rounds in a row that a token may be reused (G); 0 sets no bound.
        rule: ``both`` is the paper's. For its table 3, the two shares together go to one of ``attention``,
            ``surprise``, ``pixels`` (change of the image), ``random`` and ``drift``: an oracle that computes the dense
            keys and values to see how far they have moved, and so saves nothing.

    Raises:
        ValueError: A share is not in 0..1, the age is negative, or there is no such rule.
    """

    name = "wam_cache"
    limit = "attention=1"
    papers = ("2610.11401",)

    def __init__(self, attention: float = 0.4, surprise: float = 0.1, age: int = 2, rule: str = "both") -> None:
        if not (0 <= attention <= 1 and 0 <= surprise <= 1):
            raise ValueError(f"attention and surprise are shares from 0 to 1, got {attention} and {surprise}")
        if age < 0 or rule not in RULES:
            raise ValueError(f"age must be 0 or more and rule one of {', '.join(RULES)}, got {age} and {rule!r}")
        self.attention, self.surprise, self.age, self.rule = attention, surprise, age, rule
        self._watch = FirstStep()
        self._refresh = _Refresh(self, self._watch)
        super().__init__(self._refresh)

    def attach(self, policy: Policy) -> None:
        """Keeps the model, which ``drift`` and ``pixels`` ask."""
        self._refresh.model = policy.model

    def step_ops(self) -> Ops:
        """Watches the attention of the first denoising step."""
        return self._watch

    def begin(self) -> None:
        """Forgets the keys and values of the last episode."""
        super().begin()
        self._watch.mass = None


class _Refresh(KeptRows):
    """The keys and values of the rounds so far, and the rows of this round that replace some of them.

    Attributes:
        model: Of the policy.
        chosen: [R] rows that every layer of this round computes; None for all.
    """

    model: FlowModel

    def __init__(self, method: WAMCache, watch: FirstStep) -> None:
        self._method, self._watch = method, watch

    def start(self, call: Call) -> None:
        super().start(call)
        now, visual = call.prefix.embeddings[0, : self.visual], self.visual
        if self.known(call):
            refresh = self._content(call, now)
            if self._method.age:
                refresh |= self._age >= self._method.age
        else:
            refresh = torch.ones(visual, dtype=torch.bool, device=now.device)
            self._reference, self._age = now, torch.zeros(visual, dtype=torch.int64, device=now.device)
        self._reference = torch.where(refresh[:, None], now, self._reference)
        self._age = torch.where(refresh, 0, self._age + 1)
        if self._method.rule == "pixels":
            self._pixels = pixels(self.model, call)
        chosen = refresh.nonzero()[:, 0]  # waits for the device, once per round: their number shapes what follows
        self.chosen = self.take(None if len(chosen) == visual else chosen)

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        return self.chosen

    def _content(self, call: Call, now: Tensor) -> Tensor:
        """Returns [P] bool, the visual tokens that the round's content asks for."""
        method, share = self._method, min(1.0, self._method.attention + self._method.surprise)
        if method.rule == "both":
            by_attention = largest(self._attention(now), method.attention)
            return by_attention | largest(movement(now, self._reference), method.surprise)
        scores = {
            "attention": self._attention,
            "surprise": lambda now: movement(now, self._reference),
            "drift": lambda now: self._drift(call, len(now)),
            "pixels": lambda now: (pixels(self.model, call) - self._pixels).abs().mean(-1),
            "random": lambda now: _random(call.noise, len(now)).to(now.device),
        }[method.rule](now)
        return largest(scores, share)

    def _attention(self, now: Tensor) -> Tensor:
        return torch.zeros(len(now), device=now.device) if self._watch.mass is None else self._watch.mass

    def _drift(self, call: Call, visual: int) -> Tensor:
        """How far the keys and values of a dense prefill have moved from those that are kept."""
        dense = _Recorder()
        self.model.prefill(call.prefix, dense)
        moved = [
            movement(new[0, :visual].flatten(1), old[0, :visual].flatten(1))
            for pair, kept in zip(dense.pairs, self.kept, strict=True)
            for new, old in zip(pair, kept, strict=True)
        ]
        return torch.stack(moved).mean(0)


class _Recorder(Ops):
    """Keeps what a dense walk computes."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def keys_values(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        self.pairs.append((k, v))
        return k, v


def _random(noise: Tensor, count: int) -> Tensor:
    """Returns [count] scores that differ from round to round and are the same for the same round."""
    seed = zlib.crc32(noise.cpu().numpy().tobytes())
    return torch.from_numpy(np.random.default_rng(seed).random(count))
