"""What tests of families share: recordings of public models, porting errors of pi0 and pi0.5, and conventions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from replan.policies import gemma, paligemma
from replan.policies.call import dense, full_path
from replan.policies.fast_wam import FastWAMConfig
from replan.policies.flow import FlowSpec, Schedule
from replan.policies.model import Inputs
from replan.policies.round import Call, Stopwatch
from replan.policies.seams import Methods
from safetensors import safe_open
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "golden"
FAST_WAM_CONFIG = FastWAMConfig(
    image_size=64,
    vae_widths=(8, 8, 16, 16),
    vae_halves_frames=(False, True),
    latents=6,
    width=48,
    mlp=80,
    depth=3,
    heads=2,
    action_width=32,
    action_mlp=56,
    text_width=24,
    time_width=16,
    vocab=6,
    horizon=8,
)
PALIGEMMA = dict(
    image_size=56,
    stem=((48, 14, 14),),
    vision_width=48,
    vision_depth=2,
    vision_heads=4,
    vision_mlp=96,
    width=64,
    mlp=128,
    depth=3,
    heads=8,
    head_dim=16,
    expert_width=32,
    expert_mlp=80,
    vocab=12,
    horizon=10,
)
"""Dimensions of the recordings of make_pi0.py."""
CONVENTIONS = dict(
    cameras=("third", "wrist"),
    image_size=64,
    words=("<pad>", "bin", "hairbrush", "in", "put", "red", "the"),
    max_tokens=8,
    state_mean=(0.1,) * 11,
    state_std=(2.0,) * 11,
    action_mean=(0.0,) * 7,
    action_std=(0.5,) * 7,
    gripper=(6,),
    replan=10,
)
"""Of the processors of tiny models, for the observation that conftest.py has."""


OLDER_XVLA = (
    (r"(convs\.\d+)\.conv\.", r"\1.proj."),
    (r"_block\.(conv\d)\.", r"_block.\1.fn.dw."),
    (r"(window|channel)_attn\.", r"\1_attn.fn."),
    (r"spatial_block\.norm1\.", "spatial_block.window_attn.norm."),
    (r"channel_block\.norm1\.", "channel_block.channel_attn.norm."),
    (r"_block\.norm2\.", "_block.ffn.norm."),
    (r"_block\.ffn\.fc", "_block.ffn.fn.net.fc"),
    (r"multi_modal_projector\.image_position_embed", "image_pos_embed"),
    (r"multi_modal_projector\.", ""),
    (r"vlm\.language_model\.", "vlm.language_model.model."),
)
"""Names of X-VLA in transformers' layout, and what they are in that of Microsoft's code."""


def older(weights):
    """X-VLA's weights in the layout of Microsoft's code."""
    renamed = {}
    for name, tensor in weights.items():
        for pattern, replacement in OLDER_XVLA:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    renamed["model.vlm.image_projection"] = renamed.pop("model.vlm.image_projection.weight").T
    renamed["model.vlm.language_model.final_logits_bias"] = torch.zeros(1, 12)
    return renamed


def recorded(file, group):
    with safe_open(GOLDEN / file, "pt") as opened:
        return {n.removeprefix(group): opened.get_tensor(n) for n in opened.keys() if n.startswith(group)}


def write(path, weights):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, path)
    return path


def relative(ours, theirs):
    return float((ours.float() - theirs).norm() / theirs.norm())


@torch.inference_mode()
def run(model, inputs, noise):
    """One round by the code that every evaluation runs; returns it and the first velocity."""
    inputs = inputs.to(model.device, model.dtype)
    watch = Stopwatch(model.device)
    call = Call(inputs, "", noise, 0, np.zeros((0, 1)), model.horizon, model.stages(), watch)
    full_path(model, Methods(), call)
    assert torch.equal(dense(model, call.prefix, inputs, noise), call.chunk)
    return call, model.step(noise, 1.0, model.condition(call.context, inputs))


def run_recorded(model, file):
    """That round on the inputs of a recording of make_pi0.py."""
    given = recorded(file, "inputs/")
    noise = given.pop("noise")
    return run(model, Inputs(**given), noise)


def seen(file, tensor, per_view):
    """The rows of a recorded prefix tensor that no mask hides, of all batch rows in turn."""
    given = recorded(file, "inputs/")
    return tensor[torch.cat([given["view_mask"].repeat_interleave(per_view, 1), given["token_mask"]], 1)]


def interleaved(x, rope):
    """Rotary pairs that are neighbours."""
    half = x.shape[-1] // 2
    cos, sin = rope[0][..., half:], rope[1][..., half:]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def paligemma_errors(family, model):
    """Porting errors of the two families, as test parameters; each takes pytest's monkeypatch.

    Args:
        family: The family's module.
        model: Its model's class.
    """
    expert = PALIGEMMA["expert_mlp"]
    prefill, encode, embedding = model.prefill, model.encode, family.time_embedding
    times = tuple(1 - step / 10 for step in range(11))  # lerobot's; the embedding's shortest period shows rounding

    def late(self, *args):
        context = prefill(self, *args)
        return replace(context, position=context.position + 1)

    replacements = {
        "text_unscaled": (paligemma, "math", SimpleNamespace(sqrt=lambda width: 1.0)),
        "suffix_one_late": (model, "prefill", late),
        "padding_is_seen": (model, "encode", lambda self, inputs: replace(encode(self, inputs), mask=None)),
        "interleaved_rotation": (gemma, "rotate", interleaved),
        "time_reversed": (family, "time_embedding", lambda time, width: embedding(1 - time, width)),
        "cosine_first": (family, "time_embedding", lambda time, width: embedding(time, width).roll(width // 2, -1)),
        "times_not_accumulated": (FlowSpec, "schedule", lambda self: Schedule(times, (True,) * 10)),
    }

    def mutation(target, name, wrong):
        return lambda patch: patch.setattr(target, name, wrong)

    return [
        pytest.param(activation(expert, gemma.F.gelu), id="exact_gelu_in_expert"),
        pytest.param(activation(expert, gemma.F.silu), id="silu_in_expert"),
        *(pytest.param(mutation(*wrong), id=name) for name, wrong in replacements.items()),
    ]


def activation(neurons, wrong):
    """Replaces GELU by tanh in the FFNs that have this many neurons."""

    def mutate(patch):
        right = gemma.F.gelu

        def gelu(x, approximate):
            return wrong(x) if x.shape[-1] == neurons else right(x, approximate=approximate)

        patch.setattr(gemma.F, "gelu", gelu)

    return mutate
