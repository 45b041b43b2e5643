"""Runs as plain tables: nothing of a row is lost, and rounds find their episode."""

from __future__ import annotations

import csv
import io
from dataclasses import fields

import pytest
from replan.eval.cli import main
from replan.results import EpisodeRow, RoundRow
from replan.results.export import export, to_csv


def text(table) -> str:
    return "".join(to_csv(table))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_field_of_a_row_has_a_column(make, written):
    rounds = (make.round(0, accepted=3, extra={"distance": 0.25}), make.round(1, warmup=True))
    episode = make.episode("flash", 4, settings={"speed": 10.0}, rounds=rounds, counters={"flash_rounds": 1})
    tables = export([("run-0", written(episode))])
    (row,) = read(text(tables.episodes))
    left_out = {"rounds", "actions", "settings", "manifest", "counters", "code"}
    plain = {field.name for field in fields(EpisodeRow)} - left_out
    assert plain | {"run", "settings.speed", "manifest.init_state", "counters.flash_rounds", "code.suite"} <= set(row)
    assert (row["method"], row["settings.speed"], row["success"]) == ("flash", "10.0", "True")
    first, second = read(text(tables.rounds))
    assert {field.name for field in fields(RoundRow)} - {"stages_ns", "extra"} <= set(first)
    assert first["key"] == second["key"] == row["key"] and first["cell"] == row["cell"]
    assert (first["accepted"], first["extra.distance"], second["accepted"]) == ("3", "0.25", "")
    assert int(first["stages_ns.encode"]) == rounds[0].stages_ns["encode"]


def test_runs_with_other_counters_share_a_table(make, written):
    one, two = written(make.episode()), written(make.episode("flash", counters={"flash_rounds": 2}))
    rows = read(text(export([("one", one), ("two", two)]).episodes))
    assert [(row["run"], row["counters.flash_rounds"]) for row in rows] == [("one", ""), ("two", "2")]


def test_texts_with_commas_quotes_and_lines_come_back(make, written):
    failure = 'it said "no", twice\nand left'
    episode = make.episode(success=False, outcome="raised", failure=failure)
    (row,) = read(text(export([("run", written(episode))]).episodes))
    assert row["failure"] == failure


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    return int(ended.value.code or 0)


def test_the_command_writes_both_tables(make, written, tmp_path, capsys):
    written(make.episode(), make.episode("flash"))
    assert run(str(tmp_path / "run-0"), "--out", str(tmp_path / "tables")) == 0
    assert len(read((tmp_path / "tables" / "episodes.csv").read_text())) == 2
    assert len(read((tmp_path / "tables" / "rounds.csv").read_text())) == 4
    assert run(str(tmp_path / "nowhere"), "--out", str(tmp_path / "more")) == 2
    assert not (tmp_path / "more").exists()


def test_parquet_without_pyarrow_is_one_sentence(make, written, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    written(make.episode())
    assert run(str(tmp_path / "run-0"), "--out", str(tmp_path / "tables"), "--parquet") == 2
    assert "needs pyarrow" in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()
