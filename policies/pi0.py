"""pi0: a PaliGemma prefix and a flow-matching action expert that attends to its keys and values, layer by layer.

Inference in three stages that methods hook into: ``encode`` (images and text to prefix embeddings), ``prefill`` (prefix
to per-layer keys and values), ``step`` (one evaluation of the velocity field). Everything exact that saves work is on:

* masked prefix tokens are dropped where a whole batch masks them;
* the last VLM layer computes keys and values only;
* the state token sees the prefix and itself but no action, so its keys and values are computed once a round
  (``see_state``) instead of once a step, and no step needs a mask.

Architecture: pi0 (Black et al., 2024), openpi's PyTorch model; checked against it in tests/policies/test_pi0_parity.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .flow import FlowSpec

FFN = Callable[[int, Tensor, nn.Module], Tensor]
"""How a layer obtains its FFN output: called with (layer index, normed input [B, T, D], the layer's own FFN)."""


def dense_ffn(layer: int, x: Tensor, ffn: nn.Module) -> Tensor:
    """Runs the layer's own FFN."""
    return ffn(x)


@dataclass(frozen=True)
class Pi0Config:
    """Dimensions of a pi0. The defaults are the paper's: PaliGemma 2B, a 300M expert, 224-pixel views.

    Attributes:
        image_size: Side of a view in pixels.
        stem: Convolutions (width, kernel, stride) that turn a view into patch embeddings; SigLIP has one.
        vision_width: SigLIP width, as ``vision_depth``, ``vision_heads`` and ``vision_mlp``.
        width: VLM width, as ``mlp``; ``depth``, ``heads`` and ``head_dim`` hold for VLM and expert.
        expert_width: Action expert width, as ``expert_mlp``.
        vocab: Rows of the token embedding.
        state_dim: Robot state width, padded.
        action_dim: Action width, padded.
        horizon: Actions in a chunk.
        steps: Denoising steps.
    """

    image_size: int = 224
    stem: tuple[tuple[int, int, int], ...] = ((1152, 14, 14),)
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
    state_dim: int = 32
    action_dim: int = 32
    horizon: int = 50
    steps: int = 10

    @property
    def tokens_per_view(self) -> int:
        """Visual tokens that one view becomes."""
        side = self.image_size
        for _, kernel, stride in self.stem:
            side = (side - kernel) // stride + 1 if kernel == stride else math.ceil(side / stride)
        return side * side


PI0 = Pi0Config()
TINY = Pi0Config(
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
    state_dim=11,
    action_dim=7,
    horizon=16,
)
TINY_COARSE = replace(  # a quarter of the visual tokens: for suites on which frames and time are dear
    TINY,
    stem=((24, 3, 2), (48, 3, 2), (96, 3, 2), (128, 3, 2)),
    vision_width=128,
    vision_heads=4,
    vision_mlp=320,
)


@dataclass(frozen=True)
class Inputs:
    """What a processor hands to the model.

    Attributes:
        images: [B, V, 3, S, S] in [-1, 1], in the model's order of views.
        tokens: [B, T] int64.
        token_mask: [B, T] bool, False for padding.
        state: [B, state_dim], normalised.
        view_mask: [B, V] bool, False for a camera that the robot lacks; None if all are there.
    """

    images: Tensor
    tokens: Tensor
    token_mask: Tensor
    state: Tensor
    view_mask: Tensor | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """Moves everything to a device, and what is not an index or a mask to a precision."""
        return Inputs(
            self.images.to(device, dtype),
            self.tokens.to(device),
            self.token_mask.to(device),
            self.state.to(device, dtype),
            None if self.view_mask is None else self.view_mask.to(device),
        )


@dataclass(frozen=True)
class Prefix:
    """Embeddings before the first VLM layer.

    Attributes:
        embeddings: [B, P, width].
        mask: [B, P] bool, False for padding; None where nothing is masked.
        visual: Number of visual tokens; they come first.
    """

    embeddings: Tensor
    mask: Tensor | None
    visual: int


@dataclass(frozen=True)
class Context:
    """What the action expert attends to.

    Attributes:
        keys: Per layer [B, S, head_dim], rotated; as ``values`` [B, S, head_dim].
        values: See ``keys``.
        position: [B] position of the next token.
        mask: [B, S] bool, False for padding; None where nothing is masked.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    position: Tensor
    mask: Tensor | None = None

    def expand(self, branches: int) -> Context:
        """Returns the context repeated ``branches`` times, branch-major; free of copies where B is 1."""

        def widen(x: Tensor) -> Tensor:
            return x.expand(branches, *x.shape[1:]) if len(x) == 1 else x.repeat(branches, *[1] * (x.ndim - 1))

        mask = None if self.mask is None else widen(self.mask)
        return Context(tuple(map(widen, self.keys)), tuple(map(widen, self.values)), widen(self.position), mask)


class RMSNorm(nn.Module):
    """Gemma's norm: scales by 1 + weight, in float32."""

    def __init__(self, width: int) -> None:
        """Starts as the plain norm."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalises the last dimension."""
        wide = F.rms_norm(x.float(), (x.shape[-1],), 1.0 + self.weight.float(), 1e-6)
        return wide.to(x.dtype)


class GeGLU(nn.Module):
    """Gemma's gated FFN; gate and up are one matrix."""

    def __init__(self, width: int, hidden: int) -> None:
        """``hidden`` is the number of neurons."""
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def hidden(self, x: Tensor) -> Tensor:
        """Returns the post-gate activation [.., hidden]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return F.gelu(gate, approximate="tanh") * up

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., width]."""
        return self.down(self.hidden(x))


class GemmaLayer(nn.Module):
    """One decoder layer with a single key-value head. Attention is the caller's: it decides who sees whom."""

    def __init__(self, width: int, mlp: int, heads: int, head_dim: int) -> None:
        """Dimensions as in :class:`Pi0Config`."""
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.ffn = GeGLU(width, mlp)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns rotated queries [B, T, heads, head_dim], rotated keys and values [B, T, head_dim]."""
        q, k, v = self.qkv(self.attention_norm(x)).split([self.heads * self.head_dim, self.head_dim, self.head_dim], -1)
        q = q.unflatten(-1, (self.heads, self.head_dim))
        return rotate(q, rope), rotate(k.unsqueeze(2), rope).squeeze(2), v

    def keys_values(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns only the rotated keys and the values, each [B, T, head_dim]."""
        weight = self.qkv.weight[self.heads * self.head_dim :]
        k, v = F.linear(self.attention_norm(x), weight).chunk(2, -1)
        return rotate(k.unsqueeze(2), rope).squeeze(2), v

    def attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Adds the attention output; ``mask`` is [B, T or 1, S] bool."""
        batch, length, heads, dim = q.shape
        # One key-value head: fold the query heads into rows, so no key is copied.
        q = q.transpose(1, 2).reshape(batch, 1, heads * length, dim)
        if mask is not None:
            mask = (mask if mask.shape[1] == 1 else mask.repeat(1, heads, 1)).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, k.unsqueeze(1), v.unsqueeze(1), attn_mask=mask)
        return x + self.out(mixed.view(batch, heads, length, dim).transpose(1, 2).flatten(2))


class SigLIP(nn.Module):
    """SigLIP's vision tower and PaliGemma's linear projector."""

    def __init__(self, config: Pi0Config) -> None:
        """Dimensions as in :class:`Pi0Config`."""
        super().__init__()
        channels, stem = 3, []
        for width, kernel, stride in config.stem:
            stem.append(nn.Conv2d(channels, width, kernel, stride, 0 if kernel == stride else kernel // 2))
            channels = width
        self.stem = nn.ModuleList(stem)
        self.positions = nn.Parameter(torch.zeros(config.tokens_per_view, config.vision_width))
        self.layers = nn.ModuleList(SigLIPLayer(config) for _ in range(config.vision_depth))
        self.norm = nn.LayerNorm(config.vision_width, eps=1e-6)
        self.project = nn.Linear(config.vision_width, config.width)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] in [-1, 1] -> [N, tokens, width]."""
        x = images
        for number, convolution in enumerate(self.stem):
            x = convolution(x if number == 0 else F.gelu(x, approximate="tanh"))
        x = x.flatten(2).transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.project(self.norm(x))


class SigLIPLayer(nn.Module):
    """A pre-norm transformer layer with biases and a plain GELU FFN."""

    def __init__(self, config: Pi0Config) -> None:
        """Dimensions as in :class:`Pi0Config`."""
        super().__init__()
        width = config.vision_width
        self.heads = config.vision_heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, config.vision_mlp), nn.Linear(config.vision_mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh"))


class Pi0(nn.Module):
    """The model. Parameters are uninitialised copies of PyTorch's defaults until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    def __init__(self, config: Pi0Config) -> None:
        """Builds the modules on the current default device."""
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=1.0, prediction="velocity", steps=config.steps)
        layer = (config.heads, config.head_dim)
        self.vision = SigLIP(config)
        self.embed = nn.Embedding(config.vocab, config.width)
        self.vlm = nn.ModuleList(GemmaLayer(config.width, config.mlp, *layer) for _ in range(config.depth))
        # The last layer gives keys and values only; the published file's further weights there are never used.
        self.expert = nn.ModuleList(
            GemmaLayer(config.expert_width, config.expert_mlp, *layer) for _ in range(config.depth)
        )
        self.expert_norm = RMSNorm(config.expert_width)
        self.state_in = nn.Linear(config.state_dim, config.expert_width)
        self.action_in = nn.Linear(config.action_dim, config.expert_width)
        self.time_in = nn.Linear(2 * config.expert_width, config.expert_width)
        self.time_out = nn.Linear(config.expert_width, config.expert_width)
        self.action_out = nn.Linear(config.expert_width, config.action_dim)

    def encode(self, inputs: Inputs, drop: bool = True) -> Prefix:
        """Embeds views and text; drops (exactly) the tokens that every row masks, unless ``drop`` is False."""
        batch, views = inputs.images.shape[:2]
        visual = self.vision(inputs.images.flatten(0, 1)).unflatten(0, (batch, views)).flatten(1, 2)
        text = self.embed(inputs.tokens) * math.sqrt(self.config.width)
        embeddings = torch.cat([visual, text.to(visual.dtype)], 1)
        seen = visual.new_ones((batch, views), dtype=torch.bool) if inputs.view_mask is None else inputs.view_mask
        mask = torch.cat([seen.repeat_interleave(self.config.tokens_per_view, 1), inputs.token_mask], 1)
        if mask.all():
            return Prefix(embeddings, None, visual.shape[1])
        used = mask.any(0) if drop else torch.ones_like(mask[0])
        mask, kept = mask[:, used], int(used[: visual.shape[1]].sum())
        return Prefix(embeddings[:, used], None if mask.all() else mask, kept)

    def prefill(self, prefix: Prefix, ffn: FFN = dense_ffn) -> Context:
        """Runs the VLM over the prefix (bidirectional) and keeps each layer's keys and values."""
        x, mask = prefix.embeddings, prefix.mask
        batch, length, _ = x.shape
        if mask is None:
            positions = torch.arange(length, device=x.device).expand(batch, -1)
            end, rows = torch.full((batch,), length, device=x.device), None
        else:
            positions = (mask.cumsum(1) - 1).clamp_min(0)
            end, rows = mask.sum(1), mask[:, None, :]
        rope = rope_table(positions, self.config.head_dim, x.dtype)
        keys, values = [], []
        for number, layer in enumerate(_layers(self.vlm)):
            if number == self.config.depth - 1:
                k, v = layer.keys_values(x, rope)
            else:
                q, k, v = layer.project(x, rope)
                x = layer.attend(x, q, k, v, rows)
                x = x + ffn(number, layer.ffn_norm(x), layer.ffn)
            keys.append(k)
            values.append(v)
        return Context(tuple(keys), tuple(values), end, mask)

    def see_state(self, context: Context, state: Tensor, ffn: FFN = dense_ffn) -> Context:
        """Returns the context with the state token appended; the state [B, state_dim] attends to prefix and itself."""
        x = self.state_in(state).unsqueeze(1)
        x, keys, values = self._expert(x, context, ffn, keep=True)
        mask = None if context.mask is None else F.pad(context.mask, (0, 1), value=True)
        return Context(tuple(keys), tuple(values), context.position + 1, mask)

    def step(self, x: Tensor, time: Tensor | float, context: Context, ffn: FFN = dense_ffn) -> Tensor:
        """Evaluates the velocity field.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B].
            context: From ``see_state``; expand it first where B holds several branches of a row.
            ffn: How an expert layer obtains its FFN output.

        Returns:
            [B, horizon, action_dim] float32.
        """
        x = x.to(self.action_in.weight.dtype)
        action = self.action_in(x)
        time = torch.as_tensor(time, dtype=torch.float32, device=x.device).expand(x.shape[0])
        clock = time_embedding(time, self.config.expert_width).to(action.dtype)[:, None].expand_as(action)
        hidden = self.time_out(F.silu(self.time_in(torch.cat([action, clock], -1))))
        hidden, _, _ = self._expert(hidden, context, ffn, keep=False)
        return self.action_out(self.expert_norm(hidden)).float()

    def _expert(self, x: Tensor, context: Context, ffn: FFN, keep: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Runs the expert over new tokens that see the context and each other."""
        batch, length, _ = x.shape
        positions = context.position[:, None] + torch.arange(length, device=x.device)
        rope = rope_table(positions, self.config.head_dim, x.dtype)
        rows = None
        if context.mask is not None:
            rows = F.pad(context.mask, (0, length), value=True)[:, None, :]
        keys, values = [], []
        for number, layer in enumerate(_layers(self.expert)):
            q, k, v = layer.project(x, rope)
            k, v = torch.cat([context.keys[number], k], 1), torch.cat([context.values[number], v], 1)
            if keep:
                keys.append(k)
                values.append(v)
                if number == self.config.depth - 1:
                    break  # nothing reads the last layer's output of the state token
            x = layer.attend(x, q, k, v, rows)
            x = x + ffn(number, layer.ffn_norm(x), layer.ffn)
        return x, keys, values


def _layers(stack: nn.ModuleList) -> list[GemmaLayer]:
    return cast("list[GemmaLayer]", list(stack))


def rope_table(positions: Tensor, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine [B, T, 1, head_dim / 2] of rotary angles with base 10000."""
    frequency = 10_000.0 ** (-torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32) * 2 / head_dim)
    angle = positions[..., None].float() * frequency
    return angle.cos()[:, :, None].to(dtype), angle.sin()[:, :, None].to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates [B, T, heads, head_dim], the halves of a head being the pairs."""
    cos, sin = rope
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def time_embedding(time: Tensor, width: int, shortest: float = 4e-3, longest: float = 4.0) -> Tensor:
    """Returns [B, width] sines and cosines of the flow time with periods from ``shortest`` to ``longest``."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=time.device)
    period = shortest * (longest / shortest) ** fraction
    angle = time.double()[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], 1).float()
