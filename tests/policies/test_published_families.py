"""Published folders of GR00T N1.6, X-VLA and Fast-WAM: methods on them, their conventions, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from family_folders import OTHERS, qwen_file
from folders import ACTION, convention, edit, named, rename, scene
from parity import GOLDEN, write
from replan import accel
from replan.eval.cli import replan
from replan.policies.agent import ChunkAgent
from replan.policies.fast_wam import FAST_WAM as FAST_WAM_FULL
from replan.policies.policy import load_policy, open_policy
from replan.policies.published import fast_wam_policy, xvla, xvla_folder
from replan.policies.published.groot_policy import MARKS
from replan.policies.weights import CheckpointError
from replan.policies.xvla import X_VLA
from safetensors import safe_open
from safetensors.torch import load_file

GROOT, XVLA, LEROBOT_XVLA, FAST_WAM = "groot_n1.6", "x_vla", "lerobot, x_vla", "fast_wam"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders by layout, not to be changed."""
    made = {layout: tmp_path_factory.mktemp("published") for layout in OTHERS}
    for layout, folder in made.items():
        OTHERS[layout](folder)
    return made


@pytest.fixture
def copy(made, tmp_path):
    return lambda layout: Path(shutil.copytree(made[layout], tmp_path / "copy"))


@pytest.mark.parametrize("layout", OTHERS)
def test_a_folder_acts_with_methods(made, layout):
    policy = load_policy(named(made[layout]))
    chunks = {}
    for method in ("dense", "few_step", "dp_cache:keep=0/2"):
        agent = ChunkAgent(policy, accel.parse(method))
        agent.reset(0)
        actions = chunks[method] = np.array([agent.act(scene()) for _ in range(policy.processor.replan + 1)])
        assert actions.shape[1] == ACTION and np.isfinite(actions).all()
        assert set(actions[:, 6]) <= {-1.0, 1.0}  # all three give grippers that are open or closed
        assert (agent.dense_error() == 0) == (method == "dense")
    assert not np.array_equal(chunks["dense"], chunks["few_step"])


@pytest.mark.parametrize("layout", [XVLA, LEROBOT_XVLA])
def test_both_layouts_of_florence_are_the_same_policy(made, layout):
    other = {XVLA: "x_vla, newer names", LEROBOT_XVLA: "lerobot, x_vla, older names"}[layout]
    one, two = load_policy(named(made[layout])), load_policy(named(made[other]))
    assert one.model.config == two.model.config
    assert all(torch.equal(x, two.model.state_dict()[name]) for name, x in one.model.state_dict().items())


MATRIX = {
    GROOT: "transformer_blocks.1.ff.net.2.weight",
    XVLA: "transformer.blocks.1.mlp.fc1.weight",
    LEROBOT_XVLA: "transformer.blocks.1.mlp.fc1.weight",
    FAST_WAM: "layers.1.blocks.video.ffn.0.weight",
}


@pytest.mark.parametrize("layout", MATRIX)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w, end: {name: x for name, x in w.items() if not name.endswith(end)}, "1 missing keys"),
        (lambda w, end: {**w, "stranger.weight": torch.zeros(2)}, r"1 unknown keys \(stranger.weight\)"),
        (lambda w, end: rename(w, end, "renamed.weight"), "1 missing keys.*; 1 unknown keys"),
        (
            lambda w, end: {name: x.T if name.endswith(end) else x for name, x in w.items()},
            r"is \[\d+, \d+\], expected",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(copy, layout, damage, message):
    folder = copy(layout)
    write(folder / "model.safetensors", damage(load_file(folder / "model.safetensors"), MATRIX[layout]))
    with pytest.raises(CheckpointError, match=message):
        load_policy(named(folder))


class Shapes:
    """The names and shapes of a published model at full size, without its weights."""

    path = Path("full")

    def __init__(self, file):
        with safe_open(GOLDEN / file, "pt") as opened:
            self.shapes = json.loads(opened.metadata()["layout"])
        self.names = list(self.shapes)

    def shape(self, name):
        return tuple(self.shapes[name])

    def renamed(self, names):
        made = object.__new__(Shapes)
        made.shapes = {new: self.shapes[old] for new, old in names.items()}
        made.names = list(names)
        return made


def test_the_shapes_of_the_published_x_vla_give_its_dimensions():
    opened = xvla.recognise(Shapes("xvla_tiny.safetensors"))
    heads = [8, 16, 32, 64]
    vision = {"num_heads": heads, "num_groups": heads, "window_size": 12}
    values = {
        "florence_config": {"vision_config": vision, "text_config": {"encoder_attention_heads": 16}},
        "num_heads": 16,
        "dim_time": 32,
        "action_mode": "ee6d",
        "num_actions": 30,
    }
    assert xvla_folder.read_config(values, opened.source, False, 224) == X_VLA


def test_the_shapes_of_the_published_fast_wam_give_its_dimensions():
    values = {
        "action_scheduler": {"infer_shift": 5.0},
        "video_dit_config": {"num_heads": 24},
        "action_horizon": 32,
        "num_inference_steps": 10,
    }
    encoder = {
        "base_dim": 160,
        "dim_mult": [1, 2, 4, 4],
        "num_res_blocks": 2,
        "temperal_downsample": [False, True, True],
        "is_residual": True,
        "patch_size": 2,
    }
    read = fast_wam_policy.read_config(values, encoder, Shapes("fast_wam_tiny.safetensors"), 224, FAST_WAM_FULL.vocab)
    assert read == FAST_WAM_FULL


FIRST = {
    GROOT: "action_head.position_embedding.weight",
    XVLA: "transformer.pos_emb",
    FAST_WAM: "model.proprio_encoder.weight",
}


@pytest.mark.parametrize("layout", FIRST)
def test_a_tensor_that_tells_a_dimension_is_missed_before_anything_is_loaded(copy, layout):
    folder = copy(layout)
    weights = load_file(folder / "model.safetensors")
    del weights[FIRST[layout]]
    write(folder / "model.safetensors", weights)
    with pytest.raises(CheckpointError, match=f"lacks {FIRST[layout]}"):
        open_policy(named(folder))


TOGGLE = "fastwam_action_toggle_processor"
CONFIG, PRE, POST = "config.json", "policy_preprocessor.json", "policy_postprocessor.json"


def options(name):
    """Reaches into the options of a step."""
    return lambda plain: next(step["config"] for step in plain["steps"] if step["registry_name"] == name)


def groot_settings(plain):
    return plain["processor_kwargs"]


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        (GROOT, lambda f: (f / "statistics.json").unlink(), "there is no .*statistics.json: copy all files"),
        (GROOT, lambda f: (f / "tokenizer.json").unlink(), "no tokenizer .*--tokenizer FILE .*Eagle-Block2A-2B-v2"),
        (
            GROOT,
            lambda f: qwen_file(f / "tokenizer.json", MARKS[1:]),
            r"has no token for <\|im_start\|>; that of GR00T",
        ),
        (GROOT, lambda f: (f / "tokenizer.json").write_text("{"), "tokenizer .* cannot be read"),
        (
            GROOT,
            lambda f: edit(f / "statistics.json", lambda p: p.update(gr1=p.pop("libero_panda"))),
            "no statistics and views of the robot 'libero_panda'; it has those of none",
        ),
        (
            GROOT,
            lambda f: edit(f / "processor_config.json", lambda p: groot_settings(p).update(letter_box_transform=True)),
            "images are prepared in another way",
        ),
        (
            GROOT,
            lambda f: edit(
                f / "processor_config.json",
                lambda p: groot_settings(p)["modality_configs"]["libero_panda"]["state"]["modality_keys"].reverse(),
            ),
            "has gripper, gripper, yaw, .* as the state of libero_panda, and the convention x, y, z, roll",
        ),
        (
            GROOT,
            lambda f: edit(
                f / "processor_config.json",
                lambda p: groot_settings(p)["modality_configs"]["libero_panda"]["action"].update(delta_indices=[0, 1]),
            ),
            "plans 2 actions of libero_panda, and the convention executes 8",
        ),
        (
            GROOT,
            lambda f: write(
                f / "model.safetensors",
                rename(load_file(f / "model.safetensors"), "mlp1.0.bias", "backbone.eagle_model.mlp1.0.bias"),
            ),
            "is another GR00T than N1.6 .*: only N1.6 is read",
        ),
        (XVLA, lambda f: (f / "preprocessor_config.json").unlink(), "there is no .*preprocessor_config.json"),
        (
            XVLA,
            lambda f: edit(f / "preprocessor_config.json", lambda p: p.update(resample=0)),
            "in another way than by",
        ),
        (XVLA, lambda f: (f / "tokenizer.json").unlink(), "no tokenizer .*facebook/bart-large"),
        (XVLA, lambda f: qwen_file(f / "tokenizer.json"), "has no token for <s>, </s>, <pad>"),
        (
            XVLA,
            lambda f: edit(f / CONFIG, lambda p: p.pop("num_actions")),
            "num_actions must be a whole",
        ),
        (XVLA, lambda f: edit(f / CONFIG, lambda p: p.update(action_mode="ee5d")), "is 'ee5d'; known are ee6d, joint"),
        (XVLA, lambda f: edit(f / CONFIG, lambda p: p.update(use_proprio=False)), "does not read the state"),
        (XVLA, lambda f: edit(f / CONFIG, lambda p: p.update(dim_time=100)), "not those of an X-VLA: .*state_dim"),
        (
            XVLA,
            lambda f: edit(f / CONFIG, lambda p: p["florence_config"].pop("text_config")),
            "text_config must be a table",
        ),
        (
            XVLA,
            lambda f: edit(f / CONFIG, lambda p: p["florence_config"]["vision_config"].update(num_heads="4")),
            "num_heads in config.json must be a list of whole numbers, got '4'",
        ),
        (LEROBOT_XVLA, lambda f: (f / PRE).unlink(), "there is no .*policy_preprocessor.json"),
        (
            LEROBOT_XVLA,
            lambda f: edit(f / PRE, lambda p: options("normalizer_processor")(p)["norm_map"].update(STATE="MEAN_STD")),
            "scales states or actions that are poses",
        ),
        (
            LEROBOT_XVLA,
            lambda f: edit(f / PRE, lambda p: options("tokenizer_processor")(p).update(padding="longest")),
            "does not fill prompts up behind the text",
        ),
        (
            LEROBOT_XVLA,
            lambda f: edit(f / PRE, lambda p: options("xvla_add_domain_id")(p).update(domain_id=4)),
            r"embodiment must be in 0\.\.3, got 4",
        ),
        (
            LEROBOT_XVLA,
            lambda f: edit(f / CONFIG, lambda p: p.update(resize_imgs_with_padding=[64, 32])),
            "must name a square",
        ),
        (FAST_WAM, lambda f: shutil.rmtree(f / "vae"), "no image encoder: copy the folder vae of Wan-AI"),
        (FAST_WAM, lambda f: (f / "vae/diffusion_pytorch_model.safetensors").unlink(), "there are no weights at .*vae"),
        (FAST_WAM, lambda f: (f / "text_embeddings.safetensors").unlink(), "no tokenizer .*an embedding of each instr"),
        (
            FAST_WAM,
            lambda f: write(f / "text_embeddings.safetensors", {"a": torch.zeros(2, 24), "b": torch.zeros(2, 20)}),
            r"must have embeddings of one width, got \[20, 24\]",
        ),
        (
            FAST_WAM,
            lambda f: edit(f / "vae/config.json", lambda p: p.update(temperal_downsample=[True])),
            "not those of a Fast-WAM: vae_halves_frames",
        ),
        (FAST_WAM, lambda f: edit(f / "vae/config.json", lambda p: p.pop("latents_std")), "latents_std must be a list"),
        (
            FAST_WAM,
            lambda f: edit(f / CONFIG, lambda p: p.update(image_size=[384, 320])),
            "only 2 squares side by side",
        ),
        (
            FAST_WAM,
            lambda f: edit(
                f / POST, lambda p: options("fastwam_action_toggle_processor")(p).update(toggle_dimensions=[2])
            ),
            r"toggles \[2\], where the convention's gripper has \(6,\)",
        ),
    ],
)
def test_a_folder_that_lacks_something_is_refused(copy, layout, change, message):
    folder = copy(layout)
    change(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_policy(named(folder))
    assert "\n" not in str(caught.value)


def leaves(plain, path=()):
    """Every value in a JSON file that is no table, by its path."""
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from leaves(value, (*path, key))
    elif isinstance(plain, list) and plain and isinstance(plain[0], (dict, list)):
        for number, value in enumerate(plain):
            yield from leaves(value, (*path, number))
    else:
        yield path


@pytest.mark.parametrize("layout", MATRIX)
def test_no_value_ends_in_a_traceback(copy, layout):
    folder, rng = copy(layout), np.random.default_rng(0)
    written = [file for file in folder.rglob("*.json") if file.name != "tokenizer.json"]
    places = [(file, path) for file in written for path in leaves(json.loads(file.read_text()))]
    refused = 0
    for number in rng.permutation(len(places))[:25]:
        file, (*parents, last) = places[number]
        text = file.read_text()
        plain = table = json.loads(text)
        for parent in parents:
            table = table[parent]
        for junk in (None, "x", -1, 1.5, [[]], {"a": 1}):
            table[last] = junk
            file.write_text(json.dumps(plain))
            try:
                open_policy(named(folder))
            except CheckpointError as error:
                refused += 1
                assert "\n" not in str(error)
        file.write_text(text)
    assert refused > 40  # many values are read


@pytest.mark.parametrize("layout", FIRST)
def test_a_tensor_of_another_rank_is_refused(copy, layout):
    folder = copy(layout)
    weights = load_file(folder / "model.safetensors")
    write(folder / "model.safetensors", {**weights, FIRST[layout]: torch.zeros(3)})
    with pytest.raises(CheckpointError):
        open_policy(named(folder))


@pytest.mark.parametrize(("layout", "table"), [(GROOT, "groot"), (XVLA, "x_vla")])
def test_what_a_folder_does_not_say_has_to_be_said(made, tmp_path, layout, table):
    with pytest.raises(CheckpointError, match="which does not say how its views .*: write --convention libero"):
        open_policy(str(made[layout]))
    file = convention(tmp_path)
    file.write_text(file.read_text().partition(f"[{table}]")[0])
    with pytest.raises(CheckpointError, match=rf"and the convention has no \[{table}\]"):
        open_policy(named(made[layout], convention=file))


@pytest.mark.parametrize("layout", OTHERS)
def test_inspect_shows_what_was_recognised_in_one_screen(made, layout):
    done = CliRunner().invoke(replan, ["policy", "inspect", str(made[layout]), "--convention", "libero"])
    assert done.exit_code == 0, done.output
    for shown in ("agentview, wrist", "sha256", "tokenizer"):
        assert shown in done.output
    assert len(done.output.splitlines()) <= 80 and max(map(len, done.output.splitlines())) <= 120
