"""Synthetic episodes: what a run writes, without running anything."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from replan.results import EpisodeRow, Mark, RoundRow, Run, RunIdentity, Store
from replan.results.addresses import cell_address

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import `chromium` by name

MS = 1_000_000


def build_round(index: int = 0, *, ms: float = 50.0, route: str = "full", **changes: Any) -> RoundRow:
    host_ns = round(ms * MS)
    values: dict[str, Any] = dict(
        index=index,
        control_step=10 * index,
        route=route,
        host_ns=host_ns,
        cpu_ns=host_ns,
        latency_ns=0,
        stages_ns={"encode": host_ns // 4, "denoise": host_ns // 2},
        executed=10,
        window=10,
        drafted=10 if changes.get("accepted") is not None else None,
    )
    return RoundRow(**{**values, **changes})


def build_code(method: str = "dense", /, **changes: str) -> dict[str, str]:
    return {"suite": "5" * 64, "policy": "9" * 64, "method": hashlib.sha256(method.encode()).hexdigest(), **changes}


def build_episode(method: str = "dense", cell: int = 0, success: bool | None = True, **changes: Any) -> EpisodeRow:
    """An episode on cell number ``cell``; its cell and key are addressed by content as the harness does."""
    settings = changes.get("settings", {})
    values: dict[str, Any] = dict(
        suite="conveyor",
        task="dog-red",
        init_state=cell,
        seed=0,
        settings=settings,
        policy="pi0-tiny",
        method=method,
        clock="sync",
        latency="zero",
        status="done",
        success=success,
        sim_ns=5_000 * MS,
        outcome="success" if success else "lost",
        manifest={"init_state": f"state-{cell}", "step_budget": 200},
        observation_hash=f"observation-{cell}",
        trajectory_hash=f"trajectory-{cell}-{method}",
        counters={},
        rounds=(build_round(0), build_round(1)),
        machine="a-machine",
        code=build_code(method),
        session=1,  # as a store that was started once writes it
        weights="f00d" if changes.get("policy", "pi0-tiny") == "pi0-tiny" else f"weights of {changes['policy']}",
    )
    values.update(changes)
    rounds = values["rounds"]
    if "steps" not in values:  # a row is refused whose rounds do not end at its last step
        values["steps"] = rounds[-1].control_step + rounds[-1].executed if isinstance(rounds, tuple) and rounds else 30
    address = [values[name] for name in ("suite", "task", "init_state", "seed", "settings")]
    values["cell"] = cell_address(*address)
    measured = [values[name] for name in ("cell", "weights", "method", "code", "clock", "latency")]
    values.setdefault("key", hashlib.sha256(repr(measured).encode()).hexdigest()[:16])
    return EpisodeRow(**values)


def build_error(method: str = "dense", cell: int = 0, **changes: Any) -> EpisodeRow:
    given = dict(status="error", success=None, rounds=(), manifest={}, observation_hash="", trajectory_hash="")
    return build_episode(method, cell, **{**given, "outcome": "", "error": "the worker died", "retries": 1, **changes})


def build_run(**changes: Any) -> Run:
    values: dict[str, Any] = dict(
        spec={"suite": "conveyor", "episodes": 45, "methods": ["dense", "flash"], "settings": {"speed": 10.0}},
        identity=RunIdentity(latency=None),
        activity_counters={},
        command="replan eval --suite conveyor",
        started="2026-01-02T03:04:05+00:00",
        commit="abc1234",
        packages={"torch": "2.13.0"},
        machines={"a-machine": {"processor": "one core"}},
        checkpoints={"pi0-tiny": "f00d"},
        marks=(Mark.parse("tiny model trained here"),),
    )
    return Run(**{**values, **changes})


@pytest.fixture
def make():
    """Builders of rows: everything has a default, so a test names only what it is about."""
    return SimpleNamespace(round=build_round, episode=build_episode, error=build_error, run=build_run, code=build_code)


@pytest.fixture
def written(tmp_path):
    """Writes episodes into a new run directory and opens it for reading."""
    stores = []

    def write(*episodes: EpisodeRow, run: Run | None = None) -> Store:
        directory = tmp_path / f"run-{len(stores)}"
        with Store.start(directory, run or build_run()) as store:
            for episode in episodes:
                store.add(episode)
        stores.append(Store.open(directory))
        return stores[-1]

    yield write
    for store in stores:
        store.close()
