"""Rounds by column: what is read equals what was written, and a board makes no object of a round."""

from __future__ import annotations

import numpy as np
import pytest
from replan.results import stats
from replan.results.leaderboard import board
from replan.results.rounds import ABSENT, RoundTable, gathered
from replan.results.schema import OVER_BUDGET


def various(make):
    return [
        (),
        (make.round(0), make.round(1, accepted=3, extra={"distance": 0.25}, action_error=0.5, ms=5_000)),
        (make.round(0, warmup=True, route="flash", stages_ns={OVER_BUDGET: 7}),),
    ]


def test_rounds_come_back_from_a_store_as_they_were_written(make, written):
    rows = [make.episode("dense", cell, rounds=rounds) for cell, rounds in enumerate(various(make))]
    read = sorted(written(*rows).episodes(), key=lambda row: row.init_state)
    assert read == rows
    assert [tuple(row.rounds) for row in read] == [row.rounds for row in rows]
    assert read[1].rounds[-1] == rows[1].rounds[1] and read[1].rounds[1:] == rows[1].rounds[1:]
    assert read[0] != rows[1]


def test_columns_of_some_episodes_are_in_the_order_requested(make, written):
    first, second, third = various(make)
    rows = sorted(
        written(*(make.episode("dense", i, rounds=each) for i, each in enumerate((first, second, third)))).episodes(),
        key=lambda row: row.init_state,
    )
    for table in (gathered([third, second, first]), gathered(rows[i].rounds for i in (2, 1, 0))):
        assert table.starts.tolist() == [0, 1, 3, 3] and table.episode.tolist() == [0, 1, 1]
        assert [table.routes[i] for i in table["route"]] == ["flash", "full", "full"]
        assert table["host_ns"].tolist() == [each.host_ns for each in (*third, *second)]
        assert table["accepted"].tolist() == [ABSENT, ABSENT, 3]
        assert table[f"stage {OVER_BUDGET}"].tolist() == [7, ABSENT, ABSENT]
        assert table["stage of nobody"].tolist() == [ABSENT] * 3
        assert table.row(2) == second[1]


def test_a_board_makes_no_object_of_a_round(make, written, monkeypatch):
    rows = [make.episode(method, cell) for method in ("dense", "flash") for cell in range(9)]
    store = written(*rows)
    monkeypatch.setattr(RoundTable, "row", None)
    dense, flash = board([store])
    assert dense.routes["full"].rounds == flash.routes["full"].rounds == 18


@pytest.mark.parametrize("ratio", [1.0, 2.5])
def test_the_interval_of_many_cells_is_that_of_drawn_cells(ratio, monkeypatch):
    random = np.random.default_rng(1)
    rounds = random.integers(4, 9, 2000)
    base = stats.Timing(rounds * random.uniform(40, 60, 2000), rounds, rounds * 10)
    own = stats.Timing(base.ns / ratio * random.uniform(0.8, 1.2, 2000), rounds, rounds * 9)
    limit = stats.speed_up(own, base)
    monkeypatch.setattr(stats, "MANY_CELLS", 2000)
    drawn = stats.speed_up(own, base)
    for one, other in zip(limit, drawn, strict=True):
        assert one.value == other.value
        width = other.high - other.low
        assert abs(one.low - other.low) < 0.1 * width and abs(one.high - other.high) < 0.1 * width
