"""What a policy reads and writes, and how it refuses what it cannot read."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from replan.policies.call import call_policy
from replan.policies.checkpoint import CheckpointError, from_plain
from replan.policies.pi0 import Pi0Processor
from replan.policies.processing import (
    ObservationError,
    bins,
    check_statistics,
    checked_state,
    fit,
    incompatibilities,
    pixels,
    views,
)
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


@pytest.mark.parametrize(("period", "mean"), [(2, 100), (4, 50)])
def test_scaling_averages_what_falls_into_a_pixel(observation, period, mean):
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::period] = 200  # finer than the small view can show
    observation["third"] = stripes
    inner = views(observation, ("third",), 64)[0][:, 2:-2]
    assert (np.abs(inner.astype(int) - mean) <= 1).all()


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


def test_the_state_falls_into_256_equal_bins():
    """Bin i covers [-1 + i / 128, -1 + (i + 1) / 128); what lies below has -1, what lies above the last."""
    edges = [-1 + step / 128 for step in range(256)]
    assert bins(torch.tensor(edges)) == list(range(256))
    assert bins(torch.tensor(edges) + 1e-3) == list(range(256))
    assert bins(torch.tensor([-5.0, -1.001, 0.999, 1.0, 7.0])) == [-1, -1, 255, 255, 255]


def test_statistics_may_be_as_large_and_as_small_as_they_say():
    check_statistics("state", [1e6, -1e6, 0.0], [1e6, 1e-6, 1.0])
    for mean, std, message in (
        ([1e6 + 0.5], [1.0], r"state_mean\[0\] must be from 0 to 1e\+06 in size, got 1000000.5"),
        ([0.0, 0.0], [1.0, 0.9e-6], r"state_std\[1\] must be from 1e-06 to 1e\+06 in size, got 9e-07"),
        ([0.0, -2e6], [1.0, 1.0], r"state_mean\[1\] .* got -2000000.0"),
    ):
        with pytest.raises(ValueError, match=message):
            check_statistics("state", mean, std)


def test_a_policy_and_a_suite_that_do_not_fit_are_told_every_reason():
    camera, state = spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(-1, 1, (4,))
    offered = spaces.Dict({"front": camera, "state": state, "instruction": spaces.Text(5)})
    action = spaces.Box(-1, 1, (7,))
    assert incompatibilities(offered, action, ["front"], 4, 7) == []
    assert incompatibilities(offered, action, ["front", "wrist", "state"], 5, 6) == [
        "the suite has no camera 'wrist', but ['front']",
        "the suite has no camera 'state', but ['front']",
        "the suite's state is (4,), the policy's (5,)",
        "the suite's action is (7,), the policy's (6,)",
    ]
    assert incompatibilities(spaces.Dict({"front": camera}), action, ["front"], 4, 7) == [
        "the suite's state is None, the policy's (4,)"
    ]
    assert len(incompatibilities(spaces.Box(-1, 1, (4,)), action, ["front"], 4, 7)) == 2


def test_an_image_of_another_shape_is_centred_both_ways():
    tall, wide = np.full((64, 32, 3), 200, np.uint8), np.full((32, 64, 3), 200, np.uint8)
    across, down = fit(tall, 32), fit(wide, 32)
    assert (across[:, 8:24] == 200).all() and not across[:, :8].any() and not across[:, 24:].any()
    assert np.array_equal(down, across.transpose(1, 0, 2))
    line = fit(np.full((1, 300, 3), 200, np.uint8), 30)  # a thousandth of a row is still one row
    assert (line[14] == 200).all() and not line[:14].any() and not line[15:].any()
    assert np.array_equal(fit(np.full((300, 1, 3), 200, np.uint8), 30), line.transpose(1, 0, 2))
    white = np.full((64, 64, 3), 255, np.uint8)
    assert (fit(white, 32) == 255).all() and not fit(0 * white, 32).any()
    assert fit(white, 64) is white


def test_a_ramp_keeps_its_place_when_an_image_is_scaled():
    """Pixels are areas: of two columns, the smaller one shows the mean, and a larger image does not shift."""
    ramp = np.repeat(np.arange(0, 256, 4, np.uint8)[None, :, None], 64, 0).repeat(3, 2)
    small = fit(ramp, 16)[0, :, 0].astype(int)
    assert (np.abs(small[1:-1] - (np.arange(16) * 16 + 6)[1:-1]) <= 1).all()
    large = fit(ramp, 128)[0, :, 0].astype(int)
    assert (np.abs(large[2:-2] - (np.arange(128) * 2 - 1)[2:-2]) <= 1).all()


def test_an_image_may_be_an_eighth_of_what_the_policy_sees_and_an_instruction_one_word(policy, observation):
    observation["third"], observation["instruction"] = np.zeros((8, 640, 3), np.uint8), "dog"
    assert policy.processor.inputs(observation).token_mask.sum() == 1
    for shape in ((7, 9, 3), (9, 7, 3)):
        with pytest.raises(ObservationError, match="at least 8 pixels"):
            policy.processor.inputs({**observation, "third": np.zeros(shape, np.uint8)})
    assert views({"third": np.zeros((28, 640, 3), np.uint8)}, ["third"], 224).shape == (1, 224, 224, 3)
    with pytest.raises(ObservationError, match="at least 28 pixels"):
        views({"third": np.zeros((27, 640, 3), np.uint8)}, ["third"], 224)
