"""Latencies of another device: scaled, jittered, behind a network, resampled."""

from __future__ import annotations

import json

import numpy as np
import pytest
from replan.eval.clock import FinishedRound, Fixed, check_routes, parse_latency
from replan.eval.spec import BadInput

CELL = "ab" * 32


def round_of(index=0, *, cell=CELL, method="dense", route="full"):
    return FinishedRound(cell=cell, method=method, index=index, route=route, host_ns=1)


def latencies(text, count=4000, **fields):
    source = parse_latency(text)
    return np.array([source.of(round_of(i, **fields)) for i in range(count)])


@pytest.fixture
def trace(tmp_path):
    episodes = [
        {"cell": "a", "method": "dense", "rounds": [["full", 30], ["full", 40]]},
        {"cell": "b", "method": "dense", "rounds": [["full", 50]]},
        {"cell": "a", "method": "flash", "rounds": [["full", 60], ["flash", 7]]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in episodes))
    return path


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("fixed:58ms:scale=0.5", 29_000_000),
        ("fixed:58ms:scale=50%", 29_000_000),
        ("zero:network=20ms", 20_000_000),
        ("fixed:58ms : network=20ms : scale=2", 136_000_000),  # the network is not the device's
        ("profile:flash-triton-4090d:scale=10", 397_000_000),
    ],
)
def test_terms_without_luck_are_exact(text, ns):
    assert parse_latency(text).of(round_of()) == ns


def test_terms_that_change_nothing_leave_the_address_as_it_was():
    assert parse_latency("fixed:58ms:scale=1:jitter=0:seed=7") == Fixed(58_000_000)


def test_jitter_has_median_one_and_the_network_its_least_and_mean():
    jittered = np.log(latencies("fixed:100ms:jitter=20%") / 1e8)
    assert abs(np.median(jittered)) < 0.02 and jittered.std() == pytest.approx(0.2, rel=0.05)
    network = latencies("zero:network=10ms/5ms")
    assert network.min() >= 10_000_000 and network.mean() == pytest.approx(15e6, rel=0.05)


def test_luck_is_that_of_seed_cell_and_round_alone():
    text = "fixed:100ms:jitter=20%:network=1ms/1ms:seed=3"
    forward, source = latencies(text, 20), parse_latency(text)
    assert [source.of(round_of(i)) for i in reversed(range(20))] == list(forward[::-1])
    assert (forward == latencies(text, 20, method="flash", route="flash")).all()  # all methods meet the same
    assert (forward != latencies(text.replace("seed=3", "seed=4"), 20)).all()
    assert (forward != latencies(text, 20, cell="cd" * 32)).all()
    assert len(set(forward)) == 20


def test_a_latency_stays_below_the_longest_that_the_clock_takes():
    assert parse_latency("fixed:600s:scale=100").of(round_of()) == 600_000_000_000


def test_resampled_latencies_are_those_of_the_method_and_route(trace):
    assert set(latencies(f"resample:{trace}", 200)) == {30, 40, 50}
    assert set(latencies(f"resample:{trace}", 20, method="flash", route="flash")) == {7}
    assert set(latencies(f"resample:{trace}:scale=2", 200)) == {60, 80, 100}
    counts = np.bincount(latencies(f"resample:{trace}", 3000))[[30, 40, 50]]
    assert (abs(counts - 1000) < 150).all()


def test_a_method_or_route_that_was_not_recorded_is_refused(trace):
    source = parse_latency(f"resample:{trace}")
    check_routes(source, {"dense": ("full",), "flash": ("full", "flash", "fallback")})
    with pytest.raises(BadInput, match="unknown method for these resampled latencies: 'dp_cache'"):
        check_routes(source, {"dp_cache": ("full",)})
    with pytest.raises(BadInput, match="'fallback'"):
        source.of(round_of(method="flash", route="fallback"))
    with pytest.raises(BadInput, match="has no latency for the route fallback"):
        check_routes(parse_latency("profile:torch-4090d:scale=2"), {"flash": ("full", "fallback")})


def test_every_term_is_part_of_the_address(trace):
    texts = [f"resample:{trace}{terms}" for terms in ("", ":seed=1", ":scale=2", ":jitter=1%", ":network=1ms/1ms")]
    found = [json.dumps(parse_latency(text).identity(), sort_keys=True) for text in texts]
    assert len(set(found)) == len(found)
    longer = trace.read_text().replace("30", "31")
    trace.write_text(longer)
    assert json.dumps(parse_latency(texts[0]).identity(), sort_keys=True) not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("measured:scale=2", "write resample:FILE"),
        ("trace:{trace}:jitter=5%", "write resample:FILE"),
        ("fixed:58ms:scale=0", "must be a number from 1e-06"),
        ("fixed:58ms:scale=nan", "must be a number"),
        ("fixed:58ms:jitter=x", "jitter='x'"),
        ("fixed:58ms:seed=1.5", "must be a whole number"),
        ("fixed:58ms:network=20", "'20' has no unit"),
        ("fixed:58ms:scale=2:scale=3", "has 'scale' twice"),
        ("resample:", "lacks its argument"),
        ("resample:nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_what_has_no_meaning_is_named(trace, text, message):
    with pytest.raises(BadInput) as error:
        parse_latency(text.format(trace=trace))
    assert message in str(error.value)
