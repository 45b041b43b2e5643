"""pi0: a PaliGemma prefix and a flow-matching action expert that attends to its keys and values, layer by layer.

Everything exact that saves work is on:

* masked prefix tokens are dropped where a whole batch masks them;
* the last VLM layer computes keys and values only;
* the state token sees the prefix and itself but no action, so its keys and values are computed once per round
  (``condition``) instead of once per step, and no step needs a mask.

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
from .gemma import GemmaLayer, RMSNorm, finish
from .model import DENSE, FlowModel, Inputs, KVContext, Ops, Prefix, Seam
from .paligemma import Dimensions, denoise, layers, place
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

    def condition(self, context: KVContext, inputs: Inputs) -> KVContext:
        """Returns the context with the state token appended; it attends to the prefix and itself."""
        padding = self.config.state_dim - inputs.state.shape[-1]
        x = self.state_in(F.pad(inputs.state, (0, padding))).unsqueeze(1)
        rope, columns = place(x, context, self.config.head_dim)
        keys, values = [], []
        for number, layer in enumerate(layers(self.expert)):
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
        hidden = denoise(layers(self.expert), hidden, context, self.config.head_dim, ops)
        return self.action_out(self.expert_norm(hidden)).float()


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
