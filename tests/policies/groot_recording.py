"""The recording of the public GR00T N1.6, most of which is sampled again; see tests/golden/make_groot.py."""

from __future__ import annotations

import importlib.util
import json
from functools import cache

import pytest
import torch
from parity import GOLDEN, recorded
from replan.policies.call import dense
from replan.policies.groot import GrootConfig
from replan.policies.model import Inputs
from safetensors import safe_open

FILE = "groot_tiny.safetensors"
CONFIG = GrootConfig(
    image_size=252,
    grid=16,
    vision_width=64,
    vision_depth=2,
    vision_heads=4,
    vision_mlp=96,
    width=64,
    mlp=96,
    depth=3,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=1000,
    image_token=999,
    expert_width=64,
    expert_mlp=256,
    expert_depth=8,
    expert_heads=4,
    robot_width=32,
    robots=4,
    places=64,
    state_dim=16,
    action_dim=12,
    horizon=8,
)


@cache
def _samples():
    spec = importlib.util.spec_from_file_location("make_groot", GOLDEN / "make_groot.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    with safe_open(GOLDEN / FILE, "pt") as file:
        made = make.sampled(json.loads(file.metadata()["sampled"]))
    if not torch.allclose(made["state"], recorded(FILE, "inputs/")["state"], rtol=0, atol=1e-6):
        pytest.fail("this torch samples other numbers from a seed than the one that the recording was made with")
    return made


def weights():
    """The state dict under its published names."""
    made = {name: tensor for name, tensor in _samples().items() if name.startswith(("backbone", "action_head"))}
    llm = "backbone.model.language_model"
    return made | {f"{llm}.model.embed_tokens.weight": made[f"{llm}.lm_head.weight"]}


def inputs():
    """Two views, their tokens amid those of the text, and a state of robot 2."""
    given, made = recorded(FILE, "inputs/"), _samples()
    images = torch.cat([made["pixel_values.0"], made["pixel_values.1"]])[None]
    tokens = given["tokens"]
    return Inputs(
        images, tokens, torch.ones_like(tokens, dtype=torch.bool), given["state"][:, 0], None, given["embodiment"]
    )


def noise():
    return recorded(FILE, "inputs/")["noise"]


@torch.inference_mode()
def run(model, given=None):
    """One dense round: features behind the language model's last norm, and actions."""
    given = (inputs() if given is None else given).to(model.device, model.dtype)
    features = []
    hook = model.llm_norm.register_forward_hook(lambda module, args, out: features.append(out))
    actions = dense(model, model.encode(given), given, noise())
    hook.remove()
    return features[0], actions
