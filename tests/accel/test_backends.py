"""Backends: the same numbers from stages that run in another way, and a model that stays as it is."""

import pytest
import torch
from replan import accel
from replan.accel import compiled, cudagraph, nest
from replan.policies.agent import ChunkAgent


def act(policy, spec, observation, steps=11):
    agent = ChunkAgent(policy, accel.parse(spec))
    agent.reset(5)
    rounds = []
    for _ in range(steps):
        agent.act(observation)
        if agent.round is not None:
            rounds.append(agent.round)
    return torch.cat([each.chunk for each in rounds]), rounds, agent


def test_compiled_stages_equal_the_models_and_leave_it_as_it_is(policy, observation):
    """Traced and not compiled: a compiler needs a minute. What a backend makes of the graphs is its own affair."""
    dense, _, _ = act(policy, "dense", observation)
    state = set(vars(policy.model))
    chunk, rounds, agent = act(policy, "compile:backend=eager", observation)
    torch.testing.assert_close(chunk, dense, rtol=1e-4, atol=1e-5)
    assert agent.counters() == {"compiled_calls": 2 * 13}  # encode, prefill, condition and ten steps
    assert rounds[0].extra["compiled_graphs"] > 3 and rounds[1].extra["compiled_graphs"] == 0
    assert set(vars(policy.model)) == state and agent.dense_error() < 1e-5

    longer = {**observation, "instruction": "put the toy dog in the red bin"}
    _, rounds, agent = act(policy, "compile:backend=eager", observation, steps=10)
    agent.reset(5)
    agent.act(longer)
    assert agent.round.call.prefix.embeddings.shape[1] == rounds[0].call.prefix.embeddings.shape[1] + 1
    assert agent.round.extra["compiled_graphs"] == 0 and agent.dense_error() < 1e-5

    # Walks with ops of others are not traced: what ops answer changes from round to round.
    cached, _, _ = act(policy, "context_cache", observation)
    both, _, agent = act(policy, "compile:backend=eager+context_cache", observation)
    torch.testing.assert_close(both, cached, rtol=1e-4, atol=1e-5)
    assert agent.counters()["compiled_calls"] == 2 * 12 and agent.counters()["ffn_rows_reused"] > 0


def test_what_compiling_needs_is_one_sentence(policy, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="needs a C\\+\\+ compiler, and none is on the path: install g\\+\\+"):
        ChunkAgent(policy, accel.parse("compile"))
    with pytest.raises(ValueError, match="compile has no backend 'inductr'; there are .*inductor"):
        ChunkAgent(policy, accel.parse("compile:backend=inductr"))


@pytest.fixture
def captured(monkeypatch):
    """Graphs without a GPU: what is captured is a function of fixed places, and a replay computes its result there."""

    def capture(function):
        output = function()

        def replay():
            for place, new in zip(nest.leaves(output), nest.leaves(function()), strict=True):
                if isinstance(new, torch.Tensor):
                    place.copy_(new)

        return output, replay

    monkeypatch.setattr(cudagraph, "capture", capture)
    monkeypatch.setattr(cudagraph.CUDAGraph, "attach", lambda self, policy: None)


def test_replayed_stages_equal_the_models(policy, observation, captured):
    frames = [{**observation, "state": observation["state"] + n} for n in range(31)]

    def run(spec):
        agent = ChunkAgent(policy, accel.parse(spec))
        rounds = [agent.round for frame in frames if agent.act(frame) is not None and agent.round]
        return torch.cat([each.chunk for each in rounds]), rounds, agent

    dense, _, _ = run("dense")
    chunk, rounds, agent = run("cudagraph:stages=prefill/condition/step")
    torch.testing.assert_close(chunk, dense, rtol=1e-4, atol=1e-5)
    assert agent.counters() == {"replays": 4 * 12} and rounds[-1].extra["captured_graphs"] == 3
    kept, _, _ = run("cudagraph:stages=prefill/condition/step+stale_prefix:every=9")
    old, _, _ = run("stale_prefix:every=9")
    torch.testing.assert_close(kept, old, rtol=1e-4, atol=1e-5)  # a context that is kept is not written over
    both, _, agent = run("cudagraph+action_cache")
    alone, _, _ = run("action_cache")
    assert torch.equal(both, alone) and agent.counters()["replays"] == 4  # steps have ops of another method


def test_another_shape_is_captured_anew_and_old_graphs_go(captured, monkeypatch):
    monkeypatch.setattr(cudagraph, "GRAPHS", 2)
    double = cudagraph.Replayed(lambda x, factor: {"unused": 0} and (x * factor, None))
    for size, captures in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 4)):
        x = torch.arange(size, dtype=torch.float32) + size
        assert torch.equal(double(x, 2)[0], 2 * x) and double.captures == captures
    assert torch.equal(double(x, 3)[0], 3 * x) and double.captures == 5
    first, _ = double(x, 3)
    double(x + 1, 3)
    assert torch.equal(first, 3 * x) and double.captures == 5


def test_a_graph_needs_a_gpu_and_stages_that_can_be_captured(policy):
    with pytest.raises(ValueError, match="cudagraph needs a GPU, and random is on cpu: choose --device cuda"):
        ChunkAgent(policy, accel.parse("cudagraph"))
    with pytest.raises(ValueError, match="some of prefill, condition, step, got 'encode'"):
        accel.parse("cudagraph:stages=encode")
