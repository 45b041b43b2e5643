"""Plans from a pilot run, and looks at one that is still going on."""

from __future__ import annotations

import pytest
from replan.results.betting import CERTIFIED, COSTS, OPEN
from replan.results.compare import NothingToCompare
from replan.results.planning import closing, plans
from replan.results.watching import watched


def pilot(make, lost, gained=0, cells=20):
    dense = [make.episode("dense", cell, cell >= gained) for cell in range(cells)]
    return [*dense, *(make.episode("flash", cell, cell < cells - lost) for cell in range(cells))]


def test_more_flips_take_more_cells_and_hours(written, make):
    few, many = (plans(written(*pilot(make, flips, flips)), 0.1, 0.8)[0] for flips in (0, 2))
    assert (many.lost, many.gained, many.n) == (2, 2, 20)
    assert 0 < few.cells < many.cells
    assert many.hours == pytest.approx(many.cells * 4 * 0.05 / 3600)  # two rounds of 50 ms, of both


def test_a_larger_budget_certifies_a_smaller_margin(written, make):
    run = written(*pilot(make, 1, 1))
    small, large = (plans(run, 0.1, 0.8, hours)[0].certified for hours in (0.005, 1.0))
    assert 0 < large < small
    assert plans(run, 0.1, 0.8, 1e-6)[0].certified == 0


def test_a_pilot_without_a_comparison_is_refused(written, make):
    with pytest.raises(NothingToCompare, match="next to dense"):
        plans(written(make.episode("dense")), 0.1, 0.8)


def test_a_run_ends_with_the_cells_that_its_flips_would_need(written, make):
    run = written(*pilot(make, 1, 1))
    (plan,) = plans(run, 0.03, 0.8)
    assert closing(run) == (f"Cells to exclude a loss of 3 points, by the flips seen here: flash {plan.cells} (has 20)")
    assert closing(written(make.episode("dense"))) == ""


def order_of(store):
    return {("conveyor", ()): list(dict.fromkeys(row.cell for row in store.episodes()))}


def test_only_whole_blocks_from_the_start_count(written, make):
    run = written(*pilot(make, 0, cells=50))
    order = order_of(run)
    assert watched(run, order, 0.1, 20)[0].n == 40
    gap = {key: [*cells[:25], "a cell that is still played", *cells[25:]] for key, cells in order.items()}
    assert watched(run, gap, 0.1, 20)[0].n == 20


@pytest.mark.parametrize("lost, verdict", [(0, CERTIFIED), (30, COSTS), (4, OPEN)])
def test_enough_is_said_as_soon_as_it_is(written, make, lost, verdict):
    run = written(*pilot(make, lost, cells=40))
    (look,) = watched(run, order_of(run), 0.2, 20)
    assert (look.lost, look.wealth.verdict) == (lost, verdict)


def test_a_run_without_pairs_has_nothing_to_look_at(written, make):
    with pytest.raises(NothingToCompare, match="yet"):
        watched(written(make.episode("dense")), {}, 0.1, 20)


def test_a_planned_method_without_episodes_has_its_share_of_the_level(written, make):
    """What is enough must not rise while the run goes on: whoever looks while one method has begun would stop on 20."""
    rows = pilot(make, 0, cells=40)
    run = written(*rows, run=make.run(spec={"episodes": 40, "method": ["dense", "flash", "hold"]}))
    assert watched(run, order_of(run), 0.2, 20)[0].enough == pytest.approx(40)
