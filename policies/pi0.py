"""pi0: a PaliGemma prefix and a flow-matching action expert that attends to its keys and values, layer by layer.

Everything exact that saves work is on:

* masked prefix tokens are dropped where a whole batch masks them;
* the last VLM layer computes keys and values only;
* the state token sees the prefix and itself but no action, so its keys and values are computed once per round
  (``condition``) instead of once per step, and no step needs a mask;
* what a flow time adds to the action rows is computed once per time and kept.

Architecture: pi0 (Black et al., 2024), openpi's PyTorch model; checked against it in tests/policies/test_pi0_parity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import paligemma
from .families import Family
from .flow import FlowSpec, time_embedding
from .gemma import GemmaLayer, RMSNorm, finish, rotary
from .model import DENSE, FlowModel, Inputs, KVContext, Ops, Prefix, Seam
from .modulated import Modulated, Times
from .paligemma import Denoising, Dimensions, Ready, behind, denoise, layers, ready
from .standardised import Standardised


@dataclass(frozen=True)
class Pi0Config(Dimensions):
    """Dimensions of a pi0. The defaults are the paper's.

    Attributes:
        state_dim: Robot state width; narrower states are padded with zeros.
    """

    state_dim: int = 32


PI0 = Pi0Config()
TINY = Pi0Config(**paligemma.TINY, state_dim=11)
TINY_COARSE = replace(  # a quarter of the visual tokens, for suites whose images or training take long
    TINY,
    stem=((24, 3, 2), (48, 3, 2), (96, 3, 2), (128, 3, 2)),
    vision_width=128,
    vision_heads=4,
    vision_mlp=320,
)


class Pi0(Modulated[Tensor], FlowModel):
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
        self.vision = paligemma.vision(config)
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
        return paligemma.patches(images, self.config.tokens_per_view)

    def encode(self, inputs: Inputs, drop: bool = True) -> Prefix:
        """Embeds images and text; drops (exactly) the tokens that the whole batch masks, unless ``drop`` is False."""
        return paligemma.encode(self.vision, self.embed, inputs, drop)

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> KVContext:
        """Runs the VLM over the prefix (bidirectional) and keeps each layer's keys and values."""
        return paligemma.prefill(layers(self.vlm), prefix, ops)

    def condition(self, context: KVContext, inputs: Inputs) -> Ready:
        """Returns the context with the state token appended; it attends to the prefix and itself."""
        padding = self.config.state_dim - inputs.state.shape[-1]
        x = self.state_in(F.pad(inputs.state, (0, padding))).unsqueeze(1)
        rope, columns = rotary(behind(context, 1), self.config.head_dim, x.dtype), paligemma.columns(context, 1)
        keys, values = [], []
        for number, layer in enumerate(layers(self.expert)):
            q, k, v = layer.project(x, rope)
            k, v = torch.cat([context.keys[number], k], 1), torch.cat([context.values[number], v], 1)
            keys.append(k)
            values.append(v)
            if number < self.config.depth - 1:  # the last layer's output of the state token is never read
                x = finish(DENSE, number, layer, x, x, None, (q, k, v, columns))
        mask = None if context.mask is None else F.pad(context.mask, (0, 1), value=True)
        longer = KVContext(tuple(keys), tuple(values), context.position + 1, mask)
        return ready(longer, self.horizon, layers(self.expert)[0])

    def enter(self, x: Tensor, time: Times) -> Denoising:
        """Embeds noisy actions and their flow time; see ``step``."""
        action = self.action_in(x.to(self.action_in.weight.dtype))
        weight = self.time_in.weight[:, : self.config.expert_width]  # one matrix of [action | clock]
        hidden = self.time_out(F.silu(F.linear(action, weight) + self.modulations(time)))
        return Denoising(hidden, layers(self.expert), lambda x: self.action_out(self.expert_norm(x)).float())

    def step(self, x: Tensor, time: Times, context: Ready, ops: Ops = DENSE) -> Tensor:
        """Evaluates the velocity field.

        Args:
            x: [B, horizon, action_dim] noisy actions.
            time: Flow time, a number or [B]; times that come again are numbers or a tuple of B.
            context: From ``condition``; expand it first where B holds several branches of a row.
            ops: Answers to the walk over the expert's layers; their rows are the actions.

        Returns:
            [B, horizon, action_dim] float32.
        """
        hidden, stack, leave = self.enter(x, time)
        return leave(denoise(stack, hidden, context, ops))

    def _modulations(self, times: Tensor) -> Tensor:
        """[B, 1, expert_width] what ``time_in`` makes of the clock, which is the same for every action."""
        wide = self.config.expert_width
        clock = time_embedding(times, wide).to(self.time_in.weight.dtype)
        return F.linear(clock, self.time_in.weight[:, wide:], self.time_in.bias)[:, None]


@dataclass(frozen=True)
class Pi0Processor(Standardised):
    """Conventions of a pi0: scaled states and actions, and the instruction's tokens."""

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Returns the plain values of an earlier checkpoint with the fields that it was written without."""
        values = {"mirror": False, "relative": False, **values}
        if isinstance(values.get("gripper"), int):  # checkpoints of one arm held a number
            values["gripper"] = [values["gripper"]]
        return values


FAMILY = Family(
    "pi0",
    Pi0Config,
    Pi0,
    Pi0Processor,
    sizes={
        "full": PI0,
        "layers": replace(PI0, depth=2, vision_depth=2, vocab=1024),
        "tiny": TINY,
        "tiny-coarse": TINY_COARSE,
    },
)
