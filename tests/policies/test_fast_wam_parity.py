"""Our Fast-WAM against lerobot's, on weights, inputs and results recorded by tests/golden/make_fast_wam.py."""

import json
from dataclasses import replace

import parity
import pytest
import torch
from parity import FAST_WAM_CONFIG as CONFIG
from parity import GOLDEN as FOLDER
from parity import recorded, relative, write
from replan.policies import fast_wam, wan, wan_vae
from replan.policies.checkpoint import CheckpointError
from replan.policies.fast_wam import FAST_WAM, FastWAM
from replan.policies.model import Inputs
from replan.policies.published.fast_wam import UNUSED_PREFIX, load_published, policy_layout
from safetensors import safe_open

GOLDEN = "fast_wam_tiny.safetensors"
TOLERANCE = 5e-6  # relative
MEAN, STD = (0.3, -0.2, 0.1, -0.4, 0.25, 0.0), (1.3, 0.7, 2.1, 0.9, 1.1, 0.8)


@pytest.fixture(scope="module")
def expected():
    return recorded(GOLDEN, "expected/")


@pytest.fixture
def weights():
    return recorded(GOLDEN, "weights/")


def load(folder, weights, dtype=torch.float32, vae=None):
    text = recorded(GOLDEN, "inputs/")["text"][0]
    words = torch.cat([torch.full((1, 24), torch.nan), text[:3], torch.zeros(2, 24)])  # row 0 must never be read
    words[0] = 9.0
    for name, tensors in (("model", weights), ("vae", vae or recorded(GOLDEN, "vae/"))):
        write(folder / f"{name}.safetensors", tensors)
    return load_published(folder / "model.safetensors", folder / "vae.safetensors", MEAN, STD, words, CONFIG, dtype)


def run(model):
    given, tokens = recorded(GOLDEN, "inputs/"), torch.tensor([[1, 2, 3, 0, 0]])
    inputs = Inputs(given["images"], tokens, tokens != 0, given["state"])
    return parity.run(model, inputs, given["noise"])


def errors(model, expected):
    call, velocity = run(model)
    pairs = {
        "embeddings": call.prefix.embeddings,
        "velocity": velocity,
        "actions": call.chunk[0],
        **{f"key.{layer}": k.flatten(2) for layer, (k, _) in enumerate(call.context.video)},
        **{f"value.{layer}": v.flatten(2) for layer, (_, v) in enumerate(call.context.video)},
    }
    return {name: relative(ours, expected[name]) for name, ours in pairs.items()}


def test_every_stage_equals_the_reference(tmp_path, weights, expected):
    model = load(tmp_path, weights)
    frame = torch.cat(recorded(GOLDEN, "inputs/")["images"].unbind(1), -1)
    assert relative(model.vision(frame)[:, :, None], expected["latents"]) <= TOLERANCE
    assert max(errors(model, expected).values()) <= TOLERANCE


def test_bfloat16_stays_near_float32(tmp_path, weights, expected):
    wide = errors(load(tmp_path, weights, torch.bfloat16), expected)
    # bfloat16 has 8 bits: 4e-3 an operation, some 3e-2 through these stacks of unit gain.
    assert 1e-3 < wide["velocity"] < 0.08 and wide["actions"] < 0.08


# Every one of these is a porting error that the reference's conventions invite.


def time_not_in_thousandths(patch):
    right = wan.time_features
    patch.setattr(fast_wam, "time_features", lambda time, width: right(time / 1000, width))


def sine_first(patch):
    right = wan.time_features
    patch.setattr(fast_wam, "time_features", lambda time, width: right(time, width).roll(width // 2, -1))


def halves_as_rotary_pairs(patch):
    def rotate(x, rope):
        cos, sin = rope
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    patch.setattr(wan, "rotate", rotate)


def columns_before_rows(patch):
    right = wan.rope_image

    def image(height, width, *rest):
        return right(width, height, *rest).unflatten(0, (width, height)).transpose(0, 1).flatten(0, 1)

    patch.setattr(fast_wam, "rope_image", image)


def norm_of_each_head(patch):
    def forward(self, x):
        heads = x.unflatten(-1, (CONFIG.heads, -1))
        return torch.nn.functional.rms_norm(heads, heads.shape[-1:], None, 1e-6).flatten(-2) * self.weight

    patch.setattr(wan.ScaledRMSNorm, "forward", forward)


def scale_before_shift(patch):
    right = wan.WanBlock.modulations

    def modulations(self, table):
        shift, factor, *rest = right(self, table)
        return factor - 1, 1 + shift, *rest

    patch.setattr(wan.WanBlock, "modulations", modulations)


def no_gate(patch):
    right = wan.WanBlock.modulations

    def modulations(self, table):
        shift, scale, gate, *rest = right(self, table)
        return shift, scale, torch.ones_like(gate), *rest

    patch.setattr(wan.WanBlock, "modulations", modulations)


def exact_gelu(patch):
    right = wan.F.gelu
    patch.setattr(wan.F, "gelu", lambda x, approximate="none": right(x))


def padding_is_not_seen(patch):
    encode = FastWAM.encode

    def without(self, inputs):
        prefix = encode(self, inputs)
        return replace(prefix, words=prefix.words[:, :3])

    patch.setattr(FastWAM, "encode", without)


def state_left_out(patch):
    encode = FastWAM.encode
    patch.setattr(FastWAM, "encode", lambda self, inputs: replace(p := encode(self, inputs), state=p.state[:, :0]))


def row_before_column_in_a_square(patch):
    right = wan_vae.F.pixel_unshuffle

    def unshuffle(x, side):
        y = right(x, side)
        return y.unflatten(1, (3, side, side)).transpose(2, 3).flatten(1, 3) if x.shape[1] == 3 else y

    patch.setattr(wan_vae.F, "pixel_unshuffle", unshuffle)


def averages_without_the_zeros(patch):
    init = wan_vae.Stage.__init__
    patch.setattr(wan_vae.Stage, "__init__", lambda self, w, o, b, h, frames: init(self, w, o, b, h, 1))


def padded_on_both_sides(patch):
    right = wan_vae.F.pad
    patch.setattr(wan_vae.F, "pad", lambda x, by: right(x, (1, 0, 1, 0) if by == (0, 1, 0, 1) else by))


def uniform_times(patch):
    init = FastWAM.__init__
    patch.setattr(FastWAM, "__init__", lambda self, config: init(self, replace(config, shift=1.0)))


MUTATIONS = (
    time_not_in_thousandths,
    sine_first,
    halves_as_rotary_pairs,
    columns_before_rows,
    norm_of_each_head,
    scale_before_shift,
    no_gate,
    exact_gelu,
    padding_is_not_seen,
    state_left_out,
    row_before_column_in_a_square,
    averages_without_the_zeros,
    padded_on_both_sides,
    uniform_times,
)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda each: each.__name__)
def test_known_porting_errors_are_caught(tmp_path, weights, expected, monkeypatch, mutate):
    mutate(monkeypatch)
    assert max(errors(load(tmp_path, weights), expected).values()) > 4 * TOLERANCE


def test_a_kernel_that_meets_the_wrong_frame_is_caught(tmp_path, weights, expected):
    vae = {name: x.flip(2) if x.ndim == 5 else x for name, x in recorded(GOLDEN, "vae/").items()}
    assert errors(load(tmp_path, weights, vae=vae), expected)["embeddings"] > 1e-2


# Loading


def test_the_full_size_model_has_the_published_names_and_shapes():
    with safe_open(FOLDER / GOLDEN, "pt") as file:
        published = {name: shape for name, shape in json.loads(file.metadata()["layout"]).items()}
    with torch.device("meta"):
        model = FastWAM(FAST_WAM)
    ours = {name: list(part.shape) for parts in policy_layout(model).values() for name, part in parts.items()}
    assert ours == {name: shape for name, shape in published.items() if not name.startswith(UNUSED_PREFIX)}
    assert FAST_WAM.tokens_per_view == 49  # 98 for two views


@pytest.mark.parametrize("change", ["missing", "extra", "renamed", "transposed", "mixed up"])
def test_weights_that_do_not_fit_are_refused(tmp_path, weights, change):
    name = "model.mot.layers.1.blocks.action.cross_attn.q.weight"
    tensor = weights[name] if change == "extra" else weights.pop(name)
    if change in ("extra", "renamed"):
        weights[name.replace("cross_attn", "text_attn")] = tensor
    if change == "transposed":
        weights[name] = tensor.T
    if change == "mixed up":
        weights[name] = tensor[:-1]
    with pytest.raises(CheckpointError, match=r"attn\.q\.weight"):
        load(tmp_path, weights)


def test_text_and_statistics_of_another_width_are_refused(tmp_path, weights):
    load(tmp_path, weights)
    paths = tmp_path / "model.safetensors", tmp_path / "vae.safetensors"
    with pytest.raises(CheckpointError, match=r"text.weight must have the shape \[6, 24\], got \[6, 23\]"):
        load_published(*paths, MEAN, STD, torch.zeros(6, 23), CONFIG)
    with pytest.raises(CheckpointError, match=r"vision.std must have the shape \[6\], got \[5\]"):
        load_published(*paths, MEAN, STD[1:], torch.zeros(6, 24), CONFIG)
