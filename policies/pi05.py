"""pi0.5: the prefix of pi0, and an expert whose norms depend on the flow time and which has no state token.

Everything exact that saves work is on:

* masked prefix tokens are dropped where a whole batch masks them;
* the last VLM layer computes keys and values only;
* what a flow time makes of the expert's norms (scale, shift and gate, twice per layer) is computed once per time and
  kept, since nothing else of a round enters it.

The state is in the prompt, or nowhere: ``condition`` adds nothing, so that a context is as old as the state in it.

Architecture: pi0.5 (Physical Intelligence, 2025), openpi's PyTorch model; checked against it in
tests/policies/test_pi05_parity.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from . import paligemma, processing
from .families import Family
from .flow import FlowSpec, time_embedding
from .gemma import AdaRMSNorm, GemmaLayer, ModulatedLayer, Modulation
from .model import DENSE, FlowModel, Inputs, KVContext, Ops, Prefix, Seam
from .modulated import Modulated, Times
from .paligemma import Denoising, Dimensions, Ready, denoise, layers, ready
from .standardised import Standardised

if TYPE_CHECKING:
    from typing_extensions import Self

PROMPTS = {
    "instruction": "{instruction}\n",
    "state": "Task: {instruction}, State: {state};\nAction: ",
}
"""Formats of a prompt. openpi's ``discrete_state_input`` and lerobot have ``state``; openpi's pi05_libero has not."""


@dataclass(frozen=True)
class Pi05Config(Dimensions):
    """Dimensions of a pi0.5. The defaults are openpi's base model's; pi05_libero has a horizon of 10."""


PI05 = Pi05Config()
TINY = Pi05Config(**paligemma.TINY)


class Pi05(Modulated[list[Modulation]], FlowModel):
    """The model. Its parameters mean nothing until weights are loaded or trained.

    Args:
        config: Dimensions.
    """

    seams: ClassVar[frozenset[Seam]] = frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN, Seam.STEP_ROWS, Seam.STEP_FFN})
    context: ClassVar[type] = KVContext

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        self.config = config
        self.flow = FlowSpec(noise_time=1.0, prediction="velocity", steps=config.steps)
        self.horizon, self.action_dim = config.horizon, config.action_dim
        layer, wide = (config.heads, config.head_dim), config.expert_width
        self.vision = paligemma.vision(config)
        self.embed = nn.Embedding(config.vocab, config.width)
        # The last VLM layer gives keys and values only; the published file's other weights there are never used.
        self.vlm = nn.ModuleList(GemmaLayer(config.width, config.mlp, *layer) for _ in range(config.depth))
        self.expert = nn.ModuleList(
            GemmaLayer(wide, config.expert_mlp, *layer, norm=AdaRMSNorm) for _ in range(config.depth)
        )
        self.expert_norm = AdaRMSNorm(wide)
        self.action_in = nn.Linear(config.action_dim, wide)
        self.time_in = nn.Linear(wide, wide)
        self.time_out = nn.Linear(wide, wide)
        self.action_out = nn.Linear(wide, config.action_dim)

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
        """Returns the context, ready for steps: whatever the model knows of the state is in the prompt."""
        return ready(context, self.horizon, layers(self.expert)[0])

    def enter(self, x: Tensor, time: Times) -> Denoising:
        """Embeds noisy actions, and modulates the layers by their flow time; see ``step``."""
        *pairs, last = self.modulations(time)
        stack = [
            ModulatedLayer(layer, *pairs[2 * number : 2 * number + 2])
            for number, layer in enumerate(layers(self.expert))
        ]
        hidden = self.action_in(x.to(self.action_in.weight.dtype))
        return Denoising(hidden, stack, lambda x: self.action_out(self.expert_norm(x, last)).float())

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

    def _modulations(self, times: Tensor) -> list[Modulation]:
        """Two per layer of the expert, then that of the last norm."""
        clock = time_embedding(times, self.config.expert_width).to(self.time_in.weight.dtype)
        condition = F.silu(self.time_out(F.silu(self.time_in(clock))))
        norms = [norm for layer in layers(self.expert) for norm in (layer.attention_norm, layer.ffn_norm)]
        return [cast("AdaRMSNorm", norm).modulation(condition) for norm in (*norms, self.expert_norm)]


@dataclass(frozen=True)
class Pi05Processor(Standardised):
    """Conventions of a pi0.5. Quantiles are a mean and a standard deviation too: the middle of q01 and q99, and half of
    what lies between them.

    Attributes:
        format: How the prompt is made, a key of ``PROMPTS``: it states the ``instruction`` alone, or the ``state`` too,
            normalised and in 256 bins.
    """  # noqa: D205

    format: str = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format not in PROMPTS:
            raise ValueError(f"format must be one of {', '.join(PROMPTS)}, got {self.format!r}")

    @classmethod
    def of(cls, config: Any, **conventions: Any) -> Self:
        """See :class:`Standardised`: the prompt is the instruction."""
        return cls(**conventions, format="instruction")

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the text that the model reads; ``state`` [state_dim] is normalised."""
        numbers = " ".join(map(str, processing.bins(state)))
        return PROMPTS[self.format].format(instruction=processing.plain(instruction), state=numbers)


# rMuscle's pi0.5-L: VLM and expert of 2 billion parameters each. Its larger ones have as many keys as queries.
_LARGE = replace(PI05, expert_width=2048, expert_mlp=16_384)

FAMILY = Family(
    "pi0.5",
    Pi05Config,
    Pi05,
    Pi05Processor,
    sizes={
        "full": PI05,
        "layers": replace(PI05, depth=2, vision_depth=2, vocab=1024),
        "large": _LARGE,
        "large-layers": replace(_LARGE, depth=2, vision_depth=2, vocab=1024),
        "tiny": TINY,
    },
)
