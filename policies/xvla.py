"""X-VLA: Florence-2 reads a view and the text, and one transformer for all robots denoises next to what it read.

What differs from robot to robot is small: the projections of actions into and out of the transformer, and soft prompts,
rows that are learned for each robot. The other views skip Florence-2's language encoder. There are no keys and values
to keep: the context's rows attend to the actions in every block, and so all rows take part in every denoising step. The
network predicts the clean action, and gripper channels as logits, which it never reads back.

Exact savings that are on:

* the context is projected once per round, and so is the state, which is a part of every action's row;
* the last block computes the rows of the actions only;
* a view that the robot lacks is not encoded: its tokens are zeros, which are projected all the same, as in training;
* windows are padded behind the projection (``davit.py``).

Seams: STEP_FFN and STEP_ROWS, whose rows are the actions' and then the context's. The last block has outputs at the
actions only, whatever the rows are; these choose its keys and values. Not PREFILL_ROWS and PREFILL_FFN: the prefill is
2 % of a round's operations at full size, so nothing could be won there.

Architecture: X-VLA (Zheng et al., 2025) as in lerobot 0.6.1; checked against it in tests/policies/test_xvla_parity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checkpoint import check_sizes
from .davit import DaViT, side_after
from .dit import ByRobot
from .families import Family
from .florence import BartEncoder, FlorenceVision
from .flow import FlowSpec
from .model import DENSE, FlowModel, Inputs, Ops, Prefix, Seam, widen
from .standardised import Standardised
from .wan import FFN, time_features

_PERIOD = 100.0  # of the slowest sine of a flow time, in radians per unit of time
_PER_STAGE = ("vision_widths", "vision_depths", "vision_heads", "vision_groups")
_MOST = {
    **dict.fromkeys(("vlm_depth", "depth", "heads", "vlm_heads", "window", "domains", "views", "stages"), 256),
    **dict.fromkeys(("horizon", "steps", "image_size", "prompts", "state_dim", "action_dim"), 1024),
}
"""Largest values in a checkpoint, well beyond any published model."""


@dataclass(frozen=True)
class XVLAConfig:
    """Dimensions of an X-VLA. The defaults are the published ones: Florence-2-large and 24 blocks.

    Attributes:
        image_size: Side of a view in pixels.
        vision_widths: Channels of each stage of the vision tower.
        vision_depths: Pairs of blocks of each.
        vision_heads: Attention heads of each, over pixels.
        vision_groups: Groups of channels of each.
        window: Side of a window of attention over pixels.
        vision_positions: Rows, and columns, of the vision tower's grid that positions exist for.
        vlm_width: Width of a visual token and of the language encoder.
        vlm_mlp: FFN neurons of the language encoder.
        vlm_depth: Layers of the language encoder.
        vlm_heads: Its attention heads.
        vlm_positions: Its longest sequence.
        vocab: Rows of the text embedding.
        width: Width of the transformer.
        mlp: FFN neurons of the transformer.
        depth: Blocks of the transformer.
        heads: Its attention heads.
        time_width: Sines and cosines of a flow time.
        positions: Rows of actions, views and text that positions exist for.
        domains: Robots.
        prompts: Soft prompts per robot.
        views: Views; those that a robot lacks are zeros.
        state_dim: Robot state width; narrower states are padded with zeros.
        action_dim: Action width.
        grippers: Channels of an action that are logits, and that are read neither from actions nor from the state.
        horizon: Actions in a chunk.
        steps: Denoising steps.

    Raises:
        ValueError: A dimension is out of range, or two do not fit each other.
    """

    image_size: int = 224
    vision_widths: tuple[int, ...] = (256, 512, 1024, 2048)
    vision_depths: tuple[int, ...] = (1, 1, 9, 1)
    vision_heads: tuple[int, ...] = (8, 16, 32, 64)
    vision_groups: tuple[int, ...] = (8, 16, 32, 64)
    window: int = 12
    vision_positions: int = 50
    vlm_width: int = 1024
    vlm_mlp: int = 4096
    vlm_depth: int = 12
    vlm_heads: int = 16
    vlm_positions: int = 1024
    vocab: int = 51_289
    width: int = 1024
    mlp: int = 4096
    depth: int = 24
    heads: int = 16
    time_width: int = 32
    positions: int = 512
    domains: int = 30
    prompts: int = 32
    views: int = 3
    state_dim: int = 20
    action_dim: int = 20
    grippers: tuple[int, ...] = (9, 19)
    horizon: int = 30
    steps: int = 10

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        stages = {name: getattr(self, name) for name in _PER_STAGE}
        each = {f"{name}[{number}]": value for name, values in stages.items() for number, value in enumerate(values)}
        check_sizes({**sizes, **each, "stages": len(self.vision_widths)}, _MOST)
        if len({len(values) for values in stages.values()}) > 1:
            raise ValueError(f"the vision tower needs a value for each of its stages, got {stages}")
        for width, heads, groups in zip(self.vision_widths, self.vision_heads, self.vision_groups, strict=True):
            if width % heads or width % groups:
                raise ValueError(f"vision_heads {heads} and vision_groups {groups} must divide vision_widths {width}")
        if self.width % self.heads or self.vlm_width % self.vlm_heads:
            raise ValueError(
                f"heads {self.heads} must divide width {self.width}, and vlm_heads {self.vlm_heads} vlm_width "
                f"{self.vlm_width}"
            )
        if self.time_width % 2 or self.vision_widths[-1] % 2:
            raise ValueError(
                f"time_width {self.time_width} and the last of vision_widths {self.vision_widths} must be even"
            )
        if not all(0 <= channel < self.action_dim for channel in self.grippers):
            raise ValueError(f"grippers must be among {self.action_dim} channels, got {self.grippers}")
        if side_after(self.image_size, len(self.vision_widths)) > self.vision_positions or self.spare < 1:
            raise ValueError(
                f"{self.views} views of {self.image_size} pixels and a horizon of {self.horizon} leave no place for a "
                f"text: there are {self.positions} positions, and {self.vision_positions} along a side of a view"
            )

    @property
    def tokens_per_view(self) -> int:
        """Visual tokens that one view becomes."""
        return 1 + side_after(self.image_size, len(self.vision_widths)) ** 2

    @property
    def spare(self) -> int:
        """Tokens of a text that there are positions for."""
        return min(
            self.positions - self.horizon - self.views * self.tokens_per_view,
            self.vlm_positions - self.tokens_per_view,
        )


X_VLA = XVLAConfig()
TINY = XVLAConfig(
    image_size=64,
    vision_widths=(32, 64, 96),
    vision_depths=(1, 1, 1),
    vision_heads=(2, 4, 6),
    vision_groups=(2, 4, 6),
    window=8,
    vision_positions=4,
    vlm_width=96,
    vlm_mlp=256,
    vlm_depth=2,
    vlm_heads=4,
    vlm_positions=64,
    vocab=128,
    width=128,
    mlp=384,
    depth=4,
    heads=4,
    positions=96,
    domains=2,
    prompts=4,
    views=2,
    state_dim=11,
    action_dim=7,
    grippers=(),
    horizon=16,
)


@dataclass(frozen=True)
class XVLAContext:
    """What the transformer reads besides the actions.

    Attributes:
        rows: [B, S, width] the first view and the text, then the other views.
    """

    rows: Tensor

    def expand(self, branches: int) -> XVLAContext:
        """Returns the context repeated ``branches`` times, branch-major; free of copies where B is 1."""
        return replace(self, **{each.name: widen(getattr(self, each.name), branches) for each in fields(self)})


@dataclass(frozen=True)
class Conditioned(XVLAContext):
    """A context with the robot's own weights and its state; the soft prompts are the last of its rows.

    Attributes:
        action_in: [B, action_dim, width].
        time_in: [B, time_width, width].
        given: [B, horizon, width] what state and place add to the rows of the actions.
        action_out: [B, width, action_dim].
        offset: [B, 1, action_dim].
    """

    action_in: Tensor
    time_in: Tensor
    given: Tensor
    action_out: Tensor
    offset: Tensor


class Block(nn.Module):
    """A pre-norm transformer block.

    Args:
        width: Width.
        mlp: Neurons of the FFN.
        heads: Attention heads.
    """

    def __init__(self, width: int, mlp: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn = FFN(width, mlp)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns queries, keys and values, each [B, T, heads, head_dim]."""
        return self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)

    def project_keys(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns only keys and values."""
        return self._part(x, slice(self.width, None)).unflatten(-1, (2, self.heads, -1)).unbind(2)

    def project_queries(self, x: Tensor) -> Tensor:
        """Returns only queries."""
        return self._part(x, slice(self.width)).unflatten(-1, (self.heads, -1))

    def finish(
        self, ops: Ops, layer: int, x: Tensor, attention: tuple[Tensor, Tensor, Tensor], rows: Tensor | None
    ) -> Tensor:
        """Returns the output [B, R, width] at the computed rows.

        Args:
            ops: Answers at this layer.
            layer: Its number.
            x: [B, R, width] the input at these rows.
            attention: Their queries, and the keys and values that they see.
            rows: [R] the computed rows, None for all.
        """
        q, k, v = attention
        ops.attended(layer, q, k)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + ops.ffn(layer, self.ffn_norm(x), self.ffn, rows)

    def _part(self, x: Tensor, part: slice) -> Tensor:
        return F.linear(self.norm(x), self.qkv.weight[part], self.qkv.bias[part])


class XVLA(FlowModel):
    """The model. Its parameters mean nothing until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    seams: ClassVar[frozenset[Seam]] = frozenset({Seam.STEP_ROWS, Seam.STEP_FFN})
    context: ClassVar[type] = XVLAContext

    def __init__(self, config: XVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=1.0, prediction="action", steps=config.steps, sampler="renoise")
        self.horizon, self.action_dim = config.horizon, config.action_dim
        tower = DaViT(
            config.vision_widths, config.vision_depths, config.vision_heads, config.vision_groups, config.window
        )
        self.vision = FlorenceVision(tower, config.vision_widths[-1], config.vision_positions, config.vlm_width)
        self.embed = nn.Embedding(config.vocab, config.vlm_width)
        self.encoder = BartEncoder(
            config.vlm_width, config.vlm_mlp, config.vlm_depth, config.vlm_heads, config.vlm_positions
        )
        self.read_in, self.views_in = (nn.Linear(config.vlm_width, config.width) for _ in range(2))
        self.positions = nn.Parameter(torch.zeros(config.positions, config.width))
        self.prompts = nn.Parameter(torch.randn(config.domains, config.prompts, config.width) * 0.02)
        self.action_in = ByRobot(config.domains, config.action_dim + config.state_dim + config.time_width, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.mlp, config.heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)
        self.action_out = ByRobot(config.domains, config.width, config.action_dim)

    def encode(self, inputs: Inputs) -> Prefix:
        """Embeds views, in their order and zeros for those that do not exist, and then the text with its padding."""
        batch, views = inputs.images.shape[:2]
        visual = self.vision(inputs.images.flatten(0, 1)).unflatten(0, (batch, views))
        if inputs.view_mask is not None:
            visual = visual * inputs.view_mask[..., None, None]
        visual = F.pad(visual, (0, 0, 0, 0, 0, self.config.views - views)).flatten(1, 2)
        return Prefix(torch.cat([visual, self.embed(inputs.tokens)], 1), None, visual.shape[1])

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> XVLAContext:
        """Lets the language encoder read the first view and the text; the other views join behind it."""
        first = self.config.tokens_per_view
        seen, others, text = prefix.embeddings.tensor_split((first, prefix.visual), 1)
        read = self.encoder(torch.cat([seen, text], 1))
        rows = torch.cat([self.read_in(read), self.views_in(others)], 1)
        return XVLAContext(rows + self.positions[self.horizon : self.horizon + rows.shape[1]])

    def condition(self, context: XVLAContext, inputs: Inputs) -> Conditioned:
        """Returns the context with soft prompts, and what the robot and its state make of the rows of the actions.

        Raises:
            ValueError: The inputs do not name the robot.
        """
        if inputs.embodiment is None:
            raise ValueError("X-VLA needs to know the robot: give its domain as the inputs' embodiment")
        state = inputs.state[:, None]
        weight, bias = self.action_in.of(inputs.embodiment)
        action_in, state_in, time_in = weight.tensor_split((self.action_dim, -self.config.time_width), 1)
        state_in = state_in[:, : state.shape[-1]]
        for channel in self.config.grippers:
            for matrix in (action_in, state_in):
                matrix[:, channel : channel + 1].zero_()
        action_out, offset = self.action_out.of(inputs.embodiment)
        return Conditioned(
            torch.cat([context.rows, self.prompts[inputs.embodiment]], 1),
            action_in,
            time_in,
            state @ state_in + bias + self.positions[: self.horizon],
            action_out,
            offset,
        )

    def step(self, x: Tensor, time: Tensor | float, context: Conditioned, ops: Ops = DENSE) -> Tensor:
        """Predicts the clean actions; those of gripper channels are logits.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B].
            context: From ``condition``; expand it first where B holds several branches of a row.
            ops: Answers to the walk over the blocks; their rows are the actions and then those of the context.

        Returns:
            [B, horizon, action_dim] float32.
        """
        time = torch.as_tensor(time, dtype=torch.float32, device=x.device).expand(x.shape[0])
        clock = time_features(time, self.config.time_width, units=1.0, base=_PERIOD)[:, None].to(self.dtype)
        actions = x.to(self.dtype) @ context.action_in + clock @ context.time_in + context.given
        hidden = torch.cat([actions, context.rows], 1)
        *blocks, last = cast("list[Block]", list(self.blocks))
        for layer, block in enumerate(blocks):
            rows = ops.rows(layer, hidden)
            computed = hidden if rows is None else hidden[:, rows]
            q, k, v = block.project(computed)
            computed = block.finish(ops, layer, computed, (q, *ops.keys_values(layer, k, v, rows)), rows)
            hidden = computed if rows is None else ops.scatter(layer, hidden, computed, rows)
        layer, actions = len(blocks), hidden[:, : self.horizon]
        rows = ops.rows(layer, hidden)
        k, v = last.project_keys(hidden if rows is None else hidden[:, rows])
        seen = ops.keys_values(layer, k, v, rows)
        own = torch.arange(self.horizon, device=x.device)
        actions = last.finish(ops, layer, actions, (last.project_queries(actions), *seen), own)
        return (self.norm(actions) @ context.action_out + context.offset).float()

    def visual_in_step(self, inputs: Inputs) -> Tensor:
        """See :class:`FlowModel`; the text stands behind the first view."""
        first, every = self.config.tokens_per_view, self.config.views * self.config.tokens_per_view
        place = torch.arange(every, device=self.device) + self.horizon
        place[first:] += inputs.tokens.shape[1]
        return place


@dataclass(frozen=True)
class XVLAProcessor(Standardised):
    """Conventions of an X-VLA: scaled states and actions, the instruction's tokens, and the robot.

    Attributes:
        embodiment: The robot's number among those of the model.
    """

    embodiment: int = 0

    def check(self, config: Any) -> None:
        """Raises ValueError unless a model of these dimensions fits the conventions."""
        super().check(config)
        if not 0 <= self.embodiment < config.domains:
            raise ValueError(f"embodiment must be in 0..{config.domains - 1}, got {self.embodiment}")
        if len(self.cameras) > config.views or self.max_tokens > config.spare:
            raise ValueError(
                f"{len(self.cameras)} cameras and {self.max_tokens} tokens do not fit a model of {config.views} views "
                f"and {config.spare} tokens"
            )

    def assemble(self, images: Tensor, tokens: Tensor, state: Tensor) -> Inputs:
        """See :class:`Standardised`; the inputs name the robot."""
        return replace(super().assemble(images, tokens, state), embodiment=torch.full((len(images),), self.embodiment))


FAMILY = Family(
    "x_vla",
    XVLAConfig,
    XVLA,
    XVLAProcessor,
    sizes={
        "full": X_VLA,
        "layers": replace(X_VLA, vision_depths=(1, 1, 1, 1), vlm_depth=2, depth=2, vocab=1024),
        "tiny": TINY,
    },
)
