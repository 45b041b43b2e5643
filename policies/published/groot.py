"""Published weights of GR00T N1.6: NVIDIA's checkpoint folders, decided by the keys."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..groot import GROOT_N1_6, Groot, GrootConfig
from ..weights import CheckpointError
from .names import SIGLIP_LAYER, layer_names, untie
from .reader import Source, open_source

VISION = "backbone.model.vision_model.vision_model"
CONNECTOR = "backbone.model.mlp1"
LLM = "backbone.model.language_model.model"
HEAD = "action_head"

EMBEDDING = f"{LLM}.embed_tokens.weight"
TIED = "backbone.model.language_model.lm_head.weight"
"""The embedding under its other name."""

MASK_TOKEN = f"{HEAD}.mask_token"
"""What a state was replaced with at random in training; checkpoints that were trained with it hold it."""

_POOLING = f"{VISION}.head."
"""The tower's pooled output, which nothing reads."""

_NEWER = "backbone.model.model."
"""Where GR00T N1.7 has its language model, which is another one."""

_OLDER = "backbone.eagle_model."
"""Where GR00T N1 and N1.5 have their backbone."""

_QWEN_LAYER = {
    "attention_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "ffn.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "ffn.down": ("mlp.down_proj",),
}
_BLOCK = {
    "modulate": ("norm1.linear",),
    "qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "q": ("attn1.to_q",),
    "kv": ("attn1.to_k", "attn1.to_v"),
    "out": ("attn1.to_out.0",),
    "ffn.up": ("ff.net.0.proj",),
    "ffn.down": ("ff.net.2",),
}
_OTHERS = {
    "vision.patch_in": f"{VISION}.embeddings.patch_embedding",
    "vision.norm": f"{VISION}.post_layernorm",
    "vision.connector_norm": f"{CONNECTOR}.0",
    "vision.connector_in": f"{CONNECTOR}.1",
    "vision.connector_out": f"{CONNECTOR}.3",
    "embed": f"{LLM}.embed_tokens",
    "llm_norm": f"{LLM}.norm",
    "features_norm": f"{HEAD}.vlln",
    "time_in": f"{HEAD}.model.timestep_encoder.timestep_embedder.linear_1",
    "time_out": f"{HEAD}.model.timestep_encoder.timestep_embedder.linear_2",
    "modulate_last": f"{HEAD}.model.proj_out_1",
    "expert_out": f"{HEAD}.model.proj_out_2",
}
_TABLES = {
    "vision.positions": f"{VISION}.embeddings.position_embedding.weight",
    "places": f"{HEAD}.position_embedding.weight",
}
_BY_ROBOT = {
    "state_in": f"{HEAD}.state_encoder.layer1",
    "state_out": f"{HEAD}.state_encoder.layer2",
    "action_in": f"{HEAD}.action_encoder.W1",
    "mixed": f"{HEAD}.action_encoder.W2",
    "action_features": f"{HEAD}.action_encoder.W3",
    "decoder_in": f"{HEAD}.action_decoder.layer1",
    "decoder_out": f"{HEAD}.action_decoder.layer2",
}


def load_published(path: str | Path, config: GrootConfig = GROOT_N1_6, dtype: torch.dtype = torch.float32) -> Groot:
    """Loads published GR00T N1.6 weights; beyond the model itself it holds one matrix in memory at a time.

    Args:
        path: A safetensors file, or a folder with ``model.safetensors`` or ``model.safetensors.index.json``.
        config: Dimensions; the file does not tell image size, horizon, steps and numbers of heads.
        dtype: Precision of every parameter.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        CheckpointError: Nothing is there, it is not safetensors, it is another GR00T, or a name, shape or value does
            not fit.
    """
    with torch.device("meta"):
        model = Groot(config)
    fill(Path(path), model, dtype)
    return model


def fill(path: Path, model: Groot, dtype: torch.dtype) -> None:
    """Loads published weights into a model, which may be on the meta device, and puts it into evaluation mode.

    Raises:
        CheckpointError: As ``load_published`` does.
    """
    with open_source(path) as source:
        recognise(source).fill(model, published_layout(model), dtype)
    model.requires_grad_(False).eval()


def recognise(source: Source) -> Source:
    """Returns the tensors that actions depend on.

    Raises:
        CheckpointError: They are of another GR00T.
    """
    names = {name: name for name in source.names}
    if foreign := next((name for name in names if name.startswith((_OLDER, _NEWER))), None):
        raise CheckpointError(f"{source.path} is another GR00T than N1.6 (it has {foreign}): only N1.6 is read")
    untie(names, EMBEDDING, TIED)
    return source.renamed({ours: theirs for ours, theirs in names.items() if not _unused(ours)})


def published_layout(model: Groot) -> dict[str, dict[str, Tensor]]:
    """Returns, for each parameter of ours, the published tensors that it is made of, top to bottom.

    Args:
        model: Its memory is not read, so it may be on the meta device.

    Returns:
        Name of ours -> published name -> the rows of ours that it fills.
    """
    config = model.config
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _OTHERS.items()}
    for ours, theirs, depth, layer in (
        ("vision.layers", f"{VISION}.encoder.layers", config.vision_depth, SIGLIP_LAYER),
        ("llm", f"{LLM}.layers", config.depth, _QWEN_LAYER),
        ("expert", f"{HEAD}.model.transformer_blocks", config.expert_depth, _BLOCK),
    ):
        names |= layer_names(ours, theirs, depth, layer)
    layout = {}
    for ours, parameter in model.state_dict().items():
        module, _, kind = ours.rpartition(".")
        if ours in _TABLES:
            layout[ours] = {_TABLES[ours]: parameter}
        elif module in _BY_ROBOT:
            layout[ours] = {f"{_BY_ROBOT[module]}.{'W' if kind == 'weight' else 'b'}": parameter}
        else:
            parts = [f"{name}.{kind}" for name in names[module]]
            rows = [len(parameter) // len(parts)] * len(parts)
            if module.startswith("llm") and module.endswith("qkv"):  # more query heads than key and value heads
                keys = config.kv_heads * config.head_dim
                rows = [len(parameter) - 2 * keys, keys, keys]
            layout[ours] = dict(zip(parts, parameter.split(rows), strict=True))
    return layout


def _unused(name: str) -> bool:
    """Whether no action depends on a published tensor."""
    return name in (TIED, MASK_TOKEN) or name.startswith(_POOLING)
