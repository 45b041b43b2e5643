"""Our X-VLA against lerobot's, on weights, inputs and results recorded by tests/golden/make_xvla.py."""

import json
from dataclasses import replace

import parity
import pytest
import torch
from parity import GOLDEN as FOLDER
from parity import recorded, relative, write
from replan.policies import davit, florence, wan, xvla
from replan.policies.checkpoint import CheckpointError
from replan.policies.flow import FlowSpec
from replan.policies.model import Inputs, Ops
from replan.policies.published.xvla import load_published, published_layout
from replan.policies.xvla import X_VLA, XVLA, XVLAConfig
from safetensors import safe_open

GOLDEN = "xvla_tiny.safetensors"
TOLERANCE = 5e-6  # relative
CONFIG = XVLAConfig(
    image_size=64,
    vision_widths=(8, 12, 16, 24),
    vision_depths=(1, 1, 2, 1),
    vision_heads=(2, 3, 2, 4),
    vision_groups=(2, 2, 4, 3),
    window=5,
    vision_positions=4,
    vlm_width=32,
    vlm_mlp=56,
    vlm_depth=2,
    vlm_heads=4,
    vlm_positions=20,
    vocab=12,
    width=40,
    mlp=80,
    depth=3,
    heads=4,
    time_width=8,
    positions=48,
    domains=4,
    prompts=3,
    horizon=6,
)


@pytest.fixture(scope="module")
def expected():
    return recorded(GOLDEN, "expected/")


@pytest.fixture
def weights():
    return recorded(GOLDEN, "weights/")


def load(folder, weights, dtype=torch.float32, config=CONFIG):
    return load_published(write(folder / "model.safetensors", weights), config, dtype)


class Rows(Ops):
    """Keeps what enters each block at the first step, all rows of it."""

    def __init__(self):
        self.seen = {}

    def rows(self, layer, x):
        self.seen.setdefault(layer, x)


def errors(model, expected):
    given = recorded(GOLDEN, "inputs/")
    noise, mask = given.pop("noise"), given["tokens"] != 1
    inputs = Inputs(**given, token_mask=mask)
    call, first = parity.run(model, inputs, noise)
    ops, inputs = Rows(), inputs.to(model.device, model.dtype)
    with torch.inference_mode():
        model.step(noise, 1.0, model.condition(call.context, inputs), ops)
        seen = call.prefix.embeddings[:, :15].unflatten(1, (3, 5))
        read = model.encoder(torch.cat([seen[:, 0], call.prefix.embeddings[:, 15:]], 1))
    actions = call.chunk.clone()
    actions[..., CONFIG.grippers] = actions[..., CONFIG.grippers].sigmoid()
    pairs = {
        "visual": torch.cat([seen[0, :2], seen[1, :1]]),
        "read": read,
        "first": first,
        "actions": actions,
        **{f"rows.{layer}": x for layer, x in ops.seen.items()},
    }
    return {name: relative(ours, expected[name]) for name, ours in pairs.items()}


def test_every_stage_equals_the_reference(tmp_path, weights, expected):
    found = errors(load(tmp_path, weights), expected)
    assert found.keys() == expected.keys() and max(found.values()) <= TOLERANCE
