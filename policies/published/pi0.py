"""Published weights of pi0 and pi0.5: openpi's PyTorch conversion, and lerobot's, with the same names behind a prefix.

The keys decide which of the two a file is: folders are renamed. Normalisation statistics and the prompt's tokens are
not part of such a file.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..pi0 import PI0, Pi0, Pi0Config
from ..pi05 import PI05, Pi05, Pi05Config
from ..weights import CheckpointError
from .names import SIGLIP_LAYER, count_layers, layer_names, untie, without_prefix
from .reader import Source, open_source

_VLM = "paligemma_with_expert.paligemma.model.language_model"
_EXPERT = "paligemma_with_expert.gemma_expert.model"
_VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model"
_PROJECTOR = "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"

_OLDER = "paligemma.language_model.model."
"""Where transformers before 4.52 had the VLM's layers."""

_NORMALISER = "normalize_"
"""Where older versions of lerobot kept the statistics: ``normalize_inputs`` and ``unnormalize_outputs``."""

EMBEDDING = f"{_VLM}.embed_tokens.weight"
TIED = "paligemma_with_expert.paligemma.lm_head.weight"
"""The embedding under its other name."""

UNUSED = frozenset({f"{_VLM}.norm.weight", "paligemma_with_expert.gemma_expert.lm_head.weight", TIED})
"""What a file may have and no action depends on: the VLM's output is not read, and neither stack predicts words."""

_GEMMA_MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "ffn.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn.down": ("mlp.down_proj",),
}
_GEMMA_LAYER = {
    "attention_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
    **_GEMMA_MATRICES,
}
_ADAPTIVE_LAYER = {
    "attention_norm.dense": ("input_layernorm.dense",),
    "ffn_norm.dense": ("post_attention_layernorm.dense",),
    **_GEMMA_MATRICES,
}
_SHARED = {
    "vision.stem.0": f"{_VISION}.embeddings.patch_embedding",
    "vision.norm": f"{_VISION}.post_layernorm",
    "vision.project": _PROJECTOR,
    "embed": f"{_VLM}.embed_tokens",
    "action_in": "action_in_proj",
    "action_out": "action_out_proj",
}
_PI0 = {
    "expert_norm": f"{_EXPERT}.norm",
    "state_in": "state_proj",
    "time_in": "action_time_mlp_in",
    "time_out": "action_time_mlp_out",
    **_SHARED,
}
_PI05 = {
    "expert_norm.dense": f"{_EXPERT}.norm.dense",
    "time_in": "time_mlp_in",
    "time_out": "time_mlp_out",
    **_SHARED,
}


def load_published(path: str | Path, config: Pi0Config = PI0, dtype: torch.dtype = torch.float32) -> Pi0:
    """Loads published pi0 weights; beyond the model itself it holds one matrix in memory at a time.

    Args:
        path: A safetensors file, or a folder with ``model.safetensors`` or ``model.safetensors.index.json``.
        config: Dimensions; the file does not tell horizon, heads and steps.
        dtype: Precision of every parameter.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        CheckpointError: Nothing is there, it is not safetensors, it is a pi0.5 or of an older layout, or a name, shape
            or value does not fit.
    """
    with torch.device("meta"):
        model = Pi0(config)
    fill(Path(path), model, dtype)
    return model


def load_published_pi05(path: str | Path, config: Pi05Config = PI05, dtype: torch.dtype = torch.float32) -> Pi05:
    """Loads published pi0.5 weights, as :func:`load_published` does those of a pi0.

    Args:
        path: A safetensors file, or a folder with one or with an index of shards.
        config: Dimensions; the file does not tell horizon (10 for LIBERO), heads and steps.
        dtype: Precision of every parameter.

    Raises:
        CheckpointError: As there; a pi0 is refused.
    """
    with torch.device("meta"):
        model = Pi05(config)
    fill(Path(path), model, dtype)
    return model


def fill(path: Path, model: Pi0 | Pi05, dtype: torch.dtype) -> None:
    """Loads published weights into a model, which may be on the meta device, and puts it into evaluation mode.

    Raises:
        CheckpointError: As ``load_published`` does.
    """
    layout = published_layout(model)
    with open_source(path) as source:
        opened = recognise(source)
        if opened.family == "pi0.5" and isinstance(model, Pi0):
            raise CheckpointError(f"{path} is a pi0.5 (its norms depend on the flow time); load it with that family")
        if isinstance(model, Pi05) and opened.family == "pi0":
            raise CheckpointError(
                f"{path} is a pi0 (its norms do not depend on the flow time); load it with that family"
            )
        opened.source.fill(model, layout, dtype)
    model.requires_grad_(False).eval()


class Opened(NamedTuple):
    """Weights under openpi's names, without those that no action depends on.

    Attributes:
        source: The tensors.
        code: Whose names the file has: ``openpi`` or ``lerobot``.
        family: ``pi0`` or ``pi0.5``.
    """

    source: Source
    code: str
    family: str


def recognise(source: Source) -> Opened:
    """Tells by the keys what published weights are.

    Raises:
        CheckpointError: They are of an older layout.
    """
    names, lerobot = without_prefix(source)
    if any(_OLDER in name for name in names):
        raise CheckpointError(
            f"{source.path} has the names of an older layout ({_OLDER}...): load it with a current openpi or lerobot "
            "and save it again"
        )
    if buffers := [name for name in names if _NORMALISER in name]:
        raise CheckpointError(
            f"{source.path} also holds normalisation buffers ({buffers[0]}, {len(buffers)} in all), which are no "
            "weights of the model: save it again without them"
        )
    adaptive = any("norm.dense." in name or name.startswith("time_mlp_") for name in names)
    untie(names, EMBEDDING, TIED)
    used = {name: key for name, key in names.items() if name not in UNUSED}
    return Opened(source.renamed(used), "lerobot" if lerobot else "openpi", "pi0.5" if adaptive else "pi0")


def dimensions(source: Source, family: str, horizon: int, steps: int) -> Pi0Config | Pi05Config:
    """Returns the dimensions that shapes tell, with the two that they do not.

    The vision tower's number of heads is taken to be the published one.

    Args:
        source: From ``recognise``.
        family: From there.
        horizon: Actions in a chunk.
        steps: Denoising steps.

    Raises:
        CheckpointError: A tensor is missing that tells a dimension, or they do not fit each other.
    """
    patch = source.shape(f"{_VISION}.embeddings.patch_embedding.weight")
    positions, *_ = source.shape(f"{_VISION}.embeddings.position_embedding.weight")
    head_dim, width = source.shape(f"{_VLM}.layers.0.self_attn.k_proj.weight")
    queries, _ = source.shape(f"{_VLM}.layers.0.self_attn.q_proj.weight")
    expert_width, action_dim = source.shape("action_in_proj.weight")
    values: dict[str, Any] = dict(
        image_size=math.isqrt(positions) * patch[-1],
        stem=((patch[0], patch[-1], patch[-1]),),
        vision_width=patch[0],
        vision_depth=count_layers(source, f"{_VISION}.encoder.layers."),
        vision_mlp=source.shape(f"{_VISION}.encoder.layers.0.mlp.fc1.weight")[0],
        width=width,
        mlp=source.shape(f"{_VLM}.layers.0.mlp.gate_proj.weight")[0],
        depth=max(count_layers(source, f"{_VLM}.layers."), count_layers(source, f"{_EXPERT}.layers.")),
        heads=queries // head_dim,
        head_dim=head_dim,
        expert_width=expert_width,
        expert_mlp=source.shape(f"{_EXPERT}.layers.0.mlp.gate_proj.weight")[0],
        vocab=source.shape(EMBEDDING)[0],
        action_dim=action_dim,
        horizon=horizon,
        steps=steps,
    )
    try:
        if family == "pi0.5":
            return Pi05Config(**values)
        return Pi0Config(**values, state_dim=source.shape("state_proj.weight")[1])
    except ValueError as error:
        raise CheckpointError(f"the shapes of {source.path} are not those of a {family}: {error}") from error


def published_layout(model: Pi0 | Pi05) -> dict[str, dict[str, Tensor]]:
    """Returns, for each parameter of ours, the published tensors that it is made of, top to bottom.

    Args:
        model: Its memory is not read, so it may be on the meta device.

    Returns:
        Name of ours -> published name -> the rows of ours that it fills.

    Raises:
        CheckpointError: The stem has several convolutions, which no published model has.
    """
    config = model.config
    if len(config.stem) != 1:
        raise CheckpointError(f"published models have one patch convolution, the configuration has {len(config.stem)}")
    others, expert = (_PI0, _GEMMA_LAYER) if isinstance(model, Pi0) else (_PI05, _ADAPTIVE_LAYER)
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in others.items()}
    for ours, theirs, depth, layer in (
        ("vision.layers", f"{_VISION}.encoder.layers", config.vision_depth, SIGLIP_LAYER),
        ("vlm", f"{_VLM}.layers", config.depth, _GEMMA_LAYER),
        ("expert", f"{_EXPERT}.layers", config.depth, expert),
    ):
        names |= layer_names(ours, theirs, depth, layer)
    layout = {}
    for ours, parameter in model.state_dict().items():
        if ours == "vision.positions":
            layout[ours] = {f"{_VISION}.embeddings.position_embedding.weight": parameter}
            continue
        module, _, kind = ours.rpartition(".")
        parts = [f"{name}.{kind}" for name in names[module]]
        rows = [len(parameter) // len(parts)] * len(parts)
        if module.endswith("qkv") and not module.startswith("vision"):  # many query heads, one key-value head
            rows = [config.heads * config.head_dim, config.head_dim, config.head_dim]
        layout[ours] = dict(zip(parts, parameter.split(rows), strict=True))
    return layout
