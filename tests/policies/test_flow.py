"""Flow conventions: whatever way time runs and whatever is predicted, an exact prediction leads to the action."""

from __future__ import annotations

import pytest
import torch
from replan.policies.flow import FlowSpec, Schedule

FLOWS = [
    FlowSpec(time, kind, sampler=sampler, shift=shift)
    for time in (0.0, 1.0)
    for kind in ("velocity", "action")
    for sampler in ("euler", "renoise")
    for shift in (1.0, 5.0)
]


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 4, 3, generator=generator), torch.randn(2, 4, 3, generator=generator)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize("progress", [0.0, 0.3, 0.95])
def test_the_endpoint_of_an_exact_prediction_is_the_action(flow, progress, pair):
    action, noise = pair
    time = flow.time(progress)
    x = flow.mix(action, noise, time)
    torch.testing.assert_close(flow.endpoint(x, flow.target(action, noise), time), action)


@pytest.mark.parametrize("flow", FLOWS, ids=str)
def test_the_path_runs_from_noise_to_action(flow, pair):
    action, noise = pair
    torch.testing.assert_close(flow.mix(action, noise, flow.time(0.0)), noise)
    torch.testing.assert_close(flow.mix(action, noise, flow.time(1.0)), action)
    assert flow.time(0.0) == flow.noise_time == flow.schedule().times[0]


@pytest.mark.parametrize("flow", FLOWS, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_integrating_an_exact_prediction_arrives_at_the_action(flow, steps, pair):
    action, noise = pair
    schedule, x = flow.schedule(steps), noise
    for time, later in zip(schedule.times, schedule.times[1:], strict=False):
        x = flow.advance(x, flow.target(action, noise), noise, time, later)
    torch.testing.assert_close(x, action, atol=1e-5, rtol=1e-5)


def test_one_step_along_the_path_stays_on_it(pair):
    action, noise = pair
    for flow in FLOWS:
        here, there = flow.time(0.2), flow.time(0.5)
        moved = flow.advance(flow.mix(action, noise, here), flow.target(action, noise), noise, here, there)
        torch.testing.assert_close(moved, flow.mix(action, noise, there))


def test_times_are_accumulated_in_float32_as_openpi_does():
    time = torch.tensor(1.0)
    for expected in FlowSpec().schedule().times:
        assert expected == float(time)
        time = time + torch.tensor(-0.1)
    assert FlowSpec().schedule().times[3] != 0.7  # what exact arithmetic would give


@pytest.mark.parametrize(("times", "computed"), [((1.0, 0.0), (True, True)), ((1.0, 0.0), (False,)), ((1.0,), ())])
def test_a_schedule_that_cannot_be_walked_is_refused(times, computed):
    with pytest.raises(ValueError, match="step"):
        Schedule(times, computed)


@pytest.mark.parametrize("sampler", ["euler", "renoise"])
@pytest.mark.parametrize("time_at_noise", [0.0, 1.0])
def test_an_inexact_prediction_goes_where_the_sampler_says(sampler, time_at_noise, pair):
    """The predictor pulls towards x, as no exact one does. References: X-VLA's and openpi's loops, by hand."""
    action, noise = pair
    flow = FlowSpec(time_at_noise, "action", steps=10, sampler=sampler)
    schedule, x = flow.schedule(), noise
    for time, later in zip(schedule.times, schedule.times[1:], strict=False):
        x = flow.advance(x, 0.7 * action + 0.3 * x, noise, time, later)
    expected = noise
    for step in range(10):
        level, next_level = 1 - step / 10, 0.9 - step / 10  # of the noise
        clean = 0.7 * action + 0.3 * expected
        if sampler == "renoise":
            expected = next_level * noise + (1 - next_level) * clean
        else:
            expected = expected + (level - next_level) * (clean - expected) / level
    torch.testing.assert_close(x, expected, rtol=1e-4, atol=1e-5)


def test_the_samplers_differ_on_inexact_predictions_and_agree_on_one_step(pair):
    action, noise = pair

    def walk(sampler, steps):
        flow, x = FlowSpec(1.0, "action", steps, sampler), noise
        times = flow.schedule().times
        for time, later in zip(times, times[1:], strict=False):
            x = flow.advance(x, 0.7 * action + 0.3 * x, noise, time, later)
        return x

    torch.testing.assert_close(walk("euler", 1), walk("renoise", 1))
    assert (walk("euler", 10) - walk("renoise", 10)).abs().max() > 0.02


def test_shifted_times_are_fast_wams():
    times = FlowSpec(1.0, steps=10, shift=5.0).schedule().times
    assert [round(1000 * time) for time in times] == [1000, 978, 952, 921, 882, 833, 769, 682, 556, 357, 0]
    assert FlowSpec(0.0, steps=10, shift=5.0).schedule().times == tuple(1 - time for time in times)
    assert FlowSpec(1.0, steps=10, shift=5.0).schedule(2).times == pytest.approx((1, 5 / 6, 0))


@pytest.mark.parametrize(
    "field", [{"noise_time": 0.5}, {"prediction": "noise"}, {"sampler": "ddim"}, {"steps": 0}, {"shift": 0.0}]
)
def test_a_convention_that_does_not_exist_is_refused_by_value(field):
    (value,) = field.values()
    with pytest.raises(ValueError, match=str(value)):
        FlowSpec(**field)


def test_what_is_given_keeps_its_place_when_denoising_starts_later():
    """Of steps 0 to 3, a start before step 1 leaves 1 to 3, and their predictions move to 0 to 2."""
    given = {step: torch.full((1,), float(step)) for step in (0, 1, 3)}
    rest = Schedule((1.0, 0.75, 0.5, 0.25, 0.0), (False, False, True, False), given).starting_at(0.75)
    assert rest.times == (0.75, 0.5, 0.25, 0.0) and rest.computed == (False, True, False)
    assert {step: float(prediction) for step, prediction in rest.given.items()} == {0: 1.0, 2: 3.0}


@pytest.mark.parametrize(
    ("times", "given", "message"),
    [
        ((1.0, 0.5, 0.7, 0.0), {}, "run one way"),
        ((1.0, 1.2, 0.5, 0.0), {}, "run one way"),
        ((1.0, 0.5, 0.25, 0.5), {}, "run one way"),
        ((1.0, float("nan"), 0.5, 0.0), {}, "finite"),
        ((1.0, 0.5, 0.25, float("-inf")), {}, "finite"),
        ((1.0, 0.5, 0.25, 0.0), {-1: torch.zeros(1)}, r"steps \[-1\]"),
        ((1.0, 0.5, 0.25, 0.0), {3: torch.zeros(1)}, r"steps \[3\]"),
    ],
)
def test_a_schedule_that_leads_nowhere_is_refused(times, given, message):
    with pytest.raises(ValueError, match=message):
        Schedule(times, (True,) * 3, given)


def test_a_start_is_within_the_schedule_whichever_way_time_runs():
    for times in ((1.0, 0.5, 0.0), (0.0, 0.5, 1.0)):
        schedule = Schedule(times, (True, True))
        assert schedule.starting_at(times[0]) is schedule
        assert schedule.starting_at(0.5) == Schedule(times[1:], (True,))
        for outside in (-0.1, 1.1, times[-1]):
            with pytest.raises(ValueError, match="denoising cannot start"):
                schedule.starting_at(outside)


def test_a_shift_without_an_end_is_refused():
    with pytest.raises(ValueError, match="got 10 and inf"):
        FlowSpec(shift=float("inf"))
