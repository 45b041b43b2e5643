from __future__ import annotations

import dataclasses
from dataclasses import replace
from decimal import Decimal

import pytest
from fake import FakeRegistry
from replan.eval.clock import (
    PROFILES,
    FinishedRound,
    Fixed,
    Measured,
    RouteWithoutLatency,
    TraceDiverged,
    check_routes,
    parse_duration,
    parse_latency,
    read_trace,
    write_trace,
)
from replan.eval.evaluate import make_plan
from replan.eval.spec import BadInput, make_spec, read_toml
from replan.results.schema import EpisodeRow, RoundRow

ROUND = FinishedRound(cell="c", method="flash", index=0, route="full", host_ns=12_345)


def call(**fields):
    return dataclasses.replace(ROUND, **fields)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("58ms", 58_000_000),
        ("7.8ms", 7_800_000),  # 7.8 * 1e6 is not whole in floating point
        ("250us", 250_000),
        ("17ns", 17),
        ("0.1 s", 100_000_000),
        (" 0ms ", 0),
        ("1e-3s", 1_000_000),
    ],
)
def test_durations_are_exact(text, ns):
    assert parse_duration(text) == ns


@pytest.mark.parametrize("text", ["58", "", "ms", "-1ns", "nanms", "nans", "infs", "fast", "5 8ms", "0.5ns", "58min"])
def test_duration_that_means_nothing_is_refused_with_its_text(text):
    with pytest.raises(BadInput, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fixd:58ms", "unknown latency source 'fixd'; did you mean 'fixed'"),
        ("fixed", "lacks its argument"),
        ("fixed:", "lacks its argument"),
        ("fixed:-58ms", "'-58ms' must lie between 0 and 600 s"),
        ("fixed:1e30s", "must lie between 0 and 600 s"),
        ("fixed:1e9999999s", "not a number and a unit"),
        ("zero:1ms", "'zero' takes no argument"),
        ("profile:triton-4090", "unknown latency profile 'triton-4090'; did you mean 'triton-4090d'"),
        ("profile:nowhere.toml#x", "nowhere.toml"),
        ("trace:nowhere.jsonl", "nowhere.jsonl"),
    ],
)
def test_bad_source_is_named(text, message):
    with pytest.raises(BadInput) as error:
        parse_latency(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ('{"cell": "a", "method": "dense", "rounds": [["full", 1.9]]}', "line 1"),
        ('{"cell": "a", "method": "dense", "rounds": [["full", Infinity]]}', "line 1"),
        ('{"cell": "a", "method": "dense", "rounds": [["full", -1]]}', "negative"),
        ('{"cell": "a", "method": "dense", "rounds": [["full", true]]}', "line 1"),
        (2 * '{"cell": "a", "method": "dense", "rounds": [["full", 1]]}\n', "line 2 .* on this cell before"),
    ],
)
def test_file_that_is_no_trace_is_refused(tmp_path, content, message):
    (tmp_path / "trace.jsonl").write_text(content)
    with pytest.raises(BadInput, match=message):
        parse_latency(f"trace:{tmp_path / 'trace.jsonl'}")


def test_profile_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "p.toml").write_text('a = "58ms"')
    with pytest.raises(BadInput, match="must be a table"):
        parse_latency(f"profile:{tmp_path / 'p.toml'}#a")


def test_fixed_and_zero_do_not_look_at_the_call():
    assert parse_latency("zero") == Fixed(0)
    assert {parse_latency("fixed:58ms").of(call(route=route, host_ns=1)) for route in ("full", "flash")} == {58_000_000}


def test_measured_is_the_wall_time_of_the_call():
    assert isinstance(parse_latency("measured"), Measured)
    assert parse_latency("measured").of(call(host_ns=777)) == 777


def test_profile_gives_each_route_its_own_latency():
    profile = parse_latency("profile:flash-triton-4090d")
    assert [profile.of(call(route=route)) for route in ("full", "flash", "fallback")] == [
        39_700_000,
        7_800_000,
        42_800_000,
    ]
    with pytest.raises(
        BadInput, match="unknown route for the latency profile 'flash-triton-4090d': 'flas'; did you mean"
    ):
        profile.of(call(route="flas"))


def test_every_published_profile_parses_and_cites_its_source():
    profiles = read_toml(PROFILES)
    for name, routes in profiles.items():
        assert "FLASH, table" in routes["source"], name
        assert parse_latency(f"profile:{name}").of(ROUND) == int(Decimal(routes["full"].removesuffix("ms")) * 10**6)


def test_rejected_draft_costs_the_draft_and_the_full_round_less_the_shared_encoder():
    encoder = {"flash-triton-4090d": 4.7, "flash-4090d": 4.7, "flash-torch-4090d": 11.3}
    for name, shared in encoder.items():
        profile = parse_latency(f"profile:{name}")
        full, flash, fallback = (profile.of(call(route=route)) / 1e6 for route in ("full", "flash", "fallback"))
        assert fallback == pytest.approx(full + flash - shared)


def test_profile_without_a_route_that_a_method_may_take_is_refused_before_anything_runs():
    check_routes(parse_latency("profile:flash-4090d"), {"flash": ("full", "flash", "fallback")})
    check_routes(parse_latency("fixed:1ms"), {"flash": ("full", "flash", "fallback")})
    with pytest.raises(RouteWithoutLatency, match="'torch-4090d' has no latency for the route flash, fallback") as told:
        check_routes(
            parse_latency("profile:torch-4090d"), {"dense": ("full",), "flash:delta=1": ("full", "flash", "fallback")}
        )
    assert (told.value.profile, told.value.method, told.value.missing) == (
        "torch-4090d",
        "flash:delta=1",
        ("flash", "fallback"),
    )


def test_the_routes_that_a_profile_has_are_named(tmp_path):
    (tmp_path / "p.toml").write_text('[a]\nfull = "1ms"\nheld = "1ms"\n[none]\n')
    for name, message in (("a", "only for full, held; give"), ("none", "only for none; give")):
        with pytest.raises(RouteWithoutLatency, match=message):
            check_routes(parse_latency(f"profile:{tmp_path / 'p.toml'}#{name}"), {"flash": ("flash",)})


def test_profile_of_ones_own(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[orin]\nsource = "bench"\nfull = "110ms"\n[bad]\nfull = 110\n')
    assert parse_latency(f"profile:{file}#orin").of(ROUND) == 110_000_000
    with pytest.raises(BadInput, match="'bad', route 'full': write '58ms', not 110"):
        parse_latency(f"profile:{file}#bad")


def episode(cell="c", method="flash", status="done", calls=(("full", 5), ("flash", 3))):
    rounds = tuple(
        RoundRow(i, 0, route, host_ns=99, cpu_ns=0, latency_ns=ns, stages_ns={}, executed=1, window=1)
        for i, (route, ns) in enumerate(calls)
    )
    world = {"suite": "s", "task": "t", "init_state": 0, "seed": 0, "settings": {}, "policy": "p", "clock": "realtime"}
    rest = {"steps": 0, "sim_ns": 0, "outcome": "", "manifest": {}, "observation_hash": "", "trajectory_hash": ""}
    success = None if status == "error" else True
    return EpisodeRow("k", cell, **world, method=method, latency="measured", status=status, success=success,
                      **rest, counters={}, rounds=rounds)  # fmt: skip


def test_trace_gives_every_call_what_the_world_was_given_then(tmp_path):
    write_trace(tmp_path / "t", [episode(), episode(method="dense", calls=[("full", 8)])])
    trace = parse_latency(f"trace:{tmp_path / 't'}")
    assert trace.of(call(method="dense")) == 8
    assert trace.of(call(index=1, route="flash")) == 3
    assert trace.of(call(index=0)) == 5  # in any order


def test_trace_file_does_not_depend_on_the_order_of_episodes_and_leaves_errors_out(tmp_path):
    rows = [episode("a"), episode("b"), episode("c", status="error")]
    write_trace(tmp_path / "one", rows)
    write_trace(tmp_path / "other", rows[::-1])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert set(read_trace(tmp_path / "one").episodes) == {("a", "flash"), ("b", "flash")}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"route": "flash"}, "trace diverged at round 0: recorded 'full', now 'flash'"),
        ({"index": 2}, "trace diverged at round 2: only 2 rounds of 'flash' are recorded"),
        ({"cell": "other"}, "only 0 rounds of 'flash' are recorded"),
    ],
)
def test_replay_that_left_the_recording_says_where(tmp_path, fields, message):
    write_trace(tmp_path / "t", [episode()])
    with pytest.raises(TraceDiverged, match=message):
        read_trace(tmp_path / "t").of(call(**fields))


@pytest.mark.parametrize(
    "line", ["[]", "{", "[" * 200_000, '{"cell": "c", "method": "m"}', '{"cell":"c","method":"m","rounds":[1]}']
)
def test_file_that_is_no_trace_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "t").write_text('{"cell": "c", "method": "m", "rounds": []}\n' + line + "\n")
    with pytest.raises(BadInput, match="line 2 is not an episode"):
        read_trace(tmp_path / "t")


def test_latencies_from_zero_to_ten_minutes_are_taken(tmp_path):
    longest = 600 * 10**9
    assert [parse_duration(text) for text in ("0ms", "600s")] == [0, longest]
    with pytest.raises(BadInput, match="duration"):
        parse_duration("600.000000001s")
    (tmp_path / "t").write_text(f'{{"cell": "c", "method": "m", "rounds": [["full", 0], ["full", {longest}]]}}\n')
    read_trace(tmp_path / "t")


@pytest.mark.parametrize("ns", [-1, 600 * 10**9 + 1, 10**30])
def test_recorded_latency_that_no_robot_can_have_is_refused(tmp_path, ns):
    (tmp_path / "t").write_text(f'{{"cell": "c", "method": "m", "rounds": [["full", {ns}]]}}\n')
    with pytest.raises(BadInput, match="negative"):
        read_trace(tmp_path / "t")


def test_identity_changes_exactly_when_the_latencies_can(tmp_path):
    write_trace(tmp_path / "t", [episode()])
    before = parse_latency(f"trace:{tmp_path / 't'}").identity()
    write_trace(tmp_path / "u", [episode()])
    assert parse_latency(f"trace:{tmp_path / 'u'}").identity() == before
    write_trace(tmp_path / "t", [episode(calls=[("full", 6)])])
    assert parse_latency(f"trace:{tmp_path / 't'}").identity() != before
    assert parse_latency("fixed:1ms").identity() == parse_latency("fixed:1000us").identity()
    assert parse_latency("fixed:1ms").identity() != parse_latency("fixed:2ms").identity()
    assert parse_latency("profile:torch-4090d").identity() != parse_latency("profile:triton-4090d").identity()


def test_a_method_of_which_a_trace_has_no_episode_is_refused_before_anything_is_run(tmp_path):
    write_trace(tmp_path / "t", [episode(method="flash")])
    trace = read_trace(tmp_path / "t")
    check_routes(trace, {"flash": ("full", "flash")})
    with pytest.raises(BadInput, match="unknown method for this trace: 'dense'; known: flash"):
        check_routes(trace, {"flash": ("full", "flash"), "dense": ("full",)})


class Labels(FakeRegistry):
    def method(self, spec, policy):
        return replace(super().method(spec, policy), routes=tuple(f"r{index}" for index in range(17)))


def test_a_method_with_a_route_for_every_round_is_refused():
    plain = {"suite": "belt", "method": "labels", "device": "cpu", "out": "unused"}
    spec = make_spec(plain, Labels().suites())
    with pytest.raises(BadInput, match=r"^method 'labels' declares 17 routes; name at most 16 kinds of round$"):
        make_plan(spec, Labels(), command="", started="")
