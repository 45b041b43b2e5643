"""Rows that several older versions of the schema wrote, on today's board, and the committed reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import replan.results
from replan.results import Store
from replan.results.leaderboard import board, to_json
from replan.results.report import render
from replan.results.tables import text

REFERENCE = Path(replan.results.__file__).with_name("reference")
OLDER = Path(__file__).with_name("older")  # reference rows of 2026-11-30, as they were committed then
# What the board of the commit before schema version 3 said of each directory.
NEW_BADGES = {"code not recorded", "part active", "loss not excluded", "cold rounds", "published latency"}
FIGURES = json.loads(Path(__file__).with_name("reference_figures.json").read_text())


@pytest.mark.parametrize("name", [str(file.parent.relative_to(OLDER)) for file in OLDER.rglob("episodes.db")])
def test_older_rows_have_the_figures_that_they_had(name):
    with Store.open(OLDER / name) as store:
        rows = to_json(board([store]))
        assert "</html>" in render([store])
    expected = FIGURES[name]
    assert len(rows) == len(expected)
    for row, figures in zip(rows, expected, strict=True):
        badges = [mark["badge"] for mark in row["marks"]]
        assert "code not recorded" in badges
        assert [badge for badge in badges if badge not in NEW_BADGES] == figures.pop("badges")
        speed_up = figures.pop("speed_up")
        assert (row["speed_up"] is None) == (speed_up is None)
        for per, value in (speed_up or {}).items():
            ratio = row["speed_up"][per]
            assert ratio["value"] == close(value)
            assert ratio["low"] < ratio["value"] < ratio["high"]
        assert [mark["badge"] for mark in row["run_marks"]] == figures.pop("run_badges")
        assert row["acceptance"]["rate_if_any"] == close(figures.pop("rate_if_any"))
        figures["routes"] = {
            name: {"share": share, "rounds": rounds, "durations": {**row["routes"][name]["durations"], "mean": mean}}
            for name, (share, rounds, mean) in figures["routes"].items()
        }
        figures["round_ns"] = {**row["round_ns"], **figures["round_ns"]}
        for field, value in figures.items():
            assert row[field] == close(value), field
        assert (row["dtype"], row["devices"], len(row["machines"])) == ("float32", ["cpu"], 1)


def close(value):
    """A comparison with figures that were written down with seven digits."""
    if isinstance(value, dict):
        return {name: close(each) for name, each in value.items()}
    return pytest.approx(value, rel=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("name", [str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob("episodes.db")])
def test_reference_rows_say_what_measured_them_and_were_measured_alone(name):
    with Store.open(REFERENCE / name) as store:
        rows = board([store])
        assert {row.status for row in store.episodes()} == {"done"}
        assert not any(run.commit.endswith("-dirty") for run in store.runs)
    badges = {mark.badge for row in rows for mark in row.marks}
    assert badges.isdisjoint({"code not recorded", "core shared", "separate runs", "mixed code", "errors", "repeats"})
    page = (REFERENCE / name).parent.with_suffix(".html").read_text(encoding="utf-8")
    assert all(row.weights in page for row in rows)


def test_all_reference_rows_of_a_page_can_stand_side_by_side():
    files = sorted(REFERENCE.glob("suites/*/episodes.db"))
    stores = [Store.open(file) for file in files]
    try:
        assert {row.suite for row in board(stores)} == {"conveyor", "libero_object", "libero_spatial", "robotwin"}
    finally:
        for store in stores:
            store.close()


def test_drafts_that_were_discarded_unverified_count_in_no_acceptance():
    """Older runs wrote 0 accepted for them too; 281 of the 465 fallbacks and flash rounds were never verified."""
    with Store.open(OLDER / "suites" / "conveyor") as store:
        (flash,) = (row for row in board([store]) if row.method == "flash")
        rounds = [each for row in store.episodes() for each in row.rounds if each.drafted is not None]
    assert all("verify" in each.stages_ns for each in rounds)
    assert flash.acceptance.drafts == len(rounds) == 184
    assert flash.acceptance.rate == pytest.approx(1590 / 1840)


def test_libero_object_loses_by_its_own_intervals_and_the_board_says_what_that_means():
    """An interval without 0 next to p 0.06, and a speed-up of 1.02 whose interval holds 1: neither is a verdict."""
    with Store.open(OLDER / "suites" / "libero_object") as store:
        rows = board([store])
    _, cache, flash = rows
    assert cache.paired.high < 0 and flash.paired.high < 0 and min(cache.paired.p, flash.paired.p) > 0.05
    plain = " ".join(text(rows).split())
    assert "An interval without 0 next to p > 0.05" in plain
    assert "dp_cache cannot tell, n too small (n = 140 would); flash cannot tell, n too small (n = 190 would)" in plain
    assert flash.speed_up.action.low < 1 < flash.speed_up.action.high
    assert "significant" not in plain


def test_an_interval_that_agrees_with_its_test_needs_no_explanation():
    with Store.open(REFERENCE / "suites" / "conveyor") as store:
        assert "An interval without 0" not in " ".join(text(board([store])).split())
