"""What a round costs that did not return: the baseline's time on that cell, and never less than the method's own."""

from __future__ import annotations

import pytest
from replan.results.groups import groups
from replan.results.timing import charges, spans

MS = 1_000_000


@pytest.fixture
def measured(written, make):
    """Dense took 10, 30 and 35 ms in cell 0, 40 ms in cell 1 and nothing in cell 2; flash broke off in all four."""
    dense = [
        make.episode("dense", 0, rounds=(make.round(0, ms=10), make.round(1, ms=30), make.round(2, ms=35))),
        make.episode("dense", 1, rounds=(make.round(0, ms=900, warmup=True), make.round(1, ms=40))),
        make.episode("dense", 2, rounds=(make.round(0, ms=900, warmup=True),)),
    ]
    broken = dict(success=False, outcome="raised", failure="gave up")
    flash = [make.episode("flash", cell, **broken, rounds=(make.round(0, ms=6),)) for cell in range(4)]
    return {each.method: each for each in groups([written(*dense, *flash)])}


def test_a_charge_is_the_mean_on_the_same_cell_else_the_median_round(measured):
    by_cell = {row.init_state: (row.key, 1) for row in measured["flash"].done.values()}  # the round after the first
    charged = charges(measured["flash"], measured["dense"])
    assert charged == {by_cell[0]: 25 * MS, by_cell[1]: 40 * MS, by_cell[2]: 32.5 * MS, by_cell[3]: 32.5 * MS}
    assert set(charges(measured["flash"], None).values()) == {6 * MS}


def test_a_charge_is_time_in_which_no_action_was_executed(measured):
    episode = measured["flash"].done[next(iter(measured["flash"].done))]
    found = spans([episode, episode], {(episode.key, 1): 25.0 * MS})
    assert [each.tolist() for each in spans([episode], {})] == [[6 * MS], [10], [0]]
    rounds = sorted(zip(*(each.tolist() for each in found), strict=True))
    assert rounds == [(6 * MS, 10, 0), (6 * MS, 10, 1), (25 * MS, 0, 1)]
