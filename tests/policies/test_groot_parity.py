"""Our GR00T N1.6 against the public one, on weights, inputs and results recorded by tests/golden/make_groot.py."""

import copy
import json
from dataclasses import replace
from functools import partial

import groot_recording as recording
import pytest
import torch
import torch.nn.functional as F
from parity import interleaved, recorded, relative, write
from replan.policies import dit, groot, qwen3, siglip2
from replan.policies.checkpoint import CheckpointError
from replan.policies.groot import GROOT_N1_6, Groot
from replan.policies.published.groot import EMBEDDING, MASK_TOKEN, TIED, load_published, published_layout

TOLERANCE = 5e-6  # relative
CONFIG = recording.CONFIG


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return write(tmp_path_factory.mktemp("groot") / "model.safetensors", recording.weights())


@pytest.fixture(scope="module")
def loaded(published):
    return load_published(published, CONFIG)


@pytest.fixture(scope="module")
def expected():
    return recorded(recording.FILE, "expected/")


def test_features_and_actions_equal_the_reference(loaded, expected):
    features, actions = recording.run(loaded)
    assert relative(features, expected["features"]) <= TOLERANCE
    assert relative(actions, expected["actions"]) <= TOLERANCE


def test_padding_on_either_side_changes_nothing(loaded, expected):
    given = recording.inputs()
    for sides in ((7, 0), (0, 7), (3, 4)):
        padded = replace(given, tokens=F.pad(given.tokens, sides), token_mask=F.pad(given.token_mask, sides))
        features, actions = recording.run(loaded, padded)
        assert features.shape == expected["features"].shape  # dropped, not computed
        assert relative(actions, expected["actions"]) <= TOLERANCE


def test_rows_of_a_batch_are_what_they_are_alone(loaded, expected):
    # The second row has fewer words, in other places, and lacks the second camera; the third is another robot.
    given = recording.inputs()
    short = torch.cat([torch.zeros_like(given.tokens[:, :3]), given.tokens[:, 3:]], 1)
    batch = replace(
        given,
        images=given.images.repeat(3, 1, 1, 1, 1),
        tokens=torch.cat([given.tokens, short, given.tokens]),
        token_mask=torch.cat([given.token_mask, short > 0, given.token_mask]),
        state=given.state.repeat(3, 1),
        view_mask=torch.tensor([[True, True], [True, False], [True, True]]),
        embodiment=torch.tensor([2, 2, 1]),
    )
    with torch.inference_mode():
        context = loaded.condition(loaded.prefill(loaded.encode(batch)), batch)
        together = loaded.step(recording.noise().repeat(3, 1, 1), 0.25, context)
        for row in range(3):
            alone = replace(batch, **{name: part[row : row + 1] for name, part in vars(batch).items()})
            prefix = loaded.encode(alone)
            step = loaded.step(recording.noise(), 0.25, loaded.condition(loaded.prefill(prefix), alone))
            assert relative(together[row : row + 1], step) <= TOLERANCE
            assert prefix.mask is None and prefix.embeddings.shape[1] == (171, 168 - 81, 171)[row]
    assert len({float(each.sum()) for each in together}) == 3


def test_modulations_that_are_kept_are_those_of_every_time_and_forgotten_with_the_weights(published):
    model, given, x = load_published(published, CONFIG), recording.inputs(), recording.noise()
    with torch.inference_mode():
        context = model.condition(model.prefill(model.encode(given)), given)
        kept = [model.step(x, 0.25, context) for _ in range(2)]
        assert torch.equal(*kept) and torch.equal(kept[0], model.step(x, torch.tensor([0.25]), context))
        for changed in (copy.deepcopy(model), model):
            changed.load_state_dict({name: tensor * 0.9 for name, tensor in model.state_dict().items()})
            again = changed.step(x, 0.25, context)
            assert torch.equal(again, changed.step(x, torch.tensor([0.25]), context))
            assert not torch.equal(again, kept[0])


@pytest.mark.parametrize("steps", [4, 7, 10, 100])
def test_times_are_those_thousandths_that_the_public_code_counts(loaded, steps, monkeypatch):
    seen, right = [], groot.waves
    monkeypatch.setattr(groot, "waves", lambda time, *rest, **more: (seen.append(time), right(time, *rest, **more))[1])
    for time in loaded.flow.schedule(steps).times[:-1]:
        loaded._modulations(torch.tensor([time]))
    counted = [int(1000 * step / steps) for step in range(steps)]
    assert [int(time) for time in seen[::2]] == [int(time) for time in seen[1::2]] == counted


def test_bfloat16_stays_near_float32(published, expected):
    features, actions = recording.run(load_published(published, CONFIG, torch.bfloat16))
    assert 1e-3 < relative(features, expected["features"]) < 0.05
    assert relative(actions, expected["actions"]) < 0.05 and actions.dtype == torch.float32


def test_epsilons_are_the_published_ones(loaded, monkeypatch):
    # Outputs do not show them.
    small = torch.tensor([[1.0, -1.0]]) * 1e-5**0.5
    torch.testing.assert_close(dit.norm(small), small / (2e-5) ** 0.5)
    seen, right = [], dit.norm
    monkeypatch.setattr(groot, "norm", lambda x, by=None, *epsilon: (seen.append(epsilon), right(x, by, *epsilon))[1])
    recording.run(loaded)
    assert seen == [*[()] * 2 * CONFIG.expert_depth, (1e-6,)] * CONFIG.steps
    tower = [
        loaded.vision.norm,
        *(norm for layer in loaded.vision.layers for norm in (layer.attention_norm, layer.ffn_norm)),
    ]
    assert {norm.eps for norm in tower} == {1e-6}
    assert loaded.vision.connector_norm.eps == loaded.features_norm.eps == 1e-5


# Every one of these has been, or could be, somebody's porting error.


def patches_by_channel(self, images):
    return F.unfold(images, self.patch, stride=self.patch).transpose(1, 2)


def positions_at_the_corners(self, side):
    table = self.positions.T.unflatten(1, (16, 16))[None]
    return F.interpolate(table, (side, side), mode="bilinear", align_corners=True)[0].flatten(1).T


def positions_of_the_first_rows(self, side):
    return self.positions[torch.arange(side * side) % len(self.positions)]


def patches_side_by_side(x, fold):
    """Eagle 2's order within a token: patches before channels."""
    return x.unflatten(3, (-1, fold)).unflatten(2, (-1, fold)).permute(0, 3, 5, 1, 2, 4).flatten(1, 3)


def norm_in_gemma_style(self, x):
    return F.rms_norm(x, (x.shape[-1],), None, 1e-6) * (1 + self.weight)


def heads_norm_after_rotation(self, x, rope):
    q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim)).split([4, 2, 2], 2)
    return self.q_norm(qwen3.rotate(q, rope)), self.k_norm(qwen3.rotate(k, rope)), v


def no_heads_norm(self, x, rope):
    q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim)).split([4, 2, 2], 2)
    return qwen3.rotate(q, rope), qwen3.rotate(k, rope), v


def shift_before_scale(self, condition):
    shift, scale = self.modulate(condition)[:, None].chunk(2, -1)
    return dit.Modulation(1 + scale, shift)


def scale_before_shift(by):
    return by._replace(last=dit.Modulation(1 + by.last.shift, by.last.factor - 1))


def modulations(change):
    right = Groot._modulations
    return lambda self, times: change(right(self, times))


def waves(change):
    right = dit.waves
    return lambda time, width, slowest_is_last: change(right, time, width, slowest_is_last)


def prefix(change):
    right = Groot.encode
    return lambda self, inputs: change(right(self, inputs))


def inputs(change):
    right = Groot.condition
    return lambda self, context, given: right(self, context, change(given))


def attention(**options):
    """Qwen3's attention with other options."""
    right = F.scaled_dot_product_attention

    def attend(q, k, v, **given):
        if "enable_gqa" in given:
            given |= options
            if "tiled" in given:
                del given["tiled"]
                k, v = (each.repeat(1, q.shape[1] // k.shape[1], 1, 1) for each in (k, v))
        return right(q, k, v, **given)

    return attend


def activations(where, wrong):
    """Another GELU where inputs have so many neurons."""
    right = F.gelu
    return lambda x, **given: wrong(x) if x.shape[-1] == where else right(x, **given)


MUTATIONS = {
    "patches_by_channel": (siglip2.SigLIP2, "patches", patches_by_channel),
    "positions_at_the_corners": (siglip2.SigLIP2, "placed", positions_at_the_corners),
    "positions_not_interpolated": (siglip2.SigLIP2, "placed", positions_of_the_first_rows),
    "patches_side_by_side": (F, "pixel_unshuffle", patches_side_by_side),
    "connector_gelu_by_tanh": (F, "gelu", activations(64, partial(F.gelu, approximate="tanh"))),
    "transformer_gelu_exact": (F, "gelu", activations(256, F.gelu)),
    "tower_relu": (F, "gelu", activations(96, F.relu)),
    "not_causal": (F, "scaled_dot_product_attention", attention(is_causal=False)),
    "heads_tiled": (F, "scaled_dot_product_attention", attention(tiled=True)),
    "norm_in_gemma_style": (qwen3.ScaledRMSNorm, "forward", norm_in_gemma_style),
    "heads_norm_after_rotation": (qwen3.Qwen3Layer, "project", heads_norm_after_rotation),
    "no_heads_norm": (qwen3.Qwen3Layer, "project", no_heads_norm),
    "interleaved_rotation": (qwen3, "rotate", interleaved),
    "base_of_gemma": (groot, "BASE", 10_000.0),
    "gelu_in_llm": (qwen3.F, "silu", F.gelu),
    "shift_before_scale_in_blocks": (dit.DiTBlock, "modulation", shift_before_scale),
    "scale_before_shift_at_the_end": (
        Groot,
        "_modulations",
        modulations(scale_before_shift),
    ),
    "modulations_of_other_blocks": (Groot, "_modulations", modulations(lambda m: m._replace(blocks=m.blocks[::-1]))),
    "text_for_images": (Groot, "encode", prefix(lambda p: replace(p, sources=p.sources[::-1]))),
    "every_block_reads_all": (
        Groot,
        "encode",
        prefix(lambda p: replace(p, sources=(groot.Source(torch.arange(171), None),) * 2)),
    ),
    "time_reversed": (groot, "waves", waves(lambda right, time, *rest: right(1000 - time, *rest))),
    "time_in_units": (groot, "waves", waves(lambda right, time, *rest: right(time / 1000, *rest))),
    "one_step_late": (groot, "waves", waves(lambda right, time, *rest: right(time + 250, *rest))),
    "sine_for_cosine": (groot, "waves", waves(lambda right, *given: right(*given)[::-1])),
    "frequencies_of_the_other": (groot, "waves", waves(lambda right, time, width, last: right(time, width, not last))),
    "another_robot": (Groot, "condition", inputs(lambda given: replace(given, embodiment=given.embodiment * 0))),
    "no_state": (Groot, "condition", inputs(lambda given: replace(given, state=given.state * 0))),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_porting_error_exceeds_the_tolerance(name, loaded, expected, monkeypatch):
    monkeypatch.setattr(*MUTATIONS[name])
    loaded.forget()
    features, actions = recording.run(loaded)
    loaded.forget()
    assert relative(actions, expected["actions"]) > 2 * TOLERANCE
    if "channel" in name:  # what features show eight times as clearly
        assert relative(features, expected["features"]) > 0.3


def test_the_last_rows_are_the_actions(loaded, expected):
    # A decoder that is handed all rows has to leave the state's out.
    def keep_all(module, args, out):
        return torch.cat([out, out[:, -1:]], 1)[:, 1:]

    hook = loaded.expert_out.register_forward_hook(keep_all)
    _, actions = recording.run(loaded)
    hook.remove()
    assert relative(actions, expected["actions"]) > 2 * TOLERANCE


# Files


def test_the_full_size_model_has_as_many_tensors_as_the_published_one():
    with torch.device("meta"):
        layout = published_layout(Groot(GROOT_N1_6))
    names = [name for parts in layout.values() for name in parts]
    pooling = 11  # of the tower's pooled output, which is published too, as is the language head
    assert len(names) == len(set(names)) == 1106 - pooling - 1
    assert sum(name.startswith("action_head") for name in names) == 473


def test_every_name_and_shape_of_the_public_implementation_is_read_or_known_to_be_unused():
    with torch.device("meta"):
        layout = published_layout(Groot(CONFIG))
    ours = {name: list(part.shape) for parts in layout.values() for name, part in parts.items()}
    theirs = {name: list(tensor.shape) for name, tensor in recording.weights().items()}
    unused = {name for name in theirs if "vision_model.head." in name or name == TIED}
    assert len(unused) == 12 and ours == {name: shape for name, shape in theirs.items() if name not in unused}


@pytest.mark.parametrize("absent", [TIED, EMBEDDING])
def test_either_name_of_the_tied_embedding_will_do(tmp_path, expected, absent):
    kept = {name: tensor for name, tensor in recording.weights().items() if name != absent}
    model = load_published(write(tmp_path / "model.safetensors", kept), CONFIG)
    assert relative(recording.run(model)[1], expected["actions"]) <= TOLERANCE


def test_what_only_training_reads_may_be_there(tmp_path, expected):
    trained = recording.weights() | {MASK_TOKEN: torch.ones(1, 1, CONFIG.expert_width)}
    model = load_published(write(tmp_path / "model.safetensors", trained), CONFIG)
    assert relative(recording.run(model)[1], expected["actions"]) <= TOLERANCE


def test_shards_are_read(tmp_path, expected):
    names = sorted(recording.weights())
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        write(tmp_path / shard, {name: recording.weights()[name] for name in part})
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert relative(recording.run(load_published(tmp_path, CONFIG))[1], expected["actions"]) <= TOLERANCE


@pytest.mark.parametrize("change", ["missing", "extra", "renamed", "transposed"])
@pytest.mark.parametrize(
    "name",
    [
        "backbone.model.vision_model.vision_model.encoder.layers.1.mlp.fc1.weight",
        "backbone.model.language_model.model.layers.2.self_attn.k_proj.weight",
        "action_head.model.transformer_blocks.3.ff.net.2.weight",
        "action_head.action_encoder.W2.W",
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, name, change):
    weights = recording.weights()
    tensor = weights[name] if change == "extra" else weights.pop(name)
    wrong = name.replace("1.", "9.", 1) if "layers.1" in name else name + "s"
    if change in ("extra", "renamed"):
        weights[wrong] = tensor
    if change == "transposed":
        weights[name] = tensor.transpose(-1, -2)
    with pytest.raises(CheckpointError, match=wrong if change in ("extra", "renamed") else name):
        load_published(write(tmp_path / "model.safetensors", weights), CONFIG)


@pytest.mark.parametrize(
    "other", ["backbone.eagle_model.mlp1.0.weight", "backbone.model.model.visual.patch_embed.weight"]
)
def test_another_groot_is_called_that(tmp_path, other):
    with pytest.raises(CheckpointError, match="is another GR00T than N1.6"):
        load_published(write(tmp_path / "model.safetensors", {other: torch.ones(2)}), CONFIG)
