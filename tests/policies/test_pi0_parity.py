"""Our pi0 against openpi's, on weights, inputs and results recorded by tests/golden/make_pi0.py."""

import json
import math
from dataclasses import replace

import pytest
import torch
from parity import GOLDEN as FOLDER
from parity import PALIGEMMA, activation, paligemma_errors, recorded, relative, run_recorded, seen, write
from replan.policies import gemma, paligemma, pi0
from replan.policies.checkpoint import CheckpointError
from replan.policies.model import Inputs, Ops
from replan.policies.pi0 import PI0, TINY, Pi0, Pi0Config
from replan.policies.published.pi0 import EMBEDDING, TIED, UNUSED, load_published, published_layout
from safetensors import safe_open
from torch import nn

GOLDEN = "pi0_tiny.safetensors"
TOLERANCE = 5e-6  # relative; the two agree to about 5e-7, and no known bug stays below 2e-5
CONFIG = Pi0Config(**PALIGEMMA)
FIRST_QUERY = "paligemma_with_expert.paligemma.model.language_model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def weights():
    return recorded(GOLDEN, "weights/")


@pytest.fixture(scope="module")
def expected():
    return recorded(GOLDEN, "expected/")


@pytest.fixture
def published(tmp_path, weights):
    """The recorded weights as somebody would publish them."""
    return write(tmp_path / "model.safetensors", weights)


def run(model):
    return run_recorded(model, GOLDEN)


# Agreement


def test_every_stage_equals_the_reference(published, expected):
    call, velocity = run(load_published(published, CONFIG))
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


def test_what_the_whole_batch_masks_is_dropped_and_the_rest_is_masked(published):
    prefix = run(load_published(published, CONFIG))[0].prefix
    # The third camera is missing in both rows, the second in one; the longer prompt has 7 of 9 tokens, the other 4.
    assert prefix.embeddings.shape[1] == 2 * CONFIG.tokens_per_view + 7
    assert prefix.visual == 2 * CONFIG.tokens_per_view
    assert prefix.mask.sum(1).tolist() == [2 * CONFIG.tokens_per_view + 7, CONFIG.tokens_per_view + 4]


def test_a_row_alone_gives_what_it_gives_in_the_batch(published, expected):
    model, given = load_published(published, CONFIG), recorded(GOLDEN, "inputs/")
    for row in range(2):
        alone = {name: tensor[row : row + 1] for name, tensor in given.items()}
        noise = alone.pop("noise")
        inputs = Inputs(**alone)
        with torch.inference_mode():
            prefix = model.encode(inputs)
            velocity = model.step(noise, 1.0, model.condition(model.prefill(prefix), inputs))
        assert prefix.mask is None  # nothing masked is left
        assert relative(velocity, expected["velocity"][row : row + 1]) <= TOLERANCE


def test_norms_have_the_published_epsilon(published):
    # The recorded activations are too large to tell 1e-5 from 1e-6.
    norms = [module for module in load_published(published, CONFIG).modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * CONFIG.vision_depth + 1
    assert {norm.eps for norm in norms} == {1e-6}
    assert gemma.RMSNorm(4)(torch.full((4,), 1e-3)).tolist() == pytest.approx([math.sqrt(0.5)] * 4)


def test_bfloat16_stays_near_float32(published, expected):
    call, velocity = run(load_published(published, CONFIG, torch.bfloat16))
    # bfloat16 has 8 bits: 4e-3 an operation, some 2e-2 through these stacks of unit gain.
    assert 1e-3 < relative(velocity, expected["velocity"]) < 0.05
    assert relative(call.chunk, expected["actions"]) < 0.05
    assert call.chunk.dtype == torch.float32  # Euler steps accumulate in float32


# Every one of these has been somebody's porting error.


def padding_takes_positions(patch):
    prefill = Pi0.prefill

    def padded(self, *args):
        context = prefill(self, *args)
        return replace(context, position=torch.full_like(context.position, context.mask.shape[1]))

    patch.setattr(Pi0, "prefill", padded)


def norm_scales_by_weight(patch):
    patch.setattr(gemma.RMSNorm, "forward", lambda self, x: gemma.F.rms_norm(x, x.shape[-1:], self.weight, 1e-6))


def norm_unscaled(patch):
    patch.setattr(gemma.RMSNorm, "forward", lambda self, x: gemma.F.rms_norm(x, x.shape[-1:], None, 1e-6))


def state_sees_actions(patch):
    """One sequence [state | actions] without the mask between the two."""
    token = {}

    def condition(self, context, inputs):
        token["state"] = self.state_in(inputs.state)[:, None]
        return context

    def step(self, x, time, context, ops=None):
        action = self.action_in(x)
        clock = pi0.time_embedding(torch.as_tensor(time).expand(len(x)), self.config.expert_width)
        joined = torch.cat([action, clock[:, None].expand_as(action)], -1)
        hidden = torch.cat([token["state"], self.time_out(pi0.F.silu(self.time_in(joined)))], 1)
        rope = gemma.rotary(paligemma.behind(context, hidden.shape[1]), CONFIG.head_dim, x.dtype)
        columns = paligemma.columns(context, hidden.shape[1])
        for number, layer in enumerate(self.expert):
            q, k, v = layer.project(hidden, rope)
            k, v = torch.cat([context.keys[number], k], 1), torch.cat([context.values[number], v], 1)
            hidden = gemma.finish(Ops(), number, layer, hidden, hidden, None, (q, k, v, columns))
        return self.action_out(self.expert_norm(hidden[:, 1:]))

    patch.setattr(Pi0, "condition", condition)
    patch.setattr(Pi0, "step", step)


def last_needed_vlm_ffn_skipped(patch):
    prefill = Pi0.prefill

    class Skipping(Ops):
        def ffn(self, layer, x, ffn, rows):
            return x * 0 if layer == CONFIG.depth - 2 else ffn(x)

    patch.setattr(Pi0, "prefill", lambda self, prefix, ops=None: prefill(self, prefix, Skipping()))


MUTATIONS = [
    *paligemma_errors(pi0, Pi0),
    pytest.param(activation(CONFIG.vision_mlp, pi0.F.gelu), id="exact_gelu_in_siglip"),
    pytest.param(activation(CONFIG.mlp, pi0.F.gelu), id="exact_gelu_in_vlm"),
    padding_takes_positions,
    norm_scales_by_weight,
    norm_unscaled,
    state_sees_actions,
    last_needed_vlm_ffn_skipped,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_porting_error_exceeds_the_tolerance(mutate, published, expected, monkeypatch):
    model = load_published(published, CONFIG)
    mutate(monkeypatch)
    assert relative(run(model)[0].chunk, expected["actions"]) > 2 * TOLERANCE


@pytest.mark.parametrize(
    "one, other",
    [
        ("encoder.layers.1.self_attn.q_proj", "encoder.layers.1.self_attn.k_proj"),
        ("encoder.layers.1.self_attn.k_proj", "encoder.layers.1.self_attn.v_proj"),
        ("language_model.layers.0.self_attn.k_proj", "language_model.layers.0.self_attn.v_proj"),
        ("language_model.layers.0.mlp.gate_proj", "language_model.layers.0.mlp.up_proj"),
        ("gemma_expert.model.layers.2.self_attn.k_proj", "gemma_expert.model.layers.2.self_attn.v_proj"),
        ("gemma_expert.model.layers.2.mlp.gate_proj", "gemma_expert.model.layers.2.mlp.up_proj"),
    ],
)
def test_two_parts_of_a_fused_matrix_swapped_exceed_the_tolerance(one, other, tmp_path, weights, expected):
    swapped = {n.replace(one, "?").replace(other, one).replace("?", other): tensor for n, tensor in weights.items()}
    model = load_published(write(tmp_path / "swapped.safetensors", swapped), CONFIG)
    assert relative(run(model)[0].chunk, expected["actions"]) > 2 * TOLERANCE


# Files


def test_lerobot_prefix_is_understood(tmp_path, weights, expected):
    path = write(tmp_path / "lerobot.safetensors", {f"model.{name}": tensor for name, tensor in weights.items()})
    assert relative(run(load_published(path, CONFIG))[0].chunk, expected["actions"]) <= TOLERANCE


@pytest.mark.parametrize("absent", [{EMBEDDING}, {TIED}, UNUSED], ids=["embedding", "tied", "all_unused"])
def test_either_name_of_the_embedding_will_do_and_unused_weights_may_be_absent(absent, tmp_path, weights, expected):
    path = write(tmp_path / "one.safetensors", {name: x for name, x in weights.items() if name not in absent})
    assert relative(run(load_published(path, CONFIG))[0].chunk, expected["actions"]) <= TOLERANCE


def test_no_action_depends_on_what_is_called_unused(tmp_path, weights, expected):
    path = write(tmp_path / "nan.safetensors", weights | {n: weights[n] * math.nan for n in UNUSED})
    assert relative(run(load_published(path, CONFIG))[0].chunk, expected["actions"]) <= TOLERANCE


def sharded(folder, weights):
    names = sorted(weights)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in shards.items():
        write(folder / file, {name: weights[name] for name in part})
    index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_folder_of_shards_loads_like_one_file(tmp_path, weights, published):
    whole, parts = load_published(published, CONFIG), load_published(sharded(tmp_path / "shards", weights), CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_a_folder_with_one_file_loads(published):
    assert load_published(published.parent, CONFIG).config == CONFIG


def test_the_model_comes_ready_to_run_in_the_precision_asked_for(published):
    model = load_published(published, CONFIG, torch.bfloat16)
    assert not model.training
    assert {(p.dtype, p.device.type, p.requires_grad) for p in model.parameters()} == {(torch.bfloat16, "cpu", False)}


def test_the_model_outlives_its_file(published):
    model = load_published(published, CONFIG)
    before = run(model)[0].chunk
    published.write_bytes(bytes(published.stat().st_size))  # in place: whatever is mapped to it turns to zeros
    assert torch.equal(run(model)[0].chunk, before)


def test_a_missing_weight_is_named(tmp_path, weights):
    del weights[FIRST_QUERY]
    with pytest.raises(CheckpointError, match=f"1 missing keys.*{FIRST_QUERY}"):
        load_published(write(tmp_path / "model.safetensors", weights), CONFIG)


def test_a_missing_embedding_is_named(tmp_path, weights):
    del weights[EMBEDDING], weights[TIED]
    with pytest.raises(CheckpointError, match=f"1 missing keys.*{EMBEDDING}"):
        load_published(write(tmp_path / "model.safetensors", weights), CONFIG)


def test_an_unknown_weight_is_named(tmp_path, weights):
    with pytest.raises(CheckpointError, match="1 unknown keys.*lora_a"):
        load_published(write(tmp_path / "model.safetensors", weights | {"lora_a": torch.zeros(1)}), CONFIG)


def test_a_wrong_shape_is_named(tmp_path, weights):
    wrong = weights | {FIRST_QUERY: weights[FIRST_QUERY][:-1]}
    with pytest.raises(CheckpointError, match=rf"{FIRST_QUERY} is \[127, 64\], expected \[128, 64\]"):
        load_published(write(tmp_path / "model.safetensors", wrong), CONFIG)


def test_a_file_of_another_size_is_refused(published):
    with pytest.raises(CheckpointError, match="missing"):
        load_published(published)


@pytest.mark.parametrize("name", ["time_mlp_in.weight", "paligemma_with_expert.gemma_expert.model.norm.dense.weight"])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_pi05_is_refused_as_such(name, prefix, tmp_path, weights):
    path = write(tmp_path / "pi0.safetensors", {prefix + n: x for n, x in (weights | {name: torch.zeros(1)}).items()})
    with pytest.raises(CheckpointError, match=r"is a pi0\.5"):
        load_published(path, CONFIG)


def test_a_pickle_with_the_right_name_is_refused(tmp_path, weights):
    path = tmp_path / "model.safetensors"
    torch.save(weights, path)
    with pytest.raises(CheckpointError, match="pickled file, which is never loaded"):
        load_published(path, CONFIG)


def test_a_truncated_file_is_refused(published):
    published.write_bytes(published.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"cut short \(\d+ of \d+ bytes\)"):
        load_published(published, CONFIG)


def test_other_names_do_not_hide_whose_file_it_is(tmp_path, weights):
    """Two of 73 names without lerobot's prefix are two unknown names, not 71 missing ones."""
    lerobot = {f"model.{name}": tensor for name, tensor in weights.items()}
    other = {"extra.a": torch.zeros(1), "extra.b": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"0 missing keys; 2 unknown keys \(extra.a, extra.b\)"):
        load_published(write(tmp_path / "model.safetensors", lerobot | other), CONFIG)


def test_statistics_among_the_weights_and_older_layouts_are_called_that(tmp_path, weights):
    lerobot = {f"model.{name}": tensor for name, tensor in weights.items()}
    buffers = {"normalize_inputs.buffer_observation_state.mean": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"normalisation buffers \(normalize_inputs.*save it again without them"):
        load_published(write(tmp_path / "buffers.safetensors", lerobot | buffers), CONFIG)
    older = {
        name.replace("paligemma.model.language_model", "paligemma.language_model.model"): tensor
        for name, tensor in weights.items()
    }
    with pytest.raises(CheckpointError, match="older layout.*save it again"):
        load_published(write(tmp_path / "older.safetensors", older), CONFIG)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64]
)
def test_weights_of_another_number_type_are_refused(dtype, tmp_path, weights):
    path = write(tmp_path / "odd.safetensors", weights | {FIRST_QUERY: weights[FIRST_QUERY].to(dtype)})
    with pytest.raises(CheckpointError, match=f"odd.safetensors: {FIRST_QUERY} is stored as .*, not as F16, BF16, F32"):
        load_published(path, CONFIG)


@pytest.mark.parametrize(
    ("value", "dtype"), [(math.nan, torch.float32), (math.inf, torch.bfloat16), (1e5, torch.float16)]
)
def test_weights_that_are_not_finite_once_they_are_cast_are_refused(value, dtype, tmp_path, weights):
    spoiled = weights | {FIRST_QUERY: torch.full_like(weights[FIRST_QUERY], value, dtype=torch.float32)}
    with pytest.raises(CheckpointError, match=f"{FIRST_QUERY} holds values that are not finite in {dtype}"):
        load_published(write(tmp_path / "odd.safetensors", spoiled), CONFIG, dtype)


def test_a_jax_folder_is_called_that(tmp_path):
    (tmp_path / "params").mkdir()
    with pytest.raises(CheckpointError, match="JAX checkpoint.*convert_jax_model_to_pytorch"):
        load_published(tmp_path, CONFIG)


def test_absent_files_are_named(tmp_path, weights):
    with pytest.raises(CheckpointError, match="no weights at .*nowhere"):
        load_published(tmp_path / "nowhere", CONFIG)
    with pytest.raises(CheckpointError, match=r"no weights at .*model\.safetensors"):
        load_published(tmp_path, CONFIG)
    folder = sharded(tmp_path / "shards", weights)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights at .*model-00002-of-00002"):
        load_published(folder, CONFIG)


@pytest.mark.parametrize(
    "text", ["{", "{}", "[]", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": []}}', "[" * 10**5]
)
def test_a_damaged_index_is_refused(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="does not say which shards"):
        load_published(tmp_path, CONFIG)


def test_our_own_stem_has_no_published_counterpart(published):
    with pytest.raises(CheckpointError, match="one patch convolution, the configuration has 3"):
        load_published(published, TINY)


# The full size, without its memory


def test_the_full_model_has_every_published_weight_and_no_other():
    with safe_open(FOLDER / GOLDEN, "pt") as file:
        theirs = json.loads(file.metadata()["layout"])  # of the reference at full size
    with torch.device("meta"):
        model = Pi0(PI0)
    parts = published_layout(model)
    ours = {name: list(part.shape) for group in parts.values() for name, part in group.items()}
    assert ours == {name: shape for name, shape in theirs.items() if name not in UNUSED}
    assert theirs.keys() >= UNUSED
    assert sum(len(group) for group in parts.values()) == len(ours)  # nothing is read twice

    # 3.24e9 weights act. The 3.50e9 that model pages state add the expert's word predictor (257,152 x 1024) and the
    # VLM's last norm (2048); the VLM's word predictor is the embedding and counts once.
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_238_046_480
    assert sum(math.prod(shape) for name, shape in theirs.items() if name != TIED) == 3_501_372_176
