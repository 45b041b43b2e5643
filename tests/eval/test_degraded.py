"""Gate, plan and watch through the command line, on real episodes of methods that are known to be worse than dense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import replan.policies

CHECKPOINT = Path(replan.policies.__path__[0]) / "checkpoints" / "pi0-tiny.safetensors"
BLIND, LIKE = "stale_prefix:every=1000", "few_step:steps=9"  # sees the first image for ever; a step less

pytestmark = [pytest.mark.slow, pytest.mark.long]


def command(*arguments):
    main = "from replan.eval.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *map(str, arguments), "--json"], capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "degraded"
    methods, belt = f"dense,{BLIND},{LIKE}", "speed=12"
    made = ["eval", "--policy", CHECKPOINT, "--method", methods, "--episodes", 8, "--set", belt, "--out", out, "-q"]
    assert command(*made)[0] == 0
    return out


def test_a_method_that_loses_every_cell_fails_the_gate_and_eight_cells_are_too_few_for_the_other(run):
    code, said = command("gate", run, "--margin", 3)
    found = {(each["subject"].rpartition(", ")[2], each["name"]): each["outcome"] for each in said["checks"]}
    assert (code, said["outcome"]) == (1, "FAIL")
    assert found[BLIND, "success"] == "FAIL"
    assert found[LIKE, "success"] == "INSUFFICIENT"  # eight cells without a flip exclude no loss of three points


def test_a_plan_counts_the_flips_of_the_pilot(run):
    code, said = command("plan", run, "--margin", 10, "--hours", 100)
    plans = {each["method"]: each for each in said["plan"]}
    assert code == 0 and plans.keys() == {BLIND, LIKE}
    assert plans[LIKE]["n"] == 8 and plans[LIKE]["lost"] < 3 and plans[BLIND]["lost"] >= 6
    assert plans[LIKE]["cells"] < plans[BLIND]["cells"]  # what flips more takes more cells
    assert 0 < plans[LIKE]["hours"] and 0 < plans[LIKE]["certified"] <= 0.1


def test_a_look_at_a_run_takes_whole_blocks(run):
    code, said = command("watch", run, "--margin", 10, "--block", 4)
    looks = {each["method"]: each for each in said["watch"]}
    assert code == 0 and looks[BLIND]["n"] == 8 and looks[BLIND]["lost"] >= 6
    assert {each["n"] for each in command("watch", run, "--block", 5)[1]["watch"]} == {5}
    assert looks[BLIND]["wealth"]["against_none"] > looks[LIKE]["wealth"]["against_none"]
