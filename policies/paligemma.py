"""PaliGemma as a prefix, and what pi0 and pi0.5 share around it: dimensions, embedding, prefill, the expert's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checkpoint import check_sizes
from .gemma import GemmaLayer, ModulatedLayer, Rope, choose, finish, rotary
from .model import Inputs, KVContext, Ops, Prefix, widen
from .siglip import SigLIP, Stem, tokens_per_image

if TYPE_CHECKING:
    from typing_extensions import Self

_STEM = ("width", "kernel", "stride")
_MOST = {
    **dict.fromkeys(("depth", "vision_depth", "heads", "vision_heads"), 256),
    **dict.fromkeys(("horizon", "steps", "image_size"), 1024),
    **{"stem": 8, "tokens_per_view": 4096},
}
"""Largest values in a checkpoint, well beyond any published model."""


@dataclass(frozen=True)
class Dimensions:
    """Dimensions of a PaliGemma and its action expert. The defaults are published: 2B, 300M, 224-pixel images.

    Attributes:
        image_size: Side of an image in pixels.
        stem: Convolutions (width, kernel, stride) that turn an image into patch embeddings; SigLIP has one.
        vision_width: Width of SigLIP.
        vision_depth: Layers of SigLIP.
        vision_heads: Attention heads of SigLIP.
        vision_mlp: FFN neurons of SigLIP.
        width: Width of the VLM.
        mlp: FFN neurons of the VLM.
        depth: Layers of the VLM, and of the expert.
        heads: Query heads of the VLM, and of the expert.
        head_dim: Width of a head in both.
        expert_width: Width of the action expert.
        expert_mlp: FFN neurons of the action expert.
        vocab: Rows of the token embedding.
        action_dim: Action width, padded.
        horizon: Actions in a chunk.
        steps: Denoising steps.

    Raises:
        ValueError: A dimension is out of range, or two do not fit each other.
    """

    image_size: int = 224
    stem: Stem = ((1152, 14, 14),)
    vision_width: int = 1152
    vision_depth: int = 27
    vision_heads: int = 16
    vision_mlp: int = 4304
    width: int = 2048
    mlp: int = 16384
    depth: int = 18
    heads: int = 8
    head_dim: int = 256
    expert_width: int = 1024
    expert_mlp: int = 4096
    vocab: int = 257_152
    action_dim: int = 32
    horizon: int = 50
    steps: int = 10

    def __post_init__(self) -> None:
        check_sizes({**vars(self), "stem": len(self.stem)}, _MOST)
        for number, convolution in enumerate(self.stem):
            check_sizes(dict(zip((f"stem[{number}] {each}" for each in _STEM), convolution, strict=True)))
        check_sizes({"tokens_per_view": self.tokens_per_view}, _MOST)
        if self.stem[-1][0] != self.vision_width:
            raise ValueError(f"the stem {self.stem} must end at vision_width {self.vision_width}")
        if self.vision_width % self.vision_heads or self.head_dim % 2 or self.expert_width % 2:
            raise ValueError(
                f"vision_heads {self.vision_heads} must divide vision_width {self.vision_width}, and head_dim "
                f"{self.head_dim} and expert_width {self.expert_width} must be even"
            )

    @property
    def tokens_per_view(self) -> int:
        """Visual tokens that one view becomes."""
        return tokens_per_image(self.image_size, self.stem)


TINY: dict[str, Any] = dict(
    image_size=64,
    stem=((24, 3, 2), (48, 3, 2), (96, 3, 2)),
    vision_width=96,
    vision_depth=2,
    vision_heads=3,
    vision_mlp=256,
    width=128,
    mlp=256,
    depth=4,
    heads=4,
    head_dim=32,
    expert_width=160,
    expert_mlp=640,
    vocab=128,
    action_dim=7,
    horizon=16,
)
"""Dimensions of the models that are trained here."""


def vision(config: Dimensions) -> SigLIP:
    """Returns the vision tower of these dimensions, which leads to the VLM's width."""
    return SigLIP(
        config.image_size,
        config.stem,
        config.vision_width,
        config.vision_depth,
        config.vision_heads,
        config.vision_mlp,
        config.width,
    )


def encode(vision: SigLIP, embedding: nn.Embedding, inputs: Inputs, drop: bool) -> Prefix:
    """Embeds images and text.

    Args:
        vision: The tower.
        embedding: Of the text's tokens.
        inputs: The round's.
        drop: Whether the tokens that the whole batch masks are dropped, which is exact.
    """
    batch, views = inputs.images.shape[:2]
    visual, features = vision.both(inputs.images.flatten(0, 1))
    per_view = visual.shape[1]
    visual, features = (each.unflatten(0, (batch, views)).flatten(1, 2) for each in (visual, features))
    text = embedding(inputs.tokens) * math.sqrt(embedding.embedding_dim)
    embeddings = torch.cat([visual, text.to(visual.dtype)], 1)
    seen = visual.new_ones((batch, views), dtype=torch.bool) if inputs.view_mask is None else inputs.view_mask
    mask = torch.cat([seen.repeat_interleave(per_view, 1), inputs.token_mask], 1)
    if mask.all():
        return Prefix(embeddings, None, visual.shape[1], features=features)
    used = mask.any(0) if drop else torch.ones_like(mask[0])
    mask, kept = mask[:, used], int(used[: visual.shape[1]].sum())
    features = features[:, used[: visual.shape[1]]]
    return Prefix(embeddings[:, used], None if mask.all() else mask, kept, features=features)


def patches(images: Tensor, tokens: int) -> Tensor:
    """Returns [B, V * tokens, n] the pixels of images [B, V, 3, S, S] that each visual token stands for."""
    side = images.shape[-1] // math.isqrt(tokens)
    each = F.unfold(images.flatten(0, 1), side, stride=side).transpose(1, 2)
    return each.unflatten(0, images.shape[:2]).flatten(1, 2)


def prefill(stack: Sequence[GemmaLayer], prefix: Prefix, ops: Ops) -> KVContext:
    """Runs the VLM over the prefix (bidirectional) and keeps each layer's keys and values."""
    x, mask = prefix.embeddings, prefix.mask
    batch, length, _ = x.shape
    if mask is None:
        positions = torch.arange(length, device=x.device).expand(batch, -1)
        end, columns = torch.full((batch,), length, device=x.device), None
    else:
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        end, columns = mask.sum(1), mask[:, None, :]
    rope = rotary(positions, stack[0].head_dim, x.dtype)
    keys, values = [], []
    for number, layer in enumerate(stack):
        rows, computed, turn = choose(ops, number, x, rope)
        if number == len(stack) - 1:
            k, v = ops.keys_values(number, *layer.keys_values(computed, turn), rows)
        else:
            q, k, v = layer.project(computed, turn)
            k, v = ops.keys_values(number, k, v, rows)
            x = finish(ops, number, layer, x, computed, rows, (q, k, v, columns))
        keys.append(k)
        values.append(v)
    return KVContext(tuple(keys), tuple(values), end, mask)


class Denoising(NamedTuple):
    """A denoising step around the expert's layers.

    Attributes:
        hidden: [B, T, D] action rows in front of the first layer.
        stack: The layers.
        leave: [B, T, D] behind the last layer -> the step's prediction.
    """

    hidden: Tensor
    stack: Sequence[GemmaLayer | ModulatedLayer]
    leave: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ready(KVContext):
    """A context with what all steps of a round share.

    Attributes:
        rope: Rotary angles of the action rows.
        columns: [B, 1, S + T] bool, what these rows see; None where nothing is masked.
        room: Keys and values [B, S + T, head_dim] of each layer, those of the context with room for the action rows',
            which each step writes. Empty where steps concatenate: several branches, or gradients.
    """

    rope: Rope = field(kw_only=True)
    columns: Tensor | None = field(kw_only=True)
    room: tuple[tuple[Tensor, Tensor], ...] = field(kw_only=True)

    def expand(self, branches: int) -> Self:
        """Returns the context repeated ``branches`` times, branch-major; free of copies where B is 1."""
        cos, sin = self.rope
        return replace(
            super().expand(branches),
            rope=(widen(cos, branches), widen(sin, branches)),
            columns=None if self.columns is None else widen(self.columns, branches),
            room=(),
        )

    def joined(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of the context and, behind them, those of the action rows [B, T, head_dim]."""
        if not self.room:
            return torch.cat([self.keys[layer], k], 1), torch.cat([self.values[layer], v], 1)
        keys, values = self.room[layer]
        keys[:, -k.shape[1] :].copy_(k)
        values[:, -v.shape[1] :].copy_(v)
        return keys, values


def ready(context: KVContext, rows: int, layer: GemmaLayer) -> Ready:
    """Returns a context for the steps of ``rows`` actions through layers like this one."""
    first = context.keys[0]
    rope = rotary(behind(context, rows), layer.head_dim, first.dtype)
    room = () if torch.is_grad_enabled() else zip(context.keys, context.values, strict=True)
    return Ready(
        context.keys,
        context.values,
        context.position,
        context.mask,
        # Queries and keys are turned together, and tables that have all their heads are read in one go.
        rope=(rope[0].repeat(1, 1, layer.heads + 1, 1), rope[1].repeat(1, 1, layer.heads + 1, 1)),
        columns=columns(context, rows),
        room=tuple((F.pad(k, (0, 0, 0, rows)), F.pad(v, (0, 0, 0, rows))) for k, v in room),
    )


def denoise(stack: Sequence[GemmaLayer | ModulatedLayer], x: Tensor, context: Ready, ops: Ops) -> Tensor:
    """Runs action rows x [B, T, D] through the expert: they see the context and each other. Same shape."""
    for number, layer in enumerate(stack):
        rows, computed, turn = choose(ops, number, x, context.rope)
        q, k, v = layer.project(computed, turn)
        k, v = context.joined(number, *ops.keys_values(number, k, v, rows))
        x = finish(ops, number, layer, x, computed, rows, (q, k, v, context.columns))
    return x


def behind(context: KVContext, rows: int) -> Tensor:
    """Returns [B, T] the positions of new rows behind a context."""
    return context.position[:, None] + torch.arange(rows, device=context.position.device)


def columns(context: KVContext, rows: int) -> Tensor | None:
    """Returns [B, 1, S + T] bool what new rows behind a context see: it and each other; None if nothing is masked."""
    return None if context.mask is None else F.pad(context.mask, (0, rows), value=True)[:, None, :]


def layers(stack: nn.ModuleList) -> list[GemmaLayer]:
    """Returns the layers of a stack with their type."""
    return cast("list[GemmaLayer]", list(stack))
