"""Published X-VLA weights: lerobot's checkpoints, and the authors' with the same names without a prefix.

Both exist in two layouts of Florence-2: transformers', and an older one of Microsoft's own code. The keys decide.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..weights import CheckpointError
from ..xvla import X_VLA, XVLA, XVLAConfig
from .names import layer_names, untie, without_prefix
from .reader import Source, open_source

TOWER = "vlm.vision_tower"
PROJECTOR = "vlm.multi_modal_projector"
ENCODER = "vlm.language_model.encoder"
_PROJECTION = f"{PROJECTOR}.image_projection.weight"
EMBEDDING = "vlm.language_model.shared.weight"
_TIED = f"{ENCODER}.embed_tokens.weight"
"""The embedding under its other name."""

_UNUSED = frozenset(
    {_TIED, f"{PROJECTOR}.visual_temporal_embed.pos_idx_to_embed", "vlm.language_model.final_logits_bias"}
)
"""What a file may have and no action depends on, but for a table of sines, of which only the row of time 0 is read."""

_OLDER_PROJECTION = "vlm.image_projection"
_OLDER = (
    (re.compile(r"\.convs\.(\d+)\.proj\."), r".convs.\1.conv."),
    (re.compile(r"\.(conv[12])\.fn\.dw\."), r".\1."),
    (re.compile(r"\.(?:window|channel)_attn\.norm\."), ".norm1."),
    (re.compile(r"\.ffn\.norm\."), ".norm2."),
    (re.compile(r"\.((?:window|channel)_attn)\.fn\."), r".\1."),
    (re.compile(r"\.ffn\.fn\.net\."), ".ffn."),
    (re.compile(rf"^{_OLDER_PROJECTION}$"), _PROJECTION),
    (re.compile(r"^vlm\.(image_proj_norm|visual_temporal_embed)\."), rf"{PROJECTOR}.\1."),
    (re.compile(r"^vlm\.image_pos_embed\."), f"{PROJECTOR}.image_position_embed."),
    (re.compile(r"^vlm\.language_model\.model\."), "vlm.language_model."),
)
"""Names of the older layout and what they are in transformers'. The projection is transposed besides."""

_OTHERS = {
    "vision.project": f"{PROJECTOR}.image_projection",
    "vision.norm": f"{PROJECTOR}.image_proj_norm",
    "encoder.norm": f"{ENCODER}.layernorm_embedding",
    "read_in": "transformer.vlm_proj",
    "views_in": "transformer.aux_visual_proj",
    "norm": "transformer.norm",
}
_TABLES = {
    "vision.rows": f"{PROJECTOR}.image_position_embed.row_embeddings.weight",
    "vision.columns": f"{PROJECTOR}.image_position_embed.column_embeddings.weight",
    "embed.weight": EMBEDDING,
    "encoder.positions": f"{ENCODER}.embed_positions.weight",
    "prompts": "transformer.soft_prompt_hub.weight",
    "action_in.weight": "transformer.action_encoder.fc.weight",
    "action_in.bias": "transformer.action_encoder.bias.weight",
    "action_out.weight": "transformer.action_decoder.fc.weight",
    "action_out.bias": "transformer.action_decoder.bias.weight",
}
_VISION_BLOCK = {
    "conv": "conv1",
    "norm": "norm1",
    "ffn_conv": "conv2",
    "ffn_norm": "norm2",
    "up": "ffn.fc1",
    "down": "ffn.fc2",
}
_BART_LAYER = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.out_proj",),
    "norm": ("self_attn_layer_norm",),
    "up": ("fc1",),
    "down": ("fc2",),
    "ffn_norm": ("final_layer_norm",),
}
_BLOCK = {
    "norm": ("norm1",),
    "qkv": ("attn.qkv",),
    "out": ("attn.proj",),
    "ffn_norm": ("norm2",),
    "ffn.up": ("mlp.fc1",),
    "ffn.down": ("mlp.fc2",),
}


def load_published(path: str | Path, config: XVLAConfig = X_VLA, dtype: torch.dtype = torch.float32) -> XVLA:
    """Loads published X-VLA weights; beyond the model itself it holds one matrix in memory at a time.

    Args:
        path: A safetensors file, or a folder with ``model.safetensors`` or ``model.safetensors.index.json``.
        config: Dimensions; the file does not tell heads, groups, window, views, grippers, horizon and steps.
        dtype: Precision of every parameter.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        CheckpointError: Nothing is there, it is not safetensors, its projections of the context are a robot's own, its
            two layouts are mixed, or a name, shape or value does not fit.
    """
    with torch.device("meta"):
        model = XVLA(config)
    fill(Path(path), model, dtype)
    return model


def fill(path: Path, model: XVLA, dtype: torch.dtype) -> None:
    """Loads published weights into a model, which may be on the meta device, and puts it into evaluation mode.

    Raises:
        CheckpointError: As ``load_published`` does.
    """
    with open_source(path) as source:
        opened, layout = recognise(source), published_layout(model)
        if opened.older:
            ((_, projection),) = layout["vision.project.weight"].items()
            layout["vision.project.weight"] = {_PROJECTION: projection.T}
        state = opened.source.read(layout, dtype)
    if opened.older:
        state["vision.project.weight"] = state["vision.project.weight"].T.contiguous()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: tensor.view(shapes[name]) for name, tensor in state.items()}, assign=True)
    model.requires_grad_(False).eval()


class Opened(NamedTuple):
    """Weights under transformers' names, without those that no action depends on.

    Attributes:
        source: The tensors.
        lerobot: Whether the file has lerobot's names; the authors' otherwise.
        older: Whether it has the older layout, in which the projection is transposed.
    """

    source: Source
    lerobot: bool
    older: bool


def recognise(source: Source) -> Opened:
    """Tells by the keys which layout published weights have.

    Raises:
        CheckpointError: The projections of the context are a robot's own, or the two layouts are mixed.
    """
    plain, lerobot = without_prefix(source)
    if any(name.startswith("transformer.vlm_proj.fc.") for name in plain):
        raise CheckpointError(
            f"{source.path} projects the context by robot (use_hetero_proj), which this X-VLA does not: no published "
            "one does"
        )
    older = _OLDER_PROJECTION in plain or any(name.startswith("vlm.language_model.model.") for name in plain)
    names: dict[str, str] = {}
    for name, key in plain.items():
        current = _current(name) if older else name
        if current in names:
            raise CheckpointError(f"{source.path} mixes two layouts: {key} and {names[current]} are the same weights")
        names[current] = key
    untie(names, EMBEDDING, _TIED)
    used = {name: key for name, key in names.items() if name not in _UNUSED}
    return Opened(source.renamed(used), lerobot, older)


def _current(name: str) -> str:
    """Returns what a name of the older layout is in transformers'."""
    for pattern, replacement in _OLDER:
        name, count = pattern.subn(replacement, name)
        if count:
            break
    return name


def published_layout(model: XVLA) -> dict[str, dict[str, Tensor]]:
    """Returns, for each parameter of ours, the published tensors that it is made of, in transformers' layout.

    Args:
        model: Its memory is not read, so it may be on the meta device.

    Returns:
        Name of ours -> published name -> the rows of ours that it fills, in the published shape.
    """
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _OTHERS.items()}
    for stage, depth in enumerate(model.config.vision_depths):
        ours, theirs = f"vision.tower.stages.{stage}", f"{TOWER}.blocks.{stage}"
        names |= {f"{ours}.0.{part}": (f"{TOWER}.convs.{stage}.{part}",) for part in ("conv", "norm")}
        for number in range(2 * depth):
            kind, over = ("channel_block", "channel_attn") if number % 2 else ("spatial_block", "window_attn")
            parts = _VISION_BLOCK | {"attention.qkv": f"{over}.qkv", "attention.out": f"{over}.proj"}
            for part, name in parts.items():
                names[f"{ours}.{number + 1}.{part}"] = (f"{theirs}.{number // 2}.{kind}.{name}",)
    names |= layer_names("encoder.layers", f"{ENCODER}.layers", model.config.vlm_depth, _BART_LAYER)
    names |= layer_names("blocks", "transformer.blocks", model.config.depth, _BLOCK)
    layout = {}
    for ours, parameter in model.state_dict().items():
        if ours == "positions":
            layout[ours] = {"transformer.pos_emb": parameter[None]}
        elif ours in _TABLES:
            layout[ours] = {_TABLES[ours]: parameter.flatten(1)}
        else:
            module, _, kind = ours.rpartition(".")
            parts = [f"{name}.{kind}" for name in names[module]]
            layout[ours] = dict(zip(parts, parameter.chunk(len(parts)), strict=True))
    return layout
