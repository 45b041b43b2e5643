"""The draft model: one VLM block that turns a prefix into a whole chunk (FLASH, section 3.3 and appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...policies import checkpoint
from ...policies.gemma import GemmaLayer, RMSNorm, rotary
from ...policies.model import FlowModel, KVContext, Prefix

KIND = "flash-draft"


@dataclass(frozen=True)
class DraftConfig:
    """Dimensions of a draft: those of the policy's VLM layers, and of its states and chunks.

    Attributes:
        width: Width of the VLM.
        mlp: FFN neurons of the VLM.
        heads: Query heads of the VLM.
        head_dim: Width of a head.
        state_dim: Robot state width.
        action_dim: Action width.
        horizon: Actions in a chunk.

    Raises:
        ValueError: A dimension is out of range.
    """

    width: int
    mlp: int
    heads: int
    head_dim: int
    state_dim: int
    action_dim: int
    horizon: int

    def __post_init__(self) -> None:
        checkpoint.check_sizes(asdict(self), {"heads": 256, "horizon": 1000})
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, got {self.head_dim}")

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Returns the draft's dimensions from a header; the first drafts were written with all of their policy's."""
        return {field.name: values[field.name] for field in fields(DraftConfig) if field.name in values}

    @staticmethod
    def of(config: Any) -> DraftConfig:
        """Returns the dimensions of a draft for a policy with a PaliGemma prefix, from its model's configuration.

        A pi0.5, which has no input for a state, has states padded to the width of its actions.
        """
        own = {"state_dim": config.action_dim, **vars(config)}
        return DraftConfig(**{field.name: own[field.name] for field in fields(DraftConfig)})


class Draft(nn.Module):
    """One Gemma block of VLM width over [prefix embeddings | state | action queries], and a linear action head.

    Prefix and state see each other, queries see everything. Only the queries' outputs are decoded, so the other rows
    contribute keys and values and nothing else is computed for them, which is exact for a single block.

    Args:
        config: Dimensions.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = GemmaLayer(config.width, config.mlp, config.heads, config.head_dim)
        self.state_in = nn.Linear(config.state_dim, config.width)
        self.queries = nn.Parameter(torch.zeros(config.horizon, config.width))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.action_dim)
        self.head_dim = config.head_dim

    def start_from(self, layer: nn.Module, generator: torch.Generator) -> None:
        """Copies the VLM's first layer and samples the rest.

        The scales keep what enters the block at unit variance, and what leaves it near zero.
        """
        self.layer.load_state_dict(layer.state_dict())
        with torch.no_grad():
            self.queries.normal_(0, 1, generator=generator)
            self.state_in.weight.normal_(0, self.state_in.in_features**-0.5, generator=generator)
            self.state_in.bias.zero_()
            self.head.weight.normal_(0, 0.02, generator=generator)
            self.head.bias.zero_()

    def forward(self, prefix: Prefix, state: Tensor) -> Tensor:
        """Returns the chunk [B, H, A], normalised.

        Args:
            prefix: Embeddings before the first VLM layer.
            state: [B, up to state_dim], normalised; padded with zeros.
        """
        state = F.pad(state, (0, self.config.state_dim - state.shape[-1]))
        batch, length, _ = prefix.embeddings.shape
        seen = torch.cat([prefix.embeddings, self.state_in(state)[:, None]], 1)
        queries = self.queries.to(seen.dtype).expand(batch, -1, -1)
        mask = prefix.mask
        if mask is None:
            positions = torch.arange(length + 1 + queries.shape[1], device=seen.device).expand(batch, -1)
            rows = None
        else:
            mask = torch.cat([mask, mask.new_ones(batch, 1 + queries.shape[1])], 1)
            positions, rows = (mask.cumsum(1) - 1).clamp_min(0), mask[:, None]
        rope = rotary(positions, self.head_dim, seen.dtype)
        split = length + 1
        k, v = self.layer.keys_values(seen, (rope[0][:, :split], rope[1][:, :split]))
        q, own_k, own_v = self.layer.project(queries, (rope[0][:, split:], rope[1][:, split:]))
        x = self.layer.attend(queries, q, torch.cat([k, own_k], 1), torch.cat([v, own_v], 1), rows)
        x = x + self.layer.ffn(self.layer.ffn_norm(x))
        return self.head(self.norm(x)).float()


def misfit(model: type[FlowModel]) -> str | None:
    """Returns why models of a type can have no draft, or None: it starts from one of their layers."""
    if issubclass(model.context, KVContext):
        return None
    return f"it needs a draft, which starts from a PaliGemma layer, and a {model.__name__} has none"


def check_family(model: FlowModel) -> None:
    """Raises ValueError where no draft can be trained for a model."""
    if reason := misfit(type(model)):
        raise ValueError(f"'flash' cannot run on this policy: {reason}")


def draft_path(policy: Path) -> Path:
    """Returns where the draft of a policy lies: next to it."""
    return policy.with_name(f"{policy.stem}.flash-draft.safetensors")


def save_draft(path: Path, draft: Draft, card: dict[str, object], policy: Sequence[Path]) -> None:
    """Writes a draft, tied to the policy's files by their hash."""
    card = {**card, "policy_sha256": checkpoint.files_hash(policy)}
    checkpoint.save(path, checkpoint.Header(KIND, asdict(draft.config), {}, card), draft)


def load_draft(path: Path, policy: Sequence[Path], dtype: torch.dtype = torch.float32) -> Draft:
    """Loads the draft that was trained for exactly this policy.

    Args:
        path: The draft's file.
        policy: The policy's files.
        dtype: Precision of the weights.

    Raises:
        CheckpointError: There is none, it is damaged, or it was trained for other weights.
    """
    header = checkpoint.read_header(path)
    if header.kind != KIND:
        raise checkpoint.CheckpointError(f"{path} holds a {header.kind!r}, not a FLASH draft")
    if header.card.get("policy_sha256") != checkpoint.files_hash(policy):
        raise checkpoint.CheckpointError(
            f"the draft {path} was trained for other weights than {policy[0]}; train it again with replan train-draft"
        )
    with checkpoint.about(path), torch.device("meta"):
        draft = Draft(checkpoint.from_plain(DraftConfig, header.config))
    checkpoint.load_weights(path, draft, dtype)
    return draft.requires_grad_(False).eval()
