"""Our pi0.5 against openpi's, on weights, inputs and results recorded by tests/golden/make_pi0.py."""

import copy
import json

import pytest
import torch
from parity import GOLDEN as FOLDER
from parity import PALIGEMMA, paligemma_errors, recorded, relative, run_recorded, seen, write
from replan.policies import gemma, pi05
from replan.policies.checkpoint import CheckpointError
from replan.policies.model import Inputs
from replan.policies.pi0 import Pi0Config
from replan.policies.pi05 import PI05, Pi05, Pi05Config
from replan.policies.published.pi0 import TIED, UNUSED, load_published, load_published_pi05, published_layout
from safetensors import safe_open

GOLDEN = "pi05_tiny.safetensors"
TOLERANCE = 5e-6  # relative
CONFIG = Pi05Config(**PALIGEMMA)


@pytest.fixture
def weights():
    return recorded(GOLDEN, "weights/")


@pytest.fixture(scope="module")
def expected():
    return recorded(GOLDEN, "expected/")


@pytest.fixture
def published(tmp_path, weights):
    return write(tmp_path / "model.safetensors", weights)


def run(model):
    return run_recorded(model, GOLDEN)


def test_every_stage_equals_the_reference(published, expected):
    call, velocity = run(load_published_pi05(published, CONFIG))
    assert (
        relative(call.prefix.embeddings[call.prefix.mask], seen(GOLDEN, expected["embeddings"], CONFIG.tokens_per_view))
        <= TOLERANCE
    )
    for layer in range(CONFIG.depth):
        for ours, name in ((call.context.keys, "key"), (call.context.values, "value")):
            assert (
                relative(
                    ours[layer][call.context.mask], seen(GOLDEN, expected[f"{name}.{layer}"], CONFIG.tokens_per_view)
                )
                <= TOLERANCE
            )
    assert relative(velocity, expected["velocity"]) <= TOLERANCE
    assert relative(call.chunk, expected["actions"]) <= TOLERANCE


def test_modulations_that_are_kept_are_those_of_every_time_and_forgotten_with_the_weights(published):
    model = load_published_pi05(published, CONFIG)
    given = recorded(GOLDEN, "inputs/")
    noise = given.pop("noise")
    with torch.inference_mode():
        inputs = Inputs(**given)
        context = model.condition(model.prefill(model.encode(inputs)), inputs)
        kept = [model.step(noise, 0.3, context) for _ in range(2)]
        assert torch.equal(*kept) and torch.equal(kept[0], model.step(noise, torch.tensor([0.3]), context))
        for changed in (copy.deepcopy(model), model):
            changed.load_state_dict({name: tensor * 0.9 for name, tensor in model.state_dict().items()})
            again = changed.step(noise, 0.3, context)
            assert torch.equal(again, changed.step(noise, torch.tensor([0.3]), context))
            assert not torch.equal(again, kept[0])


def test_bfloat16_stays_near_float32(published, expected):
    call, velocity = run(load_published_pi05(published, CONFIG, torch.bfloat16))
    assert 1e-3 < relative(velocity, expected["velocity"]) < 0.08
    assert call.chunk.dtype == torch.float32  # Euler steps accumulate in float32


# Every one of these has been, or could be, somebody's porting error.


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


MUTATIONS = [
    *paligemma_errors(pi05, Pi05),
    chunks_in_another_order,
    no_gate,
    scale_without_one,
    condition_without_its_last_activation,
    modulations_of_another_layer,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_porting_error_exceeds_the_tolerance(mutate, published, expected, monkeypatch):
    model = load_published_pi05(published, CONFIG)
    mutate(monkeypatch)
    assert relative(run(model)[0].chunk, expected["actions"]) > 2 * TOLERANCE


# Files


def test_the_full_size_model_has_the_published_names_and_shapes():
    with safe_open(FOLDER / GOLDEN, "pt") as file:
        theirs = json.loads(file.metadata()["layout"])
    with torch.device("meta"):
        ours = published_layout(Pi05(PI05))
    shapes = {name: list(part.shape) for parts in ours.values() for name, part in parts.items()}
    # openpi's expert at full size has 1024 neurons per norm and a language head that nothing reads.
    assert shapes == {name: shape for name, shape in theirs.items() if name not in UNUSED}


def test_the_keys_decide_which_of_the_two_a_file_is(tmp_path, published):
    pi0 = write(tmp_path / "pi0.safetensors", recorded("pi0_tiny.safetensors", "weights/"))
    with pytest.raises(CheckpointError, match="is a pi0 "):
        load_published_pi05(pi0, CONFIG)
    with pytest.raises(CheckpointError, match="is a pi0.5 "):
        load_published(published, Pi0Config(**PALIGEMMA))


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
