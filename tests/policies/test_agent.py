"""The agent calls its policy when its queue is empty, with noise that belongs to the place in the episode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from replan.policies.agent import ChunkAgent
from replan.policies.call import call_policy, dense
from replan.policies.round import Proposal, Stopwatch
from replan.policies.seams import Method, Methods, Seam


def acts(agent, observation, steps, seed=0):
    agent.reset(seed)
    return [agent.act(observation) for _ in range(steps)]


def test_the_policy_is_called_once_a_window(policy, observation):
    agent = ChunkAgent(policy, window=4)
    called = []
    agent.reset(0)
    for _ in range(9):
        expected = agent.needs_observation
        agent.act(observation)
        called.append(agent.round is not None)
        assert called[-1] == expected
    assert called == [True, False, False, False] * 2 + [True]


def test_an_observation_is_only_looked_at_when_it_was_asked_for(policy, observation):
    agent = ChunkAgent(policy, window=3)
    agent.reset(0)
    expected = acts(agent, observation, 3)
    agent.reset(0)
    got = [agent.act(observation if step == 0 else None) for step in range(3)]
    assert np.array_equal(got, expected)


def test_the_same_seed_gives_the_same_actions_and_another_seed_others(policy, observation):
    agent = ChunkAgent(policy)
    first = acts(agent, observation, 12, seed=5)
    assert np.array_equal(first, acts(agent, observation, 12, seed=5))
    assert not np.array_equal(first, acts(agent, observation, 12, seed=6))


def test_noise_belongs_to_the_control_step_not_to_the_call(policy, observation):
    by_four, by_two = ChunkAgent(policy, window=4), ChunkAgent(policy, window=2)
    a, b = acts(by_four, observation, 5), acts(by_two, observation, 5)
    assert np.array_equal(a[:2], b[:2]) and not np.array_equal(a[2:4], b[2:4])
    assert np.array_equal(a[4], b[4])  # both called at step 4


def test_every_round_has_noise_of_its_own(policy, observation):
    agent, noise = ChunkAgent(policy), []
    agent.reset(0)
    for _ in range(31):
        agent.act(observation)
        if agent.round is not None:
            noise.append(agent.round.call.noise)
    assert len(noise) == 4
    assert all(not torch.equal(a, b) for place, a in enumerate(noise) for b in noise[:place])


def test_global_random_state_is_left_alone(policy, observation):
    before = torch.get_rng_state()
    acts(ChunkAgent(policy), observation, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_dense_policy_has_no_error_against_itself(policy, observation):
    agent = ChunkAgent(policy)
    agent.act(observation)
    assert agent.dense_error() == 0
    agent.act(observation)
    with pytest.raises(ValueError, match="no round"):
        agent.dense_error()


class Overwriting(Method):
    """Claims nothing, and spoils what it may only look at."""

    name = "overwriting"

    def __init__(self, how):
        self.how = how

    def look(self, call):
        if self.how == "noise in place":
            call.noise.zero_()
        elif self.how == "noise":
            call.noise = torch.zeros_like(call.noise)
        elif self.how == "state in place":
            call.inputs.state.zero_()
        elif self.how == "images in place":
            call.inputs.images.zero_()
            call.prefix = call.stages.encode(call.inputs)
        elif self.how == "inputs":
            call.inputs = replace(call.inputs, state=torch.zeros_like(call.inputs.state))

    def observe_full(self, call):
        if self.how == "chunk in place":
            call.chunk.zero_()


@pytest.mark.parametrize(
    "how", ["noise in place", "noise", "state in place", "images in place", "inputs", "chunk in place"]
)
def test_a_method_that_writes_into_a_round_is_not_compared_with_what_it_wrote(policy, observation, how):
    """The reference comes from what the agent holds, so that the error shows whatever a method did to the round."""
    dense, agent = ChunkAgent(policy), ChunkAgent(policy, [Overwriting(how)])
    before = {name: np.array(value) for name, value in observation.items()}
    for _ in range(11):
        expected, got = dense.act(observation), agent.act(observation)
    assert not np.array_equal(got, expected)
    assert agent.dense_error() > 1e-3
    assert all(np.array_equal(observation[name], value) for name, value in before.items())


def test_the_error_is_that_of_the_executed_actions(policy, observation):
    """What a method does to actions that are never executed is no error; to one that is, it is."""

    class Prefix(Method):
        name, claims, routes = "prefix", frozenset({Seam.ROUND}), ("prefix",)

        def __init__(self, length, wrong):
            self.length, self.wrong = length, wrong

        def propose(self, call):
            plain = dense(policy.model, call.prefix, call.inputs, call.noise).clone()
            plain[:, self.wrong] += 3
            return Proposal(plain, self.length, "prefix")

    for length, wrong, expected in ((4, 4, 0), (4, 9, 0), (10, 10, 0), (4, 3, 3 / 4**0.5), (10, 3, 3 / 10**0.5)):
        agent = ChunkAgent(policy, [Prefix(length, wrong)])
        agent.act(observation)
        assert agent.dense_error() == pytest.approx(expected, rel=1e-5)


def test_stage_times_lie_within_the_call(policy, observation):
    agent = ChunkAgent(policy)
    agent.act(observation)
    call = agent.round
    assert set(call.stages_ns) == {"encode", "prefill", "denoise"}
    assert 0 < sum(call.stages_ns.values()) <= call.host_ns


@pytest.mark.parametrize("window", [17, 0])
def test_a_window_that_the_chunk_cannot_fill_is_refused(policy, window):
    with pytest.raises(ValueError, match=str(window)):
        ChunkAgent(policy, window=window)


def test_methods_that_want_the_same_seam_are_refused_by_name(policy):
    class One(Method):
        name, claims = "one", frozenset({Seam.SCHEDULE})

    class Two(Method):
        name, claims = "two", frozenset({Seam.SCHEDULE, Seam.ROUND})

    with pytest.raises(ValueError, match="'one' and 'two'.*'schedule'"):
        ChunkAgent(policy, [One(), Two()])


def test_a_seam_that_the_model_does_not_offer_is_refused(policy, monkeypatch):
    class Rows(Method):
        name, claims = "rows", frozenset({Seam.STEP_ROWS})

    monkeypatch.setattr(type(policy.model), "seams", frozenset({Seam.PREFILL_FFN}))
    with pytest.raises(ValueError, match="'rows'.*'step_rows'.*does not offer.*prefill_ffn"):
        ChunkAgent(policy, [Rows()])


def test_hooks_at_seams_that_are_not_claimed_are_never_called(policy, observation):
    noise = torch.randn((1, 16, 7), generator=torch.Generator().manual_seed(0))
    assert (
        call_policy(policy, Methods([Method()]), observation, noise).route == "full"
    )  # the base class raises in every hook


def test_windows_of_one_action_and_of_the_whole_chunk_are_taken(policy, observation):
    for window in (1, policy.model.horizon):
        agent = ChunkAgent(policy, window=window)
        agent.act(observation)
        assert len(agent.round.actions) == window


def test_a_new_agent_stands_at_the_start_of_episode_0(policy, observation):
    class Begun(Method):
        name, begun = "begun", 0

        def begin(self):
            self.begun += 1

    method = Begun()
    new, again = ChunkAgent(policy, [method]), ChunkAgent(policy)
    assert method.begun == 1 and new.round is None
    with pytest.raises(ValueError, match="no round"):
        new.dense_error()
    again.reset(0)
    assert np.array_equal(new.act(observation), again.act(observation))


def test_noise_is_a_fixed_function_of_the_episode_and_the_step(policy, observation):
    """Episodes are compared with those of earlier releases, so that their noise may never change."""
    agent = ChunkAgent(policy, window=4)
    agent.reset(5)
    for step in range(9):
        agent.act(observation)
        if agent.round is not None:
            words = np.random.SeedSequence([5, step]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(words[0]) // 2)
            assert torch.equal(agent.round.call.noise, torch.randn((1, 16, 7), generator=generator))


def test_a_stage_inside_a_stage_is_counted_once(monkeypatch):
    clock = iter([0, 10, 20, 50, 60, 100, 107])  # begin; outer, inner, -, other, -, -
    monkeypatch.setattr("replan.policies.round.time.perf_counter_ns", lambda: next(clock))
    watch = Stopwatch(torch.device("cpu"))
    with watch.stage("outer"):
        with watch.stage("inner"):
            pass
        with watch.stage("other"):
            pass
    assert watch.stages_ns == {"inner": 30, "other": 40, "outer": 97 - 70}
