"""What a policy reads and writes, and how it refuses what it cannot read."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from replan.policies.call import call_policy
from replan.policies.checkpoint import CheckpointError, from_plain
from replan.policies.pi0 import Pi0Processor
from replan.policies.processing import ObservationError, checked_state, pixels, views
from replan.policies.seams import Methods


def test_pixels_tokens_and_state(policy, observation):
    observation["third"][:] = 255
    observation["wrist"][:] = 0
    inputs = policy.processor.inputs(observation)
    assert inputs.images.shape == (1, 2, 3, 64, 64)
    assert (inputs.images[0, 0] == 1).all() and (inputs.images[0, 1] == -1).all()
    assert inputs.tokens.tolist() == [[6, 8, 4, 5, 8, 7, 1, 0]]
    assert inputs.token_mask.sum() == 7
    torch.testing.assert_close(inputs.state[0], (torch.from_numpy(observation["state"]) - 0.1) / 2)


def test_channels_are_not_mixed_up(policy, observation):
    observation["third"][:] = (255, 0, 0)
    assert policy.processor.inputs(observation).images[0, 0, :, 5, 9].tolist() == [1, -1, -1]


def test_actions_survive_the_way_there_and_back(policy):
    actions = torch.rand((3, 7), generator=torch.Generator().manual_seed(0)) * 2 - 1
    state = torch.zeros(11)
    back = policy.processor.actions(policy.processor.normalise_actions(actions, state), state.numpy())
    np.testing.assert_allclose(back, actions, atol=1e-6)
    assert back.dtype == np.float32


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wrist", None, "wrist"),
        ("third", np.zeros((32, 32, 4), np.uint8), r"\[32, 32, 4\]"),
        ("third", np.zeros((0, 32, 3), np.uint8), r"\[0, 32, 3\]"),
        ("third", np.zeros((64, 64, 3), np.float32), "float32"),
        ("state", np.zeros(10, np.float32), "11"),
        ("state", np.full(11, np.nan, np.float32), "nan"),
        ("instruction", "put the cat in the red bin", "cat"),
        ("instruction", "", "words"),
        ("instruction", "put the toy dog in the red bin bin", "8 words"),
    ],
)
def test_what_cannot_be_read_is_refused_by_value(policy, observation, key, value, message):
    if value is None:
        del observation[key]
    else:
        observation[key] = value
    with pytest.raises(ObservationError, match=message):
        policy.processor.inputs(observation)


@pytest.mark.parametrize(
    "changes",
    [
        {"gripper": (7,)},
        {"gripper": ()},
        {"gripper": (6, -1)},
        {"action_std": (1.0,) * 6},
        {"gripper": (6, 6)},
        {"gripper": tuple(range(7))},
        {"cameras": ("third", "third")},
    ],
)
def test_conventions_that_contradict_each_other_are_refused(policy, changes):
    with pytest.raises(ValueError, match="gripper|mean and|cameras"):
        replace(policy.processor, **changes)


@pytest.mark.parametrize("field", ["state_mean", "state_std", "action_mean", "action_std"])
@pytest.mark.parametrize("value", [1e300, 1e39, 1e30, -1e30, np.nan, np.inf, 1e-45, 1e-300, 0.0, -1.0])
def test_statistics_with_which_float32_cannot_compute_are_refused(policy, field, value):
    values = (*getattr(policy.processor, field)[:-1], value)
    if field.endswith("mean") and abs(value) <= 1:
        assert np.isfinite(replace(policy.processor, **{field: values}).actions(torch.ones(7), np.ones(11))).all()
        return
    with pytest.raises(ValueError, match=rf"{field}\[{len(values) - 1}\] must be from .* got "):
        replace(policy.processor, **{field: values})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("state", None, "state must be 11 finite numbers"),
        ("state", "abc", "state must be"),
        ("state", [[0.0], [1.0, 2.0]], "state must be"),
        ("state", np.zeros(11, np.complex64), "complex64"),
        ("state", np.zeros(11, bool), "bool"),
        ("state", np.array(["1"] * 11), "<U1"),
        ("state", np.full(11, 1e300), "inf"),
        ("instruction", None, "instruction must be a text, got NoneType"),
        ("instruction", 5, "got int"),
        ("instruction", b"put", "got bytes"),
        ("third", np.zeros((1, 1, 3), np.uint8), "at least 8 pixels"),
        ("third", np.zeros((7, 640, 3), np.uint8), "at least 8 pixels"),
        ("third", None, "uint8"),
    ],
)
def test_an_entry_of_another_type_is_refused_by_name(policy, observation, key, value, message, recwarn):
    with pytest.raises(ObservationError, match=message):
        policy.processor.inputs({**observation, key: value})
    assert not recwarn.list


@pytest.mark.parametrize("key", ["third", "wrist", "state", "instruction"])
def test_an_observation_that_lacks_an_entry_says_what_it_has(policy, observation, key):
    del observation[key]
    with pytest.raises(ObservationError, match=f"lacks '{key}'; it has .*'"):
        call_policy(policy, Methods(), observation, torch.zeros(1, 16, 7))


def test_an_observation_that_is_no_dict_is_refused(policy):
    with pytest.raises(ObservationError, match="must be a dict, got ndarray"):
        policy.processor.inputs(np.zeros(3))


def test_inputs_share_no_memory_with_the_observation(observation):
    state = checked_state(observation, 11)
    state[:] = 7
    assert not (observation["state"] == 7).any()


def test_views_of_another_size_are_scaled_whole_and_centred_on_black(policy, observation):
    wide = np.zeros((240, 320, 3), np.uint8)
    wide[:, 160:] = (0, 200, 0)
    observation["third"] = wide
    view = views(observation, ("third",), 64)[0]
    assert view.shape == (64, 64, 3) and not view[:8].any() and not view[56:].any()  # 4:3 leaves 8 rows above and below
    assert (view[8:56, 34:] == (0, 200, 0)).all() and not view[8:56, :30].any()
    assert (policy.processor.inputs(observation).images[0, 0] == pixels(torch.from_numpy(view)[None, None])[0, 0]).all()


def test_scaling_averages_what_falls_into_a_pixel(observation):
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 200  # finer than the small view can show
    observation["third"] = stripes
    inner = views(observation, ("third",), 64)[0][:, 2:-2]
    assert (np.abs(inner.astype(int) - 100) <= 1).all()


def test_a_policy_that_saw_mirrored_views_gets_them_mirrored_once(policy, observation):
    observation["third"][:, :32] = 255
    upright = policy.processor.inputs(observation).images[0, 0]
    mirrored = replace(policy.processor, mirror=True).inputs(observation).images[0, 0]
    assert torch.equal(mirrored, upright.flip(-1)) and not torch.equal(mirrored, upright)
    assert not torch.equal(mirrored, upright.flip(-2))


def test_relative_actions_are_measured_from_the_state_and_grippers_are_not(policy):
    processor = replace(policy.processor, relative=True)
    state = torch.arange(11.0)
    actions = torch.rand((3, 7), generator=torch.Generator().manual_seed(0))
    normal = processor.normalise_actions(actions, state)
    plain = policy.processor.normalise_actions(actions, state)
    std = torch.tensor(processor.action_std)
    torch.testing.assert_close((plain - normal)[:, :6] * std[:6], state[:6].expand(3, 6), atol=1e-5, rtol=0)
    assert torch.equal(normal[:, 6], plain[:, 6])
    np.testing.assert_allclose(processor.actions(normal, state.numpy()), actions, atol=1e-5)
    torch.testing.assert_close(processor.normalise_gripper(actions[0].numpy()), normal[0, 6:])


def test_relative_actions_need_as_many_state_channels(policy):
    with pytest.raises(ValueError, match="7 state channels, got 5"):
        replace(policy.processor, relative=True, state_mean=(0.0,) * 5, state_std=(1.0,) * 5)


def test_conventions_of_a_checkpoint_older_than_a_field_mean_what_they_meant(policy):
    plain = asdict(policy.processor)
    del plain["mirror"], plain["relative"]
    assert from_plain(Pi0Processor, plain) == policy.processor
    del plain["cameras"]
    with pytest.raises(CheckpointError, match="cameras"):
        from_plain(Pi0Processor, plain)


def test_punctuation_and_capitals_do_not_count(policy):
    assert policy.processor.tokenize("Put the toy dog, in the red bin.") == policy.processor.tokenize(
        "put the toy dog in the red bin"
    )


def test_an_open_vocabulary_reads_other_words_as_one(policy):
    processor = replace(policy.processor, words=(*policy.processor.words, "<unk>"))
    tokens = processor.tokenize("put the cat in the red box")
    assert tokens[2] == tokens[6] == len(processor.words) - 1
    assert tokens[:2] == policy.processor.tokenize("put the dog")[:2]
