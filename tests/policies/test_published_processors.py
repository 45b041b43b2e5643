"""Our processors of published folders against lerobot's, on what tests/golden/make_processors.py recorded."""

import numpy as np
import pytest
import torch
from family_folders import OTHERS
from folders import INSTRUCTION, lerobot_folder, named
from parity import GOLDEN, recorded, write
from replan.policies.florence import imagenet
from replan.policies.policy import open_policy
from safetensors import safe_open
from scipy.spatial.transform import Rotation

FILE = "processors.safetensors"
LEVEL = 1.01 / 255  # of [-1, 1], half a level of 8 bits: lerobot scales images in floating point


def golden(name):
    groups = ("inputs", "expected", "statistics")
    return (recorded(FILE, f"{name}/{group}/") for group in groups)


def processor(folder, statistics):
    """The folder's processor, with the statistics that lerobot's steps were given."""
    for file in folder.glob("*normalizer_processor.safetensors"):
        write(file, statistics)
    return open_policy(named(folder)).processor


def observation(raw, state):
    """What the environment gives: upright images, where the simulator's are upside down."""
    upright = raw.numpy()[:, ::-1]
    return {"agentview": upright[0], "wrist": upright[1], "state": state, "instruction": INSTRUCTION}


def test_x_vla_sees_and_acts_as_lerobots_does(tmp_path):
    given, expected, _ = golden("x_vla")
    ours = open_policy(named(OTHERS["lerobot, x_vla"](tmp_path))).processor
    # The simulator's controller has the rotation of the grip site, and its observation that of the hand.
    hand = Rotation.from_matrix(given["rotation"][0].numpy()) * Rotation.from_euler("z", 90, degrees=True)
    state = np.concatenate([given["position"][0].numpy(), hand.as_rotvec(), [0.04, -0.04]]).astype(np.float32)
    inputs = ours.inputs(observation(given["images"], state))
    torch.testing.assert_close(imagenet(inputs.images[0]), expected["images"], rtol=0, atol=LEVEL / 2 / 0.224)
    torch.testing.assert_close(inputs.state[0], expected["state"][0, :10], rtol=0, atol=1e-6)
    assert not expected["state"][0, 10:].any()
    np.testing.assert_allclose(ours.actions(given["chunk"], state), expected["actions"], atol=2e-5)


def test_fast_wam_sees_and_acts_as_lerobots_does(tmp_path):
    given, expected, statistics = golden("fast_wam")
    ours = processor(OTHERS["fast_wam"](tmp_path), statistics)
    state = given["state"][0].numpy()
    inputs = ours.inputs(observation(given["images"], state))
    frame = torch.cat(inputs.images[0].unbind(0), -1)
    torch.testing.assert_close(frame, expected["frame"][0], rtol=0, atol=LEVEL)
    torch.testing.assert_close(inputs.state, expected["state"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.actions(given["chunk"], state), expected["actions"], atol=1e-5)


def test_pi05_reads_and_acts_as_lerobots_does(tmp_path):
    given, expected, statistics = golden("pi05")
    ours = processor(lerobot_folder(tmp_path, "pi0.5", "QUANTILES"), statistics)
    normalised = ours.normalise_state(given["state"])
    torch.testing.assert_close(normalised, expected["state"], rtol=1e-5, atol=1e-6)
    with safe_open(GOLDEN / FILE, "pt") as file:
        assert ours.prompt("put_it in\nthe bin ", normalised[0]) == file.metadata()["prompt"]
    actions = ours.actions(given["chunk"], given["state"][0].numpy())
    np.testing.assert_allclose(actions, expected["actions"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("raw", ()), ("mirror", False), ("scaling", "bicubic"), ("hand", (0.0, 0.0, 0.0))],
)
def test_another_convention_of_x_vla_would_be_noticed(tmp_path, monkeypatch, field, value):
    make = open_policy

    def other(name):
        stored = make(name)
        object.__setattr__(stored.processor, field, value)
        return stored

    monkeypatch.setitem(globals(), "open_policy", other)
    with pytest.raises(AssertionError):
        test_x_vla_sees_and_acts_as_lerobots_does(tmp_path)
