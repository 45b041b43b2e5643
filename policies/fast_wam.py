"""Fast-WAM: a video branch reads the current frame once, and an action branch denoises next to its keys and values.

Both branches are stacks of Wan blocks of equal depth and attention width. In training the video branch also predicts
the frames to come; a policy only runs it over the frame that it sees, at flow time 0, so that its keys and values serve
every denoising step. The state is a token behind the text, which both branches attend to.

Exact savings that are on:

* the last video block gives keys and values only;
* keys and values of the text are computed once per instruction, and those of the state's token once per round;
* modulations depend on the flow time alone and are kept per time;
* the image encoder runs its causal convolutions in two dimensions (``wan_vae.py``).

Architecture: Fast-WAM (2026) as in lerobot 0.6.1; checked against it in tests/policies/test_fast_wam_parity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checkpoint import check_sizes
from .families import Family
from .flow import FlowSpec
from .model import DENSE, FlowModel, Inputs, Ops, Prefix, Seam, widen
from .modulated import Modulated
from .standardised import Standardised
from .wan import Rope, WanBlock, rope, rope_1d, rope_image, time_features
from .wan_vae import WanEncoder

Pairs = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values [B, S, heads, head_dim], per layer."""

_MOST = {
    **dict.fromkeys(("depth", "heads", "vae_blocks", "vae_patch", "stages"), 256),
    **dict.fromkeys(("horizon", "steps", "image_size"), 1024),
}
"""Largest values in a checkpoint, well beyond any published model."""


@dataclass(frozen=True)
class FastWAMConfig:
    """Dimensions of a Fast-WAM. The defaults are the published ones: Wan2.2-TI2V-5B and an action branch of width 1024.

    Attributes:
        image_size: Side of a view in pixels; views lie side by side.
        vae_widths: Channels of the image encoder's stem and after each of its stages.
        vae_blocks: Residual blocks of a stage.
        vae_halves_frames: Whether the autoencoder halves the number of frames in a stage, for all but the last.
        vae_patch: Side of the squares of pixels that the image encoder folds into channels.
        latents: Channels of a latent.
        width: Width of the video branch, and of all attention heads together in both branches.
        mlp: FFN neurons of the video branch.
        depth: Blocks of each branch.
        heads: Attention heads of each branch.
        action_width: Width of the action branch.
        action_mlp: FFN neurons of the action branch.
        text_width: Width of a text embedding.
        time_width: Sines and cosines of a flow time.
        vocab: Rows of the text embedding.
        state_dim: Robot state width.
        action_dim: Action width.
        horizon: Actions in a chunk.
        steps: Denoising steps.
        shift: Moves denoising steps towards the noise; see :class:`~replan.policies.flow.FlowSpec`.

    Raises:
        ValueError: A dimension is out of range, or two do not fit each other.
    """

    image_size: int = 224
    vae_widths: tuple[int, ...] = (160, 160, 320, 640, 640)
    vae_blocks: int = 2
    vae_halves_frames: tuple[bool, ...] = (False, True, True)
    vae_patch: int = 2
    latents: int = 48
    width: int = 3072
    mlp: int = 14336
    depth: int = 30
    heads: int = 24
    action_width: int = 1024
    action_mlp: int = 4096
    text_width: int = 4096
    time_width: int = 256
    vocab: int = 20_480
    state_dim: int = 8
    action_dim: int = 7
    horizon: int = 32
    steps: int = 10
    shift: float = 5.0

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        widths = {f"vae_widths[{number}]": width for number, width in enumerate(self.vae_widths)}
        check_sizes({**sizes, **widths, "stages": len(self.vae_widths) - 1}, _MOST)
        if len(self.vae_halves_frames) != len(self.vae_widths) - 2:
            raise ValueError(
                f"vae_halves_frames must say for each of {len(self.vae_widths) - 2} stages whether it halves the "
                f"number of frames, got {self.vae_halves_frames}"
            )
        halves = (*self.vae_halves_frames, None)  # the last stage keeps height, width and frames
        for frames, width, out in zip(halves, self.vae_widths[:-1], self.vae_widths[1:], strict=True):
            averaged = width * (1 if frames is None else 4 * (1 + frames))
            if averaged % out:
                raise ValueError(f"vae_widths {self.vae_widths}: {averaged} averages do not make {out} channels")
        if self.width % self.heads or (self.width // self.heads) % 2 or self.width // self.heads < 6:
            raise ValueError(f"heads {self.heads} must divide width {self.width} into even parts of at least 6")
        if self.time_width % 2 or self.image_size % (2 * self.ratio):
            raise ValueError(
                f"time_width {self.time_width} must be even, and image_size {self.image_size} a multiple of "
                f"{2 * self.ratio}, the side of a visual token in pixels"
            )

    @property
    def ratio(self) -> int:
        """Pixels per latent, along each side."""
        return self.vae_patch * 2 ** len(self.vae_halves_frames)

    @property
    def tokens_per_view(self) -> int:
        """Visual tokens that one view becomes."""
        return (self.image_size // (2 * self.ratio)) ** 2


FAST_WAM = FastWAMConfig()
TINY = FastWAMConfig(
    image_size=64,
    vae_widths=(24, 48, 48),
    vae_blocks=1,
    vae_halves_frames=(True,),
    latents=16,
    width=128,
    mlp=384,
    depth=4,
    heads=4,
    action_width=96,
    action_mlp=384,
    text_width=64,
    time_width=64,
    vocab=128,
    state_dim=11,
    horizon=16,
)


@dataclass(frozen=True)
class FastWAMPrefix(Prefix):
    """Patch embeddings of the current frame, and what both branches attend to besides.

    Attributes:
        angles: [P, head_dim / 2] rotary angles of the visual tokens.
        tokens: [B, T] of the instruction, 0 at padding.
        words: [B, T, text_width] their embeddings, zero at padding, which both branches see nevertheless.
        state: [B, 1, text_width], the token behind the words.
    """

    angles: Tensor
    tokens: Tensor
    words: Tensor
    state: Tensor


@dataclass(frozen=True)
class FastWAMContext:
    """What the action branch reads.

    Attributes:
        video: Keys and values of the visual tokens, per layer.
        text: Keys and values of text and state in the action branch, per layer.
        turn: Rotary angles of the actions, which all steps of a round share.
    """

    video: Pairs
    text: Pairs
    turn: Rope

    def expand(self, branches: int) -> FastWAMContext:
        """Returns the context repeated ``branches`` times, branch-major."""

        def repeat(pairs: Pairs) -> Pairs:
            return tuple((widen(k, branches), widen(v, branches)) for k, v in pairs)

        return replace(self, video=repeat(self.video), text=repeat(self.text))


class Branch(Modulated[list[tuple[Tensor, ...]]]):
    """What the two branches have in common: a text and a time embedding, and blocks.

    Args:
        config: Dimensions.
        width: Width of the residual stream.
        mlp: FFN neurons.
    """

    def __init__(self, config: FastWAMConfig, width: int, mlp: int) -> None:
        super().__init__()
        self.text_in, self.text_out = nn.Linear(config.text_width, width), nn.Linear(width, width)
        self.time_in, self.time_out = nn.Linear(config.time_width, width), nn.Linear(width, width)
        self.modulate = nn.Linear(width, 6 * width)
        self.blocks = nn.ModuleList(WanBlock(width, config.width, config.heads, mlp) for _ in range(config.depth))
        self.time_width = config.time_width
        self._instruction: tuple[Tensor, Pairs] | None = None  # the latest one's tokens, and what is read of it

    def each_block(self) -> list[WanBlock]:
        """The blocks, typed."""
        return cast("list[WanBlock]", list(self.blocks))

    def read(self, prefix: FastWAMPrefix) -> Pairs:
        """Returns each block's keys and values of the instruction and, behind it, the state.

        Those of the instruction are kept until there is another one; to compare them waits for the device.
        """
        if torch.is_grad_enabled():
            words = self._read(prefix.words)
        else:
            if self._instruction is None or not torch.equal(self._instruction[0], prefix.tokens):
                self._instruction = prefix.tokens, self._read(prefix.words)
            words = self._instruction[1]
        both = zip(words, self._read(prefix.state), strict=True)
        return tuple((torch.cat([k, new_k], 1), torch.cat([v, new_v], 1)) for (k, v), (new_k, new_v) in both)

    def _read(self, text: Tensor) -> Pairs:
        read = self.text_out(F.gelu(self.text_in(text), approximate="tanh"))
        return tuple(block.text_attention.keys_values(read) for block in self.each_block())

    def forget(self) -> None:
        """See :class:`~replan.policies.modulated.Modulated`; forgets the instruction, too."""
        super().forget()
        self._instruction = None

    def _modulations(self, times: Tensor) -> list[tuple[Tensor, ...]]:
        """Those of each block."""
        features = time_features(times, self.time_width).to(self.time_in.weight.dtype)
        embedded = self.time_out(F.silu(self.time_in(features)))
        table = self.modulate(F.silu(embedded)).unflatten(1, (6, -1))
        return [block.modulations(table) for block in self.each_block()]


class FastWAM(FlowModel):
    """The model. Its parameters mean nothing until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    seams: ClassVar[frozenset[Seam]] = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN, Seam.STEP_FFN})
    context: ClassVar[type] = FastWAMContext
    state_in_prefix: ClassVar[bool] = True

    def __init__(self, config: FastWAMConfig) -> None:
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=1.0, prediction="velocity", steps=config.steps, shift=config.shift)
        self.horizon, self.action_dim = config.horizon, config.action_dim
        self.vision = WanEncoder(
            config.vae_widths, config.vae_blocks, config.vae_halves_frames, config.latents, config.vae_patch
        )
        self.text = nn.Embedding(config.vocab, config.text_width)
        self.state_in = nn.Linear(config.state_dim, config.text_width)
        self.patch_in = nn.Conv2d(config.latents, config.width, 2, stride=2)
        self.video = Branch(config, config.width, config.mlp)
        self.action = Branch(config, config.action_width, config.action_mlp)
        self.action_in = nn.Linear(config.action_dim, config.action_width)
        self.action_out = nn.Linear(config.action_width, config.action_dim)

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.config.width // self.config.heads

    def patches(self, images: Tensor) -> Tensor:
        """Returns [B, P, n] the pixels of each visual token; the views are one frame."""
        frame = torch.cat(images.unbind(1), -1)
        return F.unfold(frame, side := 2 * self.config.ratio, stride=side).transpose(1, 2)

    def encode(self, inputs: Inputs) -> FastWAMPrefix:
        """Embeds the views, side by side as one frame, the instruction and the state."""
        frame = torch.cat(inputs.images.unbind(1), -1)
        patches = self.patch_in(self.vision(frame))
        embeddings = patches.flatten(2).transpose(1, 2)
        return FastWAMPrefix(
            embeddings,
            None,
            embeddings.shape[1],
            rope_image(patches.shape[2], patches.shape[3], self.head_dim, frame.device),
            inputs.tokens * inputs.token_mask,
            self.text(inputs.tokens) * inputs.token_mask[..., None],
            self.state_in(inputs.state)[:, None],
        )

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> FastWAMContext:
        """Runs the video branch over the frame at flow time 0 and keeps each block's keys and values."""
        assert isinstance(prefix, FastWAMPrefix)
        x, turn = prefix.embeddings, rope(prefix.angles, prefix.embeddings.dtype)
        texts, modulations = self.video.read(prefix), self.video.modulations(0.0)
        video: list[tuple[Tensor, Tensor]] = []
        for layer, block in enumerate(self.video.each_block()):
            rows = ops.rows(layer, x)
            computed, placed = (x, turn) if rows is None else (x[:, rows], _at(turn, rows))
            if layer == self.config.depth - 1:  # nothing reads its output
                video.append(ops.keys_values(layer, *block.project_keys(computed, placed, modulations[layer]), rows))
                break
            q, k, v = block.project(computed, placed, modulations[layer])
            k, v = ops.keys_values(layer, k, v, rows)
            video.append((k, v))
            computed = block.finish(ops, layer, computed, (q, k, v), texts[layer], modulations[layer], rows)
            x = computed if rows is None else ops.scatter(layer, x, computed, rows)
        angles = rope_1d(self.horizon, self.head_dim // 2, x.device)
        return FastWAMContext(tuple(video), self.action.read(prefix), rope(angles, x.dtype))

    def prefill_flops(self, rows: int, visual: int, text: int) -> int:
        """Returns the floating-point operations of a prefill that computes some rows (WAM-Cache, appendix B).

        Without keys and values of the text. The last block gives keys and values only, which the paper does not count
        on: it computes the whole block.

        Args:
            rows: Visual tokens that are computed.
            visual: Visual tokens.
            text: Tokens of the text, the state's included.
        """
        width, mlp = self.config.width, self.config.mlp
        block = rows * (12 * width**2 + 4 * (visual + text) * width + 4 * width * mlp)
        return (self.config.depth - 1) * block + 4 * rows * width**2

    def condition(self, context: FastWAMContext, inputs: Inputs) -> FastWAMContext:
        """Returns the context as it is: the state has entered with the text."""
        return context

    def step(self, x: Tensor, time: Tensor | float, context: FastWAMContext, ops: Ops = DENSE) -> Tensor:
        """Evaluates the velocity field.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B].
            context: From ``prefill``; expand it first where B holds several branches of a row.
            ops: Answers to the walk over the action branch.

        Returns:
            [B, horizon, action_dim] float32.
        """
        hidden = self.action_in(x.to(self.action_in.weight.dtype))
        modulations = self.action.modulations(time)
        for layer, block in enumerate(self.action.each_block()):
            q, k, v = block.project(hidden, context.turn, modulations[layer])
            k, v = torch.cat([context.video[layer][0], k], 1), torch.cat([context.video[layer][1], v], 1)
            hidden = block.finish(ops, layer, hidden, (q, k, v), context.text[layer], modulations[layer], None)
        return self.action_out(hidden).float()


def _at(turn: Rope, rows: Tensor) -> Rope:
    return turn[0][rows], turn[1][rows]


@dataclass(frozen=True)
class FastWAMProcessor(Standardised):
    """Conventions of a Fast-WAM: scaled states and actions, and the instruction's tokens."""


FAMILY = Family(
    "fast_wam",
    FastWAMConfig,
    FastWAM,
    FastWAMProcessor,
    sizes={"full": FAST_WAM, "layers": replace(FAST_WAM, depth=2, vocab=1024), "tiny": TINY},
)
