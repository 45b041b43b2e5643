"""Retention, several methods, clusters and blocks, against figures of other software and simulated experiments."""

from __future__ import annotations

import numpy as np
import pytest
from replan.results import inference, stats
from scipy.stats import binom


@pytest.mark.parametrize("lost, low", [(0, 99.4), (2, 98.7), (5, 97.8), (10, 96.5), (20, 93.9)])
def test_the_retention_of_475_solved_cells_has_its_published_bounds(lost, low):
    baseline = np.arange(500) < 475
    found = inference.retention(baseline & (np.arange(500) >= lost), baseline)
    assert (found.kept, found.solved, round(100 * found.low, 1)) == (475 - lost, 475, low)


def test_clopper_pearson_equals_another_library_and_the_rule_of_zero_failures():
    # statsmodels 0.15: proportion_confint(470, 475, alpha=0.1, method="beta")
    assert inference.clopper_pearson(470, 475) == pytest.approx((0.9779955364, 0.9958434168), abs=1e-9)
    assert inference.clopper_pearson(58, 58).low < 0.95 < inference.clopper_pearson(59, 59).low
    assert inference.clopper_pearson(298, 298).low < 0.99 < inference.clopper_pearson(299, 299).low
    assert inference.clopper_pearson(0, 9).low == 0 and inference.clopper_pearson(9, 9).high == 1


def test_rescued_cells_are_those_that_only_the_method_solves():
    found = inference.retention([True, True, False, True], [True, False, False, True])
    assert (found.kept, found.solved, found.rescued, found.unsolved) == (2, 2, 1, 2)
    assert found.rescue_rate == 0.5 and 0 < found.rescue_low < 0.5


def test_nothing_solved_is_no_retention():
    found = inference.retention([True, False], [False, False])
    assert np.isnan([found.rate, found.low, found.high]).all() and found.rescue_rate == 0.5


def test_the_worst_task_is_named_and_one_without_a_solved_cell_is_not():
    tasks = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    baseline = [True] * 8 + [False] * 4
    method = [True] * 4 + [True, True, False, False] + [False] * 4
    found = inference.retention_by_task(method, baseline, tasks)
    assert found.worst_task == "b" and found.tasks["b"].rate == 0.5 and found.overall.rate == 0.75
    assert inference.retention_by_task([True], [True], ["a"]).worst_task is None


def test_of_equal_tasks_the_one_with_fewer_cells_is_the_worst():
    found = inference.retention_by_task([True] * 5, [True] * 5, ["a", "a", "a", "b", "b"])
    assert found.worst_task == "b"


def test_mcnemar_equals_another_library():
    assert stats.mcnemar(7, 1) == pytest.approx(0.0703125)  # statsmodels 0.15: mcnemar([[1, 1], [7, 12]], exact=True)
    assert stats.mcnemar(0, 0) == 1


def test_holm_equals_another_library():
    # statsmodels 0.15: multipletests([...], method="holm")
    assert inference.holm([0.01, 0.04, 0.03, 0.005, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])
    assert inference.holm([]).size == 0


def test_the_set_of_best_methods_holds_all_that_no_other_beats():
    cells = np.arange(200)
    good, equal, bad = cells < 180, (cells < 178) | (cells >= 198), cells < 140
    assert inference.cannot_be_told_from_best([good, equal, bad]).tolist() == [True, True, False]


def test_a_best_method_is_rarely_left_out():
    random = np.random.default_rng(5)
    trials = 200
    left_out = sum(not inference.cannot_be_told_from_best(random.random((4, 80)) < 0.7).all() for _ in range(trials))
    assert left_out <= binom.ppf(0.999, trials, 0.05)


def test_the_interval_by_task_equals_another_library():
    # statsmodels 0.15: OLS(y, ones).fit(cov_type="cluster", cov_kwds={"groups": g}, use_t=True).conf_int()
    solved = [1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0]
    tasks = np.repeat(list("abcdef"), [4, 4, 4, 4, 3, 3])
    assert inference.clustered(solved, tasks)[1:3] == pytest.approx((0.25456801, 0.92725017), abs=1e-7)


def test_four_tasks_say_nothing_about_others():
    assert np.isnan(inference.clustered([True] * 40, list("abcd") * 10).low)


def test_the_interval_by_task_covers_other_tasks():
    random = np.random.default_rng(2)
    trials, tasks = 400, np.repeat(np.arange(10), 20)
    covered = 0
    for _ in range(trials):
        found = inference.clustered(random.random(200) < random.beta(6, 4, 10)[tasks], tasks)
        covered += found.low <= 0.6 <= found.high
    assert covered >= binom.ppf(0.001, trials, 0.94)


def test_percentiles_of_alike_rounds_have_wider_intervals_than_of_independent_ones():
    random = np.random.default_rng(0)
    of_episode = random.normal(50, 5, 20)
    alike = inference.percentile_intervals(
        np.repeat(of_episode, 20) + random.normal(0, 1, 400), np.repeat(range(20), 20)
    )
    independent = inference.percentile_intervals(random.normal(50, 5, 400), np.repeat(range(20), 20))
    assert alike.p50.high - alike.p50.low > 2 * (independent.p50.high - independent.p50.low)
    assert alike.p50.low < 50 < alike.p50.high < alike.p90.high


def test_percentiles_of_few_episodes_have_no_interval():
    assert np.isnan(inference.percentile_intervals([1.0] * 100, np.arange(100) % 7).p90).all()
