from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from replan import results
from replan.results.frontier import DELAY, NoSweep, critical, limits, points

MS = 1_000_000


def test_success_crosses_the_rate_between_two_levels_and_the_interval_ends_at_levels():
    found = critical([15, 6, 10], [10, 50, 45], [50, 50, 50], 0.8)
    assert found.value == pytest.approx(10 + 5 * (0.9 - 0.8) / (0.9 - 0.2))
    assert (found.low, found.high) == (6, 15)  # 45 of 50 prove 78 % only; 10 of 50 exclude 34 %
    assert (found.first, found.last, found.holds) == (6, 15, True)


def test_levels_that_rise_by_chance_are_pooled():
    found = critical([6, 10, 15], [40, 50, 0], [50, 50, 50], 0.85)
    assert found.value == pytest.approx(10 + 5 * 0.05 / 0.9)


@pytest.mark.parametrize(("solved", "holds", "low", "high"), [([50, 50], True, 15, None), ([3, 0], False, None, 6)])
def test_a_crossing_outside_the_levels_is_no_number(solved, holds, low, high):
    found = critical([6, 15], solved, [50, 50], 0.8)
    assert math.isnan(found.value) and found.holds is holds
    assert [None if math.isnan(end) else end for end in (found.low, found.high)] == [low, high]


def test_few_cells_prove_nothing():
    found = critical([6, 15], [5, 1], [5, 5], 0.8)
    assert math.isnan(found.low) and found.high == 15 and 6 < found.value < 15


@pytest.mark.parametrize(("solved", "played"), [([5], [5]), ([5, 0], [5, 0])])
def test_what_is_no_sweep_is_refused(solved, played):
    with pytest.raises(ValueError, match="no sweep"):
        critical(range(len(solved)), solved, played, 0.8)


@pytest.mark.parametrize(
    "rates", [[0.97, 0.9, 0.8, 0.5, 0.1], [0.95, 0.79, 0.79, 0.79, 0.78], [0.81, 0.8, 0.8, 0.8, 0.2]]
)
def test_the_interval_covers_the_true_level(rates):
    random, levels, n, runs = np.random.default_rng(0), np.arange(5), 60, 400
    truth = max(level for level, rate in zip(levels, rates, strict=True) if rate >= 0.8)
    wrong = 0
    for solved in random.binomial(n, rates, (runs, 5)):
        found = critical(levels, solved, np.full(5, n), 0.8)
        wrong += bool(found.low > truth) or bool(found.high <= truth)
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def sweep(make, method, solved, *, setting="speed", latency="zero", clock="sync", delay_ms=0):
    """Twenty cells per level, of which so many are solved."""
    rounds = tuple(make.round(i, latency_ns=delay_ms * MS) for i in range(2))
    return [
        make.episode(method, cell, cell < count, settings={setting: level}, latency=latency, clock=clock, rounds=rounds)
        for level, count in solved.items()
        for cell in range(20)
    ]


def test_each_method_has_its_own_limit(written, make):
    store = written(*sweep(make, "dense", {10.0: 20, 20.0: 0}), *sweep(make, "flash", {10.0: 20, 15.0: 20, 20.0: 12}))
    found = {limit.method: limit for limit in limits(points([store]), ["speed"], 0.8)}
    assert found["dense"].critical.value == pytest.approx(12)
    assert found["flash"].critical.value == pytest.approx(17.5) and found["flash"].critical.low == 15
    assert "speed" not in found["flash"].condition and found["flash"].over == "speed"


@pytest.mark.parametrize("name", ["width", "light"])
def test_a_setting_that_was_not_varied_is_named(written, make, name):
    store = written(*sweep(make, "dense", {10.0: 20}, setting="width"))
    with pytest.raises(NoSweep, match=f"--set {name}=A,B"):
        limits(points([store]), [name], 0.8)


def test_delays_of_one_kind_make_a_sweep_and_measured_ones_none(written, make):
    given = {"fixed:20ms": (20, 20), "fixed:60ms": (60, 18), "fixed:100ms": (100, 0), "zero": (0, 20)}
    scaled = {"resample:a": (30, 20), "resample:a:scale=2:seed=0": (60, 0), "resample:a:seed=0": (31, 20)}
    stores = [
        written(
            *sweep(make, "dense", {10.0: solved}, latency=name, clock="realtime", delay_ms=ms),
            run=make.run(identity=make.run().identity.__class__(latency=name)),
        )
        for name, (ms, solved) in {**given, **scaled, "measured": (50, 10)}.items()
    ]
    found = limits(points(stores), [], 0.8)
    assert {limit.condition["latency"]: (limit.critical.first, limit.critical.last) for limit in found} == {
        "fixed": (0, 100),
        "resample:a:seed=0": (31, 60),
    }
    assert all(limit.over == DELAY for limit in found)
    fixed = next(limit for limit in found if limit.condition["latency"] == "fixed")
    assert fixed.critical.value == pytest.approx(60 + 40 * (0.9 - 0.8) / 0.9)


def test_a_method_is_beaten_only_by_one_under_the_same_condition(written, make):
    def episodes(method, ms, solved, speed):
        rounds = tuple(make.round(i, ms=ms) for i in range(2))
        return [make.episode(method, c, c < solved, settings={"speed": speed}, rounds=rounds) for c in range(20)]

    store = written(
        *episodes("dense", 50, 18, 10.0),
        *episodes("slow", 90, 17, 10.0),
        *episodes("quick", 20, 15, 10.0),
        *episodes("dense", 5, 20, 5.0),
    )
    found = {(p.method, p.condition["speed"]): p for _, p in points([store])}
    assert {key for key, point in found.items() if point.best} == {("dense", "10"), ("quick", "10"), ("dense", "5")}
    assert found["quick", "10"].action_ns == 20 * MS / 10 and found["quick", "10"].delay_ns == 0


def test_the_documented_limits_are_those_of_the_committed_rows():
    folder = Path(results.__file__).parent / "reference" / "belt_speed"
    with ExitStack() as stack:
        stores = [stack.enter_context(results.Store.open(path.parent)) for path in folder.glob("*/episodes.db")]
        found = limits(points(stores), ["speed"], 0.8)
    delays = {limit.condition["speed"]: limit.critical.value for limit in found if limit.over == DELAY}
    assert {speed: round(delay) for speed, delay in delays.items()} == {"6": 187, "10": 94, "13": 83, "15": 44}
    speeds = {limit.condition["latency"]: limit.critical for limit in found if limit.over == "speed"}
    assert round(speeds["fixed:100ms"].value, 1) == 9.7
    assert (speeds["fixed:100ms"].low, speeds["fixed:100ms"].high) == (6, 15)
    assert speeds["profile:flash-4090d"].low == 13 and speeds["zero"].low == 15
