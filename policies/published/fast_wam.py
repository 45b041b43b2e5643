"""Published Fast-WAM weights: lerobot's checkpoint, and diffusers' Wan autoencoder, which it names instead of holding.

Both are needed, and the instructions' text embeddings besides: the UMT5-XXL that makes them is larger than the policy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..fast_wam import FAST_WAM, FastWAM, FastWAMConfig
from ..weights import CheckpointError
from .reader import Layout, open_source

_BLOCK = {
    "self_attention.qkv": ("self_attn.q", "self_attn.k", "self_attn.v"),
    "self_attention.q_norm": ("self_attn.norm_q",),
    "self_attention.k_norm": ("self_attn.norm_k",),
    "self_attention.out": ("self_attn.o",),
    "text_norm": ("norm3",),
    "text_attention.q": ("cross_attn.q",),
    "text_attention.kv": ("cross_attn.k", "cross_attn.v"),
    "text_attention.q_norm": ("cross_attn.norm_q",),
    "text_attention.k_norm": ("cross_attn.norm_k",),
    "text_attention.out": ("cross_attn.o",),
    "ffn.up": ("ffn.0",),
    "ffn.down": ("ffn.2",),
}
_BRANCH = {
    "text_in": "text_embedding.0",
    "text_out": "text_embedding.2",
    "time_in": "time_embedding.0",
    "time_out": "time_embedding.2",
    "modulate": "time_projection.1",
}
_OTHERS = {
    "state_in": "model.proprio_encoder",
    "patch_in": "model.mot.mixtures.video.patch_embedding",
    "action_in": "model.mot.mixtures.action.action_encoder",
    "action_out": "model.mot.mixtures.action.head",
}
UNUSED_PREFIX = "model.mot.mixtures.video.head."
"""The video branch's output: only training, and whoever wants to see frames, reads it."""

_RESIDUAL = {"first_norm": "norm1", "first": "conv1", "second_norm": "norm2", "second": "conv2"}
_SHORTCUT = {"shortcut": "conv_shortcut"}
_MIDDLE = {
    **{f"0.{ours}": f"resnets.0.{theirs}" for ours, theirs in _RESIDUAL.items()},
    "1.norm": "attentions.0.norm",
    "1.qkv": "attentions.0.to_qkv",
    "1.out": "attentions.0.proj",
    **{f"2.{ours}": f"resnets.1.{theirs}" for ours, theirs in _RESIDUAL.items()},
}
UNUSED_VAE = re.compile(r"decoder\.|post_quant_conv\.|encoder\.down_blocks\.\d+\.downsampler\.time_conv\.")
"""The decoder, and what the encoder does from the second frame on."""


def load_published(
    path: str | Path,
    vae: str | Path,
    latents_mean: Sequence[float],
    latents_std: Sequence[float],
    text: Tensor,
    config: FastWAMConfig = FAST_WAM,
    dtype: torch.dtype = torch.float32,
) -> FastWAM:
    """Loads published Fast-WAM weights.

    Args:
        path: lerobot's checkpoint: a safetensors file or a folder with one or with an index of shards.
        vae: The autoencoder's weights in diffusers' names, likewise; the decoder's are left alone.
        latents_mean: [latents] of the autoencoder's ``config.json``.
        latents_std: [latents] of the same.
        text: [vocab, text_width] embeddings that tokens index; row 0 is padding and never read.
        config: Dimensions; the files do not tell heads, horizon, steps and shift.
        dtype: Precision of every parameter.

    Returns:
        The model, in evaluation mode, on the CPU.

    Raises:
        CheckpointError: A file is missing or not safetensors, or a name, shape or value does not fit.
    """
    with torch.device("meta"):
        model = FastWAM(config)
    fill(Path(path), Path(vae), latents_mean, latents_std, text, model, dtype)
    return model


def fill(
    path: Path,
    vae: Path,
    latents_mean: Sequence[float],
    latents_std: Sequence[float],
    text: Tensor,
    model: FastWAM,
    dtype: torch.dtype,
) -> None:
    """Loads published weights into a model, which may be on the meta device, and puts it into evaluation mode.

    Raises:
        CheckpointError: As ``load_published`` does.
    """
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    state = {
        "text.weight": text.to(dtype, copy=True),
        "vision.mean": torch.tensor(latents_mean, dtype=dtype),
        "vision.std": torch.tensor(latents_std, dtype=dtype),
    }
    for name, tensor in state.items():
        if tensor.shape != shapes[name]:
            raise CheckpointError(f"{name} must have the shape {list(shapes[name])}, got {list(tensor.shape)}")
    with open_source(path) as source:
        names = {name: name for name in source.names if not name.startswith(UNUSED_PREFIX)}
        state |= source.renamed(names).read(policy_layout(model), dtype)
    with open_source(vae) as source:
        names = {name: name for name in source.names if not UNUSED_VAE.match(name)}
        state |= source.renamed(names).read(vae_layout(model), dtype)
    model.load_state_dict({name: _of_one_frame(tensor, shapes[name]) for name, tensor in state.items()}, assign=True)
    model.requires_grad_(False).eval()


def policy_layout(model: FastWAM) -> Layout:
    """Returns, for each parameter of ours but the encoder's and the text's, the published tensors it is made of."""
    names: dict[str, tuple[str, ...]] = {ours: (theirs,) for ours, theirs in _OTHERS.items()}
    for branch in ("video", "action"):
        mixture = f"model.mot.mixtures.{branch}"
        names |= {f"{branch}.{ours}": (f"{mixture}.{theirs}",) for ours, theirs in _BRANCH.items()}
        for number in range(model.config.depth):
            block = f"model.mot.layers.{number}.blocks.{branch}"
            for ours, parts in _BLOCK.items():
                names[f"{branch}.blocks.{number}.{ours}"] = tuple(f"{block}.{part}" for part in parts)
            names[f"{branch}.blocks.{number}"] = (block,)
    layout = {}
    for ours, parameter in model.state_dict().items():
        if ours.startswith(("vision.", "text.")):
            continue
        if ours == "patch_in.weight":
            parameter = parameter[:, :, None]  # a patch of one frame
        module, _, kind = ours.rpartition(".")
        parts = [f"{name}.{kind}" for name in names[module]]
        layout[ours] = dict(zip(parts, parameter.chunk(len(parts)), strict=True))
    return layout


def vae_layout(model: FastWAM) -> Layout:
    """Returns, for each parameter of the image encoder, the published tensor that it is made of."""
    names = {
        "stem": "encoder.conv_in",
        "norm": "encoder.norm_out",
        "head": "encoder.conv_out",
        "quantise": "quant_conv",
        **{f"middle.{ours}": f"encoder.mid_block.{theirs}" for ours, theirs in _MIDDLE.items()},
    }
    for number in range(len(model.config.vae_widths) - 1):
        names[f"stages.{number}.halve"] = f"encoder.down_blocks.{number}.downsampler.resample.1"
        for block in range(model.config.vae_blocks):
            for ours, theirs in {**_RESIDUAL, **_SHORTCUT}.items():
                names[f"stages.{number}.blocks.{block}.{ours}"] = (
                    f"encoder.down_blocks.{number}.resnets.{block}.{theirs}"
                )
    layout = {}
    for ours, parameter in model.vision.named_parameters():
        module, _, kind = ours.rpartition(".")
        flat = module.endswith("halve") or ".1." in module and module.startswith("middle")  # no time axis
        if kind == "gain":
            parameter = parameter[:, None, None] if flat else parameter[:, None, None, None]
        elif kind == "weight" and not flat:
            parameter = parameter[:, :, None].expand(-1, -1, parameter.shape[-1], -1, -1)  # kernels are cubes
        layout[f"vision.{ours}"] = {f"{names[module]}.{kind.replace('gain', 'gamma')}": parameter}
    return layout


def _of_one_frame(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Returns a published tensor as the parameter of ours: of a kernel in time, what meets a video's first frame."""
    if tensor.ndim == 5:
        tensor = tensor[:, :, -1]
    return tensor.reshape(shape).contiguous()
