"""Published pi0 weights: openpi's PyTorch conversion, and lerobot's, which has the same names behind a prefix.

A file fits name by name and shape by shape or is refused, since a tolerant loader leaves random layers behind without a
word. Normalisation statistics and the prompt's tokens are not part of such a file.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from .checkpoint import CheckpointError, load_strictly, open_safetensors
from .pi0 import PI0, Pi0, Pi0Config

_VLM = "paligemma_with_expert.paligemma.model.language_model"
_EXPERT = "paligemma_with_expert.gemma_expert.model"
_VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model"
_PROJECTOR = "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"

EMBEDDING = f"{_VLM}.embed_tokens.weight"
TIED = "paligemma_with_expert.paligemma.lm_head.weight"
"""The embedding under its other name. safetensors stores shared memory once, so a file may have only this one."""

UNUSED = frozenset({f"{_VLM}.norm.weight", "paligemma_with_expert.gemma_expert.lm_head.weight", TIED})
"""What a file may have and no action depends on: the VLM's output is not read, and neither stack predicts words."""

_GEMMA_LAYER = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "ffn.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn.down": ("mlp.down_proj",),
}
_SIGLIP_LAYER = {
    "attention_norm": ("layer_norm1",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.out_proj",),
    "ffn_norm": ("layer_norm2",),
    "up": ("mlp.fc1",),
    "down": ("mlp.fc2",),
}
_OTHERS = {
    "vision.stem.0": f"{_VISION}.embeddings.patch_embedding",
    "vision.norm": f"{_VISION}.post_layernorm",
    "vision.project": _PROJECTOR,
    "embed": f"{_VLM}.embed_tokens",
    "expert_norm": f"{_EXPERT}.norm",
    "state_in": "state_proj",
    "action_in": "action_in_proj",
    "time_in": "action_time_mlp_in",
    "time_out": "action_time_mlp_out",
    "action_out": "action_out_proj",
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
        CheckpointError: Nothing is there, it is not safetensors, it is a pi0.5, or a name or shape does not fit.
    """
    with torch.device("meta"):
        model = Pi0(config)
    layout = published_layout(model)
    with ExitStack() as stack:
        files = [stack.enter_context(open_safetensors(file)) for file in _files(Path(path))]
        where = {name: file for file in files for name in file.keys()}
        lerobot = "model." if all(name.startswith("model.") for name in where) else ""
        where = {name.removeprefix(lerobot): (file, name) for name, file in where.items()}
        if any("norm.dense." in name or name.startswith("time_mlp_") for name in where):
            raise CheckpointError(f"{path} is a pi0.5 (its norms depend on the flow time); only pi0 can be loaded")
        if EMBEDDING not in where and TIED in where:
            where[EMBEDDING] = where[TIED]
        where = {name: found for name, found in where.items() if name not in UNUSED}
        shapes = {
            name: torch.empty(file.get_slice(key).get_shape(), device="meta") for name, (file, key) in where.items()
        }
        load_strictly(shapes, {name: part for parts in layout.values() for name, part in parts.items()}, path)

        def read(name: str) -> Tensor:
            file, key = where[name]
            return file.get_tensor(key).to(dtype)

        # cat copies even a single part, so no parameter stays mapped to the file.
        state = {ours: torch.cat([read(name) for name in parts]) for ours, parts in layout.items()}
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def published_layout(model: Pi0) -> dict[str, dict[str, Tensor]]:
    """Returns, for each parameter of ours, the published tensors that it is made of, top to bottom.

    Args:
        model: A pi0; its memory is not read, so it may be on the meta device.

    Returns:
        Name of ours -> published name -> the rows of ours that it fills.

    Raises:
        CheckpointError: The stem has several convolutions, which no published model has.
    """
    config = model.config
    if len(config.stem) != 1:
        raise CheckpointError(f"published models have one patch convolution, the configuration has {len(config.stem)}")
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _OTHERS.items()}
    for ours, theirs, depth, layer in (
        ("vision.layers", f"{_VISION}.encoder.layers", config.vision_depth, _SIGLIP_LAYER),
        ("vlm", f"{_VLM}.layers", config.depth, _GEMMA_LAYER),
        ("expert", f"{_EXPERT}.layers", config.depth, _GEMMA_LAYER),
    ):
        for number in range(depth):
            for module, parts in layer.items():
                names[f"{ours}.{number}.{module}"] = tuple(f"{theirs}.{number}.{part}" for part in parts)
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


def _files(path: Path) -> list[Path]:
    """Returns the file or the shards.

    Raises:
        CheckpointError: One of them is missing, or the index is damaged.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text())["weight_map"].values())
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"{index} does not say which shards there are ({error!r}); fetch it again") from error
        files = [path / shard for shard in sorted(shards)]
    else:
        files = [path / "model.safetensors" if path.is_dir() else path]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"there are no weights at {file}")
    return files
