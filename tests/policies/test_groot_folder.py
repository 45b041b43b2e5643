"""What a published GR00T N1.6 folder says besides its weights, on a folder with every published file and key."""

import json
from dataclasses import replace

import groot_recording as recording
import numpy as np
import pytest
import torch
from family_folders import GROOT_CONFIG, GROOT_PROCESSOR
from parity import relative, write
from replan.policies.groot_processor import GrootProcessor
from replan.policies.published import groot_folder
from replan.policies.published.groot import TIED, load_published
from replan.policies.published.groot_folder import read_robot
from replan.policies.published.reader import open_source
from replan.policies.weights import CheckpointError

ROBOT = {
    "video": {"delta_indices": [0], "modality_keys": ["image", "wrist_image"]},
    "state": {"delta_indices": [0], "modality_keys": ["arm", "gripper"], "mean_std_embedding_keys": None},
    "action": {
        "delta_indices": list(range(8)),
        "modality_keys": ["gripper", "arm"],  # not in the order of the statistics
        "mean_std_embedding_keys": ["arm"],
        "action_configs": [{"rep": "ABSOLUTE", "type": "NON_EEF"}] * 2,
    },
    "language": {"delta_indices": [0], "modality_keys": ["annotation.human.action.task_description"]},
}
PROCESSOR = GROOT_PROCESSOR | {"modality_configs": {"libero_panda": ROBOT, "gr1": ROBOT}}


def group(low, high):
    low, high = np.array(low, float), np.array(high, float)
    values = {"min": low, "max": high, "q01": low / 2, "q99": high / 2, "mean": low / 4, "std": high / 4}
    return {name: each.tolist() for name, each in values.items()}


STATISTICS = {
    "libero_panda": {
        "state": {"gripper": group([0.0], [4.0]), "arm": group([-1.0, 0.5], [3.0, 0.5])},
        "action": {"arm": group([-2.0, -4.0], [0.0, 6.0]), "gripper": group([-1.0], [1.0])},
    }
}


def read_config(folder, image_token):
    with open_source(folder) as source:
        return groot_folder.read_config(folder, source, image_token)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "model.safetensors", recording.weights())
    files = {"config": GROOT_CONFIG, "statistics": STATISTICS, "embodiment_id": {"libero_panda": 2, "gr1": 20}}
    for name, values in (files | {"processor_config": {"processor_kwargs": PROCESSOR}}).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    return tmp_path


def change(folder, file, **values):
    """Changes the values at these paths, whose parts two underscores separate; None takes one away."""
    path = folder / f"{file}.json"
    table = json.loads(path.read_text())
    for name, value in values.items():
        *parents, last = name.split("__")
        part = table
        for parent in parents:
            part = part[parent]
        part[last] = value
        if value is None:
            del part[last]
    path.write_text(json.dumps(table))


def test_shapes_and_settings_give_the_dimensions(folder):
    assert read_config(folder, image_token=999) == replace(recording.CONFIG, vision_heads=16)


def test_the_embedding_may_have_its_other_name_and_settings_may_be_left_out(folder):
    kept = {name: tensor for name, tensor in recording.weights().items() if "embed_tokens" not in name}
    assert TIED in kept
    write(folder / "model.safetensors", kept)
    change(folder, "config", num_inference_timesteps=None, use_vlln=None, action_horizon=None)
    assert read_config(folder, image_token=999) == replace(recording.CONFIG, vision_heads=16, horizon=16)


def test_a_robot_has_its_own_statistics_in_the_order_of_its_groups(folder):
    robot = read_robot(folder, "libero_panda")
    assert (robot.index, robot.cameras, robot.horizon) == (2, ("image", "wrist_image"), 8)
    assert (robot.edge, robot.crop, robot.formal) == (256, 0.95, True)
    assert robot.state == (("arm", 2), ("gripper", 1)) and robot.action == (("gripper", 1), ("arm", 2))
    assert robot.state_mean == (1.0, 0.5, 2.0) and robot.state_std == (2.0, 1e-6, 2.0)
    assert robot.action_mean == (0.0, 0.0, -1.0) and robot.action_std == (1.0, 1.0, 1.5)  # no spread: left as it is
    assert robot.state_clip == (True,) * 3 and robot.action_clip == (True, False, False)


def test_percentiles_are_bounds_and_states_may_leave_them(folder):
    change(folder, "processor_config", processor_kwargs__use_percentiles=True, processor_kwargs__clip_outliers=False)
    robot = read_robot(folder, "libero_panda")
    assert robot.state_mean == (0.5, 0.25, 1.0) and robot.state_clip == (False,) * 3
    assert robot.action_clip == (True, False, False)  # what is scaled back is clipped whatever the setting says


def test_the_processor_of_a_folder_scales_as_the_public_code_does_and_fits_its_model(folder):
    config, robot = read_config(folder, image_token=999), read_robot(folder, "libero_panda")
    processor = GrootProcessor(
        cameras=robot.cameras,
        image_size=config.image_size,
        words=("<pad>", "go"),
        max_tokens=4,
        gripper=(0,),
        replan=8,
        robot=robot.index,
        image_token=config.image_token,
        tokens_per_view=config.tokens_per_view,
        chat=False,
        **{name: value for name, value in vars(robot).items() if name.endswith(("_mean", "_std", "_clip"))},
        formal=robot.formal,
        edge=robot.edge,
        crop=robot.crop,
    )
    processor.check(config)
    state = np.array([5.0, 0.5, 1.0], np.float32)  # beyond its bounds; constant in the data; within
    assert processor.normalise_state(torch.from_numpy(state)).tolist() == pytest.approx([1.0, 0.0, -0.5])
    chunk = torch.tensor([[2.0, 2.0, 2.0]])
    assert processor.actions(chunk, state)[0].tolist() == pytest.approx([1.0, 2.0, 2.0])
    image = np.random.default_rng(0).integers(0, 256, (256, 256, 3), np.uint8)
    inputs = processor.inputs({"image": image, "wrist_image": image, "state": state, "instruction": "Go!"})
    model = load_published(folder, config)
    with torch.inference_mode():
        context = model.condition(model.prefill(model.encode(inputs)), inputs)
        velocity = model.step(recording.noise(), 0.0, context)
        other = model.condition(context, replace(inputs, embodiment=torch.tensor([1])))
        assert relative(model.step(recording.noise(), 0.0, other), velocity) > 0.1


@pytest.mark.parametrize(("edge", "size"), [(256, 252), (224, 224), (270, 280), (10, 28)])
def test_an_image_is_scaled_to_the_nearest_whole_tokens(folder, edge, size):
    change(folder, "processor_config", processor_kwargs__shortest_image_edge=edge)
    assert read_config(folder, image_token=999).image_size == size


def test_the_edge_may_be_that_of_the_older_settings(folder):
    older = {"processor_kwargs__shortest_image_edge": None, "processor_kwargs__crop_fraction": None}
    change(folder, "processor_config", **older)
    robot = read_robot(folder, "libero_panda")
    assert (robot.edge, robot.crop) == (256, 230 / 256)


def test_the_processor_may_lie_in_a_folder_of_its_own(folder):
    (folder / "processor").mkdir()
    for name in ("statistics", "embodiment_id", "processor_config"):
        (folder / f"{name}.json").rename(folder / "processor" / f"{name}.json")
    assert read_robot(folder, "libero_panda").index == 2
    assert read_config(folder, image_token=999).image_size == 252


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"use_alternate_vl_dit": False}, "use_alternate_vl_dit is False, and only True is supported"),
        ({"num_timestep_buckets": 500}, "num_timestep_buckets is 500"),
        ({"action_horizon": "8"}, "horizon must be a whole number, got '8'"),
        ({"action_horizon": 65}, "horizon 65 at most places 64"),
        ({"diffusion_model_cfg": []}, r"diffusion_model_cfg must be a table, got \[\]"),
        ({"diffusion_model_cfg__num_attention_heads": 5}, "expert_heads 5"),
    ],
)
def test_another_architecture_is_refused(folder, values, message):
    change(folder, "config", **values)
    with pytest.raises(CheckpointError, match=message):
        read_config(folder, image_token=999)


PANDA = "processor_kwargs__modality_configs__libero_panda"


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("statistics", {"libero_panda__state__arm": None}, "the statistics of state: arm must be a table"),
        ("statistics", {"libero_panda__state__arm__min": [1.0]}, "state arm have 1 values of min, not as many"),
        (
            "statistics",
            {"libero_panda__action__gripper__max": [[1.0], [2.0]]},
            "action gripper must have finite numbers",
        ),
        ("statistics", {"libero_panda__action__gripper__max": None}, "as max, one per channel, got None"),
        ("statistics", {"libero_panda__action": 3}, "action must be a table, got 3"),
        (
            "statistics",
            {"libero_panda": None},
            "no statistics and views of the robot 'libero_panda'; it has those of none",
        ),
        ("embodiment_id", {"libero_panda": "two"}, "gives the robot 'libero_panda' no index"),
        ("processor_config", {"processor_kwargs": None}, "processor_kwargs must be a table"),
        ("processor_config", {f"{PANDA}__video__modality_keys": None}, "modality_keys must be a list of names"),
        ("processor_config", {f"{PANDA}__video__delta_indices": [-1, 0]}, r"sees video at the steps \[-1, 0\]"),
        ("processor_config", {"processor_kwargs__use_albumentations": False}, "use_albumentations must be on"),
        ("processor_config", {"processor_kwargs__crop_fraction": 2}, r"crop_fraction in \(0, 1\], got 256 and 2"),
        (
            "processor_config",
            {"processor_kwargs__use_relative_action": True, f"{PANDA}__action__action_configs": [{"rep": "RELATIVE"}]},
            "libero_panda has actions that are relative to the state",
        ),
        (
            "processor_config",
            {"processor_kwargs__apply_sincos_state_encoding": True, f"{PANDA}__state__sin_cos_embedding_keys": ["arm"]},
            "libero_panda has states as sines and cosines",
        ),
    ],
)
def test_what_is_missing_or_computed_in_another_way_is_refused(folder, file, values, message):
    change(folder, file, **values)
    with pytest.raises(CheckpointError, match=message):
        read_robot(folder, "libero_panda")


@pytest.mark.parametrize("file", ["config", "processor_config", "statistics", "embodiment_id"])
@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no"), ("{", "is damaged"), ("[]", "must hold a table")]
)
def test_a_file_that_is_missing_or_damaged_is_named(folder, file, content, message):
    path = folder / f"{file}.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(CheckpointError, match=f"(?s)(?=.*{message})(?=.*{file}.json)"):
        read_config(folder, image_token=999)
        read_robot(folder, "libero_panda")


@pytest.mark.parametrize(
    "name", ["action_head.position_embedding.weight", "backbone.model.language_model.model.norm.weight"]
)
def test_a_folder_whose_weights_lack_a_tensor_is_refused(folder, name):
    write(folder / "model.safetensors", {key: value for key, value in recording.weights().items() if key != name})
    with pytest.raises(CheckpointError, match=name):
        load_published(folder, read_config(folder, image_token=999))
