"""Published folders as policies: what is read from them, what has to be said, and what is refused."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from folders import ACTION, CONFIGS, LAYOUTS, STATE, fast_file, lerobot_folder, sharded
from parity import write
from replan import accel
from replan.accel.flash.draft import Draft, DraftConfig, draft_path, save_draft
from replan.eval.cli import replan
from replan.eval.registry import Registry
from replan.policies.agent import ChunkAgent
from replan.policies.policy import load_policy, open_policy
from replan.policies.published.convention import convention_file, conventions
from replan.policies.tokens import VARIABLE
from replan.policies.weights import CheckpointError
from safetensors.torch import load_file

INSTRUCTION = "pick up the alphabet soup and place it in the basket"
BOTH = [(layout, family) for layout in LAYOUTS for family in CONFIGS]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders by layout and family, not to be changed."""
    folders = {}
    for layout, family in BOTH:
        folders[layout, family] = tmp_path_factory.mktemp("published") / f"{layout}-{family}"
        folders[layout, family].mkdir()
        LAYOUTS[layout](folders[layout, family], family)
    return folders


@pytest.fixture
def copy(made, tmp_path):
    def make(layout, family):
        return Path(shutil.copytree(made[layout, family], tmp_path / "copy"))

    return make


@pytest.fixture
def scene():
    rng = np.random.default_rng(0)
    return {
        "agentview": rng.integers(0, 256, (256, 256, 3), np.uint8),
        "wrist": rng.integers(0, 256, (256, 256, 3), np.uint8),
        "state": rng.normal(size=STATE).astype(np.float32),
        "instruction": INSTRUCTION,
    }


def named(folder, **options):
    return ":".join([str(folder), *(f"{key}={value}" for key, value in {"convention": "libero", **options}.items())])


def edit(file, change):
    plain = json.loads(file.read_text())
    change(plain)
    file.write_text(json.dumps(plain))


def statistics(folder):
    (file,) = folder.glob("assets/**/norm_stats.json")
    return file


@pytest.mark.parametrize(("layout", "family"), BOTH)
@pytest.mark.parametrize("method", ["dense", "few_step", "dp_cache", "flash"])
def test_a_folder_acts_with_methods(copy, scene, layout, family, method):
    folder = copy(layout, family)
    policy = load_policy(named(folder))
    draft = Draft(DraftConfig.of(policy.model.config))
    draft.start_from(policy.model.vlm[0], torch.Generator().manual_seed(0))
    save_draft(draft_path(policy.path), draft, {}, policy.files)
    agent = ChunkAgent(policy, accel.parse(method))
    agent.reset(0)
    actions = [agent.act(scene) for _ in range(2 * policy.processor.replan)]
    assert all(action.shape == (ACTION,) and np.isfinite(action).all() for action in actions)
    assert len({action.tobytes() for action in actions}) > 1


def published_scales(layout, family, folder):
    """Means and widths as the published code has them: state and action, forwards and back."""
    if layout == "openpi":  # transforms.py: Normalize, Unnormalize
        tables = json.loads(statistics(folder).read_text())["norm_stats"]
        tables, added = {"state": tables["state"], "action": tables["actions"]}, {"state": 1e-6, "action": 1e-6}
    else:  # processor/normalize_processor.py
        (file,) = folder.glob("*unnormalizer*.safetensors")
        tables = {"state": {}, "action": {}}
        for name, value in load_file(file).items():
            key, _, statistic = name.rpartition(".")
            tables[key.removeprefix("observation.")][statistic] = value.double().numpy()
        added = {"state": 1e-8 if family == "pi0" else 0, "action": 0}
    scales = {}
    for key, table in tables.items():
        table = {name: np.asarray(value) for name, value in table.items()}
        if family == "pi0":
            scales[key] = table["mean"], table["std"] + added[key]
        else:
            half = (table["q99"] - table["q01"] + added[key]) / 2
            scales[key] = table["q01"] + half, half
    return scales


@pytest.mark.parametrize(("layout", "family"), BOTH)
def test_states_and_actions_are_scaled_as_published(made, scene, layout, family):
    folder = made[layout, family]
    processor = open_policy(named(folder)).processor
    scales = published_scales(layout, family, folder)
    inputs = processor.inputs(scene)
    mean, std = scales["state"]
    np.testing.assert_allclose(inputs.state[0], (scene["state"] - mean) / std, rtol=1e-5, atol=1e-6)
    chunk = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    mean, std = scales["action"]
    expected = chunk[:, :ACTION].numpy() * std + mean
    if (layout, family) == ("openpi", "pi0"):  # pi0_libero alone learned what is left after the state is taken away
        expected[:, :6] += scene["state"][:6]
    np.testing.assert_allclose(processor.actions(chunk, scene["state"]), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        processor.normalise_actions(torch.from_numpy(expected).float(), torch.from_numpy(scene["state"])),
        chunk[:, :ACTION],
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("layout", "family", "prompt", "window", "horizon"),
    [
        ("openpi", "pi0", f"{INSTRUCTION}\n", 5, 50),
        ("openpi", "pi0.5", f"{INSTRUCTION}\n", 5, 10),
        ("lerobot", "pi0", f"{INSTRUCTION}\n", 4, 10),
        ("lerobot", "pi0.5", f"Task: {INSTRUCTION}, State: 128 128 128 128 128 128 128 255;\nAction: ", 4, 10),
    ],
)
def test_prompt_window_and_horizon_come_from_where_they_are_written(made, layout, family, prompt, window, horizon):
    stored = open_policy(named(made[layout, family]))
    state = torch.zeros(STATE)
    state[-1] = 3.0
    assert stored.processor.prompt(INSTRUCTION, state) == prompt
    assert (stored.processor.replan, stored.config.horizon, stored.config.steps) == (window, horizon, 10)
    assert stored.processor.cameras == ("agentview", "wrist") and stored.processor.mirror


@pytest.mark.parametrize("mode", ["MIN_MAX", "MEAN_STD", "QUANTILES", "IDENTITY"])
def test_every_mode_of_normalisation_maps_as_lerobot_does(tmp_path, scene, mode):
    folder = lerobot_folder(tmp_path, "pi0", mode)
    (file,) = folder.glob("*_normalizer*.safetensors")
    table = {name.rpartition(".")[2]: value for name, value in load_file(file).items() if name.startswith("obs")}
    state = torch.from_numpy(scene["state"])
    expected = {
        "MIN_MAX": 2 * (state - table["min"]) / (table["max"] - table["min"]) - 1,
        "QUANTILES": 2 * (state - table["q01"]) / (table["q99"] - table["q01"]) - 1,
        "MEAN_STD": (state - table["mean"]) / (table["std"] + 1e-8),
        "IDENTITY": state,
    }[mode]
    torch.testing.assert_close(open_policy(named(folder)).processor.inputs(scene).state[0], expected)


def test_views_are_turned_as_policies_saw_them(made, scene):
    processor = open_policy(named(made["openpi", "pi0"])).processor
    size = processor.image_size
    marked = {**scene, "agentview": np.zeros((size, size, 3), np.uint8)}
    marked["agentview"][0, 0] = 255
    image = processor.inputs(marked).images[0, 0]
    assert image[:, 0, -1].min() == 1 and image[:, 0, 0].max() == -1  # upright here, so turned by 180: left to right


def test_shards_are_the_same_policy_in_several_files(made, copy, scene):
    whole, parts = load_policy(named(made["openpi", "pi0"])), load_policy(named(sharded(copy("openpi", "pi0"))))
    assert {file.name for file in parts.files} > {"model-00000.safetensors", "model-00001.safetensors"}
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, parts.model.state_dict()[name])


def test_a_tokenizer_is_found_by_flag_then_variable_then_folder(made, copy, tmp_path, monkeypatch):
    folder, other = copy("openpi", "pi0"), fast_file(tmp_path / "tokenizer.json")
    assert open_policy(named(folder)).processor.tokenizer == folder / "tokenizer.model"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert open_policy(named(folder)).processor.tokenizer == other
    given = made["openpi", "pi0"] / "tokenizer.model"
    assert open_policy(named(folder, tokenizer=given)).processor.tokenizer == given
    monkeypatch.delenv(VARIABLE)
    (folder / "tokenizer.model").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer .*--tokenizer FILE or set REPLAN_TOKENIZER; .*paligemma"):
        open_policy(named(folder))


@pytest.mark.parametrize(("layout", "family"), BOTH)
def test_every_file_is_part_of_the_identity(copy, layout, family):
    folder = copy(layout, family)
    (folder / "notes.txt").write_text("not read")
    name = named(folder)
    stored, before = open_policy(name), Registry().policy(name).files.digests
    assert not {"notes.txt"} & {file.name for file in stored.files}
    for file in stored.files:
        if folder in file.parents and file.suffix != ".safetensors":
            content = file.read_bytes()
            file.write_bytes(content + (b"" if file.suffix == ".model" else b" "))
            if file.suffix != ".model":
                assert Registry().policy(name).files.digests != before, file
            file.write_bytes(content)
    weights = load_file(folder / "model.safetensors")
    first = min(weights)
    write(folder / "model.safetensors", {**weights, first: weights[first] + 1})
    assert Registry().policy(name).files.digests != before


def rename(weights, old, new):
    (name,) = [each for each in weights if each.endswith(old)]
    return {new if each == name else each: value for each, value in weights.items()}


@pytest.mark.parametrize(("layout", "family"), BOTH)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda w: {k: v for k, v in w.items() if not k.endswith("1.mlp.down_proj.weight")}, "2 missing keys"),
        (lambda w: {**w, "stranger.weight": torch.zeros(2)}, r"1 unknown keys \(stranger.weight\)"),
        (lambda w: rename(w, "action_out_proj.bias", "action_out.bias"), "1 missing keys.*; 1 unknown keys"),
        (
            lambda w: {
                k: v.T if k.endswith("language_model.layers.0.self_attn.v_proj.weight") else v for k, v in w.items()
            },
            r"v_proj.weight is \[64, 16\], expected \[16, 64\]",
        ),
        (lambda w: {k: v for k, v in w.items() if "patch_embedding.weight" not in k}, "lacks .*patch_embedding.weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(copy, layout, family, damage, message):
    folder = copy(layout, family)
    write(folder / "model.safetensors", damage(load_file(folder / "model.safetensors")))
    with pytest.raises(CheckpointError, match=message):
        load_policy(named(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: statistics(f).unlink(), "has no assets/.*norm_stats.json: copy the assets folder"),
        (lambda f: statistics(f).write_text("{"), "cannot be read .*; fetch it again"),
        (lambda f: statistics(f).write_text("[]"), "must hold a table, got list"),
        (lambda f: edit(statistics(f), lambda p: p["norm_stats"].pop("actions")), "lacks the statistics of 'actions'"),
        (lambda f: edit(statistics(f), lambda p: p["norm_stats"]["state"].pop("q01")), "state lack q01; they have"),
        (
            lambda f: edit(statistics(f), lambda p: p["norm_stats"]["state"].update(q99=[0.0] * 3)),
            r"q99 of the state must have 8 channels or more, got the shape \[3\]",
        ),
        (
            lambda f: edit(statistics(f), lambda p: p["norm_stats"]["actions"].update(q99=[-9.0] * 7)),
            "channel 0 of the action has no spread",
        ),
        (
            lambda f: edit(statistics(f), lambda p: p["norm_stats"]["state"]["q99"].__setitem__(2, float("nan"))),
            r"state_mean\[2\] must be from 0",
        ),
        (
            lambda f: shutil.copytree(f / "assets", f / "assets" / "again"),
            "statistics of again/physical-intelligence/libero, .*: name one as asset in the convention",
        ),
        (lambda f: (f / "tokenizer.model").write_bytes(b"nothing"), "tokenizer .* cannot be read"),
    ],
)
def test_a_folder_of_openpi_that_lacks_something_is_refused(copy, change, message):
    folder = copy("openpi", "pi0.5")
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        open_policy(named(folder))


def _drop_statistics(folder):
    (file,) = folder.glob("*_normalizer*.safetensors")
    write(file, {name: value for name, value in load_file(file).items() if name.startswith("action")})


def _constant(folder):
    (file,) = folder.glob("*_normalizer*.safetensors")
    values = load_file(file)
    values["observation.state.q01"][3] = values["observation.state.q99"][3]
    write(file, values)


def _step(plain, name):
    return next(step for step in plain["steps"] if step["registry_name"] == name)


PRE = "policy_preprocessor.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "there is no .*config.json: copy all files"),
        (lambda f: (f / PRE).unlink(), "there is no .*policy_preprocessor.json"),
        (
            lambda f: edit(f / "config.json", lambda p: p.update(type="pi0")),
            "of type 'pi0', and its weights are a 'pi05'",
        ),
        (
            lambda f: edit(f / "config.json", lambda p: p.update(chunk_size="10")),
            "chunk_size in config.json must be a whole",
        ),
        (lambda f: edit(f / "config.json", lambda p: p.update(n_action_steps=11)), "replan window of 11 do not fit"),
        (lambda f: edit(f / "config.json", lambda p: p.update(input_features={})), "names no image in input_features"),
        (
            lambda f: edit(
                f / "config.json", lambda p: p["input_features"].update({"observation.images.top": {"type": "VISUAL"}})
            ),
            "sees 'observation.images.top', and the convention has .*: add it to",
        ),
        (
            lambda f: edit(f / PRE, lambda p: p["steps"].append({"registry_name": "image_crop_resize_processor"})),
            "the step 'image_crop_resize_processor', which replan does not know and would leave out",
        ),
        (lambda f: edit(f / PRE, lambda p: p.update(steps="none")), "must have a list of steps"),
        (
            lambda f: edit(f / PRE, lambda p: _step(p, "normalizer_processor").pop("state_file")),
            "scales without a file of statistics",
        ),
        (
            lambda f: edit(
                f / PRE, lambda p: _step(p, "normalizer_processor").update(state_file="../elsewhere.safetensors")
            ),
            "scales without a file of statistics beside it, got '../elsewhere",
        ),
        (
            lambda f: edit(
                f / PRE, lambda p: _step(p, "normalizer_processor")["config"]["norm_map"].update(STATE="LOG")
            ),
            "the state is normalised by 'LOG'; known are",
        ),
        (_drop_statistics, "no statistics of 'observation.state', which the policy scales by QUANTILES"),
        (_constant, r"channel 3 of the state has no spread \(q01 and q99 are"),
        (
            lambda f: edit(
                f / PRE,
                lambda p: p["steps"].append(
                    {"registry_name": "relative_actions_processor", "config": {"enabled": True, "exclude_joints": []}}
                ),
            ),
            r"keeps the action channels \(\) absolute, where the convention's gripper has \(6,\)",
        ),
    ],
)
def test_a_folder_of_lerobot_that_lacks_something_is_refused(copy, change, message):
    folder = copy("lerobot", "pi0.5")
    change(folder)
    with pytest.raises(CheckpointError, match=message):
        open_policy(named(folder))


def test_relative_actions_of_lerobot_are_read(copy):
    folder = copy("lerobot", "pi0")
    options = {
        "enabled": True,
        "exclude_joints": ["gripper"],
        "action_names": ["x", "y", "z", "a", "b", "c", "gripper.pos"],
    }
    edit(
        folder / PRE,
        lambda p: p["steps"].insert(0, {"registry_name": "relative_actions_processor", "config": options}),
    )
    assert open_policy(named(folder)).processor.relative


def test_observations_that_lerobot_renames_are_looked_up_by_their_own_name(copy):
    folder = copy("lerobot", "pi0")
    renamed = {"observation.images.image": "observation.images.base"}
    edit(folder / PRE, lambda p: _step(p, "rename_observations_processor")["config"].update(rename_map=renamed))

    def rename_view(config):
        features = config["input_features"]
        config["input_features"] = {renamed.get(name, name): feature for name, feature in features.items()}

    edit(folder / "config.json", rename_view)
    assert open_policy(named(folder)).processor.cameras == ("agentview", "wrist")


def test_what_a_folder_does_not_say_has_to_be_said(made, policy_file):
    folder = made["openpi", "pi0"]
    with pytest.raises(CheckpointError, match="which does not say how its views .*: write --convention libero"):
        open_policy(str(folder))
    with pytest.raises(CheckpointError, match="unknown convention 'liberty'; known are libero, and FILE.toml"):
        open_policy(named(folder, convention="liberty"))
    with pytest.raises(CheckpointError, match="is followed by 'window=3'; a policy takes convention and tokenizer"):
        open_policy(named(folder, window=3))
    with pytest.raises(CheckpointError, match="says everything about itself; leave convention out"):
        open_policy(named(policy_file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state = ", "convention.toml: "),
        ("state = 8", "lacks action, cameras, gripper"),
        ("cameras = 3", "cameras and openpi must be tables"),
        ("[cameras]\na = 3", "every camera must be the name of an observation"),
        ("[openpi.pi0]\nhorizon = 3", "Openpi .*lacks asset"),
    ],
)
def test_a_convention_that_says_something_else_is_refused(made, tmp_path, text, message):
    file = tmp_path / "convention.toml"
    file.write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_policy(named(made["openpi", "pi0"], convention=file))


def test_a_convention_of_ones_own_is_part_of_the_identity(made, tmp_path):
    file = tmp_path / "mine.toml"
    text = convention_file("libero").read_text()
    file.write_text(text)
    name = named(made["openpi", "pi0"], convention=file)
    assert open_policy(name).processor == open_policy(named(made["openpi", "pi0"])).processor
    before = Registry().policy(name).files.digests
    file.write_text(text.replace("replan = 5", "replan = 4"))
    assert open_policy(name).processor.replan == 4 and Registry().policy(name).files.digests != before
    assert "libero" in conventions()


def test_nothing_is_executed_from_a_folder(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="pickled file, which is never loaded"):
        open_policy(named(tmp_path))
    write(tmp_path / "model.safetensors", {"some.weight": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="have no known layout .*; known are pi0 and pi0.5 of openpi"):
        open_policy(named(tmp_path))


def test_a_prompt_longer_than_the_policy_reads_is_refused(copy, scene):
    folder = copy("lerobot", "pi0")
    edit(folder / PRE, lambda p: _step(p, "tokenizer_processor")["config"].update(max_length=6))
    with pytest.raises(ValueError, match="the prompt must have 1 to 6 tokens other than 0, got 13"):
        open_policy(named(folder)).processor.inputs(scene)


def test_inspect_shows_what_was_recognised(made):
    done = CliRunner().invoke(replan, ["policy", "inspect", str(made["lerobot", "pi0.5"]), "--convention", "libero"])
    assert done.exit_code == 0, done.output
    for shown in ("lerobot, pi0.5", "agentview, wrist", "mirror        True", "State: 128 128"):
        assert shown in done.output
    weights = Registry().policy(f"{made['lerobot', 'pi0.5']}:convention=libero").files.digest  # of its rows
    assert weights[:60] in done.output


@pytest.fixture(scope="module")
def libero():
    if importlib.util.find_spec("libero") is None:
        pytest.skip("LIBERO is not installed; run `replan setup libero`")
    registry = Registry()
    env = registry.environment(registry.suites()["libero_object"], {})
    yield env
    env.close()


@pytest.mark.parametrize(("layout", "family"), BOTH)
def test_a_folder_acts_in_libero(libero, made, layout, family):
    """Random weights: observations go in and actions come out as published policies have them."""
    registry, policy = Registry(), named(made[layout, family])
    assert registry.policy(policy).incompatibilities(libero.observation_space, libero.action_space) == []
    agent = registry.agent(policy, "few_step", "float32", "cpu")
    libero.unwrapped.cameras_on = True
    observation, _ = libero.reset(seed=0, options={"task": INSTRUCTION.replace(" ", "_"), "init_state": 0})
    assert observation["instruction"] == INSTRUCTION
    agent.reset(0)
    for _ in range(6):  # into the second round
        observation, *_ = libero.step(agent.act(observation))
