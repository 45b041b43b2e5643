from __future__ import annotations

import re
import subprocess
import sys

import pytest
from fake import SUITES, FakeRegistry
from play import plan
from replan.envs import SUITES as REAL
from replan.eval import claims, provenance
from replan.eval.spec import BadInput
from replan.results.schema import Mark, machine_digest


def record(**fields):
    return plan("x", **fields).record


def texts(marks):
    return [str(mark) for mark in marks]


def test_what_cannot_change_a_result_is_not_part_of_the_specification():
    assert record() == plan("y", timeout=1.0).record
    assert record().spec == record(workers=2).spec
    for fields in (
        {"seed": 1},
        {"episodes": 1},
        {"method": "draft"},
        {"set": {"speed": "6"}},
        {"task": "left"},
        {"dtype": "bfloat16"},
    ):
        assert record().spec != record(**fields).spec


def test_what_a_suite_is_made_of_is_part_of_the_identity_for_all_settings_that_are_run():
    code = FakeRegistry().suite_code(SUITES["belt"])
    both = record(suite="belt,shelf").identity.fingerprints
    assert both == {"belt": {"code": code}, "shelf": {"boards": "oak 1", "speed": "own", "code": code}}
    swept = record(suite="shelf", set={"speed": "0.1,0.3"}).identity.fingerprints
    assert swept == {"shelf": {"boards": "oak 1", "speed": "0.1 and 0.3", "code": code}}


def test_what_a_latency_stands_for_is_part_of_the_identity():
    realtime = record(clock="realtime", latency="fixed:5ms")
    assert realtime.identity.latency == {"fixed": 5_000_000}


def test_the_device_is_resolved_before_anything_is_addressed(monkeypatch):
    def on(accelerator, device):
        monkeypatch.setattr(provenance, "accelerator", lambda: accelerator)
        return plan("x", device=device)

    assert on("CPU", "auto") == on("CPU", "cpu")
    assert on("H200", "auto") == on("H200", "cuda") != on("H200", "cpu")
    assert [on("H200", "auto").spec.device, on("H200", "auto").host.device] == ["cuda", "H200"]
    assert [on("H200", "cpu").spec.device, on("H200", "cpu").host.device] == ["cpu", "cpu"]
    keys = {on(*each).jobs[0].key for each in (("CPU", "auto"), ("H200", "cpu"), ("H200", "cuda"))}
    assert len(keys) == 2
    with pytest.raises(BadInput, match="device 'cuda' is not available on this machine; write --device cpu"):
        on("CPU", "cuda")


@pytest.mark.parametrize("name", [name for name, suite in REAL.items() if suite.fingerprint])
def test_a_fingerprint_needs_no_simulator(name):
    code = (
        "import sys; from replan.envs import SUITES, SuiteUnavailable\n"
        "try: print(sorted(SUITES[sys.argv[1]].fingerprint({})))\nexcept SuiteUnavailable as error: print(error)\n"
        "assert not {'sapien', 'mujoco', 'libero', 'robosuite', 'robotwin', 'torch'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "assets" in done.stdout or "replan setup" in done.stdout or "name the folder" in done.stdout


def test_record_names_what_produced_the_run():
    run = record()
    assert {"python", "numpy", "torch", "replan"} <= run.packages.keys()
    ((digest, machine),) = run.machines.items()
    assert all(machine[part] for part in ("processor", "cores", "memory", "accelerator", "renderer"))
    assert digest == machine_digest(machine) == plan().host.machine


def test_marks_of_a_suite_and_its_policy_are_kept_apart_and_one_that_is_new_to_the_policy_is_marked():
    stand_in = Mark("stand-in", "a belt in place of a shelf")
    marks = record(suite="belt,shelf").suite_marks
    assert marks == {"belt": (Mark("a fake", "a fake"),), "shelf": (stand_in,)}
    marks = record(suite="belt,shelf", policy="tiny-shelf").suite_marks
    assert marks["belt"] == (Mark("untrained suite", "tiny-shelf was trained on shelf, not on belt"),)
    assert marks["shelf"] == (stand_in,)


def test_workers_without_a_core_of_their_own_are_told_about(monkeypatch):
    monkeypatch.setattr(claims, "cores", lambda: [4, 5])
    assert not any("core" in mark for mark in texts(record(workers=2).marks))
    assert "3 workers on 2 cores: latency was not measured alone" in texts(record(workers=3).marks)


def test_workers_that_share_an_accelerator_are_told_about(monkeypatch):
    monkeypatch.setattr(claims, "cores", lambda: [0, 1, 2])
    monkeypatch.setattr(provenance, "accelerator", lambda: "H200")
    told = "2 workers on one accelerator: latency was not measured alone"
    assert told in texts(record(workers=2, device="auto").marks)
    assert not any("accelerator" in mark for mark in texts(record(workers=1, device="auto").marks))
    assert told not in texts(record(workers=2, device="cpu").marks)


def test_cpu_is_a_mark_and_an_accelerator_is_none(monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234")
    monkeypatch.setattr(provenance, "accelerator", lambda: "CPU")
    assert "CPU" in texts(record(device="auto").marks)
    monkeypatch.setattr(provenance, "accelerator", lambda: "H200")
    assert record(device="auto").marks == ()
    assert texts(record(device="cpu").marks) == ["CPU"]


def test_uncommitted_changes_are_a_mark(monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234")
    assert not any("uncommitted" in mark for mark in texts(record().marks))
    monkeypatch.setattr(provenance, "commit", lambda: "abc1234-dirty")
    assert "uncommitted changes" in texts(record().marks)


def test_profile_that_charges_a_shortened_route_whole_is_a_mark():
    told = "slow charged in full: the latency profile torch-4090d charges slow a whole full round"
    realtime = {"clock": "realtime", "latency": "profile:torch-4090d"}
    assert told in texts(record(method="dense,slow", **realtime).marks)
    assert not any("charged" in mark for mark in texts(record(method="dense", **realtime).marks))
    assert not any("charged" in mark for mark in texts(record(method="slow", **{**realtime, "latency": "zero"}).marks))


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
