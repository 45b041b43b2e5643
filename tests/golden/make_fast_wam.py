"""Writes fast_wam_tiny.safetensors: what lerobot's Fast-WAM computes at a tiny size, for test_fast_wam_parity.py.

The reference needs its own environment::

    python3.11 -m venv oracle
    oracle/bin/pip install torch==2.13.0 numpy safetensors einops diffusers==0.39.0 transformers==5.5.4
    oracle/bin/pip install --no-deps --ignore-requires-python lerobot==0.6.1
    oracle/bin/python tests/golden/make_fast_wam.py

Every parameter is sampled anew: zeros and ones, as initialisation leaves them, would hide errors. The batch has one
row, since the reference's inference has. The image encoder is diffusers' AutoencoderKLWan of the kind of
Wan2.2-TI2V-5B. The file holds

* ``weights/...``: the state dict under its published names; ``vae/...``: the image encoder's;
* ``inputs/...``: images [1, 2, 3, 64, 64] in [-1, 1], text [1, T, text_width], state, noise;
* ``expected/...``: latents, embeddings (of patches), key.N and value.N of each video block, velocity (of the first
  step), actions;
* metadata ``layout``: names and shapes of the full-size model, for the loader.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import types
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

SIDE, TEXT, HORIZON = 64, 5, 8
STATE, ACTION = 8, 7
VAE = {
    "base_dim": 8,
    "z_dim": 6,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 2,
    "temperal_downsample": [False, True],
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "latents_mean": [0.3, -0.2, 0.1, -0.4, 0.25, 0.0],
    "latents_std": [1.3, 0.7, 2.1, 0.9, 1.1, 0.8],
}
TINY_VIDEO = {"in_dim": 6, "out_dim": 6, "hidden_dim": 48, "ffn_dim": 80, "freq_dim": 16, "text_dim": 24}
TINY_ACTION = {"hidden_dim": 32, "ffn_dim": 56, "freq_dim": 16, "text_dim": 24}
TINY_BOTH = {"num_heads": 2, "attn_head_dim": 24, "num_layers": 3}
FULL_VIDEO = {"in_dim": 48, "out_dim": 48, "hidden_dim": 3072, "ffn_dim": 14336, "freq_dim": 256, "text_dim": 4096}
FULL_ACTION = {"hidden_dim": 1024, "ffn_dim": 4096, "freq_dim": 256, "text_dim": 4096}
FULL_BOTH = {"num_heads": 24, "attn_head_dim": 128, "num_layers": 30}


def import_wan() -> types.ModuleType:
    """Imports the model's folder alone: the package around it needs a newer Python and a robot's worth of packages."""
    root = Path(str(importlib.metadata.distribution("lerobot").locate_file("lerobot")))
    for name in ("lerobot", "lerobot.policies", "lerobot.policies.fastwam", "lerobot.utils"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root.parent.joinpath(*name.split(".")))]
    utils = types.ModuleType("lerobot.utils.import_utils")
    utils.require_package = lambda *args, **kwargs: None
    utils.is_package_available = lambda *args, **kwargs: True
    utils._diffusers_available = utils._transformers_available = True
    sys.modules["lerobot.utils.import_utils"] = utils
    return importlib.import_module("lerobot.policies.fastwam.wan.modular")


modular = import_wan()
video_dit = importlib.import_module("lerobot.policies.fastwam.wan.video_dit")


def branches(video: dict, action: dict, both: dict) -> torch.nn.Module:
    """Both branches of the reference."""
    shared = {"eps": 1e-6, **both}
    mixtures = {
        "video": video_dit.WanVideoDiT(
            **video,
            **shared,
            patch_size=(1, 2, 2),
            seperated_timestep=True,
            video_attention_mask_mode="first_frame_causal",
        ),
        "action": modular.ActionDiT(**action, **shared, action_dim=ACTION),
    }
    return modular.MoT(mixtures, mot_checkpoint_mixed_attn=False)


def build(vae: torch.nn.Module) -> torch.nn.Module:
    """The tiny reference, without its text encoder."""
    mot = branches(TINY_VIDEO, TINY_ACTION, TINY_BOTH)
    return modular.FastWAM(
        video_expert=mot.mixtures["video"],
        action_expert=mot.mixtures["action"],
        mot=mot,
        vae=vae,
        text_dim=TINY_VIDEO["text_dim"],
        proprio_dim=STATE,
        device="cpu",
        torch_dtype=torch.float32,
    ).eval()


def build_vae() -> torch.nn.Module:
    """The image encoder as the reference wraps it; the width of its latents is a constant there."""
    adapters = importlib.import_module("lerobot.policies.fastwam.wan.adapters")

    class Tiny(adapters.WanVideoVAE38):
        upsampling_factor, z_dim = 8, VAE["z_dim"]

    return Tiny(torch.float32, "cpu", pretrained=AutoencoderKLWan(**VAE))


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Samples matrices from N(0, 1.3^2 / fan_in) and vectors from N(0, 0.3^2), about 1 for the gains of norms."""
    for name, parameter in model.named_parameters():
        sample = torch.randn(parameter.shape, generator=generator)
        gain = "norm" in name and not name.endswith("bias") or "gamma" in name
        vector = parameter.ndim == 1 or gain or "modulation" in name
        scale = 0.3 if vector else 1.3 / parameter[0].numel() ** 0.5
        parameter.data.copy_(sample * scale + gain)


@torch.no_grad()
def main() -> None:
    """Runs the reference and writes the file beside this script."""
    generator = torch.Generator().manual_seed(20)
    vae = build_vae().eval()
    model = build(vae)
    randomise(vae, generator)
    randomise(model, generator)

    images = torch.rand((1, 2, 3, SIDE, SIDE), generator=generator) * 2 - 1
    text = torch.randn((1, TEXT, TINY_VIDEO["text_dim"]), generator=generator)
    text[:, -2:] = 0  # as the text encoder's output at padding
    state = torch.randn((1, STATE), generator=generator)
    noise = torch.randn((1, HORIZON, ACTION), generator=generator)

    expected: dict[str, torch.Tensor] = {}
    encode, prefill, predict = model.vae.encode, model.mot.prefill_video_cache, model._predict_action_noise_with_cache

    def watch_encode(*args: object, **kwargs: object) -> torch.Tensor:
        expected["latents"] = encode(*args, **kwargs)
        return expected["latents"]

    def watch_prefill(**kwargs: object) -> list[dict[str, torch.Tensor]]:
        expected["embeddings"] = kwargs["video_tokens"]
        cache = prefill(**kwargs)
        for layer, pair in enumerate(cache):
            expected[f"key.{layer}"], expected[f"value.{layer}"] = pair["k"], pair["v"]
        return cache

    def watch_predict(**kwargs: object) -> torch.Tensor:
        velocity = predict(**kwargs)
        expected.setdefault("velocity", velocity)
        return velocity

    model.vae.encode, model.mot.prefill_video_cache = watch_encode, watch_prefill
    model._predict_action_noise_with_cache = watch_predict
    model._make_action_latents = lambda *args: noise
    expected["actions"] = model.infer_action(
        prompt=None,
        input_image=(torch.cat(images.unbind(1), -1) + 1) / 2,
        action_horizon=HORIZON,
        proprio=state,
        context=text,
        context_mask=torch.ones((1, TEXT), dtype=torch.bool),
        num_inference_steps=10,
    )["action"]

    # The frozen image encoder is not in a checkpoint.
    weights = {f"model.{name}": x for name, x in model.state_dict().items() if not name.startswith("vae.")}
    encoder = {name: x for name, x in vae.vae.state_dict().items() if name.startswith(("encoder.", "quant_conv."))}
    inputs = {"images": images, "text": text, "state": state, "noise": noise}
    groups = {"weights": weights, "vae": encoder, "inputs": inputs, "expected": expected}
    tensors = {
        f"{group}/{name}": x.contiguous().clone() for group, named in groups.items() for name, x in named.items()
    }
    with torch.device("meta"):
        mot = branches(FULL_VIDEO, FULL_ACTION, FULL_BOTH)
        full = {f"mot.{name}": x for name, x in mot.state_dict().items()}
        proprio = torch.nn.Linear(STATE, FULL_VIDEO["text_dim"])
    full |= {f"proprio_encoder.{name}": x for name, x in proprio.state_dict().items()}
    layout = {f"model.{name}": list(x.shape) for name, x in full.items()}
    save_file(tensors, Path(__file__).with_name("fast_wam_tiny.safetensors"), {"layout": json.dumps(layout)})


if __name__ == "__main__":
    main()
