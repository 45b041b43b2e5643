"""Conventions of published GR00T N1.6, X-VLA and Fast-WAM: prompts, views, grippers, rotations, embedded texts."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from family_folders import OTHERS
from folders import ACTION, INSTRUCTION, convention, edit, named, scene
from gymnasium import spaces
from parity import recorded
from replan.policies.agent import ChunkAgent
from replan.policies.policy import load_policy, open_policy
from replan.policies.processing import ObservationError
from replan.policies.published.xvla_folder import GRIPPERS
from replan.policies.published.xvla_policy import rotation_vectors, scaled, six_numbers
from replan.policies.weights import CheckpointError
from safetensors.torch import load_file
from scipy.spatial.transform import Rotation

GROOT, XVLA, LEROBOT_XVLA, FAST_WAM = "groot_n1.6", "x_vla", "lerobot, x_vla", "fast_wam"
CONFIG = "config.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders by layout, not to be changed."""
    made = {layout: tmp_path_factory.mktemp("published") for layout in (GROOT, XVLA, LEROBOT_XVLA, FAST_WAM)}
    for layout, folder in made.items():
        OTHERS[layout](folder)
    return made


@pytest.fixture
def copy(made, tmp_path):
    return lambda layout: Path(shutil.copytree(made[layout], tmp_path / "copy"))


def test_the_prompt_of_groot_is_a_chat_with_places_for_visual_tokens(made):
    processor = open_policy(named(made[GROOT])).processor
    inputs = processor.inputs({**scene(), "instruction": "Pick up the soup, and place it!"})
    text = processor.prompt("Pick up the soup, and place it!", torch.zeros(8))
    places = "<IMG_CONTEXT>" * 81
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\npick up the soup and place it"
        f"<image 1><img>{places}</img><image 2><img>{places}</img><|im_end|>\n"
    )
    assert int((inputs.tokens == processor.image_token).sum()) == 162
    assert inputs.embodiment.tolist() == [2]
    assert inputs.token_mask.sum() < processor.max_tokens and (inputs.tokens[~inputs.token_mask] == processor.pad).all()


def test_more_actions_than_the_robot_plans_are_refused(made):
    policy = load_policy(named(made[GROOT]))
    short = type(policy)(**{**vars(policy), "processor": _with(policy.processor, planned=4)})
    with pytest.raises(ValueError, match="plans 4 actions, and 8 would be executed: write --window 4"):
        ChunkAgent(short).act(scene())
    assert ChunkAgent(short, window=4).act(scene()).shape == (ACTION,)


def test_padding_does_not_change_what_groot_does(made):
    policy = load_policy(named(made[GROOT]))
    wide = ChunkAgent(policy).act(scene())
    narrow = policy.processor.max_tokens - 100
    policy = type(policy)(**{**vars(policy), "processor": _with(policy.processor, max_tokens=narrow)})
    np.testing.assert_allclose(ChunkAgent(policy).act(scene()), wide, atol=1e-5)


def _with(processor, **fields):
    return type(processor)(**{**vars(processor), **fields})


@pytest.mark.parametrize("layout", [GROOT, FAST_WAM])
def test_an_inverted_gripper_opens_at_one(made, layout):
    processor = open_policy(named(made[layout])).processor
    assert processor.inverted
    for native, expected in ((0.9, -1.0), (0.1, 1.0)):
        chunk = torch.zeros(1, 12)
        chunk[0, 6] = (native - processor.action_mean[6]) / processor.action_std[6]
        assert processor.actions(chunk, np.zeros(8, np.float32))[0, 6] == expected
    action = torch.tensor([[0.0] * 6 + [1.0]])
    closed = (0 - processor.action_mean[6]) / processor.action_std[6]
    assert processor.normalise_actions(action, torch.zeros(8))[0, 6] == pytest.approx(closed)
    assert processor.normalise_gripper(action[0].numpy())[0] == pytest.approx(closed)


def test_x_vla_reads_each_view_as_its_policies_saw_it(made):
    processor = open_policy(named(made[LEROBOT_XVLA])).processor
    marked = {**scene(), "agentview": np.zeros((64, 64, 3), np.uint8), "wrist": np.zeros((64, 64, 3), np.uint8)}
    for camera in ("agentview", "wrist"):
        marked[camera][:8, :8] = 255
    images = processor.inputs(marked).images[0]
    assert images[0, :, :8, -8:].min() == 1 and images[0].sum() == images[0].numel() * -1 + 8 * 8 * 3 * 2  # mirrored
    assert images[1, :, -8:, :8].min() == 1  # as it is rendered, upside down


def test_a_prompt_of_x_vla_is_filled_up_with_its_own_padding(made):
    processor = open_policy(named(made[LEROBOT_XVLA])).processor
    tokens = processor.inputs(scene()).tokens[0].tolist()
    assert tokens[0] == 0 and tokens[12] == 2 and tokens[13:] == [1] * 7
    assert processor.embodiment == 2  # its step's, not the convention's
    assert open_policy(named(made[XVLA])).processor.embodiment == 3


def test_six_numbers_and_rotation_vectors_are_those_of_the_reference():
    given = recorded("xvla_tiny.safetensors", "rotation/")
    np.testing.assert_allclose(rotation_vectors(given["six"].numpy()), given["axis_angle"].numpy(), atol=2e-5)


def test_poses_go_there_and_back(made):
    processor = open_policy(named(made[XVLA])).processor
    rng = np.random.default_rng(4)
    actions = torch.from_numpy(rng.normal(size=(5, 7)).astype(np.float32))
    actions[:, 6] = torch.tensor([1.0, -1, 1, -1, 1])
    back = processor.actions(processor.normalise_actions(actions, torch.zeros(8)), np.zeros(8, np.float32))
    np.testing.assert_allclose(back, actions, atol=1e-5)
    assert processor.continuous == list(range(9))


def test_the_state_is_in_the_frame_of_the_actions(made):
    """The benchmark gives the hand's rotation; its controller and the policy have that of the grip site."""
    processor = open_policy(named(made[XVLA])).processor
    state = scene()["state"]
    site = Rotation.from_rotvec(state[3:6]).as_matrix() @ [[0, 1, 0], [-1, 0, 0], [0, 0, 1]]  # a quarter about z
    expected = [*state[:3], *site[:, 0], *site[:, 1], 0]
    np.testing.assert_allclose(processor.inputs(scene()).state[0], expected, atol=1e-6)
    np.testing.assert_allclose(six_numbers(Rotation.from_rotvec([0, 0, np.pi / 2])), [[0, 1, 0, -1, 0, 0]], atol=1e-12)


def test_poses_need_an_absolute_controller(made):
    processor = open_policy(named(made[XVLA])).processor
    image = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    seen = spaces.Dict({"agentview": image, "wrist": image, "state": spaces.Box(-9, 9, (8,), np.float32)})
    (reason,) = processor.incompatibilities(seen, spaces.Box(-1, 1, (7,), np.float32))
    assert "absolute poses" in reason and "--set controller=absolute" in reason
    assert processor.incompatibilities(seen, spaces.Box(-7, 7, (7,), np.float32)) == []


@pytest.mark.parametrize("mode", ["joint", "so101_bimanual", "auto"])
def test_joints_of_x_vla_are_the_environments_with_logits_for_grippers(copy, mode):
    folder = copy(LEROBOT_XVLA)
    edit(folder / CONFIG, lambda plain: plain.update(action_mode=mode))
    stored = open_policy(named(folder))
    assert stored.config.grippers == GRIPPERS[mode]
    chunk = torch.linspace(-2, 2, 20).expand(2, -1)
    expected = chunk[:, :ACTION].clone()
    inside = [channel for channel in GRIPPERS[mode] if channel < ACTION]
    expected[:, inside] = expected[:, inside].sigmoid()
    np.testing.assert_allclose(stored.processor.actions(chunk, np.zeros(8, np.float32)), expected, atol=1e-6)


def test_poses_of_two_hands_are_refused(made, tmp_path):
    file = convention(tmp_path, ("action = 7", "action = 14"), ("gripper = [6]", "gripper = [6, 13]"))
    with pytest.raises(CheckpointError, match="read for one hand only: .*the convention has 14"):
        open_policy(named(made[XVLA], convention=file))


def test_views_of_x_vla_are_scaled_as_each_code_does():
    image = np.random.default_rng(5).integers(0, 256, (48, 64, 3), np.uint8)
    grey = scaled(image, 32, "lerobot")[:8]
    assert (grey == (124, 116, 104)).all()  # ImageNet's mean above, the image at the bottom
    assert scaled(image, 32, "bicubic").shape == (32, 32, 3)  # stretched


def test_an_instruction_that_is_not_embedded_is_refused(made):
    processor = open_policy(named(made[FAST_WAM])).processor
    with pytest.raises(ObservationError, match="no embedding of 'dance', but of 2 other instructions: add it, as docs"):
        processor.inputs({**scene(), "instruction": "dance"})


def test_the_embedding_of_an_instruction_is_what_fast_wam_reads(made):
    policy = load_policy(named(made[FAST_WAM]))
    inputs = policy.processor.inputs(scene())
    words = policy.model.encode(inputs).words[0]
    expected = load_file(made[FAST_WAM] / "text_embeddings.safetensors")[INSTRUCTION]
    torch.testing.assert_close(words[: len(expected)], expected)
    assert not words[len(expected) :].any()
