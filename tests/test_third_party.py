"""Other authors' packages: each is installed from its own folder and evaluated without touching this tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def site(install):
    """Returns a function that runs ``replan`` with the method's and the family's packages in reach."""
    target = install("replan-warp", "replan-drift")
    environment = {**os.environ, "PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"}

    def python(*arguments, code=0):
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def replan(*arguments, code=0):
        done = python("-c", "from replan.eval.cli import main; main()", *arguments, "--json", code=code)
        return {**json.loads(done.stdout.splitlines()[-1]), "stderr": done.stderr}

    python("-c", "import replan_drift as r; r.make(r.HERE / 'drift-random.safetensors')")
    replan.python = python
    return replan


def board(result):
    return {row["method"]: row for row in result["board"]}


@pytest.mark.slow
def test_a_method_and_a_family_of_others_are_evaluated_together(site, tmp_path):
    methods = "dense,warp:steps=2,flash+warp"
    result = site("eval", "--suite", "conveyor", "--policy", "drift-random", "--out", str(tmp_path / "a"),
                  "--method", "dense,warp:steps=2", "--episodes", "2", "--set", "speed=15")  # fmt: skip
    assert (result["episodes"], result["errors"]) == (4, 0)
    rows = board(result)
    assert rows.keys() == {"dense", "warp:steps=2"}
    assert "untrained weights" in json.dumps(rows["dense"])
    result = site("eval", "--suite", "conveyor", "--policy", "pi0-tiny", "--out", str(tmp_path / "b"),
                  "--method", methods, "--episodes", "1", "--set", "speed=15")  # fmt: skip
    assert (result["episodes"], result["errors"]) == (3, 0)


def test_a_seam_that_their_model_does_not_offer_is_refused_before_anything_is_measured(site, tmp_path):
    result = site("eval", "--suite", "conveyor", "--policy", "drift-random", "--out", str(tmp_path / "a"),
                  "--method", "flash", "--episodes", "1", code=2)  # fmt: skip
    assert "flash-draft" in result["error"]


def test_their_names_are_known_where_names_are_listed(site):
    code = (
        "from replan import accel; from replan.policies.families import kinds; "
        "from replan.policies.policy import bundled_policies; "
        "print(accel.known_methods(), kinds(), bundled_policies())"
    )
    text = site.python("-c", code).stdout
    assert "'warp'" in text and "'drift'" in text and "'drift-random'" in text and "'pi0-tiny'" in text


def test_options_and_limits_of_their_method_are_read_like_ours(site, tmp_path):
    for method, message in (
        ("warp:power=0", "power above 0"),
        ("warp:stepz=1", "it takes steps=4, power=2.0; did you mean steps=?"),
    ):
        result = site("eval", "--out", str(tmp_path), "--method", method, code=2)
        assert message in result["error"]


def test_the_limit_case_of_their_method_is_few_step(site, tmp_path):
    code = """
import numpy as np
from replan import accel
from replan.policies.agent import ChunkAgent
from replan.policies.policy import load_policy

policy, rng = load_policy("pi0-tiny"), np.random.default_rng(0)
observation = {
    "third": rng.integers(0, 256, (64, 64, 3), np.uint8),
    "wrist": rng.integers(0, 256, (64, 64, 3), np.uint8),
    "state": np.zeros(11, np.float32),
    "instruction": "put the toy dog in the red bin",
}


def first(spec):
    return ChunkAgent(policy, accel.parse(spec)).act(observation)


assert np.array_equal(first("warp:steps=3:power=1"), first("few_step:steps=3"))
assert not np.array_equal(first("warp:steps=3"), first("few_step:steps=3"))
"""
    site.python("-c", code)


def test_an_entry_point_that_cannot_be_loaded_breaks_only_itself(site, tmp_path):
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text(
        "[replan.methods]\nbroken = no_such_module:Method\ndense = no_such_module:Dense\nwrong = json:dumps\n"
        "[replan.policies]\nbroken = no_such_module:FAMILY\npi0 = no_such_module:FAMILY\n"
    )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from replan import accel
from replan.policies.checkpoint import CheckpointError
from replan.policies.families import family

assert [type(m).__name__ for m in accel.parse("warp")] == ["Warp"]
for name, message in (("broken", "ModuleNotFoundError"), ("wrong", "not a subclass of Method")):
    try:
        accel.parse(name)
    except accel.UnknownMethod as error:
        assert message in str(error), error
    else:
        raise AssertionError(name)
assert family("pi0").model.__name__ == "Pi0"
try:
    family("broken")
except CheckpointError as error:
    assert "ModuleNotFoundError" in str(error), error
else:
    raise AssertionError
"""
    site.python("-c", code)


@pytest.mark.parametrize("kind", ["method", "family"])
def test_their_authors_touch_no_file_of_this_tree(kind):
    """The room of a method or a family is its own folder: nothing in this tree names these two packages."""
    root = Path(__file__).parent.parent
    name = {"method": "replan_warp", "family": "replan_drift"}[kind]
    naming = [
        path.relative_to(root).as_posix()
        for folder in ("accel", "envs", "eval", "kernels", "policies", "results", "tools")
        for path in (root / folder).rglob("*.py")
        if name in path.read_text(encoding="utf-8")
    ]
    assert naming == []


def test_a_file_of_ours_is_named_in_one_place():
    """What the author of a built-in method or family touches outside the own room: one line each."""
    root = Path(__file__).parent.parent

    def naming(word, *folders):
        paths = [path for folder in folders for path in (root / folder).rglob("*.py")]
        return sorted(p.relative_to(root).as_posix() for p in paths if word in p.read_text(encoding="utf-8"))

    packages = ("accel", "envs", "eval", "kernels", "policies", "results")
    assert naming("few_step import", *packages) == ["accel/__init__.py"]
    assert naming("dp_cache import", *packages) == ["accel/__init__.py"]
    assert naming('"pi0": "pi0"', *packages) == ["policies/families.py"]
