"""Our X-VLA against lerobot's, on weights, inputs and results recorded by tests/golden/make_xvla.py."""

import json
from dataclasses import replace

import parity
import pytest
import torch
from parity import GOLDEN as FOLDER
from parity import older, recorded, relative, write
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
    return {
        name: relative(ours, expected[name]) if ours.shape == expected[name].shape else float("inf")
        for name, ours in pairs.items()
    }


def test_every_stage_equals_the_reference(tmp_path, weights, expected):
    found = errors(load(tmp_path, weights), expected)
    assert found.keys() == expected.keys() and max(found.values()) <= TOLERANCE


def test_bfloat16_stays_near_float32(tmp_path, weights, expected):
    wide = errors(load(tmp_path, weights, torch.bfloat16), expected)
    # bfloat16 has 8 bits: 4e-3 an operation, some 3e-2 through these stacks of unit gain.
    assert 1e-3 < wide["first"] < 0.08 and wide["actions"] < 0.08


def test_norms_have_the_references_epsilon():
    # 1e-5 or 1e-6 would not show in an output.
    norms = [each for each in XVLA(CONFIG).modules() if isinstance(each, torch.nn.LayerNorm)]
    assert {norm.eps for norm in norms} == {1e-5}


# Every one of these is a porting error that the reference's conventions invite. Each takes pytest's monkeypatch and the
# published weights.


def changed(**fields):
    """Builds the model with other fields in its configuration."""

    def mutate(patch, weights):
        init = XVLA.__init__
        patch.setattr(XVLA, "__init__", lambda self, config: init(self, replace(config, **fields)))

    return mutate


def flow(**fields):
    """Integrates in another way."""
    return lambda patch, weights: patch.setattr(xvla, "FlowSpec", lambda **right: FlowSpec(**(right | fields)))


def instead(target, name, make):
    """Puts ``make(right)`` in the place of a function."""
    return lambda patch, weights: patch.setattr(target, name, make(getattr(target, name)))


def reordered(name, change):
    """Reads a published table in another order."""

    def mutate(patch, weights):
        name_of_all = f"model.{name}"
        weights[name_of_all] = change(weights[name_of_all]).reshape(weights[name_of_all].shape)

    return mutate


def gelu(module, wrong, right_shape):
    """Another GELU in the FFNs whose input has this shape."""

    def make(right):
        return lambda x, approximate="none": right(x, approximate=wrong if right_shape(x) else approximate)

    return lambda patch, weights: patch.setattr(module.F, "gelu", make(module.F.gelu))


def windows(pad):
    """Windows whose padding is not a bias: zeros behind the projection, or nothing at all."""

    def forward(self, x):
        batch, height, width, channels = x.shape
        side = self.window
        high, wide = -(-height // side) * side, -(-width // side) * side
        qkv = torch.zeros(batch, high, wide, 3 * channels)
        qkv[:, :height, :width] = self.qkv(x)
        real = torch.zeros(batch, high, wide, 1, dtype=torch.bool)
        real[:, :height, :width] = True

        def split(y):
            return y.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3).flatten(3, 4).flatten(0, 2)

        q, k, v = split(qkv).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if pad == "zeros" else split(real)[:, None].transpose(-1, -2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        mixed = mixed.transpose(1, 2).flatten(2).unflatten(0, (batch, high // side, wide // side))
        mixed = mixed.unflatten(3, (side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return self.out(mixed[:, :height, :width])

    return lambda patch, weights: patch.setattr(davit.WindowAttention, "forward", forward)


def by_width_of_group(right):
    def forward(self, x):
        pixels, width = x.shape[1] * x.shape[2], x.shape[3] // self.groups
        qkv = self.qkv(x.flatten(1, 2)).unflatten(-1, (3, self.groups, -1)).permute(2, 0, 3, 4, 1)
        assert pixels != width
        mixed = torch.nn.functional.scaled_dot_product_attention(*qkv, scale=width**-0.5)
        return self.out(mixed.permute(0, 3, 1, 2).reshape(x.shape))

    return forward


def before_the_sum(right):
    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.ffn_norm(x))))

    return forward


def padding_left_out(right):
    def encode(self, inputs):
        prefix = right(self, inputs)
        last = prefix.embeddings[:, -1:] * 0  # both robots' last token is padding
        return replace(prefix, embeddings=torch.cat([prefix.embeddings[:, :-1], last], 1))

    return encode


def without_prompts(right):
    def condition(self, context, inputs):
        conditioned = right(self, context, inputs)
        return replace(conditioned, rows=conditioned.rows[:, : context.rows.shape[1]])

    return condition


def prompts_with_positions(right):
    def condition(self, context, inputs):
        conditioned, before = right(self, context, inputs), self.horizon + context.rows.shape[1]
        rows = conditioned.rows.clone()
        rows[:, -CONFIG.prompts :] += self.positions[before : before + CONFIG.prompts]
        return replace(conditioned, rows=rows)

    return condition


def absent_views_dropped(right):
    def prefill(self, prefix, *rest):
        first = CONFIG.tokens_per_view
        kept = torch.cat([prefix.embeddings[:, : 2 * first], prefix.embeddings[:, 3 * first :]], 1)
        return right(self, replace(prefix, embeddings=kept, visual=2 * first), *rest)

    return prefill


def of_first_robot(inputs):
    return replace(inputs, embodiment=inputs.embodiment * 0)


def condition_of(change):
    return lambda right: lambda self, context, inputs: right(self, context, change(inputs))


def encode_of(change):
    return lambda right: lambda self, inputs: right(self, change(inputs))


def clock(change):
    """Reads the flow time in another way."""
    return instead(xvla, "time_features", lambda right: lambda time, width, **how: change(right, time, width, how))


def order_of_inputs(table):
    action, state, time = table.unflatten(1, (-1, CONFIG.width)).split((20, 20, 8), 1)
    return torch.cat([action, time, state], 1)


PROJECTOR, ENCODER = "vlm.multi_modal_projector", "vlm.language_model.encoder"
ROWS, COLUMNS = (f"{PROJECTOR}.image_position_embed.{each}_embeddings.weight" for each in ("row", "column"))


def columns_before_rows(patch, weights):
    weights[f"model.{ROWS}"], weights[f"model.{COLUMNS}"] = weights[f"model.{COLUMNS}"], weights[f"model.{ROWS}"]


MUTATIONS = {
    "euler": flow(sampler="euler"),
    "velocity": flow(prediction="velocity", sampler="euler"),
    "grippers_are_read": changed(grippers=()),
    "only_one_gripper_is_hidden": changed(grippers=(9,)),
    "sine_first": clock(lambda right, time, width, how: right(time, width, **how).roll(width // 2, -1)),
    "time_in_thousandths": clock(lambda right, time, width, how: right(time, width, base=how["base"])),
    "period_of_10000": clock(lambda right, time, width, how: right(time, width, units=how["units"])),
    "time_reversed": clock(lambda right, time, width, how: right(1 - time, width, **how)),
    "another_robot": instead(XVLA, "condition", condition_of(of_first_robot)),
    "state_left_out": instead(XVLA, "condition", condition_of(lambda i: replace(i, state=i.state * 0))),
    "time_before_state": reordered("transformer.action_encoder.fc.weight", order_of_inputs),
    "decoder_transposed": reordered("transformer.action_decoder.fc.weight", lambda x: x.unflatten(1, (20, 40)).mT),
    "encoder_transposed": reordered("transformer.action_encoder.fc.weight", lambda x: x.unflatten(1, (40, 48)).mT),
    "no_prompts": instead(XVLA, "condition", without_prompts),
    "prompts_with_positions": instead(XVLA, "condition", prompts_with_positions),
    "absent_views_dropped": instead(XVLA, "prefill", absent_views_dropped),
    "masked_view_is_seen": instead(XVLA, "encode", encode_of(lambda i: replace(i, view_mask=None))),
    "padding_left_out": instead(XVLA, "encode", padding_left_out),
    "bart_positions_from_0": reordered(f"{ENCODER}.embed_positions.weight", lambda x: x.roll(2, 0)),
    "scaled_words": reordered("vlm.language_model.shared.weight", lambda x: x * 32**0.5),
    "norm_before_the_sum": instead(florence.BartLayer, "forward", before_the_sum),
    "columns_before_rows": columns_before_rows,
    "position_of_another_time": reordered(ROWS, lambda x: x - 1),
    "no_imagenet": instead(florence, "imagenet", lambda right: lambda images: images),
    "colours_reversed": instead(florence, "imagenet", lambda right: lambda images: right(images.flip(-3))),
    "scale_by_width_of_group": instead(davit.ChannelAttention, "forward", by_width_of_group),
    "windows_padded_with_zeros": windows("zeros"),
    "windows_without_padding": windows("masked"),
    "tanh_in_davit": gelu(davit, "tanh", lambda x: x.ndim == 4),
    "tanh_in_bart": gelu(florence, "tanh", lambda x: x.shape[-1] == CONFIG.vlm_mlp),
    "exact_in_blocks": gelu(wan, "none", lambda x: x.shape[-1] == CONFIG.mlp),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_known_porting_errors_are_caught(tmp_path, weights, expected, monkeypatch, name):
    MUTATIONS[name](monkeypatch, weights)
    found = errors(load(tmp_path, weights), expected)
    assert max(error for error in found.values() if error < float("inf")) > 4 * TOLERANCE


# Loading


def test_the_full_size_model_has_the_published_names_and_shapes():
    with safe_open(FOLDER / GOLDEN, "pt") as file:
        published = json.loads(file.metadata()["layout"])
    with torch.device("meta"):
        model = XVLA(X_VLA)
    ours = {f"model.{name}": list(x.shape) for parts in published_layout(model).values() for name, x in parts.items()}
    unused = {"model.vlm.language_model.encoder.embed_tokens.weight", TABLE}
    assert ours == {name: shape for name, shape in published.items() if name not in unused}
    assert X_VLA.tokens_per_view == 50


TABLE = "model.vlm.multi_modal_projector.visual_temporal_embed.pos_idx_to_embed"


@pytest.mark.parametrize("layout", ["older", "authors'", "older of the authors", "tied under the other name"])
def test_every_layout_gives_the_same_model(tmp_path, weights, layout):
    right = load(tmp_path, weights).state_dict()
    if layout.startswith("older"):
        weights = older(weights)
    if "authors" in layout:
        weights = {name.removeprefix("model."): x for name, x in weights.items()}
    if layout.startswith("tied"):
        weights["model.vlm.language_model.encoder.embed_tokens.weight"] = weights.pop(
            "model.vlm.language_model.shared.weight"
        )
    found = load(tmp_path / "other", weights).state_dict()
    assert found.keys() == right.keys() and all(torch.equal(found[name], x) for name, x in right.items())


@pytest.mark.parametrize("change", ["missing", "extra", "renamed", "transposed"])
@pytest.mark.parametrize("layout", [dict, older])
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, layout, change):
    weights = layout(weights)
    name = "model.transformer.blocks.1.mlp.fc1.weight"
    tensor = weights[name] if change == "extra" else weights.pop(name)
    if change in ("extra", "renamed"):
        weights[name.replace("mlp", "ffn")] = tensor
    if change == "transposed":
        weights[name] = tensor.T
    with pytest.raises(CheckpointError, match=r"fc1\.weight"):
        load(tmp_path, weights)


def test_mixed_layouts_and_projections_by_robot_are_refused(tmp_path, weights):
    with pytest.raises(CheckpointError, match="mixes two layouts"):
        load(tmp_path, older(weights) | weights)
    weights["model.transformer.vlm_proj.fc.weight"] = torch.zeros(4, 40 * 32)
    with pytest.raises(CheckpointError, match="use_hetero_proj"):
        load(tmp_path, weights)
