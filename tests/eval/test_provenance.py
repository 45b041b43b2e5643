from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest
from fake import SUITES, FakeBench
from replan.envs import SUITES as REAL
from replan.eval import provenance, runner
from replan.eval.clock import parse_latency
from replan.eval.spec import make_spec


def record(**fields):
    spec = make_spec({"suite": "belt", "out": "x", **fields}, SUITES)
    latency = parse_latency(spec.latency)
    methods = {"dense": {"tiny": "abc"}, "draft": {"tiny": "abc", "tiny.draft": "def"}}
    return provenance.make_run(
        spec, FakeBench(), {"tiny": methods}, latency, command="replan eval", started="2026-01-01"
    )


def test_what_cannot_change_a_result_is_not_part_of_the_specification():
    assert record() == dataclasses.replace(record(out="y", timeout=1.0))
    assert record().spec == record(workers=2).spec
    for fields in ({"seed": 1}, {"episodes": 1}, {"method": "draft"}, {"set": {"speed": "6"}}, {"task": "left"}):
        assert record().spec != record(**fields).spec


def test_what_a_suite_is_made_of_is_part_of_the_specification_for_all_settings_that_are_run():
    assert "world" not in record().spec
    assert record(suite="belt,shelf").spec["world"] == {"shelf": {"boards": "oak 1", "speed": "own"}}
    swept = record(suite="shelf", set={"speed": "0.1,0.3"}).spec["world"]
    assert swept == {"shelf": {"boards": "oak 1", "speed": "0.1 and 0.3"}}


@pytest.mark.parametrize("name", [name for name, suite in REAL.items() if suite.world])
def test_a_world_is_told_without_a_simulator(name):
    code = (
        "import sys; from replan.envs import SUITES, SuiteUnavailable\n"
        "try: print(sorted(SUITES[sys.argv[1]].world({})))\nexcept SuiteUnavailable as error: print(error)\n"
        "assert not {'sapien', 'mujoco', 'libero', 'robosuite', 'robotwin', 'torch'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "assets" in done.stdout or "replan setup" in done.stdout or "name the folder" in done.stdout


def test_record_names_what_produced_the_run():
    run = record()
    assert run.checkpoints == {"tiny": "abc", "tiny.draft": "def"}
    assert {"python", "numpy", "torch", "replan"} <= run.packages.keys()
    assert all(run.hardware[part] for part in ("processor", "cores", "memory", "accelerator"))


def test_marks_of_a_suite_and_its_policy_are_kept_apart_and_one_that_is_new_to_the_policy_is_marked():
    told = record(suite="belt,shelf").suite_marks
    assert told == {"belt": ["a fake"], "shelf": ["stand-in: a belt in place of a shelf"]}
    told = record(suite="belt,shelf", policy="tiny-shelf").suite_marks
    assert told["belt"] == ["untrained suite: tiny-shelf was trained on shelf, not on belt"]
    assert told["shelf"] == ["stand-in: a belt in place of a shelf"]


def test_workers_without_a_core_of_their_own_are_told_about(monkeypatch):
    monkeypatch.setattr(runner, "_cores", lambda: [4, 5])
    assert not any("workers" in mark for mark in record(workers=2).marks if "core" in mark)
    assert "3 workers on 2 cores: latency was not measured alone" in record(workers=3).marks


def test_workers_that_share_an_accelerator_are_told_about(monkeypatch):
    monkeypatch.setattr(runner, "_cores", lambda: [0, 1, 2])
    monkeypatch.setattr(provenance, "hardware", lambda: {"accelerator": "H200"})
    assert "2 workers on one accelerator: latency was not measured alone" in record(workers=2).marks
    assert not any("accelerator" in mark for mark in record(workers=1).marks)


def test_cpu_is_a_mark_and_an_accelerator_is_none(monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234")
    monkeypatch.setattr(provenance, "hardware", lambda: {"accelerator": "CPU"})
    assert "CPU" in record().marks
    monkeypatch.setattr(provenance, "hardware", lambda: {"accelerator": "H200"})
    assert record().marks == ()


def test_uncommitted_changes_are_a_mark(monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234")
    assert not any("uncommitted" in mark for mark in record().marks)
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234-dirty")
    assert "uncommitted changes" in record().marks


def test_profile_that_charges_a_shortened_route_whole_is_a_mark():
    told = "slow is charged a whole full round by this profile (torch-4090d)"
    realtime = {"clock": "realtime", "latency": "profile:torch-4090d"}
    assert told in record(method="dense,slow", **realtime).marks
    assert not any("charged" in mark for mark in record(method="dense", **realtime).marks)
    assert not any("charged" in mark for mark in record(method="slow", **{**realtime, "latency": "zero"}).marks)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout that holds a copy of the module, which takes itself for the package."""

    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    (tmp_path / "provenance.py").write_text("1\n")
    (tmp_path / "other.py").write_text("1\n")
    git("add", "other.py")
    git("commit", "-m", "one")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    return git


def test_commit_of_somebody_elses_checkout_is_not_ours(checkout):
    assert provenance.commit() == "unknown"


def test_commit_says_whether_files_differ_from_it(checkout, tmp_path):
    checkout("add", "provenance.py")
    checkout("commit", "-m", "two")
    assert re.fullmatch("[0-9a-f]{40}", provenance.commit())
    (tmp_path / "notes.txt").write_text("untracked files are no change\n")
    assert re.fullmatch("[0-9a-f]{40}", provenance.commit())
    (tmp_path / "other.py").write_text("2\n")
    assert re.fullmatch("[0-9a-f]{40}-dirty", provenance.commit())


def test_commit_outside_a_checkout_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.commit() == "unknown"
