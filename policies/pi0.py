"""pi0: a PaliGemma prefix and a flow-matching action expert that attends to its keys and values, layer by layer.

Everything exact that saves work is on:

* masked prefix tokens are dropped where a whole batch masks them;
* the last VLM layer computes keys and values only;
* the state token sees the prefix and itself but no action, so its keys and values are computed once per round
  (``condition``) instead of once per step, and no step needs a mask.

Architecture: pi0 (Black et al., 2024), openpi's PyTorch model; checked against it in tests/policies/test_pi0_parity.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import processing
from .checkpoint import check_sizes
from .families import Family
from .flow import FlowSpec, time_embedding
from .gemma import GemmaLayer, RMSNorm, choose, finish, rope_table
from .model import DENSE, FlowModel, Inputs, KVContext, Ops, Prefix, Seam
from .siglip import SigLIP, Stem, tokens_per_image

if TYPE_CHECKING:
    import gymnasium


_STEM = ("width", "kernel", "stride")
_MOST = {
    **dict.fromkeys(("depth", "vision_depth", "heads", "vision_heads"), 256),
    **dict.fromkeys(("horizon", "steps", "image_size"), 1024),
    **{"stem": 8, "tokens_per_view": 4096},
    **{"cameras": 8, "words": 100_000, "max_tokens": 1024, "replan": 1024},
}
"""Largest values in a checkpoint, well beyond any published model; of Pi0Config, of what follows from it, of
Pi0Processor."""


@dataclass(frozen=True)
class Pi0Config:
    """Dimensions of a pi0. The defaults are the paper's: PaliGemma 2B, a 300M expert, 224-pixel images.

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
        state_dim: Robot state width, padded.
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
    state_dim: int = 32
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
TINY_COARSE = replace(  # a quarter of the visual tokens, for suites whose images or training take long
    TINY,
    stem=((24, 3, 2), (48, 3, 2), (96, 3, 2), (128, 3, 2)),
    vision_width=128,
    vision_heads=4,
    vision_mlp=320,
)


class Pi0(FlowModel):
    """The model. Its parameters mean nothing until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    seams: ClassVar[frozenset[Seam]] = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN, Seam.STEP_ROWS, Seam.STEP_FFN})
    context: ClassVar[type] = KVContext

    def __init__(self, config: Pi0Config) -> None:
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=1.0, prediction="velocity", steps=config.steps)
        self.horizon, self.action_dim = config.horizon, config.action_dim
        layer = (config.heads, config.head_dim)
        self.vision = SigLIP(
            config.image_size,
            config.stem,
            config.vision_width,
            config.vision_depth,
            config.vision_heads,
            config.vision_mlp,
            config.width,
        )
        self.embed = nn.Embedding(config.vocab, config.width)
        # The last VLM layer gives keys and values only; the published file's other weights there are never used.
        self.vlm = nn.ModuleList(GemmaLayer(config.width, config.mlp, *layer) for _ in range(config.depth))
        self.expert = nn.ModuleList(
            GemmaLayer(config.expert_width, config.expert_mlp, *layer) for _ in range(config.depth)
        )
        self.expert_norm = RMSNorm(config.expert_width)
        self.state_in = nn.Linear(config.state_dim, config.expert_width)
        self.action_in = nn.Linear(config.action_dim, config.expert_width)
        self.time_in = nn.Linear(2 * config.expert_width, config.expert_width)
        self.time_out = nn.Linear(config.expert_width, config.expert_width)
        self.action_out = nn.Linear(config.expert_width, config.action_dim)

    def patches(self, images: Tensor) -> Tensor:
        """Returns [B, P, n] the pixels of each visual token, view by view, without overlaps of the stem."""
        side = self.config.image_size // math.isqrt(self.config.tokens_per_view)
        each = F.unfold(images.flatten(0, 1), side, stride=side).transpose(1, 2)
        return each.unflatten(0, images.shape[:2]).flatten(1, 2)

    def encode(self, inputs: Inputs, drop: bool = True) -> Prefix:
        """Embeds images and text; drops (exactly) the tokens that the whole batch masks, unless ``drop`` is False."""
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

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> KVContext:
        """Runs the VLM over the prefix (bidirectional) and keeps each layer's keys and values."""
        x, mask = prefix.embeddings, prefix.mask
        batch, length, _ = x.shape
        if mask is None:
            positions = torch.arange(length, device=x.device).expand(batch, -1)
            end, columns = torch.full((batch,), length, device=x.device), None
        else:
            positions = (mask.cumsum(1) - 1).clamp_min(0)
            end, columns = mask.sum(1), mask[:, None, :]
        rope = rope_table(positions, self.config.head_dim, x.dtype)
        keys, values = [], []
        for number, layer in enumerate(_layers(self.vlm)):
            rows, computed, turn = choose(ops, number, x, rope)
            if number == self.config.depth - 1:
                k, v = ops.keys_values(number, *layer.keys_values(computed, turn), rows)
            else:
                q, k, v = layer.project(computed, turn)
                k, v = ops.keys_values(number, k, v, rows)
                x = finish(ops, number, layer, x, computed, rows, (q, k, v, columns))
            keys.append(k)
            values.append(v)
        return KVContext(tuple(keys), tuple(values), end, mask)

    def condition(self, context: KVContext, inputs: Inputs) -> KVContext:
        """Returns the context with the state token appended; it attends to the prefix and itself."""
        x = self.state_in(inputs.state).unsqueeze(1)
        rope, columns = self._placed(x, context)
        keys, values = [], []
        for number, layer in enumerate(_layers(self.expert)):
            q, k, v = layer.project(x, rope)
            k, v = torch.cat([context.keys[number], k], 1), torch.cat([context.values[number], v], 1)
            keys.append(k)
            values.append(v)
            if number < self.config.depth - 1:  # the last layer's output of the state token is never read
                x = finish(DENSE, number, layer, x, x, None, (q, k, v, columns))
        mask = None if context.mask is None else F.pad(context.mask, (0, 1), value=True)
        return KVContext(tuple(keys), tuple(values), context.position + 1, mask)

    def step(self, x: Tensor, time: Tensor | float, context: KVContext, ops: Ops = DENSE) -> Tensor:
        """Evaluates the velocity field.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B].
            context: From ``condition``; expand it first where B holds several branches of a row.
            ops: Answers to the walk over the expert's layers; their rows are the actions.

        Returns:
            [B, horizon, action_dim] float32.
        """
        x = x.to(self.action_in.weight.dtype)
        action = self.action_in(x)
        time = torch.as_tensor(time, dtype=torch.float32, device=x.device).expand(x.shape[0])
        clock = time_embedding(time, self.config.expert_width).to(action.dtype)[:, None].expand_as(action)
        hidden = self.time_out(F.silu(self.time_in(torch.cat([action, clock], -1))))
        rope, columns = self._placed(hidden, context)
        for number, layer in enumerate(_layers(self.expert)):
            rows, computed, turn = choose(ops, number, hidden, rope)
            q, k, v = layer.project(computed, turn)
            k, v = ops.keys_values(number, k, v, rows)
            k, v = torch.cat([context.keys[number], k], 1), torch.cat([context.values[number], v], 1)
            hidden = finish(ops, number, layer, hidden, computed, rows, (q, k, v, columns))
        return self.action_out(self.expert_norm(hidden)).float()

    def _placed(self, x: Tensor, context: KVContext) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Returns the rotary angles of new tokens behind a context, and the mask of all columns that they see."""
        length = x.shape[1]
        positions = context.position[:, None] + torch.arange(length, device=x.device)
        rope = rope_table(positions, self.config.head_dim, x.dtype)
        return rope, None if context.mask is None else F.pad(context.mask, (0, length), value=True)[:, None, :]


def _layers(stack: nn.ModuleList) -> list[GemmaLayer]:
    return cast("list[GemmaLayer]", list(stack))


@dataclass(frozen=True)
class Pi0Processor:
    """Conventions of a pi0: standardised states and actions, and a vocabulary of words.

    They travel inside the checkpoint, so that weights and statistics cannot be separated.

    Attributes:
        cameras: Observation keys of the views, in the model's order.
        image_size: Side of an image in pixels.
        words: Vocabulary of the word tokenizer; the index is the token. Index 0 is padding. With ``<unk>`` in it,
            unknown words are read as that one and instructions that are too long are cut; without it both are refused.
        max_tokens: Tokens that an instruction is padded to.
        state_mean: [state_dim]; the policy sees (x - mean) / std.
        state_std: [state_dim].
        action_mean: [action_dim] of the environment's actions.
        action_std: [action_dim].
        gripper: Indices of the gripper channels, one per arm; all others are continuous.
        replan: Actions of a chunk that are executed before the next round (the replan window).
        mirror: Whether the policy was trained on mirrored images (left to right). LIBERO's policies were: the benchmark
            renders upside down, and OpenVLA, openpi and LeRobot rotate that by 180 degrees instead of flipping it.
        relative: Whether the continuous channels are differences to the state's channels of the same index (openpi's
            DeltaActions), for environments whose actions are absolute joint positions.

    Raises:
        ValueError: The statistics do not fit each other, or a gripper is not an action channel.
    """

    cameras: tuple[str, ...]
    image_size: int
    words: tuple[str, ...]
    max_tokens: int
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]
    gripper: tuple[int, ...]
    replan: int
    mirror: bool = False
    relative: bool = False

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Returns the plain values of an earlier checkpoint with the fields that it was written without."""
        values = {"mirror": False, "relative": False, **values}
        if isinstance(values.get("gripper"), int):  # checkpoints of one arm held a number
            values["gripper"] = [values["gripper"]]
        return values

    def __post_init__(self) -> None:
        processing.check_statistics("state", self.state_mean, self.state_std)
        processing.check_statistics("action", self.action_mean, self.action_std)
        channels = len(self.action_mean)
        named = set(self.gripper)
        if not named or len(named) < len(self.gripper) or not named < set(range(channels)):
            raise ValueError(
                f"gripper must name some of the {channels} action channels, each once, and not all, got {self.gripper}"
            )
        if self.relative and len(self.state_mean) < channels:
            raise ValueError(f"relative actions need {channels} state channels, got {len(self.state_mean)}")
        sizes = {"image_size": self.image_size, "max_tokens": self.max_tokens, "replan": self.replan}
        check_sizes({**sizes, "cameras": len(self.cameras), "words": len(self.words)}, _MOST)
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras must differ, got {self.cameras}")

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous action channels."""
        return [channel for channel in range(len(self.action_mean)) if channel not in self.gripper]

    def check(self, config: Any) -> None:
        """Raises ValueError unless a model of these dimensions fits the conventions."""
        sizes = (len(self.state_mean), len(self.action_mean), self.image_size)
        expected = (config.state_dim, config.action_dim, config.image_size)
        if sizes != expected:
            raise ValueError(f"state, action and image sizes are {sizes}, the model has {expected}")
        if len(self.words) > config.vocab or self.replan > config.horizon:
            raise ValueError(
                f"{len(self.words)} words and a replan window of {self.replan} do not fit a model with a vocabulary of "
                f"{config.vocab} and a horizon of {config.horizon}"
            )

    def incompatibilities(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> list[str]:
        """Returns a phrase for each reason why the policy cannot act in an environment with these spaces."""
        return processing.incompatibilities(
            observations, actions, self.cameras, len(self.state_mean), len(self.action_mean)
        )

    def tokenize(self, instruction: str) -> list[int]:
        """Returns the padded tokens of an instruction.

        Raises:
            ObservationError: A word is not in the vocabulary, or the instruction is too long.
        """
        return processing.word_tokens(instruction, self.words, self.max_tokens)

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        """Returns model inputs of batch 1, float32 on the CPU.

        Raises:
            ObservationError: An entry is missing or of another type or shape, or a value is not finite.
        """
        state = processing.checked_state(observation, len(self.state_mean))
        tokens = torch.tensor([self.tokenize(processing.checked_instruction(observation))])
        images = processing.views(observation, self.cameras, self.image_size, self.mirror)
        return Inputs(
            images=processing.pixels(torch.from_numpy(images)[None]),
            tokens=tokens,
            token_mask=tokens != 0,
            state=self.normalise_state(torch.from_numpy(state)[None]),
        )

    def normalise_state(self, state: Tensor) -> Tensor:
        """Standardises [.., state_dim]."""
        return (state - torch.tensor(self.state_mean)) / torch.tensor(self.state_std)

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Environment actions -> the policy's space.

        Args:
            actions: [.., action_dim].
            state: [.., state_dim] in which the actions were chosen, in the environment's units; broadcast to them.
        """
        return (actions - self._origin(state) - torch.tensor(self.action_mean)) / torch.tensor(self.action_std)

    def normalise_gripper(self, action: np.ndarray) -> Tensor:
        """Returns the gripper channels of one environment action [action_dim] in the policy's space, [G]."""
        grippers = list(self.gripper)
        mean, std = torch.tensor(self.action_mean)[grippers], torch.tensor(self.action_std)[grippers]
        return (torch.from_numpy(np.asarray(action, np.float32))[grippers] - mean) / std

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """The policy's space -> environment actions, float32.

        Args:
            chunk: [.., action_dim].
            state: [state_dim] of the observation that the chunk answers.
        """
        native = chunk.float().cpu() * torch.tensor(self.action_std) + torch.tensor(self.action_mean)
        return (native + self._origin(torch.from_numpy(np.asarray(state, np.float32)))).numpy()

    def _origin(self, state: Tensor) -> Tensor:
        """What actions are measured from: the state's own channels where they are relative, zero otherwise."""
        count = len(self.action_mean)
        if not self.relative:
            return torch.zeros(count)
        origin = state[..., :count].clone()
        origin[..., list(self.gripper)] = 0
        return origin


FAMILY = Family("pi0", Pi0Config, Pi0, Pi0Processor)
