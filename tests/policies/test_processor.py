"""What a policy reads and writes, and how it refuses what it cannot read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from replan.policies.processor import ObservationError


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
    back = policy.processor.actions(policy.processor.normalise_actions(actions))
    np.testing.assert_allclose(back, actions, atol=1e-6)
    assert back.dtype == np.float32


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wrist", None, "wrist"),
        ("third", np.zeros((32, 32, 3), np.uint8), r"\[32, 32, 3\]"),
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
    [{"gripper": 7}, {"action_std": (1.0,) * 6}, {"state_std": (0.0,) * 11}, {"action_mean": (np.nan,) * 7}],
)
def test_conventions_that_contradict_each_other_are_refused(policy, changes):
    with pytest.raises(ValueError, match="gripper|mean and"):
        replace(policy.processor, **changes)
