"""Our pi0.5 against openpi's, on weights, inputs and results recorded by tests/golden/make_pi0.py."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from replan.policies import gemma, paligemma, pi05
from replan.policies.call import full_path
from replan.policies.checkpoint import CheckpointError
from replan.policies.flow import FlowSpec, Schedule
from replan.policies.model import Inputs
from replan.policies.pi0 import Pi0Config
from replan.policies.pi05 import PI05, Pi05, Pi05Config
from replan.policies.published.pi0 import TIED, UNUSED, load_published, load_published_pi05, published_layout
from replan.policies.round import Call, Stopwatch
from replan.policies.seams import Methods
from safetensors import safe_open
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "golden" / "pi05_tiny.safetensors"
TOLERANCE = 5e-6  # relative
SIZES = dict(
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
CONFIG = Pi05Config(**SIZES)


def recorded(group, file=GOLDEN):
    with safe_open(file, "pt") as opened:
        return {n.removeprefix(group): opened.get_tensor(n) for n in opened.keys() if n.startswith(group)}


@pytest.fixture
def weights():
    return recorded("weights/")


@pytest.fixture(scope="module")
def expected():
    return recorded("expected/")


def write(path, weights):
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, path)
    return path


@pytest.fixture
def published(tmp_path, weights):
    return write(tmp_path / "model.safetensors", weights)


@torch.inference_mode()
def run(model):
    """One round on the recorded inputs, by the code that every evaluation runs."""
    dtype, given = model.dtype, recorded("inputs/")
    noise = given.pop("noise")
    inputs = Inputs(**given | {"images": given["images"].to(dtype), "state": given["state"].to(dtype)})
    prefix, watch = model.encode(inputs), Stopwatch(model.device)
    call = Call(inputs, "", prefix, noise, 0, np.zeros((0, 1)), CONFIG.horizon, model.stages(), watch)
    full_path(model, Methods(), call)
    return call, model.step(noise, 1.0, model.condition(call.context, inputs))


def relative(ours, theirs):
    return float((ours.float() - theirs).norm() / theirs.norm())


def seen(expected, name):
    given = recorded("inputs/")
    views = given["view_mask"].repeat_interleave(CONFIG.tokens_per_view, 1)
    return expected[name][torch.cat([views, given["token_mask"]], 1)]


def test_every_stage_equals_the_reference(published, expected):
    call, velocity = run(load_published_pi05(published, CONFIG))
    assert relative(call.prefix.embeddings[call.prefix.mask], seen(expected, "embeddings")) <= TOLERANCE
    for layer in range(CONFIG.depth):
        for ours, name in ((call.context.keys, "key"), (call.context.values, "value")):
            assert relative(ours[layer][call.context.mask], seen(expected, f"{name}.{layer}")) <= TOLERANCE
    assert relative(velocity, expected["velocity"]) <= TOLERANCE
    assert relative(call.chunk, expected["actions"]) <= TOLERANCE


def test_modulations_that_are_kept_are_those_of_every_time_and_forgotten_with_the_weights(published):
    model = load_published_pi05(published, CONFIG)
    given = recorded("inputs/")
    noise = given.pop("noise")
    with torch.inference_mode():
        context = model.prefill(model.encode(Inputs(**given)))
        kept = [model.step(noise, 0.3, context) for _ in range(2)]
        assert torch.equal(*kept) and torch.equal(kept[0], model.step(noise, torch.tensor([0.3]), context))
        model.load_state_dict({name: tensor * 0.9 for name, tensor in model.state_dict().items()})
        again = model.step(noise, 0.3, context)
        assert torch.equal(again, model.step(noise, torch.tensor([0.3]), context))
        assert not torch.equal(again, kept[0])


def test_bfloat16_stays_near_float32(published, expected):
    call, velocity = run(load_published_pi05(published, CONFIG, torch.bfloat16))
    assert 1e-3 < relative(velocity, expected["velocity"]) < 0.08
    assert call.chunk.dtype == torch.float32  # Euler steps accumulate in float32


# Every one of these has been, or could be, somebody's porting error.


def activation(neurons, wrong):
    def mutate(patch):
        right = gemma.F.gelu
        patch.setattr(
            gemma.F,
            "gelu",
            lambda x, approximate: wrong(x) if x.shape[-1] == neurons else right(x, approximate=approximate),
        )

    return mutate


def chunks_in_another_order(patch):
    def modulation(self, condition):
        shift, scale, gate = self.dense(condition)[:, None].chunk(3, -1)
        return gemma.Modulation(scale, shift, gate)

    patch.setattr(gemma.AdaRMSNorm, "modulation", modulation)


def no_gate(patch):
    def modulation(self, condition):
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, -1)
        return gemma.Modulation(scale, shift, torch.ones_like(gate))

    patch.setattr(gemma.AdaRMSNorm, "modulation", modulation)


def scale_without_one(patch):
    def forward(self, x, by):
        return gemma.F.rms_norm(x, (x.shape[-1],), None, 1e-6) * by.scale + by.shift

    patch.setattr(gemma.AdaRMSNorm, "forward", forward)


def condition_without_its_last_activation(patch):
    def modulations(self, time):
        times = torch.as_tensor(time, dtype=torch.float32).reshape(-1)
        clock = pi05.time_embedding(times, self.config.expert_width)
        condition = self.time_out(pi05.F.silu(self.time_in(clock)))
        norms = [norm for layer in self.expert for norm in (layer.attention_norm, layer.ffn_norm)]
        return [norm.modulation(condition) for norm in (*norms, self.expert_norm)]

    patch.setattr(Pi05, "_modulations", modulations)


def modulations_of_another_layer(patch):
    right = Pi05._modulations
    patch.setattr(Pi05, "_modulations", lambda self, time: right(self, time)[::-1])


def suffix_one_late(patch):
    prefill = Pi05.prefill

    def late(self, *args):
        context = prefill(self, *args)
        return replace(context, position=context.position + 1)

    patch.setattr(Pi05, "prefill", late)


def padding_is_seen(patch):
    encode = Pi05.encode
    patch.setattr(Pi05, "encode", lambda self, inputs: replace(encode(self, inputs), mask=None))


def interleaved_rotation(patch):
    def rotate(x, rope):
        cos, sin = rope
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)

    patch.setattr(gemma, "rotate", rotate)


def text_unscaled(patch):
    patch.setattr(paligemma.math, "sqrt", lambda width: 1.0)


def time_reversed(patch):
    embedding = pi05.time_embedding
    patch.setattr(pi05, "time_embedding", lambda time, width: embedding(1 - time, width))


def cosine_first(patch):
    embedding = pi05.time_embedding
    patch.setattr(pi05, "time_embedding", lambda time, width: embedding(time, width).roll(width // 2, -1))


def times_not_accumulated(patch):
    """The flow times of lerobot; the embedding's shortest period shows rounding."""
    times = tuple(1 - step / 10 for step in range(11))
    patch.setattr(FlowSpec, "schedule", lambda self: Schedule(times, (True,) * 10))


MUTATIONS = [
    pytest.param(activation(CONFIG.expert_mlp, gemma.F.gelu), id="exact_gelu_in_expert"),
    pytest.param(activation(CONFIG.expert_mlp, gemma.F.silu), id="silu_in_expert"),
    chunks_in_another_order,
    no_gate,
    scale_without_one,
    condition_without_its_last_activation,
    modulations_of_another_layer,
    suffix_one_late,
    padding_is_seen,
    interleaved_rotation,
    text_unscaled,
    time_reversed,
    cosine_first,
    times_not_accumulated,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_porting_error_exceeds_the_tolerance(mutate, published, expected, monkeypatch):
    model = load_published_pi05(published, CONFIG)
    mutate(monkeypatch)
    assert relative(run(model)[0].chunk, expected["actions"]) > 2 * TOLERANCE


# Files


def test_the_full_size_model_has_the_published_names_and_shapes():
    with safe_open(GOLDEN, "pt") as file:
        theirs = json.loads(file.metadata()["layout"])
    with torch.device("meta"):
        ours = published_layout(Pi05(PI05))
    shapes = {name: list(part.shape) for parts in ours.values() for name, part in parts.items()}
    # openpi's expert at full size has 1024 neurons per norm and a language head that nothing reads.
    assert shapes == {name: shape for name, shape in theirs.items() if name not in UNUSED}


def test_the_keys_decide_which_of_the_two_a_file_is(tmp_path, published):
    pi0 = write(tmp_path / "pi0.safetensors", recorded("weights/", GOLDEN.with_name("pi0_tiny.safetensors")))
    with pytest.raises(CheckpointError, match="is a pi0 "):
        load_published_pi05(pi0, CONFIG)
    with pytest.raises(CheckpointError, match="is a pi0.5 "):
        load_published(published, Pi0Config(**SIZES))


def test_lerobot_prefix_is_understood_and_the_tied_embedding_may_be_absent(tmp_path, weights, expected):
    kept = {f"model.{name}": tensor for name, tensor in weights.items() if name != TIED}
    model = load_published_pi05(write(tmp_path / "lerobot.safetensors", kept), CONFIG)
    assert relative(run(model)[0].chunk, expected["actions"]) <= TOLERANCE


@pytest.mark.parametrize("change", ["missing", "extra", "renamed", "transposed"])
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, change):
    name = "paligemma_with_expert.gemma_expert.model.layers.1.input_layernorm.dense.weight"
    tensor = weights[name] if change == "extra" else weights.pop(name)
    if change in ("extra", "renamed"):
        weights[name.replace("input", "output")] = tensor
    if change == "transposed":
        weights[name] = tensor.T
    with pytest.raises(CheckpointError, match=r"layers\.1\.(in|out)put_layernorm\.dense\.weight"):
        load_published_pi05(write(tmp_path / "model.safetensors", weights), CONFIG)
