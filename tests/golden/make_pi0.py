"""Writes pi0_tiny.safetensors and pi05_tiny.safetensors: what openpi's PyTorch models compute at a tiny size.

They are for test_pi0_parity.py and test_pi05_parity.py.

The reference needs its own environment, because it pins an old transformers (with openpi's changes merged in)::

    python3.11 -m venv oracle
    oracle/bin/pip install torch==2.13.0 numpy safetensors pytest regex pyyaml requests tqdm packaging
    oracle/bin/pip install --no-deps rlinf-transformer-openpi==4.53.2 rlinf-openpi==0.1.1
    oracle/bin/pip install --no-deps tokenizers==0.21.4 huggingface-hub==0.36.2
    oracle/bin/python tests/golden/make_pi0.py

Every parameter is drawn anew: zeros and ones, as initialisation leaves them, would hide errors. The batch has two rows,
so that what one row masks and the other does not is masked, and what both mask may be dropped. The file holds

* ``weights/...``: the state dict under its published names, the 257,152 embeddings cut to the rows in use;
* ``inputs/...``: images, view_mask, tokens (counted in the rows kept), token_mask, state, noise;
* ``expected/...``: embeddings (before the first layer), key.N and value.N of each layer, velocity (of the first step),
  actions;
* metadata ``layout``: names and shapes of the full-size model, for the loader.
"""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import save_file

SIZES = ("width", "depth", "mlp_dim", "num_heads", "num_kv_heads", "head_dim")
FULL = {"vlm": (2048, 18, 16384, 8, 1, 256), "expert": (1024, 18, 4096, 8, 1, 256)}
TINY = {"vlm": (64, 3, 128, 8, 1, 16), "expert": (32, 3, 80, 8, 1, 16)}
TINY_VISION = {
    "image_size": 56,  # 16 tokens a view
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "projection_dim": TINY["vlm"][0],
}
VIEWS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
HORIZON, TOKENS, ROWS_KEPT = 10, 9, 12


def stub_jax() -> None:
    """The model asks its JAX twin for dimensions only: stand-ins spare the whole of JAX."""
    gemma = types.ModuleType("openpi.models.gemma")
    gemma.get_config = lambda sizes: types.SimpleNamespace(**dict(zip(SIZES, sizes, strict=True)))
    sys.modules |= {
        "openpi.models": types.ModuleType("openpi.models"),
        "openpi.models.gemma": gemma,
        "openpi.shared": types.ModuleType("openpi.shared"),
        "openpi.shared.image_tools": types.ModuleType("openpi.shared.image_tools"),
    }
    sys.modules["openpi.models"].gemma = gemma
    sys.modules["openpi.shared"].image_tools = sys.modules["openpi.shared.image_tools"]


stub_jax()
from openpi.models_pytorch import gemma_pytorch, pi0_pytorch, preprocessing_pytorch  # noqa: E402

PaliGemma = gemma_pytorch.PaliGemmaForConditionalGeneration


def build(sizes: dict[str, tuple[int, ...]], vision: dict[str, int], pi05: bool) -> torch.nn.Module:
    """The reference; its vision tower's size is no argument, so it is set on the way to the constructor."""

    def paligemma(config: object) -> torch.nn.Module:
        vars(config.vision_config).update(vision)
        return PaliGemma(config=config)

    gemma_pytorch.PaliGemmaForConditionalGeneration = paligemma
    config = types.SimpleNamespace(
        pi05=pi05,
        paligemma_variant=sizes["vlm"],
        action_expert_variant=sizes["expert"],
        dtype="float32",
        action_dim=32,
        action_horizon=HORIZON,
    )
    return pi0_pytorch.PI0Pytorch(config).eval()


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Draws matrices from N(0, 1.3^2 / fan_in) and vectors from N(0, 0.3^2), about 1 for the gain of a LayerNorm."""
    gains = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.LayerNorm)}
    for parameter in model.parameters():
        draw = torch.randn(parameter.shape, generator=generator)
        scale = 1.3 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.3
        parameter.data.copy_(draw * scale + (id(parameter) in gains))


@torch.no_grad()
def write(name: str, pi05: bool) -> None:
    """Runs the reference and writes the file beside this script."""
    generator = torch.Generator().manual_seed(20)
    model = build(TINY, TINY_VISION, pi05)
    torch.set_float32_matmul_precision("highest")  # the constructor lowers it
    randomise(model, generator)

    rows = torch.randperm(257_152, generator=generator)[:ROWS_KEPT]
    view_mask = torch.tensor([[True, True, False], [True, False, False]])
    images = torch.rand((2, 3, 3, 56, 56), generator=generator) * 2 - 1
    tokens = torch.randint(0, ROWS_KEPT, (2, TOKENS), generator=generator)
    token_mask = torch.arange(TOKENS) < torch.tensor([[7], [4]])
    state = torch.randn((2, 32), generator=generator)
    noise = torch.randn((2, HORIZON, 32), generator=generator)
    observation = types.SimpleNamespace(
        images={view: images[:, number] for number, view in enumerate(VIEWS)},
        image_masks={view: view_mask[:, number] for number, view in enumerate(VIEWS)},
        state=state,
        tokenized_prompt=rows[tokens],
        tokenized_prompt_mask=token_mask,
        token_ar_mask=None,
        token_loss_mask=None,
    )
    pi0_pytorch._preprocessing.preprocess_observation_pytorch = functools.partial(
        preprocessing_pytorch.preprocess_observation_pytorch, image_resolution=(56, 56)
    )

    expected: dict[str, torch.Tensor] = {}
    embed_prefix, denoise_step = model.embed_prefix, model.denoise_step

    def watch_prefix(*args: object) -> object:
        result = embed_prefix(*args)
        expected["embeddings"] = result[0]
        return result

    def watch_step(state: object, mask: object, cache: object, *args: object) -> torch.Tensor:
        velocity = denoise_step(state, mask, cache, *args)
        if "velocity" not in expected:
            expected["velocity"] = velocity
            for layer in range(TINY["vlm"][1]):
                expected[f"key.{layer}"], expected[f"value.{layer}"] = (x[:, 0] for x in cache[layer])
        return velocity

    model.embed_prefix, model.denoise_step = watch_prefix, watch_step
    # By its class, because the instance holds a compiled copy.
    expected["actions"] = pi0_pytorch.PI0Pytorch.sample_actions(model, "cpu", observation, noise, num_steps=10)

    weights = {name: x[rows] if len(x) == 257_152 else x for name, x in model.state_dict().items()}
    inputs = {
        "images": images,
        "view_mask": view_mask,
        "tokens": tokens,
        "token_mask": token_mask,
        "state": state,
        "noise": noise,
    }
    groups = {"weights": weights, "inputs": inputs, "expected": expected}
    tensors = {f"{group}/{name}": x.clone() for group, named in groups.items() for name, x in named.items()}
    with torch.device("meta"):
        full = build(FULL, {}, pi05).state_dict()
    layout = {name: list(x.shape) for name, x in full.items()}
    save_file(tensors, Path(__file__).with_name(name), {"layout": json.dumps(layout)})


if __name__ == "__main__":
    write("pi0_tiny.safetensors", pi05=False)
    write("pi05_tiny.safetensors", pi05=True)
