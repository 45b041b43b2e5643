"""Methods that choose the steps of denoising from what they see: BAC and, after ProbeFlow, a probe."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from replan import accel
from replan.accel.bac import best_steps, bubbled, similarities
from replan.policies import fast_wam, groot, xvla
from replan.policies.agent import ChunkAgent
from replan.policies.policy import Policy


def play(policy, spec, observation, rounds=3):
    """One round per observation; they differ in their states."""
    agent = ChunkAgent(policy, accel.parse(spec), window=1)
    agent.reset(3)
    result = []
    for number in range(rounds):
        agent.act({**observation, "state": observation["state"] + np.float32(number / 10)})
        result.append(agent.round)
    return torch.cat([each.chunk for each in result]), result, agent


@pytest.fixture(scope="module")
def families(policy, randomised):
    small = dict(depth=3, width=48, mlp=64)
    wam = randomised(
        fast_wam.FastWAM(replace(fast_wam.TINY, **small, heads=2, action_width=32, action_mlp=48, steps=5))
    )
    vla = randomised(xvla.XVLA(replace(xvla.TINY, **small)))
    robot = xvla.XVLAProcessor(**vars(policy.processor))
    return {
        "pi0": policy,
        "fast_wam": Policy("fast_wam", Path("wam"), (), wam, policy.processor, {}),
        "x_vla": Policy("x_vla", Path("vla"), (), vla, robot, {}),
    }


@pytest.fixture(params=["pi0", "fast_wam", "x_vla"])
def every(request, families):
    return families[request.param]


@pytest.mark.parametrize("spec", ["bac:updates={}", "probe_flow:least={}"])
def test_the_limit_is_dense_bit_for_bit_in_every_family(every, spec, observation):
    dense, _, _ = play(every, "dense", observation)
    limit, _, agent = play(every, spec.format(every.model.flow.steps), observation)
    assert torch.equal(limit, dense) and set(agent.counters().values()) == {0}


def test_bac_computes_what_was_chosen_in_the_first_round_and_nothing_else(every, observation, monkeypatch):
    steps = every.model.flow.steps
    dense, _, _ = play(every, "dense", observation)
    chunks, rounds, agent = play(every, "bac:updates=2:bubble=0", observation)
    assert torch.equal(chunks[:1], dense[:1]) and not torch.equal(chunks[1:], dense[1:])
    updates = agent.methods.all[0]._blocks.updates
    layers = len(updates)
    assert layers == 3 - (every.name == "x_vla")  # the last one of X-VLA computes the actions' rows only
    assert all(len(each) == 2 and 0 in each for each in updates.values())
    taken = set().union(*updates.values())
    assert [step for step, computed in enumerate(rounds[1].call.schedule.computed) if computed] == sorted(taken)
    assert agent.counters() == {"ffns_reused": 2 * layers * (steps - 2)}
    assert rounds[2].extra["ffns"] == 2 / steps
    agent.reset(4)
    agent.act(observation)
    assert agent.counters() == {"ffns_reused": 0} and agent.dense_error() == 0  # an episode begins with a dense round


def test_bac_with_the_same_steps_for_all_ffns_is_dp_cache(every, observation):
    chunks, _, agent = play(every, "bac:updates=3:shared=true", observation)
    steps = set(map(tuple, map(sorted, agent.methods.all[0]._blocks.updates.values())))
    assert len(steps) == 1
    expected, _, _ = play(every, f"dp_cache:keep={'/'.join(map(str, *steps))}", observation)
    assert torch.equal(chunks[1:], expected[1:])


def test_more_updates_err_less(policy, observation):
    errors = []
    for updates in (1, 3, 6, 9):
        agent = ChunkAgent(policy, accel.parse(f"bac:updates={updates}:bubble=0"), window=1)
        agent.act(observation)
        agent.act(observation)
        errors.append(agent.dense_error())
    assert errors[0] > errors[1] > errors[3] and errors[0] > errors[2] > 0


def test_bac_keeps_its_steps_where_another_method_starts_late(policy, observation):
    _, rounds, agent = play(policy, "bac:updates=4:bubble=0+warm_start:tau=0.5", observation)
    updates, computed = agent.methods.all[0]._blocks.updates, rounds[1].call.schedule.computed
    late = {step for each in updates.values() for step in each if step > 5}
    assert {5 + step for step, each in enumerate(computed) if each} == {5, *late}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_best_steps_are_those_of_an_exhaustive_search(count):
    generator = torch.Generator().manual_seed(count)
    similarity = similarities(torch.randn(7, 3, generator=generator).unbind())

    def value(chosen):
        last = [max(each for each in chosen if each <= step) for step in range(7)]
        return sum(float(similarity[last[step], step]) for step in range(7))

    every = [(0, *rest) for rest in combinations(range(1, 7), count - 1)]
    assert value(best_steps(similarity, count)) == pytest.approx(max(map(value, every)))


def test_the_layer_that_errs_most_is_computed_before_those_behind_it():
    similarity = torch.ones(3, 4, 4)
    similarity[1] = torch.eye(4)  # the second layer's outputs have nothing to do with each other
    updates = [{0, 1}, {0, 2}, {0, 3}]
    assert bubbled(similarity, updates, 0) == updates
    assert bubbled(similarity, updates, 1) == [{0, 1}, {0, 2, 3}, {0, 3}]
    similarity[0] = 0.5
    assert bubbled(similarity, updates, 2) == [{0, 1, 2, 3}, {0, 2, 3}, {0, 3}]


def straight(model, monkeypatch, bend):
    """Makes a model's predictions those of a flow that is straight, but for a bend: returns where they were made."""
    times, field = [], torch.randn(1, *model.noise_shape, generator=torch.Generator().manual_seed(0))

    def step(x, time, context, ops=None):
        times.append(round(float(time), 4))
        return field + bend * float(model.flow.progress(float(time))) * field.flip(1)

    monkeypatch.setattr(model, "step", step)
    return times


def test_a_straight_flow_takes_the_least_steps_and_a_bent_one_the_most(policy, observation, monkeypatch):
    times = straight(policy.model, monkeypatch, 0)
    _, rounds, agent = play(policy, "probe_flow:least=2", observation, 1)
    assert times == [1.0, 0.9, 0.5] and rounds[0].extra["steps"] == 2  # the first prediction is not made twice
    assert agent.counters() == {"steps_saved": 7} and rounds[0].extra["difference"] == pytest.approx(0, abs=1e-6)
    times = straight(policy.model, monkeypatch, 50)
    _, rounds, agent = play(policy, "probe_flow:least=2", observation, 1)
    assert times == [1.0, *(n / 10 for n in range(9, 0, -1))] and agent.counters() == {"steps_saved": 0}
    times = straight(policy.model, monkeypatch, 50)
    _, rounds, _ = play(policy, "probe_flow:least=2:most=4", observation, 1)
    assert times == [1.0, 0.9, 0.75, 0.5, 0.25] and rounds[0].extra["steps"] == 4


@pytest.mark.parametrize(("low", "high", "steps"), [(0, 1, 6), (0.6, 1, 2), (0, 0.4, 10), (0.25, 0.75, 6)])
def test_between_low_and_high_the_steps_grow_with_the_difference(policy, observation, monkeypatch, low, high, steps):
    monkeypatch.setattr(torch, "cosine_similarity", lambda *arguments: torch.tensor(0.5))
    _, rounds, _ = play(policy, f"probe_flow:least=2:low={low}:high={high}", observation, 1)
    assert rounds[0].extra["steps"] == steps


def test_the_probe_runs_in_the_other_direction_of_time(randomised):
    """GR00T's time runs from noise 0 to action 1, and its dense policy has four steps."""
    model = randomised(groot.Groot(groot.TINY))
    assert model.flow.noise_time == 0
    seen, method = [], accel.parse("probe_flow:least=1")[0]
    method._model = model
    prediction = torch.ones(1, *model.noise_shape)

    class Run:
        def condition(self, context, inputs):
            return None

        def step(self, x, time, context, ops):
            seen.append((round(time, 4), float(x.mean())))
            return prediction

    call = type("Call", (), {"noise": 0 * prediction, "stages": Run(), "context": 0, "inputs": 0, "extra": {}})()
    schedule = method.schedule(call, model.flow)
    stride = 1 / model.flow.steps
    assert seen == [(0.0, 0.0), (stride, pytest.approx(stride))] and schedule.times == (0.0, 1.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bac:updates=0", "1 or more updates"),
        ("bac:calibrate=0", "1 or more updates and rounds to calibrate"),
        ("bac:bubble=-1", "calibrate=1 and bubble=-1"),
        ("probe_flow:least=0", "at least 1 step"),
        ("probe_flow:least=4:most=3", "got 4 and 3"),
        ("probe_flow:low=nan", "from 0 to 2"),
        ("probe_flow:low=0.5:high=0.5", "the first one smaller, got 0.5 and 0.5"),
        ("probe_flow+warm_start", "both replace the 'init' seam"),
        ("bac+action_cache", "both replace the 'step_ffn' seam"),
    ],
)
def test_options_out_of_range_and_claims_that_clash_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)


@pytest.mark.parametrize(("spec", "message"), [("bac:updates=11", "at 11 steps"), ("probe_flow:least=11", "11 to 10")])
def test_more_steps_than_the_policy_takes_are_refused(policy, spec, message):
    with pytest.raises(ValueError, match=message):
        ChunkAgent(policy, accel.parse(spec))
