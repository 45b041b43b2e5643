"""A run under the latencies of another device, and what a sweep of such runs shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fake import FakeRegistry
from play import play
from replan.eval.cli import main
from replan.eval.replay import replay_spec
from replan.eval.spec import BadInput
from replan.results.leaderboard import board
from replan.results.store import Store

CELLS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    settings = {"speed": [0.05, 0.6]}
    play(directory, method="dense,draft", episodes=CELLS, clock="realtime", latency="measured", set=settings)
    return directory


@pytest.fixture
def replan(monkeypatch, capsys):
    """Runs a command on the fake suites; returns its exit code and what --json prints."""
    monkeypatch.setattr("replan.eval.registry.Registry", FakeRegistry)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments), "--json"])
        return end.value.code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return call


@pytest.fixture(scope="module")
def slower(run, tmp_path_factory):
    """One of its methods on a device that is half as fast, behind a network."""
    out = tmp_path_factory.mktemp("slower") / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("replan.eval.registry.Registry", FakeRegistry)
        latency = f"resample:{run}:scale=2:network=100ms/10ms"
        main(["replay", str(run), "--latency", latency, "--method", "draft", "--out", str(out)])
    return out


def rows_of(directory):
    with Store.open(directory) as store:
        return {(row.cell, row.method): row for row in store.episodes()}


def test_the_same_cells_are_played_under_the_other_latencies(run, slower):
    before, after = rows_of(run), rows_of(slower)
    assert after.keys() == {key for key in before if key[1] == "draft"} and len(after) == 2 * CELLS
    measured = [each.host_ns for key in after for each in before[key].rounds if not each.warmup]
    for key, row in after.items():
        assert (row.status, row.clock) == ("done", "realtime")
        assert row.observation_hash == before[key].observation_hash and row.key != before[key].key
        for each in row.rounds:
            assert each.latency_ns >= 100_000_000 + 2 * min(measured)
    resampled = [each.latency_ns for row in after.values() for each in row.rounds]
    assert len(set(resampled)) > len(resampled) / 2  # drawn for every round anew


def test_the_rows_are_marked_and_never_paired_with_measured_ones(run, slower):
    with Store.open(run) as one, Store.open(slower) as other:
        rows = board([one, other])
    for row in rows:
        what_if = "what-if latency" in {mark.badge for mark in row.run_marks}
        assert what_if == row.latency.startswith("resample:")
        assert row.method == "dense" or (row.paired is None) == what_if  # dense was measured on these very cells


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--latency", "measured"), "resample:RUN"),
        (("--latency", "fixed:1ms", "--method", "drafd"), "did you mean 'draft'"),
        (("--latency", "fixed:1ms:scale=x"), "scale='x'"),
    ],
)
def test_what_cannot_be_replayed_is_named(replan, run, tmp_path, arguments, message):
    code, told = replan("replay", run, *arguments, "--out", tmp_path / "out")
    assert code == 2 and message in told["error"] and not (tmp_path / "out").exists()


def test_another_policy_under_the_same_name_is_refused(run, tmp_path, monkeypatch):
    with Store.open(run) as store:
        rows = [replace(row, weights="f00d") for row in store.episodes()]
        monkeypatch.setattr(store, "episodes", lambda: rows)
        with pytest.raises(BadInput, match="put the run's policy back"):
            replay_spec(store, FakeRegistry(), latency="fixed:1ms", out=str(tmp_path / "out"))


def test_a_sweep_shows_how_much_speed_each_method_bears(replan, run, slower, tmp_path):
    code, told = replan("frontier", run, slower, "--over", "speed", "--plot", tmp_path / "a.svg")
    assert code == 0 and (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
    limits = {(each["condition"]["latency"].partition(":")[0], each["method"]): each for each in told["limits"]}
    assert limits.keys() == {("measured", "dense"), ("measured", "draft"), ("resample", "draft")}
    rates = {
        (point["condition"]["latency"].partition(":")[0], point["method"], point["condition"]["speed"]): point[
            "success"
        ]
        for point in told["points"]
    }
    for (kind, method), each in limits.items():  # at 0.6 m/s the object leaves the hand behind
        assert rates[kind, method, "0.6"]["rate"] < 0.8 and each["critical"]["high"] in (0.05, 0.6, None)
        assert each["critical"]["holds"] == (rates[kind, method, "0.05"]["rate"] >= 0.8)
    assert len(told["points"]) == 6 and {each["success"]["n"] for each in told["points"]} == {CELLS}
    assert replan("frontier", run, "--plot", tmp_path / "a.png")[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--over", "still"), "--set still=A,B"),
        (("--plot", "a.gif"), "unknown format of --plot: 'gif'"),
        (("--plot", "text.svg"), "is no figure"),
    ],
)
def test_what_no_sweep_has_is_named(replan, run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.svg").write_text("precious")
    code, told = replan("frontier", run, *arguments)
    assert code == 2 and message in told["error"] and (tmp_path / "text.svg").read_text() == "precious"
