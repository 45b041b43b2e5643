"""Methods at the SCHEDULE seam: what they skip, and that skipping nothing is exactly dense."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel.dp_cache import DPCache
from replan.policies.agent import ChunkAgent
from replan.policies.flow import FlowSpec
from replan.policies.round import Start
from replan.policies.seams import Method, Seam


def run(policy, observation, spec, steps=12):
    agent = ChunkAgent(policy, accel.parse(spec))
    return np.stack([agent.act(observation) for _ in range(steps)]), agent


def spy_on_steps(policy, monkeypatch):
    times, step = [], policy.model.step

    def spy(x, time, context, *rest):
        times.append(round(float(torch.as_tensor(time).flatten()[0]), 4))
        return step(x, time, context, *rest)

    monkeypatch.setattr(policy.model, "step", spy)
    return times


@pytest.mark.parametrize("spec", ["few_step:steps=10", "dp_cache:keep=0/1/2/3/4/5/6/7/8/9"])
def test_the_limit_case_is_bit_for_bit_dense(policy, observation, spec):
    dense, _ = run(policy, observation, "dense")
    limit, agent = run(policy, observation, spec)
    assert np.array_equal(limit, dense)
    assert set(agent.counters().values()) == {0}


def test_few_step_takes_as_many_steps_as_it_says(policy, observation, monkeypatch):
    times = spy_on_steps(policy, monkeypatch)
    _, agent = run(policy, observation, "few_step:steps=2", steps=1)
    assert times == [1.0, 0.5]
    assert agent.counters() == {"steps_saved": 8}


def test_few_step_takes_one_to_a_thousand_steps_two_if_nothing_is_said():
    assert [accel.parse(spec)[0].steps for spec in ("few_step", "few_step:steps=1", "few_step:steps=1000")] == [
        2,
        1,
        1000,
    ]
    for steps in (0, 1001):
        with pytest.raises(ValueError, match=f"few_step takes 1 to 1000 steps, got {steps}"):
            accel.parse(f"few_step:steps={steps}")


def test_dp_cache_computes_the_papers_steps_and_no_other(policy, observation, monkeypatch):
    times = spy_on_steps(policy, monkeypatch)
    _, agent = run(policy, observation, "dp_cache", steps=1)
    assert times == [1.0, 0.9, 0.8, 0.4, 0.2, 0.1]
    assert agent.counters() == {"predictions_reused": 4}


@pytest.mark.parametrize(
    ("steps", "kept"), [(10, {0, 1, 2, 6, 8, 9}), (4, {0, 2, 3}), (5, {0, 1, 3, 4}), (20, {0, 2, 4, 12, 16, 18})]
)
def test_without_options_dp_cache_keeps_the_papers_part_of_any_number_of_steps(steps, kept):
    (method,) = accel.parse("dp_cache")
    method.attach(SimpleNamespace(model=SimpleNamespace(flow=FlowSpec(steps=steps))))
    assert method.keep == kept


def test_dp_cache_equals_the_plain_loop(policy, observation):
    """The reference: Euler by hand, with the latest velocity standing in."""
    actions, agent = run(policy, observation, "dp_cache", steps=1)
    call, model = agent.round.call, policy.model
    with torch.inference_mode():
        context = model.condition(model.prefill(call.prefix), call.inputs)
        x, velocity = call.noise, None
        for step, (time, later) in enumerate(zip(*(model.flow.schedule().times[i:] for i in (0, 1)), strict=False)):
            if step in (0, 1, 2, 6, 8, 9):
                velocity = model.step(x, time, context)
            x = x + (later - time) * velocity
    assert np.array_equal(policy.processor.actions(x[0], observation["state"])[0], actions[0])


@pytest.mark.parametrize("spec", ["few_step:steps=2", "dp_cache", "dp_cache:keep=0"])
def test_an_approximation_differs_from_dense_and_the_error_is_reported(policy, observation, spec):
    dense, _ = run(policy, observation, "dense", steps=1)
    fast, agent = run(policy, observation, spec, steps=1)
    assert not np.array_equal(fast, dense) and agent.dense_error() > 0


def test_reusing_more_errs_more(policy, observation):
    errors = []
    for keep in ("0/1/2/3/4/5/6/7/8", "0/1/2/6/8/9", "0/5", "0"):
        _, agent = run(policy, observation, f"dp_cache:keep={keep}", steps=1)
        errors.append(agent.dense_error())
    assert errors[0] < errors[2] < errors[3] and errors[1] < errors[3]


def test_a_step_that_the_policy_does_not_take_cannot_be_kept(policy):
    with pytest.raises(ValueError, match="step 10"):
        ChunkAgent(policy, [DPCache(keep=(0, 10))])


@pytest.mark.parametrize("keep", [(1, 2), (-1, 0), (0, -1), (0, -2)])
def test_what_is_kept_begins_with_the_first_step(keep):
    with pytest.raises(ValueError, match="keep"):
        DPCache(keep=keep)


@pytest.mark.parametrize("spec", ["dp_cache", "few_step"])
def test_counters_start_again_with_each_episode(policy, observation, spec):
    _, agent = run(policy, observation, spec, steps=1)
    assert all(agent.counters().values())
    agent.reset(1)
    assert set(agent.counters().values()) == {0}


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_few_step_equals_the_plain_loop(policy, observation, steps):
    """The reference: Euler by hand, from noise to action in equal strides."""
    actions, agent = run(policy, observation, f"few_step:steps={steps}", steps=1)
    call, model = agent.round.call, policy.model
    with torch.inference_mode():
        context = model.condition(model.prefill(call.prefix), call.inputs)
        x = call.noise
        for step in range(steps):
            x = x - model.step(x, 1 - step / steps, context) / steps
    np.testing.assert_allclose(policy.processor.actions(x[0], observation["state"])[0], actions[0], atol=1e-4)


def test_dp_cache_keeps_no_prediction_for_the_next_round(policy, observation, monkeypatch):
    times = spy_on_steps(policy, monkeypatch)
    run(policy, observation, "dp_cache", steps=11)
    assert times == [1.0, 0.9, 0.8, 0.4, 0.2, 0.1] * 2


class Late(Method):
    """Starts so far on the path."""

    name, claims = "late", frozenset({Seam.INIT})

    def __init__(self, progress):
        self.progress = progress

    def init(self, call, flow):
        return Start(call.noise, flow.time(self.progress))


@pytest.mark.parametrize(
    ("spec", "progress", "taken", "counted"),
    [
        ("few_step:steps=2", 0.0, 2, 8),
        ("few_step:steps=2", 0.5, 1, 4),  # of five that a dense round takes from there
        ("few_step:steps=2", 0.55, 1, 4),
        ("few_step:steps=2", 0.9, 1, 0),
        ("few_step:steps=20", 0.0, 20, 0),
        ("dp_cache", 0.0, 6, 4),
        ("dp_cache", 0.4, 4, 2),  # the first step of what is left is computed: 4, 6, 8, 9
        ("dp_cache", 0.8, 2, 0),
    ],
)
def test_what_a_later_start_leaves_out_is_not_counted(policy, observation, monkeypatch, spec, progress, taken, counted):
    times = spy_on_steps(policy, monkeypatch)
    agent = ChunkAgent(policy, [*accel.parse(spec), Late(progress)])
    agent.act(observation)
    assert len(times) == taken
    assert list(agent.counters().values()) == [counted]
