"""Methods at the SCHEDULE seam: what they skip, and that skipping nothing is exactly dense."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel.dp_cache import DPCache
from replan.policies.agent import ChunkAgent


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


def test_dp_cache_computes_the_papers_steps_and_no_other(policy, observation, monkeypatch):
    times = spy_on_steps(policy, monkeypatch)
    _, agent = run(policy, observation, "dp_cache", steps=1)
    assert times == [1.0, 0.9, 0.8, 0.4, 0.2, 0.1]
    assert agent.counters() == {"predictions_reused": 4}


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


def test_counters_start_again_with_each_episode(policy, observation):
    _, agent = run(policy, observation, "dp_cache", steps=1)
    agent.reset(1)
    assert agent.counters() == {"predictions_reused": 0}
