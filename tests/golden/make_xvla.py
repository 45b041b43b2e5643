"""Writes xvla_tiny.safetensors: what lerobot's X-VLA computes at a tiny size, for test_xvla_parity.py.

The reference needs its own environment::

    python3.11 -m venv oracle
    oracle/bin/pip install torch==2.13.0 numpy safetensors transformers==5.5.4
    oracle/bin/pip install --no-deps --ignore-requires-python lerobot==0.6.1
    oracle/bin/python tests/golden/make_xvla.py

Every parameter is sampled anew: zeros and ones, as initialisation leaves them, would hide errors. Two robots are in the
batch, and the second lacks a view. The file holds

* ``weights/...``: the state dict under its published names;
* ``inputs/...``: images [2, 2, 3, 64, 64] in [-1, 1] (the model has a third view, which neither robot has), tokens,
  view_mask, state, embodiment, noise;
* ``expected/...``: visual (the tokens of the views that exist), read (the language encoder's output), rows.N (what
  enters each block at the first step), first (prediction of the first step), actions;
* ``rotation/...``: rotations as six numbers [N, 6] and what the reference makes of them, [N, 3];
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
from safetensors.torch import save_file

SIDE, TEXT, HORIZON, VIEWS = 64, 5, 6, 3
MEAN, STD = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
TINY = {
    "florence_config": {
        "vision_config": {
            "model_type": "davit",
            "dim_embed": [8, 12, 16, 24],
            "num_heads": [2, 3, 2, 4],
            "num_groups": [2, 2, 4, 3],
            "depths": [1, 1, 2, 1],
            "window_size": 5,
            "projection_dim": 32,
            "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 4},
            "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 3},
        },
        "text_config": {
            "vocab_size": 12,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_ffn_dim": 56,
            "encoder_attention_heads": 4,
            "decoder_layers": 1,
            "decoder_ffn_dim": 8,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 20,
        },
    },
    "hidden_size": 40,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "num_domains": 4,
    "len_soft_prompts": 3,
    "dim_time": 8,
    "max_len_seq": 48,
    "chunk_size": HORIZON,
    "n_action_steps": 1,
}
FULL = {
    "florence_config": {
        "vision_config": {
            "model_type": "davit",
            "dim_embed": [256, 512, 1024, 2048],
            "num_heads": [8, 16, 32, 64],
            "num_groups": [8, 16, 32, 64],
            "depths": [1, 1, 9, 1],
            "window_size": 12,
            "projection_dim": 1024,
            "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": 50},
            "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": 100},
        },
        "text_config": {
            "vocab_size": 51289,
            "d_model": 1024,
            "encoder_layers": 12,
            "encoder_ffn_dim": 4096,
            "encoder_attention_heads": 16,
            "decoder_layers": 1,
            "max_position_embeddings": 1024,
        },
    },
    "chunk_size": 30,
    "n_action_steps": 1,
}
STATE = 20


def import_xvla() -> types.ModuleType:
    """Imports the model's folder alone: the package around it needs a newer Python and a robot's worth of packages."""
    root = Path(str(importlib.metadata.distribution("lerobot").locate_file("lerobot")))
    for name in ("lerobot", "lerobot.utils", "lerobot.policies", "lerobot.policies.common", "lerobot.policies.xvla"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root.parent.joinpath(*name.split(".")))]

    class Anything:
        """Stands for a class that only annotations, base classes or defaults need."""

        def __init_subclass__(cls, **kwargs: object) -> None: ...

        def __post_init__(self) -> None: ...

        @classmethod
        def register_subclass(cls, name: str) -> object:
            return lambda registered: registered

    names = {
        "lerobot.configs": ("PreTrainedConfig", "PolicyFeature", "FeatureType", "NormalizationMode"),
        "lerobot.optim": ("CosineDecayWithWarmupSchedulerConfig", "XVLAAdamWConfig"),
        "lerobot.policies.pretrained": ("PreTrainedPolicy",),
    }
    for module, classes in names.items():
        sys.modules[module] = types.ModuleType(module)
        for each in classes:
            setattr(sys.modules[module], each, type(each, (Anything,), {"IDENTITY": "identity"}))
    sys.modules["lerobot.policies.pretrained"].T = object
    utils = sys.modules["lerobot.policies.utils"] = types.ModuleType("lerobot.policies.utils")
    utils.populate_queues = None
    imports = sys.modules["lerobot.utils.import_utils"] = types.ModuleType("lerobot.utils.import_utils")
    imports.require_package = lambda *args, **kwargs: None
    imports._transformers_available = True
    return importlib.import_module("lerobot.policies.xvla.modeling_xvla")


modeling = import_xvla()


def build(changes: dict) -> torch.nn.Module:
    """The reference with these fields of its configuration."""
    config = importlib.import_module("lerobot.policies.xvla.configuration_xvla").XVLAConfig(**changes)
    return modeling.XVLAModel(config, config.get_florence_config(), STATE).eval()


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Samples matrices from N(0, 1.3^2 / fan_in) and vectors from N(0, 0.3^2), about 1 for the gains of norms."""
    for name, parameter in model.named_parameters():
        sample = torch.randn(parameter.shape, generator=generator)
        table = any(part in name for part in ("embed", "pos_emb", "soft_prompt", "shared"))
        gain = "norm" in name and name.endswith("weight")
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
        if name.endswith("fc.weight") and "action" in name:
            fan_in = parameter.shape[1] // (40 if "encoder" in name else 20)
        if "channel_attn.qkv" in name:
            fan_in *= 4  # its scores are sums over all pixels: they would be sharp, and rounding would decide
        scale = 0.3 if parameter.ndim == 1 or table or "bias" in name else 1.3 / fan_in**0.5
        parameter.data.copy_(sample * scale + gain)


@torch.no_grad()
def main() -> None:
    """Runs the reference and writes the file next to this script."""
    generator = torch.Generator().manual_seed(21)
    model = build(TINY)
    randomise(model, generator)

    images = torch.rand((2, 2, 3, SIDE, SIDE), generator=generator) * 2 - 1
    inputs = {
        "images": images,
        "tokens": torch.tensor([[0, 7, 5, 2, 1], [0, 9, 2, 1, 1]]),
        "view_mask": torch.tensor([[True, True], [True, False]]),
        "state": torch.randn((2, STATE), generator=generator),
        "embodiment": torch.tensor([3, 1]),
    }

    expected: dict[str, torch.Tensor] = {}
    vlm, head = model.vlm, model.transformer
    see, read = vlm.get_image_features, vlm.language_model.encoder.forward

    def keep(name: str, tensor: torch.Tensor) -> None:
        expected.setdefault(name, tensor.clone())

    def watch_features(*args: object, **kwargs: object) -> object:
        output = see(*args, **kwargs)
        keep("visual", output.pooler_output)
        return output

    def watch_encoder(*args: object, **kwargs: object) -> object:
        output = read(*args, **kwargs)
        keep("read", output[0])
        return output

    vlm.get_image_features, vlm.language_model.encoder.forward = watch_features, watch_encoder
    head.register_forward_hook(lambda module, args, output: keep("first", output))
    for number, block in enumerate(head.blocks):
        block.register_forward_pre_hook(lambda module, args, number=number: keep(f"rows.{number}", args[0]))

    pixels = ((images + 1) / 2 - MEAN) / STD
    padded = torch.cat([pixels, torch.zeros(2, VIEWS - 2, 3, SIDE, SIDE)], 1)
    mask = torch.cat([inputs["view_mask"], torch.zeros(2, VIEWS - 2, dtype=torch.bool)], 1)
    inputs["noise"] = torch.randn((2, HORIZON, model.dim_action), generator=generator)
    sample, torch.randn = torch.randn, lambda *args, **kwargs: inputs["noise"]  # the only numbers it samples
    expected["actions"] = model.generate_actions(
        inputs["tokens"], padded, mask, inputs["embodiment"], inputs["state"], steps=10
    )
    torch.randn = sample

    six = torch.randn((12, 6), generator=generator)
    utils = importlib.import_module("lerobot.policies.xvla.utils")
    rotation = {"six": six, "axis_angle": torch.from_numpy(utils.rotate6d_to_axis_angle(six.numpy())).float()}

    weights = {f"model.{name}": x for name, x in model.state_dict().items()}
    weights.pop("model.vlm.language_model.encoder.embed_tokens.weight", None)  # shared, as safetensors stores it
    groups = {"weights": weights, "inputs": inputs, "expected": expected, "rotation": rotation}
    tensors = {
        f"{group}/{name}": x.contiguous().clone() for group, named in groups.items() for name, x in named.items()
    }
    with torch.device("meta"):
        full = build(FULL).state_dict()
    layout = {f"model.{name}": list(x.shape) for name, x in full.items()}
    save_file(tensors, Path(__file__).with_name("xvla_tiny.safetensors"), {"layout": json.dumps(layout)})


if __name__ == "__main__":
    main()
