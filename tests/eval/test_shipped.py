"""The main job as it is shipped: the bundled policy on the real conveyor, through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time  # noqa: TID251 - polls another process

import pytest
from replan.eval.evaluate import make_plan
from replan.eval.registry import Registry
from replan.eval.runner import run
from replan.eval.spec import make_spec
from replan.results.store import Store

pytestmark = pytest.mark.slow
FIELDS = {"suite": "conveyor", "policy": "pi0-tiny", "method": "dense,flash", "episodes": 4, "set": {"speed": [12]}}
REALTIME = {**FIELDS, "clock": "realtime", "latency": "profile:flash-triton-4090d"}


def command(out, *arguments):
    return [sys.executable, "-c", "from replan.eval.cli import main; main()", "eval", "--out", str(out), *arguments]


def play(out, *, backwards=False, **fields):
    registry = Registry()
    spec = make_spec({**fields, "out": str(out)}, registry.suites())
    plan = make_plan(spec, registry, command="test", started="2026-01-01")
    if backwards:
        plan = plan._replace(jobs=plan.jobs[::-1])
    run(*plan, registry, progress=False)
    return hashes(out)


def hashes(out):
    with Store.open(out) as store:
        rows = list(store.episodes())
    assert all(row.status == "done" for row in rows)
    return {(row.cell, row.method): (row.observation_hash, row.trajectory_hash, row.sim_ns) for row in rows}


@pytest.mark.slow
@pytest.mark.long
def test_episodes_are_the_same_with_two_workers_in_reversed_order_and_after_a_kill(tmp_path):
    reference = play(tmp_path / "one", **REALTIME)
    assert len(reference) == 8
    assert play(tmp_path / "two", workers=2, backwards=True, **REALTIME) == reference

    flags = [f"--{name}={REALTIME[name]}" for name in ("suite", "policy", "method", "episodes", "clock", "latency")]
    resumable = command(tmp_path / "cut", *flags, "--set=speed=12")
    process = subprocess.Popen(resumable, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and len(finished(tmp_path / "cut")) < 2:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = finished(tmp_path / "cut")
    assert 2 <= len(before) < 8
    subprocess.run(resumable, check=True, capture_output=True)
    assert hashes(tmp_path / "cut") == reference
    assert before.items() <= finished(tmp_path / "cut").items()  # with their wall times: none was played again


def finished(out):
    if not (out / "episodes.db").exists():
        return {}
    with Store.open(out) as store:
        return {row.key: tuple(call.host_ns for call in row.rounds) for row in store.episodes()}


def test_the_bundled_policy_sorts_and_flash_is_faster_at_hardly_any_loss(tmp_path):
    flags = ("--method=dense,flash", "--episodes=40", "--set=speed=10", "--workers=2", "--json")
    done = subprocess.run(command(tmp_path / "run", *flags), check=True, capture_output=True, text=True)
    dense, flash = json.loads(done.stdout.splitlines()[-1])["board"]
    assert (dense["method"], flash["method"]) == ("dense", "flash")
    assert dense["success"]["rate"] >= 0.85 and flash["success"]["rate"] >= 0.80
    assert flash["routes"]["flash"]["share"] > 0.3 and flash["acceptance"]["rate_if_any"] >= 0.6
    assert not [mark for mark in flash["marks"] if mark["badge"] == "NOT ACTIVE"]
