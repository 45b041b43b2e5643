from __future__ import annotations

import math

import numpy as np
import pytest
from replan.results import stats
from scipy.stats import binom, binomtest, bootstrap, quantile_test


def outcomes(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    """Successes of a method and of its baseline with the given 2 x 2 table."""
    method = [True] * both + [False] * lost + [True] * gained + [False] * neither
    baseline = [True] * both + [True] * lost + [False] * gained + [False] * neither
    return method, baseline


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # By hand: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964
        (10, 10, 1 / (1 + 1.959964**2 / 10), 1.0),
        (0, 10, 0.0, (1.959964**2 / 10) / (1 + 1.959964**2 / 10)),
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_success_interval_is_wilsons(successes, n, low, high):
    found = stats.proportion([True] * successes + [False] * (n - successes))
    assert found.n == n
    assert found.rate == successes / n
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_no_episode_has_no_success_rate():
    found = stats.proportion([])
    assert found.n == 0 and all(math.isnan(value) for value in found[:3])


def test_paired_difference_by_hand():
    found = stats.paired(*outcomes(both=40, lost=6, gained=1, neither=3))
    # Bonett and Price: p_lost = 7/52, p_gained = 2/52, difference -5/52, standard error sqrt((9/52 - (5/52)^2) / 52)
    half = 1.959964 * math.sqrt((9 / 52 - (5 / 52) ** 2) / 52)
    assert found.difference == pytest.approx(-5 / 50)
    assert (found.low, found.high) == pytest.approx((-5 / 52 - half, -5 / 52 + half), abs=1e-6)
    # McNemar: twice the chance of at most 1 head in 7 tosses, 2 * (1 + 7) / 128
    assert found.p == pytest.approx(0.125)
    assert (found.lost, found.gained, found.n) == (6, 1, 50)


def test_the_exact_p_value_of_a_published_table():
    """Airway responsiveness of 21 children, 7 and 1 discordant (Bentur et al.; Fagerland et al. 2014): p = 0.0703."""
    assert stats.paired(*outcomes(both=1, lost=7, gained=1, neither=12)).p == pytest.approx(0.0703, abs=5e-5)


def test_paired_difference_turns_with_its_arguments():
    method, baseline = outcomes(both=20, lost=5, gained=2, neither=3)
    one, other = stats.paired(method, baseline), stats.paired(baseline, method)
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert one.p == other.p and (one.lost, one.gained) == (other.gained, other.lost)


def test_no_flip_is_no_proof_of_equality():
    found = stats.paired(*outcomes(both=10, lost=0, gained=0, neither=0))
    half = 1.959964 * math.sqrt((2 / 12) / 12)
    assert found.difference == 0 and found.p == 1
    assert (found.low, found.high) == pytest.approx((-half, half), abs=1e-6)


def test_paired_interval_stays_within_possible_differences():
    found = stats.paired(*outcomes(both=0, lost=30, gained=0, neither=0))
    assert found.difference == -1 and found.low == -1 and -1 < found.high < -0.8
    assert stats.paired(*outcomes(both=0, lost=0, gained=30, neither=0)).high == 1


def test_no_pair_has_no_difference():
    found = stats.paired([], [])
    assert all(math.isnan(value) for value in found[:4]) and (found.lost, found.gained, found.n) == (0, 0, 0)


def test_paired_needs_the_same_cells():
    with pytest.raises(ValueError, match="3 and 2"):
        stats.paired([True] * 3, [True] * 2)


@pytest.mark.parametrize(("percentile", "n"), [(50, 7), (90, 44), (99, 459)])
def test_minimum_samples_is_the_first_n_that_bounds_the_percentile(percentile, n):
    assert stats.minimum_samples(percentile) == n
    assert 1 - (percentile / 100) ** n >= 0.99 > 1 - (percentile / 100) ** (n - 1)


@pytest.mark.parametrize("n", [1, 6, 7, 43, 44, 100, 458, 459, 500])
@pytest.mark.parametrize("percentile", stats.PERCENTILES)
def test_the_bound_of_a_percentile_is_an_order_statistic(n, percentile):
    values = np.random.default_rng(n).gamma(2, size=n)
    test = quantile_test(values, q=0, p=percentile / 100, alternative="less")
    found = stats.percentile_bound(values, percentile)
    assert found == pytest.approx(test.confidence_interval(0.99).high, nan_ok=True)
    assert math.isnan(found) == (n < stats.minimum_samples(percentile))


def test_no_sample_has_no_bound():
    assert math.isnan(stats.percentile_bound([], 50))


@pytest.mark.parametrize(("percentile", "n"), [(90, 64), (99, 662)])
def test_the_second_largest_sample_is_a_bound_from_loadgens_minimum_on(percentile, n):
    assert stats.percentile_bound(np.arange(n), percentile) == n - 2
    assert stats.percentile_bound(np.arange(n - 1), percentile) == n - 2  # of n - 1 samples, the largest


def test_percentiles_are_refused_below_their_minimum():
    short, long = stats.durations(np.arange(43)), stats.durations(np.arange(44))
    assert short.p50 == 21 and math.isnan(short.p90)
    assert long.p90 == pytest.approx(38.7) and math.isnan(long.p99)
    assert math.isnan(stats.durations(np.arange(6)).p50)
    assert short.mean == 21 and short.n == 43


def test_percentiles_are_those_that_they_are_called():
    found = stats.durations(np.arange(1001))
    assert (found.p50, found.p90, found.p99) == pytest.approx((500, 900, 990))
    assert stats.action_error(np.arange(1001)).p90 == pytest.approx(900)


def test_durations_of_nothing_are_nan():
    found = stats.durations([])
    assert found.n == 0 and all(math.isnan(value) for value in found[1:])


def test_routes_are_told_apart_and_warm_up_counts_only_in_the_shares():
    routes = ["full"] * 3 + ["flash"] * 7
    durations = [900, 60, 58] + [8] * 7
    found = stats.by_route(routes, durations, [True] + [False] * 9)
    assert list(found) == ["flash", "full"]
    assert found["full"].share == pytest.approx(0.3) and found["full"].rounds == 3
    assert found["full"].durations.n == 2 and found["full"].durations.mean == 59
    assert found["flash"].durations.p50 == 8


def test_routes_of_nothing():
    assert stats.by_route([], [], []) == {}


def test_per_action_divides_sums():
    assert stats.per_action([100, 20], [10, 2]) == 10
    assert stats.per_action([100, 20], [10, 10]) == 6
    assert math.isnan(stats.per_action([100], [0]))


def cells(*each: tuple[float, int, int]) -> stats.Timing:
    """One (ns, rounds, executed) per cell."""
    return stats.Timing(*map(list, zip(*each, strict=True))) if each else stats.Timing([], [], [])


def test_speed_up_per_action_charges_for_short_chunks():
    # Rounds of 10 ms against 40 ms, but half the actions per round
    found = stats.speed_up(cells((20, 2, 10)), cells((40, 1, 10)))
    assert found.round.value == 4
    assert found.action.value == 2


def test_speed_up_is_a_ratio_of_sums_not_a_mean_of_ratios():
    assert stats.speed_up(cells((10, 1, 1), (50, 1, 1)), cells((60, 1, 1), (60, 1, 1))).round.value == 2
    # Cells count by their rounds: 4 of 10 ms and 1 of 60 ms are 20 ms per round
    assert stats.speed_up(cells((40, 4, 4), (60, 1, 1)), cells((20, 1, 1), (20, 1, 1))).round.value == 1


@pytest.mark.parametrize("sides", [((), ((1, 1, 1),) * 0), (((0, 0, 0),), ((1, 1, 1),)), (((1, 1, 1),), ((0, 0, 0),))])
def test_speed_up_without_rounds_is_nan(sides):
    found = stats.speed_up(*(cells(*side) for side in sides))
    assert all(math.isnan(value) for ratio in found for value in ratio)


def test_speed_up_needs_the_same_cells():
    with pytest.raises(ValueError, match="1 and 2 cells"):
        stats.speed_up(cells((1, 1, 1)), cells((1, 1, 1), (1, 1, 1)))


def noisy_cells(random: np.random.Generator, n: int) -> tuple[stats.Timing, stats.Timing]:
    """Cells of a method that is twice as fast; some cells are slow on both sides, and rounds vary in number."""
    slow = random.gamma(4, size=n) / 4
    sides = []
    for ms in (1, 2):
        rounds = random.integers(3, 9, n)
        sides.append(stats.Timing(ms * slow * random.gamma(4, size=n) / 4 * rounds, rounds, 10 * rounds))
    return sides[0], sides[1]


def test_the_interval_of_a_speed_up_is_that_of_a_paired_bootstrap_over_cells():
    method, baseline = noisy_cells(np.random.default_rng(0), 200)  # many, so that widening for few cells is small
    found = stats.speed_up(method, baseline)

    def per_round(ns, rounds, base_ns, base_rounds, axis):
        return (base_ns.sum(axis) / base_rounds.sum(axis)) / (ns.sum(axis) / rounds.sum(axis))

    theirs = bootstrap(
        (method.ns, method.rounds, baseline.ns, baseline.rounds),
        per_round,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert (found.round.low, found.round.high) == pytest.approx((theirs.low, theirs.high), abs=0.06 * width)
    assert found.round == stats.speed_up(method, baseline).round  # the same each time


@pytest.mark.parametrize("n", [10, 40])
def test_the_interval_of_a_speed_up_holds_the_truth_about_as_often_as_it_says(n):
    random = np.random.default_rng(n)
    found = [stats.speed_up(*noisy_cells(random, n)).round for _ in range(200)]
    assert 0.89 <= np.mean([ratio.low <= 2 <= ratio.high for ratio in found]) <= 0.99


def test_rounds_of_one_episode_are_no_independent_sample():
    """The same durations in fewer, longer cells: the interval must be wider."""
    durations = np.repeat(np.random.default_rng(0).gamma(2, size=20), 10)
    apart = stats.Timing(durations, np.ones(200), np.ones(200))
    blocks = stats.Timing(durations.reshape(20, 10).sum(axis=1), np.full(20, 10), np.full(20, 10))
    narrow, wide = (
        stats.speed_up(side, stats.Timing(np.asarray(side.rounds), side.rounds, side.executed)).round
        for side in (apart, blocks)
    )
    assert wide.value == pytest.approx(narrow.value)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_interval_of_few_cells_is_widened_by_hesterbergs_levels():
    """For 8 cells, the normal tail below -sqrt(8/7) * 2.3646 (Student's t, 7 degrees of freedom, 97.5 %): 0.573 %."""
    method, baseline = noisy_cells(np.random.default_rng(0), 8)
    found = stats.speed_up(method, baseline).round
    drawn = np.random.default_rng(1).integers(8, size=(100_000, 8))
    sides = ((side.ns, side.rounds) for side in (method, baseline))
    own, base = ([np.asarray(each)[drawn].sum(axis=1) for each in side] for side in sides)
    low, high = np.quantile((base[0] / base[1]) / (own[0] / own[1]), [0.00573, 1 - 0.00573])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.03 * (high - low))


@pytest.mark.parametrize(("n", "quantile"), [(8, 2.364624), (20, 2.093024)])
def test_an_end_is_the_quantile_of_the_resamples_at_the_normal_tail_beyond_students(n, quantile):
    """Exactly, on the same resamples; quantiles of Student's t (97.5 %, n - 1 degrees of freedom) from tables."""
    method, baseline = noisy_cells(np.random.default_rng(3), n)
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), 4000)
    own, base = (times @ np.asarray(side.ns) / (times @ np.asarray(side.rounds)) for side in (method, baseline))
    tail = math.erfc(math.sqrt(n / (n - 1)) * quantile / math.sqrt(2)) / 2
    found = stats.speed_up(method, baseline).round
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(base / own, [tail, 1 - tail])), rel=1e-7)


def test_many_cells_are_drawn_in_parts():
    found = stats.speed_up(*noisy_cells(np.random.default_rng(0), 1500)).round
    assert found.low < found.value < found.high < 1.2 * found.low


def test_few_cells_have_no_interval():
    few, enough = (stats.speed_up(*noisy_cells(np.random.default_rng(0), n)).round for n in (7, 8))
    assert math.isnan(few.low) and math.isnan(few.high) and not math.isnan(few.value)
    assert enough.low < enough.value < enough.high


def test_rounds_of_all_and_of_successful_episodes():
    assert stats.rounds_per_episode([10, 20, 60], [True, True, False]) == (30, 15)
    found = stats.rounds_per_episode([10], [False])
    assert found.all == 10 and math.isnan(found.successful)


def test_acceptance_is_counted_as_in_speculative_decoding():
    nan = math.nan
    found = stats.acceptance([6, 0, nan, 9], [10, 10, nan, 10])
    assert (found.drafts, found.rate, found.length) == (3, 0.5, 5.0)
    assert found.rate_if_any == 0.75  # as in table 2 of the FLASH paper
    assert found.per_position == pytest.approx((*[2 / 3] * 6, *[1 / 3] * 3, 0))
    # vLLM's identity: the mean length is the sum over positions
    assert sum(found.per_position) == pytest.approx(found.length)


def test_acceptance_of_drafts_of_several_lengths():
    found = stats.acceptance([2, 4], [2, 6])
    assert stats.acceptance([1, 0], [2, 2]).rate_if_any == 0.5
    assert found.rate == 0.75 and found.per_position == (1, 1, 0.5, 0.5, 0, 0)


def test_acceptance_without_a_verified_draft_is_nan():
    for accepted, drafted, drafts in (([], [], 0), ([math.nan], [math.nan], 0), ([0], [0], 1)):
        found = stats.acceptance(accepted, drafted)
        assert found.drafts == drafts and all(map(math.isnan, found[1:4])) and found.per_position == ()
    assert math.isnan(stats.acceptance([0], [10]).rate_if_any)


def test_contention_is_wall_over_processor_time():
    assert stats.contention([30, 10], [10, 10]) == 2
    assert math.isnan(stats.contention([30], [0]))


def test_action_error_leaves_out_what_was_not_measured():
    found = stats.action_error([0.1, math.nan, 0.3])
    assert (found.n, found.mean, found.worst) == (2, pytest.approx(0.2), 0.3)
    assert math.isnan(found.p90)
    assert stats.action_error([math.nan]).n == 0


@pytest.mark.parametrize("n", [1, 2, 7, 45, 700])
def test_intervals_and_p_values_are_scipys_without_its_slow_import(n):
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        found, test = stats.proportion(np.arange(n) < successes), binomtest(successes, n)
        assert found[1:3] == pytest.approx(test.proportion_ci(0.95, method="wilson"), abs=1e-12)
        assert stats.mcnemar(successes, n - successes) == pytest.approx(test.pvalue)
    for percentile in (50, 90, 99):
        rank = int(binom.ppf(0.99, n, percentile / 100)) + 1
        bound = stats.percentile_bound(np.arange(n), percentile)
        assert np.isnan(bound) if rank > n else bound == rank - 1
