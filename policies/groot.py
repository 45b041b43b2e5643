"""GR00T N1.6: a vision-language model whose last features, text and images apart, are read by a diffusion transformer.

The prompt is a chat in which visual tokens stand where the images are; the language model is causal. The transformer's
rows are the state and the actions: its blocks attend in turn to the text, to themselves, to the images and to
themselves. Encoders and decoder of states and actions have weights for each robot.

Exact savings that are on:

* masked tokens are dropped where a whole batch masks them (the padding, which stands before the prompt or behind it);
* keys and values that blocks read of text and images are computed once per round, each of the tokens that it may see;
* what a flow time makes of the blocks (a scale and a shift each), and its waves in the action encoder, are kept;
* the time's half of the action encoder's second layer is computed for one row, since it is the same for all.

It offers two seams, PREFILL_FFN and STEP_FFN. The language model is causal: a token's row depends on all rows before
it, so that what a method keeps of a row of an earlier round is exact only while everything before it is unchanged, too.
PREFILL_ROWS would hand out keys and values that nothing reads, since only the last features leave the language model.
STEP_ROWS would apply to every other block: in those between, keys and values are the context's.

Architecture: GR00T N1.6 (NVIDIA, 2025); checked against the public implementation in
tests/policies/test_groot_parity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import paligemma
from .checkpoint import check_sizes
from .dit import ByRobot, Chosen, DiTBlock, Modulation, norm, waves
from .families import Family
from .flow import FlowSpec
from .gemma import rotary
from .groot_processor import GrootProcessor
from .model import DENSE, FlowModel, Inputs, Ops, Prefix, Seam, widen
from .modulated import Modulated
from .qwen3 import BASE, Qwen3Layer, ScaledRMSNorm, causal
from .siglip2 import FOLD, SigLIP2

BUCKETS = 1000
"""The flow time is a whole number of thousandths: 0, 250, 500 and 750 in four steps."""

_WAVES = 256  # sines and cosines of a flow time, before the embedding
_MOST = {
    **dict.fromkeys(("depth", "vision_depth", "expert_depth", "heads", "kv_heads"), 256),
    **dict.fromkeys(("vision_heads", "expert_heads", "robots", "grid", "patch"), 256),
    **dict.fromkeys(("horizon", "steps", "image_size"), 1024),
}
"""Largest values in a checkpoint, well beyond any published model."""


@dataclass(frozen=True)
class GrootConfig:
    """Dimensions of a GR00T N1.6. The defaults are those of the published base model of 3 billion parameters.

    Attributes:
        image_size: Side of an image in pixels.
        patch: Side of a patch in pixels; a visual token is two by two of them.
        grid: Side of the vision tower's table of positions, in patches.
        vision_width: Width of the vision tower.
        vision_depth: Layers of the vision tower.
        vision_heads: Attention heads of the vision tower.
        vision_mlp: FFN neurons of the vision tower.
        width: Width of the language model.
        mlp: FFN neurons of the language model.
        depth: Layers of the language model.
        heads: Query heads of the language model.
        kv_heads: Key and value heads of the language model.
        head_dim: Width of a head of the language model.
        vocab: Rows of the token embedding.
        image_token: Token in whose places the visual tokens stand.
        expert_width: Width of the diffusion transformer.
        expert_mlp: FFN neurons of the diffusion transformer.
        expert_depth: Blocks of the diffusion transformer.
        expert_heads: Attention heads of the diffusion transformer.
        robot_width: Hidden width of the state encoder and of the action decoder.
        robots: Robots that have encoders and a decoder of their own.
        places: Rows of the table of action positions.
        state_dim: Robot state width; narrower states are padded with zeros.
        action_dim: Action width, padded.
        horizon: Actions in a chunk.
        steps: Denoising steps.

    Raises:
        ValueError: A dimension is out of range, or two do not fit each other.
    """

    image_size: int = 252
    patch: int = 14
    grid: int = 16
    vision_width: int = 1152
    vision_depth: int = 27
    vision_heads: int = 16
    vision_mlp: int = 4304
    width: int = 2048
    mlp: int = 6144
    depth: int = 16
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 151_680
    image_token: int = 151_669
    expert_width: int = 1536
    expert_mlp: int = 6144
    expert_depth: int = 32
    expert_heads: int = 32
    robot_width: int = 1024
    robots: int = 32
    places: int = 1024
    state_dim: int = 128
    action_dim: int = 128
    horizon: int = 50
    steps: int = 4

    def __post_init__(self) -> None:
        check_sizes(vars(self), _MOST)
        if self.image_size % (FOLD * self.patch):
            raise ValueError(
                f"image_size {self.image_size} must be a multiple of {FOLD * self.patch}, a token's pixels"
            )
        if self.vision_width % self.vision_heads or self.expert_width % self.expert_heads or self.expert_width % 2:
            raise ValueError(
                f"vision_heads {self.vision_heads} must divide vision_width {self.vision_width}, and expert_heads "
                f"{self.expert_heads} expert_width {self.expert_width}, which must be even"
            )
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise ValueError(
                f"kv_heads {self.kv_heads} must divide heads {self.heads}, and head_dim {self.head_dim} must be even"
            )
        if self.image_token >= self.vocab or self.horizon > self.places:
            raise ValueError(
                f"image_token {self.image_token} must be below vocab {self.vocab}, and horizon {self.horizon} at most "
                f"places {self.places}"
            )

    @property
    def tokens_per_view(self) -> int:
        """Visual tokens that one view becomes."""
        return (self.image_size // (FOLD * self.patch)) ** 2


GROOT_N1_6 = GrootConfig()
TINY = GrootConfig(
    image_size=64,
    patch=8,
    grid=8,
    vision_width=96,
    vision_depth=2,
    vision_heads=3,
    vision_mlp=256,
    width=128,
    mlp=256,
    depth=4,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab=128,
    image_token=127,
    expert_width=128,
    expert_mlp=512,
    expert_depth=4,
    expert_heads=4,
    robot_width=128,
    robots=1,
    places=16,
    state_dim=11,
    action_dim=7,
    horizon=16,
)


class Source(NamedTuple):
    """The tokens of one kind, text or images.

    Attributes:
        columns: [S] int64, those that any row of the batch has.
        mask: [B, S] bool, which of them each row sees; None where all are seen.
    """

    columns: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class GrootPrefix(Prefix):
    """Embeddings of the prompt. Visual tokens stand where the prompt has them: ``visual`` is 0, none come first.

    Attributes:
        sources: The text's tokens, and the images'.
    """

    sources: tuple[Source, Source]

    def visual_rows(self) -> Tensor:
        """Returns [V] int64 which rows are visual tokens, view by view."""
        return self.sources[1].columns


class Robots(NamedTuple):
    """The layers of a batch's robots that a step needs, in the order of their use."""

    action_in: Chosen
    mixed: Chosen
    action_features: Chosen
    decoder_in: Chosen
    decoder_out: Chosen


@dataclass(frozen=True)
class GrootContext:
    """What the diffusion transformer reads.

    Attributes:
        pairs: Keys and values [B, S, heads, head_dim] of each crossing block: of the text in the first, of the images
            in the second, and so on.
        masks: [B, S] bool of the text and of the images, False where a row does not see a column; None where none is
            hidden.
        state: [B, 1, expert_width], the transformer's first row; None before ``condition``.
        robots: Their layers; None before ``condition``.
    """

    pairs: tuple[tuple[Tensor, Tensor], ...]
    masks: tuple[Tensor | None, Tensor | None]
    state: Tensor | None = None
    robots: Robots | None = None

    def expand(self, branches: int) -> GrootContext:
        """Returns the context repeated ``branches`` times, branch-major; free of copies where B is 1."""
        text, images = (None if mask is None else widen(mask, branches) for mask in self.masks)
        return GrootContext(
            tuple((widen(k, branches), widen(v, branches)) for k, v in self.pairs),
            (text, images),
            None if self.state is None else widen(self.state, branches),
            None
            if self.robots is None
            else Robots(*(Chosen(*(widen(x, branches) for x in layer)) for layer in self.robots)),
        )


class Modulations(NamedTuple):
    """What a flow time makes of the transformer.

    Attributes:
        blocks: Of each block's first norm.
        last: Of the norm behind all blocks.
        clock: [B or 1, 1, expert_width] waves of the time, for the action encoder.
    """

    blocks: list[Modulation]
    last: Modulation
    clock: Tensor


class Groot(Modulated[Modulations], FlowModel):
    """The model. Its parameters mean nothing until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    predicts: ClassVar[str] = "decoder_out"
    seams: ClassVar[frozenset[Seam]] = frozenset({Seam.PREFILL_FFN, Seam.STEP_FFN})
    context: ClassVar[type] = GrootContext

    def __init__(self, config: GrootConfig) -> None:
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=0.0, prediction="velocity", steps=config.steps)
        self.horizon, self.action_dim = config.horizon, config.action_dim
        wide, hidden, robots = config.expert_width, config.robot_width, config.robots
        self.vision = SigLIP2(
            config.patch,
            config.grid,
            config.vision_width,
            config.vision_depth,
            config.vision_heads,
            config.vision_mlp,
            config.width,
        )
        self.embed = nn.Embedding(config.vocab, config.width)
        self.llm = nn.ModuleList(
            Qwen3Layer(config.width, config.mlp, config.heads, config.kv_heads, config.head_dim)
            for _ in range(config.depth)
        )
        self.llm_norm = ScaledRMSNorm(config.width)
        self.features_norm = nn.LayerNorm(config.width)
        self.state_in, self.state_out = ByRobot(robots, config.state_dim, hidden), ByRobot(robots, hidden, wide)
        self.action_in = ByRobot(robots, config.action_dim, wide)
        self.mixed = ByRobot(robots, 2 * wide, wide)
        self.action_features = ByRobot(robots, wide, wide)
        self.places = nn.Parameter(torch.zeros(config.places, wide))
        self.time_in, self.time_out = nn.Linear(_WAVES, wide), nn.Linear(wide, wide)
        self.expert = nn.ModuleList(
            DiTBlock(wide, config.expert_heads, config.expert_mlp, None if number % 2 else config.width)
            for number in range(config.expert_depth)
        )
        self.modulate_last = nn.Linear(wide, 2 * wide)
        self.expert_out = nn.Linear(wide, hidden)
        self.decoder_in, self.decoder_out = ByRobot(robots, hidden, hidden), ByRobot(robots, hidden, config.action_dim)

    def patches(self, images: Tensor) -> Tensor:
        """Returns [B, P, n] the pixels of each visual token, view by view."""
        return paligemma.patches(images, self.config.tokens_per_view)

    def encode(self, inputs: Inputs) -> GrootPrefix:
        """Embeds the prompt and puts the views' visual tokens in their places; drops what the whole batch masks.

        Raises:
            ValueError: The prompt has other places for visual tokens than the views fill.
        """
        batch, views = inputs.images.shape[:2]
        per_view, places = self.config.tokens_per_view, inputs.tokens == self.config.image_token
        # This, and which tokens are padding, waits for the device: shapes depend on it. No later stage waits.
        if not (places.sum(1) == views * per_view).all():
            raise ValueError(
                f"the prompt must have {views * per_view} places for the visual tokens of {views} views, got "
                f"{places.sum(1).tolist()}"
            )
        visual, text = self.vision(inputs.images.flatten(0, 1)), self.embed(inputs.tokens)
        embeddings = text.to(visual.dtype).masked_scatter(places[..., None], visual)
        mask = inputs.token_mask
        if inputs.view_mask is not None:
            view = (places.cumsum(1) - 1).clamp_min(0) // per_view
            mask = mask & (~places | inputs.view_mask.gather(1, view.clamp_max(views - 1)))
        used = mask.any(0)
        mask, places = mask[:, used], places[:, used]
        sources = _source(mask & ~places), _source(mask & places)
        return GrootPrefix(embeddings[:, used], None if mask.all() else mask, 0, sources)

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> GrootContext:
        """Runs the language model over the prompt and returns what each crossing block reads of its features."""
        assert isinstance(prefix, GrootPrefix)
        x, mask = prefix.embeddings, None
        if prefix.mask is None:
            positions = torch.arange(x.shape[1], device=x.device)[None]
        else:
            positions, mask = (prefix.mask.cumsum(1) - 1).clamp_min(0), causal(prefix.mask)
        rope = rotary(positions, self.config.head_dim, x.dtype, BASE)
        for number, layer in enumerate(self.llm):
            x = layer(ops, number, x, rope, mask)
        features = self.features_norm(self.llm_norm(x))
        read = [features[:, source.columns] for source in prefix.sources]
        pairs = tuple(block.keys_values(read[number % 2]) for number, block in enumerate(self._blocks()[::2]))
        return GrootContext(pairs, (prefix.sources[0].mask, prefix.sources[1].mask))

    def condition(self, context: GrootContext, inputs: Inputs) -> GrootContext:
        """Returns the context with the state's row and with the layers of the batch's robots."""
        robots = inputs.embodiment
        if robots is None:
            robots = torch.zeros(1, dtype=torch.int64, device=inputs.state.device)
        state = F.pad(inputs.state, (0, self.config.state_dim - inputs.state.shape[-1]))[:, None]
        layers = (self.action_in, self.mixed, self.action_features, self.decoder_in, self.decoder_out)
        return replace(
            context,
            state=self.state_out.of(robots)(F.relu(self.state_in.of(robots)(state))),
            robots=Robots(*(layer.of(robots) for layer in layers)),
        )

    def step(self, x: Tensor, time: Tensor | float, context: GrootContext, ops: Ops = DENSE) -> Tensor:
        """Evaluates the velocity field.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B]; it is rounded down to thousandths.
            context: From ``condition``; expand it first where B holds several branches of a row.
            ops: Answers to the walk over the blocks; the first of their rows is the state's, the others the actions'.

        Returns:
            [B, horizon, action_dim] float32.
        """
        assert context.state is not None and context.robots is not None
        robots, by = context.robots, self.modulations(time)
        wide = self.config.expert_width
        action = robots.action_in(x.to(self.places.dtype))
        # One matrix of [action | clock]; the clock is the same for every action.
        clock = by.clock @ robots.mixed.weight[:, wide:] + robots.mixed.bias
        action = robots.action_features(F.silu(action @ robots.mixed.weight[:, :wide] + clock))
        hidden = torch.cat([context.state.expand(len(x), -1, -1), action + self.places[: x.shape[1]]], 1)
        for number, block in enumerate(self._blocks()):
            projected = block.project(norm(hidden, by.blocks[number]))
            q, k, v = (*projected, *context.pairs[number // 2]) if block.crosses else projected
            ops.attended(number, q, k)
            mask = context.masks[number // 2 % 2] if block.crosses else None
            hidden = hidden + block.attention(q, k, v, mask)
            hidden = hidden + ops.ffn(number, norm(hidden), block.ffn, None)
        features = self.expert_out(norm(hidden[:, 1:], by.last, 1e-6))
        return robots.decoder_out(F.relu(robots.decoder_in(features))).float()

    def _blocks(self) -> list[DiTBlock]:
        return cast("list[DiTBlock]", list(self.expert))

    def _modulations(self, times: Tensor) -> Modulations:
        # Steps of a tenth are accumulated in float32: 0.7 may lie a rounding below 700 thousandths.
        thousandths = (times * BUCKETS + 1e-3).floor()
        dtype = self.places.dtype
        sine, cosine = waves(thousandths, _WAVES, slowest_is_last=True)
        embedded = self.time_out(F.silu(self.time_in(torch.cat([cosine, sine], 1).to(dtype))))
        condition = F.silu(embedded)
        shift, scale = self.modulate_last(condition)[:, None].chunk(2, -1)  # the other way round than in the blocks
        sine, cosine = waves(thousandths, self.config.expert_width, slowest_is_last=False)
        clock = torch.cat([sine, cosine], 1)[:, None].to(dtype)
        return Modulations(
            [block.modulation(condition) for block in self._blocks()], Modulation(1 + scale, shift), clock
        )


def _source(seen: Tensor) -> Source:
    """Returns the columns that some row sees, and which rows see which; ``seen`` is [B, P] bool."""
    columns = seen.any(0).nonzero()[:, 0]
    mask = seen[:, columns]
    return Source(columns, None if mask.all() else mask)


FAMILY = Family(
    "groot_n1.6",
    GrootConfig,
    Groot,
    GrootProcessor,
    sizes={
        "full": GROOT_N1_6,
        "layers": replace(  # blocks of the expert are of two kinds in turn
            GROOT_N1_6, depth=2, vision_depth=2, expert_depth=4, vocab=1024, image_token=1023
        ),
        "tiny": TINY,
    },
)
