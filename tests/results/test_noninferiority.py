"""The test of a margin against published examples, a brute-force sum over every outcome, and simulated experiments."""

from __future__ import annotations

import numpy as np
import pytest
from replan.results import noninferiority as ni
from replan.results.betting import CERTIFIED, COSTS, OPEN, wealth
from scipy.stats import binom, binomtest, multinomial


def test_tangos_interval_is_that_of_the_published_example():
    # Airway hyper-responsiveness before and after transplantation: 7 and 1 of 21 children changed. Fagerland, Lydersen
    # and Laake, "Recommended tests and confidence intervals for paired binomial proportions", Stat. Med. 33, 2014.
    low, high = ni.score_interval(lost=7, gained=1, n=21)
    assert (round(low, 3), round(high, 3)) == (-0.517, -0.026)


def test_tangos_interval_has_width_where_nothing_flipped_and_mirrors():
    z2 = 1.959964**2
    low, high = ni.score_interval(0, 0, 50)
    assert -low == pytest.approx(z2 / (50 + z2), abs=1e-5) and high == pytest.approx(-low)
    one, other = ni.score_interval(5, 2, 80), ni.score_interval(2, 5, 80)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))


@pytest.mark.parametrize("lost, gained", [(10, 0), (0, 10), (6, 4)])
def test_tangos_interval_exists_where_every_pair_flipped(lost, gained):
    low, high = ni.score_interval(lost, gained, 10)
    assert -1 <= low <= (gained - lost) / 10 <= high <= 1


@pytest.mark.parametrize(
    "lost, gained, n, margin", [(0, 0, 14, 0.1), (2, 1, 14, 0.1), (0, 3, 12, 0.05), (5, 1, 12, 0.2)]
)
def test_the_p_value_is_the_largest_sum_over_all_outcomes(lost, gained, n, margin):
    observed = float(ni.score(lost, gained, n, -margin))
    extreme = [(a, b) for a in range(n + 1) for b in range(n + 1 - a) if ni.score(a, b, n, -margin) >= observed - 1e-9]
    counts = np.array([(a, b, n - a - b) for a, b in extreme])
    highest = binomtest(gained, n, alternative="less").proportion_ci(1 - ni.OUTSIDE).high
    rates = [(g + margin, g, 1 - margin - 2 * g) for g in np.linspace(0, min(highest, (1 - margin) / 2), 60)]
    largest = max(multinomial.pmf(counts, n, np.abs(each)).sum() for each in rates)
    assert ni.p_value(lost, gained, n, margin) == pytest.approx(largest + ni.OUTSIDE, rel=0.01)


def test_without_a_flip_the_test_is_the_binomial_one():
    # With a loss of 3 points and no gains, 98 cells stay equal in 5.05 % of the experiments, and 99 in 4.90 %.
    assert ni.p_value(0, 0, 98, 0.03) == pytest.approx(0.97**98 + ni.OUTSIDE) and 0.97**98 > 0.05
    assert ni.largest_loss(0, 0, 99) <= 0.03 < ni.largest_loss(0, 0, 98)


def test_the_bound_agrees_with_the_test_and_falls_with_cells():
    bound = ni.largest_loss(4, 2, 150)
    assert ni.p_value(4, 2, 150, bound) <= 0.05 < ni.p_value(4, 2, 150, bound - 2e-3)
    bounds = [ni.largest_loss(n // 50, n // 50, n) for n in (50, 100, 500, 5000)]
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < 0.01


def test_a_loss_is_shown_only_where_the_interval_is_below_zero():
    assert ni.smallest_loss(2, 2, 100) == ni.smallest_loss(0, 9, 100) == 0
    assert 0.1 < ni.smallest_loss(20, 0, 100) < 0.2


@pytest.mark.parametrize("n, margin, gained", [(60, 0.1, 0.0), (60, 0.1, 0.05), (150, 0.03, 0.01)])
def test_a_true_loss_of_the_margin_passes_in_at_most_5_percent_of_experiments(n, margin, gained):
    rates = [gained + margin, gained, 1 - margin - 2 * gained]
    outcomes, counts = np.unique(np.random.default_rng(7).multinomial(n, rates, 2000), axis=0, return_counts=True)
    passed = sum(
        count for (a, b, _), count in zip(outcomes, counts, strict=True) if ni.p_value(a, b, n, margin) <= 0.05
    )
    assert passed <= binom.ppf(0.999, 2000, 0.05)


def test_power_is_the_share_of_simulated_experiments_that_pass():
    n, margin, rate = 200, 0.05, 0.02
    outcomes, counts = np.unique(
        np.random.default_rng(3).multinomial(n, [rate, rate, 1 - 2 * rate], 2000), axis=0, return_counts=True
    )
    passed = sum(
        count for (a, b, _), count in zip(outcomes, counts, strict=True) if ni.p_value(a, b, n, margin) <= 0.05
    )
    power = ni.power(n, margin, rate, rate)
    assert abs(passed / 2000 - power) < 3.3 * np.sqrt(power * (1 - power) / 2000)


def test_the_planned_pairs_have_the_wanted_power_and_few_fewer_do_not():
    pairs = ni.pairs_needed(0.05, 0.03, 0.03)
    assert ni.power(pairs, 0.05, 0.03, 0.03) >= 0.8 > ni.power(int(0.85 * pairs), 0.05, 0.03, 0.03)
    assert pairs == ni.two_digits(pairs) and abs(ni.pairs_about(0.05, 0.03, 0.03) - pairs) < 0.1 * pairs


def test_no_number_of_pairs_hides_a_loss_of_the_margin():
    assert ni.pairs_needed(0.03, 0.04, 0.01) == 0


@pytest.mark.parametrize("counts, margin", [((3, 3, 5), 0.1), ((-1, 0, 5), 0.1), ((0, 0, 0), 0.1), ((1, 1, 5), 3)])
def test_what_is_no_comparison_is_refused(counts, margin):
    with pytest.raises(ValueError, match="give|share"):
        ni.p_value(*counts, margin)


def test_a_bettor_without_evidence_keeps_their_money():
    assert wealth(0, 0, 0, 0.03) == (1, 1, OPEN)


def test_many_equal_pairs_certify_and_many_losses_cost():
    assert wealth(0, 0, 300, 0.03).verdict == CERTIFIED
    assert wealth(12, 0, 60, 0.03).verdict == COSTS
    assert wealth(3, 3, 60, 0.03).verdict == OPEN


@pytest.mark.parametrize("rates, wrong", [((0.08, 0.03), CERTIFIED), ((0.06, 0.06), COSTS)], ids=("loss", "no loss"))
def test_looking_after_every_block_is_wrong_in_at_most_5_percent_of_runs(rates, wrong):
    steps = np.random.default_rng(11).multinomial(10, [*rates, 1 - sum(rates)], (300, 25)).cumsum(axis=1)
    stopped = 0
    for run in steps:
        verdicts = (wealth(int(a), int(b), int(a + b + c), 0.05).verdict for a, b, c in run)
        stopped += next((each for each in verdicts if each != OPEN), OPEN) == wrong
    assert stopped <= binom.ppf(0.999, 300, 0.05)


def test_wealth_is_a_fair_bet_on_average():
    n, margin = 12, 0.1
    for gained in (0.0, 0.2):
        total = 0.0
        for a in range(n + 1):
            for b in range(n + 1 - a):
                chance = multinomial.pmf([a, b, n - a - b], n, [gained + margin, gained, 1 - margin - 2 * gained])
                total += chance * wealth(a, b, n, margin).against_loss
        assert total == pytest.approx(1)
