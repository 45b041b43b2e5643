"""What a round needs to know about any model: its inputs, its stages, and the places where methods act inside it.

Nothing in this file belongs to a family. A family's model is a :class:`FlowModel`; the walks over its layers ask an
:class:`Ops` at every layer, and the plain ``Ops()`` is the dense arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..kernels.decision import Decision, decide

if TYPE_CHECKING:
    from typing_extensions import Self

    from .flow import FlowSpec


class Seam(str, Enum):
    """A place in a round where a method may replace the dense arithmetic."""

    ROUND = "round"
    """Which path the round takes: a method may produce the chunk without the full path."""
    WINDOW = "window"
    """How many actions are executed before the next round."""
    CONTEXT = "context"
    """What the steps read: a method may give the context of an earlier round, and nothing is encoded or prefilled."""
    PREFILL_ROWS = "prefill_rows"
    """Which prefix rows are computed at each layer, and which keys and values all of them see."""
    PREFILL_FFN = "prefill_ffn"
    """How a prefill layer obtains its FFN output."""
    INIT = "init"
    """Where denoising starts: pure noise, or a point further along the path."""
    SCHEDULE = "schedule"
    """At which flow times a prediction is computed, and what stands in elsewhere."""
    STEP_ROWS = "step_rows"
    """As PREFILL_ROWS, for the action rows of a denoising step."""
    STEP_FFN = "step_ffn"
    """How a layer of the action expert obtains its FFN output."""
    PREDICTION = "prediction"
    """What is made of a step's prediction before the integrator uses it."""
    BACKEND = "backend"
    """How the stages run: compiled, captured, fused. The arithmetic is the same within rounding."""


ROUND_SEAMS = frozenset(
    {Seam.ROUND, Seam.WINDOW, Seam.CONTEXT, Seam.INIT, Seam.SCHEDULE, Seam.PREDICTION, Seam.BACKEND}
)
"""Seams that every round offers. The others lie inside the model, and :attr:`FlowModel.seams` says which it offers."""

CONTAINS = {Seam.CONTEXT: frozenset({Seam.PREFILL_ROWS, Seam.PREFILL_FFN})}
"""Seams that do not exist in a round in which another one is used: there is no prefill where a context is given."""


@dataclass(frozen=True)
class Inputs:
    """What a processor hands to the model.

    Attributes:
        images: [B, V, 3, S, S] in [-1, 1], in the model's order of views.
        tokens: [B, T] int64.
        token_mask: [B, T] bool, False for padding.
        state: [B, state_dim], normalised.
        view_mask: [B, V] bool, False for a camera that the robot lacks; None if all exist.
        embodiment: [B] int64 index of the robot, for models of several robots; None for models of one.
    """

    images: Tensor
    tokens: Tensor
    token_mask: Tensor
    state: Tensor
    view_mask: Tensor | None = None
    embodiment: Tensor | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> Inputs:
        """Moves everything to a device, and what is neither an index nor a mask to a precision."""
        return Inputs(
            self.images.to(device, dtype),
            self.tokens.to(device),
            self.token_mask.to(device),
            self.state.to(device, dtype),
            None if self.view_mask is None else self.view_mask.to(device),
            None if self.embodiment is None else self.embodiment.to(device),
        )


@dataclass(frozen=True)
class Prefix:
    """Embeddings before the first layer of the prefill. A family may add fields in a subclass.

    Attributes:
        embeddings: [B, P, width].
        mask: [B, P] bool, False for padding; None where nothing is masked.
        visual: Number of visual tokens that come first: all of them, but where a family says otherwise.
        features: [B, visual, n] halfway through the vision tower, by which similar scenes are found; None where the
            family has none.
    """

    embeddings: Tensor
    mask: Tensor | None
    visual: int
    features: Tensor | None = field(default=None, kw_only=True)

    def visual_rows(self) -> Tensor:
        """Returns [V] int64 which rows are visual tokens, in the order of ``FlowModel.patches``."""
        return torch.arange(self.visual, device=self.embeddings.device)


def widen(x: Tensor, branches: int) -> Tensor:
    """Returns x [B, ..] repeated ``branches`` times, branch-major; free of copies where B is 1."""
    return x.expand(branches, *x.shape[1:]) if len(x) == 1 else x.repeat(branches, *[1] * (x.ndim - 1))


class Context(Protocol):
    """What the action expert reads of the prefix: opaque to the round and to methods that do not require a kind."""

    def expand(self, branches: int) -> Self:
        """Returns the context repeated ``branches`` times, branch-major."""
        ...


@dataclass(frozen=True)
class KVContext:
    """A context of keys and values per layer.

    Attributes:
        keys: Per layer [B, S, head_dim], rotated.
        values: Per layer [B, S, head_dim].
        position: [B] position of the next token.
        mask: [B, S] bool, False for padding; None where nothing is masked.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    position: Tensor
    mask: Tensor | None = None

    def expand(self, branches: int) -> Self:
        """Returns the context repeated ``branches`` times, branch-major; free of copies where B is 1."""
        return replace(
            self,
            keys=tuple(widen(k, branches) for k in self.keys),
            values=tuple(widen(v, branches) for v in self.values),
            position=widen(self.position, branches),
            mask=None if self.mask is None else widen(self.mask, branches),
        )


class Ops:
    """The questions that a walk over layers asks. This class gives the dense answers.

    An ``Ops`` is made once, when its method is attached, and keeps what a round needs in its own buffers, so that a
    captured graph can be replayed. ``rows``, ``keys_values`` and ``scatter`` belong to one seam (PREFILL_ROWS or
    STEP_ROWS), ``ffn`` to another (PREFILL_FFN or STEP_FFN); ``attended`` is a tap that every method may have.
    """

    def start(self, call: Any) -> None:
        """Prepares for the walks of a round (``call`` is its :class:`~replan.policies.round.Call`)."""

    def at(self, step: int) -> None:
        """Prepares for the walk of a denoising step, counted from 0. Not called in prefill."""

    def rows(self, layer: int, x: Tensor) -> Tensor | None:
        """Returns the rows [R] int64 of x [B, T, D] that this layer computes; None is all of them."""
        return None

    def keys_values(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the keys and values [B, S, head_dim] that the queries see, given those of the computed rows.

        S is T, or fewer in a prefill that drops rows: then the actions see only these in this layer. The prefix of a
        round has no masked rows, which would be in their way: a batch of one drops them.
        """
        return k, v

    def ffn(self, layer: int, x: Tensor, ffn: nn.Module, rows: Tensor | None) -> Tensor:
        """Returns the FFN output [B, R, D] for the normed input x [B, R, D] of the computed rows."""
        return ffn(x)

    def scatter(self, layer: int, x: Tensor, computed: Tensor, rows: Tensor) -> Tensor:
        """Returns the layer's output [B, T, D]. Here the rows that were not computed keep the layer's input."""
        return x.index_copy(1, rows, computed)

    def attended(self, layer: int, q: Tensor, k: Tensor) -> None:
        """Tap: queries [B, R, heads, head_dim] are about to attend to keys [B, S, head_dim]."""


DENSE = Ops()


class Stages(NamedTuple):
    """How a round runs: the four stages of the full path, with the signatures of :class:`FlowModel`, and what is next
    to them.

    Attributes:
        encode: See :class:`FlowModel`.
        prefill: Likewise.
        condition: Likewise.
        step: Likewise.
        decide: Judges a draft: see :func:`replan.kernels.decision.decide`.
    """  # noqa: D205

    encode: Callable[[Inputs], Prefix]
    prefill: Callable[[Prefix, Ops], Any]
    condition: Callable[[Any, Inputs], Any]
    step: Callable[[Tensor, Any, Any, Ops], Tensor]
    decide: Callable[..., Decision] = decide


class FlowModel(nn.Module):
    """A flow-matching policy network in four stages.

    Attributes:
        config: The family's frozen dataclass of dimensions.
        flow: Convention of the flow.
        horizon: Actions in a chunk.
        action_dim: Channels of an action, padding included.
        seams: Seams inside the model that its walks offer.
        context: The type that ``prefill`` returns; methods may require one.
        predicts: Name of the module whose output is the prediction.
        state_in_prefix: Whether the robot's state enters with the prefix, so that a context is as old as its state.
    """

    config: Any
    flow: FlowSpec
    horizon: int
    action_dim: int
    seams: ClassVar[frozenset[Seam]] = frozenset()
    context: ClassVar[type] = object
    predicts: ClassVar[str] = "action_out"
    state_in_prefix: ClassVar[bool] = False

    def encode(self, inputs: Inputs) -> Prefix:
        """Embeds images and text."""
        raise NotImplementedError

    def prefill(self, prefix: Prefix, ops: Ops = DENSE) -> Any:
        """Runs the prefix through its layers once and returns the context."""
        raise NotImplementedError

    def condition(self, context: Any, inputs: Inputs) -> Any:
        """Returns the context with what the round's state adds to it; the context itself is not changed."""
        raise NotImplementedError

    def step(self, x: Tensor, time: Tensor | float, context: Any, ops: Ops = DENSE) -> Tensor:
        """Evaluates the network at x [B, horizon, action_dim] and a flow time (a number or [B]); float32 like x."""
        raise NotImplementedError

    def patches(self, images: Tensor) -> Tensor:
        """Returns [B, P, n] the pixels of images [B, V, 3, S, S] that each visual token stands for, in their order."""
        raise NotImplementedError(f"{type(self).__name__} does not say which pixels its visual tokens stand for")

    def visual_in_step(self, inputs: Inputs) -> Tensor:
        """Returns [V] int64 which rows of a denoising step are visual tokens, in the order of the prefix."""
        raise NotImplementedError(f"the denoising steps of {type(self).__name__} compute no visual tokens")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the weights."""
        return next(self.parameters()).dtype

    @property
    def noise_shape(self) -> tuple[int, int]:
        """Shape of the starting noise of one chunk: (horizon, action_dim)."""
        return self.horizon, self.action_dim

    def stages(self) -> Stages:
        """Returns the model's own stages."""
        return Stages(self.encode, self.prefill, self.condition, self.step)
