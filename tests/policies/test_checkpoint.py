"""Checkpoints load completely or not at all."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from replan.envs import SUITES
from replan.policies.checkpoint import CheckpointError, read_header
from replan.policies.pi0 import Pi0Processor
from replan.policies.policy import bundled_policies, load_policy
from safetensors import safe_open
from safetensors.torch import save_file


def parts(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()


def write(path, tensors, metadata):
    save_file(tensors, path, metadata)
    return path


def test_weights_and_conventions_survive(policy_file, policy):
    tensors, _ = parts(policy_file)
    state = policy.model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    assert policy.processor.replan == 10 and policy.processor.words[1] == "bin"
    assert policy.card["marks"] == ["random weights"] and not policy.model.training


def test_a_missing_an_unknown_and_a_misshapen_key_are_named(policy_file, tmp_path):
    tensors, metadata = parts(policy_file)
    fewer = {name: tensor for name, tensor in tensors.items() if name != "embed.weight"}
    poisoned = {**tensors, "embed.weight": torch.full_like(tensors["embed.weight"], torch.nan)}
    for changed, message in (
        (poisoned, "embed.weight holds values that are not finite"),
        (fewer, "1 missing keys .embed.weight"),
        ({**tensors, "extra": torch.zeros(1)}, "1 unknown keys .extra"),
        ({**tensors, "embed.weight": torch.zeros(2, 2)}, r"embed.weight is \[2, 2\], expected \[128, 64\]"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_policy(write(tmp_path / "changed.safetensors", changed, metadata))


def test_files_that_are_not_ours_are_refused(policy_file, tmp_path):
    tensors, metadata = parts(policy_file)
    header = json.loads(metadata["replan"])
    pickled = tmp_path / "pickled.safetensors"
    pickled.write_bytes(pickle.dumps({"weights": [1.0] * 100}))
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(policy_file.read_bytes()[:-1000])
    del header["config"]["depth"]
    other = json.loads(metadata["replan"])
    other["processor"]["gripper"] = 40
    short = json.loads(metadata["replan"])
    short["processor"] |= {"action_mean": [0.0] * 8, "action_std": [1.0] * 8}
    for path, message in (
        (write(tmp_path / "text.safetensors", tensors, {"replan": "{"}), "damaged header"),
        (write(tmp_path / "list.safetensors", tensors, {"replan": "[]"}), "format"),
        (write(tmp_path / "more.safetensors", tensors, {"replan": json.dumps({**header, "x": 1})}), "'x'"),
        (write(tmp_path / "null.safetensors", tensors, {"replan": json.dumps({**header, "config": None})}), "None"),
        (write(tmp_path / "grip.safetensors", tensors, {"replan": json.dumps(other)}), "40"),
        (write(tmp_path / "short.safetensors", tensors, {"replan": json.dumps(short)}), "8"),
        (pickled, "pickled.safetensors is a pickled file, which is never loaded"),
        (cut, r"cut.safetensors is cut short \(\d+ of \d+ bytes\)"),
        (write(tmp_path / "foreign.safetensors", tensors, None), "no replan header"),
        (write(tmp_path / "old.safetensors", tensors, {"replan": json.dumps({"format": 0})}), "format"),
        (write(tmp_path / "field.safetensors", tensors, {"replan": json.dumps(header)}), "depth"),
        (tmp_path / "nothing.safetensors", "unknown policy"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_policy(path)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("card", ["tiny"], r"card must be a table, got \['tiny'\]"),
        ("card", {"marks": "tiny"}, "marks in the card must be a list of texts, got 'tiny'"),
        ("card", {"suites": ["conveyor", 3]}, "suites in the card must be a list of texts"),
        ("processor", None, "processor must be a table, got None"),
    ],
)
def test_a_card_that_readers_would_misread_is_refused(policy_file, tmp_path, part, value, message):
    tensors, metadata = parts(policy_file)
    header = {**json.loads(metadata["replan"]), part: value}
    path = write(tmp_path / "card.safetensors", tensors, {"replan": json.dumps(header)})
    with pytest.raises(CheckpointError, match=f"card.safetensors: .*{message}"):
        read_header(path)


def test_an_unknown_name_says_which_policies_there_are():
    with pytest.raises(CheckpointError, match="pi0-tinny.*pi0-tiny"):
        load_policy("pi0-tinny")


def test_bundled_policies_load_and_say_what_they_are():
    assert "pi0-tiny" in bundled_policies()
    for name in bundled_policies():
        policy = load_policy(name)
        assert any("tiny" in mark for mark in policy.card["marks"])
        assert all(torch.isfinite(parameter).all() for parameter in policy.model.parameters())
        assert policy.processor.cameras in {suite.cameras for suite in SUITES.values() if suite.policy == name}


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        *[("config", "vision_heads", value) for value in (0, 7, "x", None, 1.5, True)],
        *[("config", "steps", value) for value in (0, -1, "x", 1e9, 10**9)],
        *[("config", "horizon", value) for value in (0, 10**9, [16], float("inf"), 10**400)],
        *[("config", "vision_depth", value) for value in (10**7, 2**40)],
        ("config", "stem", [[96, 3, 2]] * 100),
        ("config", "stem", []),
        *[("config", "image_size", value) for value in (float("inf"), -64, 0)],
        *[("config", "head_dim", value) for value in (31, 0, 2**31)],
        ("processor", "cameras", ["third"] * 2000),
        ("processor", "max_tokens", 10**8),
        *[("processor", "image_size", value) for value in (32, 10**6)],
        *[("processor", "action_std", value) for value in ([1e300] * 7, [10**400] * 7)],
        *[("config", "vocab", value) for value in (10**9, 5)],
        ("config", "stem", [[24, 3, 0]]),
        ("config", "stem", [[24, 3]]),
        ("config", "image_size", 10**6),
        ("config", "depth", 10**6),
        *[("processor", "words", value) for value in ("put", [], [1, 2], ["a"] * 1000)],
        *[("processor", "max_tokens", value) for value in (0, "x")],
        *[("processor", "cameras", value) for value in ([], "third")],
        *[("processor", "gripper", value) for value in (True, [True], 40)],
        *[("processor", "replan", value) for value in (1.5, 0, 17)],
        ("processor", "mirror", "no"),
        ("processor", "state_mean", [0.0, None]),
    ],
)
def test_a_configuration_of_another_type_or_out_of_range_is_refused_in_one_line(
    policy_file, tmp_path, part, field, value
):
    tensors, metadata = parts(policy_file)
    header = json.loads(metadata["replan"])
    header[part][field] = value
    path = write(tmp_path / "odd.safetensors", tensors, {"replan": json.dumps(header)})
    with pytest.raises(CheckpointError, match=r"odd\.safetensors: ") as refusal:
        load_policy(path)
    assert "\n" not in str(refusal.value)


KINDS = (torch.int8, torch.uint8, torch.int64, torch.uint16, torch.bool, torch.float64, torch.complex64)
SMALL = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)


@pytest.mark.parametrize("dtype", [*KINDS, *SMALL])
def test_weights_of_another_number_type_are_refused(policy_file, tmp_path, dtype):
    tensors, metadata = parts(policy_file)
    path = write(tmp_path / "odd.safetensors", {**tensors, "embed.weight": tensors["embed.weight"].to(dtype)}, metadata)
    with pytest.raises(CheckpointError, match="odd.safetensors: embed.weight is stored as .*, not as F16, BF16, F32"):
        load_policy(path)


@pytest.mark.parametrize(("kind", "bits"), [("F4", 4), ("F6_E2M3", 6)])
def test_number_types_that_torch_does_not_know_are_refused(policy_file, tmp_path, kind, bits):
    tensors, metadata = parts(policy_file)
    path = write(
        tmp_path / "odd.safetensors", {**tensors, "embed.weight": torch.zeros(96, dtype=torch.uint8)}, metadata
    )
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["embed.weight"] |= {"dtype": kind, "shape": [96 * 8 // bits]}  # the same bytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(CheckpointError, match=f"odd.safetensors: embed.weight is stored as {kind}, not as"):
        load_policy(path)


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (1e5, torch.float16, torch.float32),
        (3.4e38, torch.bfloat16, torch.float32),
        (torch.inf, torch.float32, torch.float16),
    ],
)
def test_weights_are_finite_in_the_precision_that_they_run_in(policy_file, tmp_path, value, dtype, stored):
    tensors, metadata = parts(policy_file)
    spoiled = {**tensors, "embed.weight": torch.full_like(tensors["embed.weight"], value, dtype=stored)}
    with pytest.raises(CheckpointError, match=f"embed.weight holds values that are not finite in {dtype}"):
        load_policy(write(tmp_path / "odd.safetensors", spoiled, metadata), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_precision_is_that_of_every_weight(policy_file, policy, dtype):
    state = load_policy(policy_file, dtype).model.state_dict()
    assert all(torch.equal(state[name], tensor.to(dtype)) for name, tensor in policy.model.state_dict().items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: its download did not begin"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "is a Git LFS pointer.*git lfs pull"),
        (b"PK\x03\x04" + bytes(50), "is a pickled file, which is never loaded"),
        (b"<!DOCTYPE html><html>Sign in</html>", "is a web page and not weights"),
        (b"\x00\x10\x00\x00\x00\x00\x00\x00{", "is cut short"),
        (b"\x02\x00\x00\x00\x00\x00\x00\x00{]", "is a damaged safetensors file"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00{]", "is a damaged safetensors file"),
        (b"hello, I am a text file", "is not a safetensors file"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_called_what_it_is(tmp_path, content, message):
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"odd.safetensors {message}") as refusal:
        load_policy(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (["params/_METADATA"], "is a JAX checkpoint.*convert_jax_model_to_pytorch"),
        ([], r"contains neither policy\.safetensors nor model\.safetensors"),
        (["config.json", "libero_uncond_2cam224.pt"], r"has pickled weights \(libero_uncond_2cam224\.pt\), which are"),
    ],
)
def test_a_folder_that_is_no_policy_is_called_what_it_is(tmp_path, made, message):
    for name in made:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=f"the folder .* is not a policy: it {message}"):
        load_policy(tmp_path)


def test_a_hub_id_and_a_published_file_are_called_that(tmp_path):
    with pytest.raises(
        CheckpointError, match="'lerobot/pi0': no such file or folder; nothing is downloaded: fetch a Hub"
    ):
        load_policy("lerobot/pi0")
    for name in ("model.safetensors", "model-00001-of-00002.safetensors"):
        path = write(tmp_path / name, {"action_head.position_embedding.weight": torch.zeros(1)}, None)
        with pytest.raises(CheckpointError, match="no replan header: it is part of a published folder: name that"):
            load_policy(path)


def test_text_of_a_file_reaches_a_terminal_in_one_printable_line(policy_file, tmp_path):
    tensors, metadata = parts(policy_file)
    path = write(tmp_path / "odd.safetensors", {**tensors, "a\n\x1b[31m" * 1000: torch.zeros(1)}, metadata)
    with pytest.raises(CheckpointError) as refusal:
        load_policy(path)
    assert str(refusal.value).isprintable() and len(str(refusal.value)) < 700


def test_a_family_of_another_package_may_raise_whatever_it_likes(policy_file, monkeypatch):
    for failure in (RuntimeError("boom"), KeyError("x"), SystemExit(3)):

        def check(self, config, failure=failure):
            raise failure

        monkeypatch.setattr(Pi0Processor, "check", check)
        with pytest.raises(CheckpointError, match=f"{policy_file.name}: "):
            load_policy(policy_file)


def test_a_deeply_nested_header_is_refused(policy_file, tmp_path):
    tensors, _ = parts(policy_file)
    path = write(tmp_path / "deep.safetensors", tensors, {"replan": "[" * 100_000})
    with pytest.raises(CheckpointError, match="deep.safetensors has a damaged header"):
        read_header(path)


def test_a_folder_with_a_policy_is_a_policy(policy_file, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"mine is not a policy: it contains neither policy\.safetensors nor"):
        load_policy(folder)
    (folder / "policy.safetensors").write_bytes(policy_file.read_bytes())
    policy = load_policy(folder)
    assert (policy.name, policy.path) == ("mine", folder / "policy.safetensors")


def test_the_model_outlives_its_file(policy_file, tmp_path):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(policy_file.read_bytes())
    model = load_policy(path).model
    before = model.embed.weight.clone()
    path.write_bytes(bytes(path.stat().st_size))  # in place: whatever is mapped to it turns to zeros
    assert torch.equal(model.embed.weight, before)
