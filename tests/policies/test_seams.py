"""Every seam with one small method: its limit case is dense bit for bit, and a wrong splice is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replan.policies.agent import ChunkAgent
from replan.policies.call import call_policy, dense_chunk
from replan.policies.flow import Schedule
from replan.policies.model import DENSE, KVContext, Ops, Stages
from replan.policies.round import Proposal, Start
from replan.policies.seams import Method, Methods, Seam, naming, needed_files

ROWS = {"prefill": Seam.PREFILL_ROWS, "step": Seam.STEP_ROWS}
FFN = {"prefill": Seam.PREFILL_FFN, "step": Seam.STEP_FFN}


class CachedRows(Ops):
    """Computes a random share of the rows and takes keys, values and outputs of the others from the last round.

    ``shift`` plants a bug: keys and values are put back so many rows too late.
    """

    def __init__(self, share, shift=0):
        self.share, self.shift, self.generator = share, shift, torch.Generator().manual_seed(0)
        self.kept, self.step = {}, 0

    def start(self, call):
        self.first = not self.kept

    def at(self, step):
        self.step = step

    def rows(self, layer, x):
        if layer == 0:  # a row that one layer leaves out has no input for the next, so all layers choose the same
            count = x.shape[1] if self.first else round(self.share * x.shape[1])
            self.chosen = torch.randperm(x.shape[1], generator=self.generator)[:count].sort().values
        return self.chosen

    def keys_values(self, layer, k, v, rows):
        if old := self.kept.get(("keys and values", self.step, layer)):
            place = (rows + self.shift) % old[0].shape[1]
            k, v = old[0].index_copy(1, place, k), old[1].index_copy(1, place, v)
        self.kept["keys and values", self.step, layer] = k, v
        return k, v

    def scatter(self, layer, x, computed, rows):
        x = self.kept.get(("output", self.step, layer), x).index_copy(1, rows, computed)
        self.kept["output", self.step, layer] = x
        return x


class RandomRows(Method):
    name = "random_rows"

    def __init__(self, where, share, shift=0):
        self.where, self.ops = where, CachedRows(share, shift)
        self.claims = frozenset({ROWS[where]})

    def prefill_ops(self):
        return self.ops if self.where == "prefill" else Ops()

    def step_ops(self):
        return self.ops if self.where == "step" else Ops()


class SomeNeurons(Ops):
    def __init__(self, share):
        self.share, self.generator = share, torch.Generator().manual_seed(0)

    def ffn(self, layer, x, ffn, rows):
        hidden = ffn.hidden(x)
        order = torch.randperm(hidden.shape[-1], generator=self.generator)
        chosen = order[: round(self.share * hidden.shape[-1])].sort().values
        return F.linear(hidden[..., chosen], ffn.down.weight[:, chosen])


class RandomNeurons(Method):
    name = "random_neurons"

    def __init__(self, where, share):
        self.where, self.ops = where, SomeNeurons(share)
        self.claims = frozenset({FFN[where]})

    def prefill_ops(self):
        return self.ops if self.where == "prefill" else Ops()

    def step_ops(self):
        return self.ops if self.where == "step" else Ops()


class Given(Method):
    """Takes the first predictions from a list."""

    name, claims = "given", frozenset({Seam.SCHEDULE})

    def __init__(self, predictions):
        self.predictions = dict(enumerate(predictions))

    def schedule(self, call, flow):
        plain = flow.schedule()
        computed = tuple(step not in self.predictions for step in range(flow.steps))
        return Schedule(plain.times, computed, self.predictions)


class WarmStart(Method):
    """Starts from the last chunk, shifted by the executed actions and mixed with noise to a level; 1 is pure noise."""

    name, claims = "warm", frozenset({Seam.INIT})

    def __init__(self, level):
        self.level, self.chunk = level, None

    def init(self, call, flow):
        if self.chunk is None:
            return None
        executed = len(call.executed)
        shifted = torch.cat([self.chunk[:, executed:], self.chunk[:, -1:].expand(-1, executed, -1)], 1)
        time = flow.time(1 - self.level)
        return Start(flow.mix(shifted, call.noise, time), time)

    def observe_full(self, call):
        self.chunk = call.chunk


class Pull(Method):
    name, claims = "pull", frozenset({Seam.PREDICTION})

    def __init__(self, strength):
        self.strength, self.times = strength, []

    def prediction(self, call, x, time, prediction):
        self.times.append(time)
        return prediction + self.strength * x


class Counted(Method):
    """A backend that runs the model's own stages and counts them."""

    name, claims = "counted", frozenset({Seam.BACKEND})

    def stages(self, model, prefill_ops, step_ops):
        self.calls, self.bound = [], (prefill_ops, step_ops)

        def counting(name, stage):
            def run(*arguments):
                self.calls.append(name)
                return stage(*arguments)

            return run

        return Stages(*(counting(name, getattr(model, name)) for name in Stages._fields[:4]))


def agent_of(policy, *methods):
    return ChunkAgent(policy, methods)


def chunks(agent, observation, rounds=3):
    """The normalised chunks of some rounds; the observation changes with every one."""
    agent.reset(7)
    result = []
    while len(result) < rounds:
        agent.act({**observation, "third": np.roll(observation["third"], 9 * len(result), 1)})
        if agent.round is not None:
            result.append(agent.round.chunk)
    return torch.cat(result)


def twice(policy, observation, method):
    """The chunks of two rounds with the same observation and noise."""
    methods = Methods([method])
    methods.attach(policy)
    noise = torch.randn((1, 16, 7), generator=torch.Generator().manual_seed(0))
    return [call_policy(policy, methods, observation, noise).chunk for _ in range(2)]


@pytest.mark.parametrize("where", ["prefill", "step"])
@pytest.mark.parametrize("make", [lambda w: RandomRows(w, 1.0), lambda w: RandomNeurons(w, 1.0)], ids=["rows", "ffn"])
def test_everything_chosen_is_dense_bit_for_bit(policy, observation, where, make):
    dense = chunks(agent_of(policy), observation)
    assert torch.equal(chunks(agent_of(policy, make(where)), observation), dense)


@pytest.mark.parametrize("where", ["prefill", "step"])
@pytest.mark.parametrize("make", [lambda w: RandomRows(w, 0.5), lambda w: RandomNeurons(w, 0.5)], ids=["rows", "ffn"])
def test_half_of_it_is_not_dense(policy, observation, where, make):
    dense = chunks(agent_of(policy), observation)
    assert (chunks(agent_of(policy, make(where)), observation) - dense).abs().max() > 1e-3


@pytest.mark.parametrize("where", ["prefill", "step"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_cached_rows_of_an_unchanged_input_are_as_good_as_computed_ones(policy, observation, where, share):
    first, second = twice(policy, observation, RandomRows(where, share))
    torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)
    if share == 0:
        assert torch.equal(second, first)  # nothing is computed, so nothing can round differently


@pytest.mark.parametrize("where", ["prefill", "step"])
def test_a_wrong_splice_is_caught(policy, observation, where):
    first, second = twice(policy, observation, RandomRows(where, 0.3, shift=1))
    assert (second - first).abs().max() > 1e-3  # far above the tolerance of the test before this one


def test_given_predictions_replace_computed_ones(policy, observation, monkeypatch):
    noise = torch.randn((1, 16, 7), generator=torch.Generator().manual_seed(0))
    computed, step = [], policy.model.step

    def spy(*arguments):
        computed.append(step(*arguments))
        return computed[-1]

    monkeypatch.setattr(policy.model, "step", spy)

    def run(predictions):
        computed.clear()
        methods = Methods([Given(predictions)])
        methods.attach(policy)
        return call_policy(policy, methods, observation, noise).chunk

    dense = run([])
    predictions = list(computed)
    assert len(predictions) == 10 and torch.equal(dense, run(predictions)) and computed == []
    assert torch.equal(dense, run(predictions[:5])) and len(computed) == 5
    assert not torch.equal(dense, run([torch.zeros_like(noise)]))


@pytest.mark.parametrize("given", [{}, {10: torch.zeros(1)}])
def test_a_schedule_without_a_first_prediction_or_beyond_its_end_is_refused(given):
    with pytest.raises(ValueError, match="first denoising step|steps .10."):
        Schedule(tuple(1 - step / 10 for step in range(11)), (bool(given), *(True,) * 9), given)


def test_a_shifted_start_at_pure_noise_is_dense_bit_for_bit(policy, observation):
    dense = chunks(agent_of(policy), observation)
    assert torch.equal(chunks(agent_of(policy, WarmStart(1.0)), observation), dense)


def test_a_shifted_start_integrates_only_what_is_left(policy, observation, monkeypatch):
    times, step = [], policy.model.step
    monkeypatch.setattr(policy.model, "step", lambda x, t, *rest: (times.append(round(t, 3)), step(x, t, *rest))[1])
    agent = agent_of(policy, WarmStart(0.45))
    chunks(agent, observation, rounds=2)
    assert times[10:] == [0.45, 0.4, 0.3, 0.2, 0.1]  # from the level itself, then on the dense policy's grid


def test_a_start_that_the_schedule_does_not_reach_is_refused():
    schedule = Schedule((1.0, 0.5, 0.0), (True, False))
    assert schedule.starting_at(1.0) is schedule
    assert schedule.starting_at(0.5) == Schedule((0.5, 0.0), (True,))
    assert schedule.starting_at(0.6) == Schedule((0.6, 0.5, 0.0), (True, False))
    for time in (0.0, 1.1, -0.1):
        with pytest.raises(ValueError, match=f"time {time}"):
            schedule.starting_at(time)


def test_what_is_made_of_a_prediction_is_what_is_integrated(policy, observation):
    dense = chunks(agent_of(policy), observation)
    method = Pull(0.0)
    assert torch.equal(chunks(agent_of(policy, method), observation), dense)
    assert len(method.times) == 30 and method.times[:3] == list(policy.model.flow.schedule().times[:3])
    assert not torch.equal(chunks(agent_of(policy, Pull(0.1)), observation), dense)


def test_a_backend_runs_every_stage_and_never_the_dense_reference(policy, observation):
    method = Counted()
    agent = agent_of(policy, method)
    assert torch.equal(chunks(agent, observation, 1), chunks(agent_of(policy), observation, 1))
    assert method.calls == ["encode", "prefill", "condition", *["step"] * 10]
    assert agent.dense_error() == 0
    assert len(method.calls) == 13


def test_a_backend_is_given_the_ops_of_the_methods_that_it_runs_with(policy, observation):
    backend = Counted()
    both = agent_of(policy, RandomNeurons("step", 0.5), backend)
    assert torch.equal(chunks(both, observation), chunks(agent_of(policy, RandomNeurons("step", 0.5)), observation))
    assert backend.bound == (both.methods.prefill_ops, both.methods.step_ops)


class Mass(Ops):
    """A tap: how much the action rows of the first step attend to each visual token."""

    def __init__(self):
        self.mass, self.step = 0, -1

    def start(self, call):
        self.visual = call.prefix.visual

    def at(self, step):
        self.step = step

    def attended(self, layer, q, k):
        if self.step == 0:
            weights = torch.einsum("bthd,bsd->bhts", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
            self.mass = self.mass + weights[..., : self.visual].mean((0, 1, 2))


class Watching(Method):
    """Claims nothing and sees everything."""

    name = "watching"

    def attach(self, policy):
        self.ops, self.seen = Mass(), []

    def step_ops(self):
        return self.ops

    def look(self, call):
        assert call.context is None and call.chunk is None
        self.seen.append(("look", call.control_step, len(call.executed), call.instruction))

    def observe_full(self, call):
        self.seen.append(("full", *call.chunk.shape))

    def idle(self, budget_ns):
        self.seen.append(("idle", budget_ns))

    def end(self, success):
        self.seen.append(("end", success))


def test_a_method_without_claims_sees_the_round_and_changes_nothing(policy, observation):
    method = Watching()
    agent = agent_of(policy, method)
    assert torch.equal(chunks(agent, observation, 2), chunks(agent_of(policy), observation, 2))
    agent.idle(50_000_000)
    agent.end(True)
    text = observation["instruction"]
    assert method.seen == [
        *[("look", 0, 0, text), ("full", 1, 16, 7), ("look", 10, 10, text), ("full", 1, 16, 7)],
        *[("idle", 50_000_000), ("end", True)],
    ]
    assert method.ops.mass.shape == (128,) and 0 < float(method.ops.mass.sum()) < 2 * policy.model.config.depth


def test_the_tap_reads_what_attention_computes(policy, observation):
    """The mass over all columns is one for each layer and round, so nothing is left out of the softmax."""
    method = Watching()
    agent = agent_of(policy, method)
    method.ops.start = lambda call: setattr(method.ops, "visual", None)
    chunks(agent, observation, 1)
    torch.testing.assert_close(method.ops.mass.sum(), torch.tensor(float(policy.model.config.depth)))


def test_executed_actions_reach_the_next_round(policy, observation):
    agent = agent_of(policy)
    actions = [agent.act(observation) for _ in range(11)]
    assert np.array_equal(agent.round.call.executed, actions[:10])


def test_rows_and_neurons_of_one_stage_act_together(policy, observation):
    dense = chunks(agent_of(policy), observation)
    both = agent_of(policy, RandomRows("prefill", 1.0), RandomNeurons("prefill", 1.0), RandomNeurons("step", 1.0))
    assert torch.equal(chunks(both, observation), dense)
    rows = chunks(agent_of(policy, RandomRows("prefill", 0.5)), observation)
    mixed = chunks(agent_of(policy, RandomRows("prefill", 0.5), RandomNeurons("step", 0.5)), observation)
    assert torch.equal(mixed[0], chunks(agent_of(policy, RandomNeurons("step", 0.5)), observation)[0])
    assert not torch.equal(mixed[1], rows[1])


class Named(Method):
    name = "named"
    routes = ("full", "cached")

    def route(self, call):
        return "cached" if call.control_step else None


def test_a_route_belongs_to_the_method_that_names_it(policy, observation):
    agent = agent_of(policy, Named())
    routes = [agent.round.route for _ in range(20) if (agent.act(observation), agent.round)[1]]
    assert routes == ["full", "cached"]


def test_two_names_for_a_route_are_joined_and_an_undeclared_one_is_refused(policy, observation):
    class Other(Named):
        name, routes = "other", ("full", "sparse", "bare")

        def route(self, call):
            return "sparse"

    class Undeclared(Other):
        routes = ("full",)

    agent = agent_of(policy, Other(), Named())
    assert agent.methods.routes == ("full", "sparse", "bare", "cached", "sparse+cached", "bare+cached")
    routes = [agent.round.route for _ in range(20) if (agent.act(observation), agent.round)[1]]
    assert routes == ["sparse", "sparse+cached"]
    with pytest.raises(RuntimeError, match="declares the route 'sparse'"):
        agent_of(policy, Undeclared()).act(observation)


def test_a_proposal_names_its_route_and_what_was_accepted(policy, observation):
    class Hold(Method):
        name, claims, routes = "hold", frozenset({Seam.ROUND}), ("full", "held", "gave_up")

        def propose(self, call):
            length = 0 if call.control_step else 3
            return Proposal(torch.zeros(1, 16, 7), length, "held" if length else "gave_up", length, 10)

    agent = agent_of(policy, Hold())
    agent.act(observation)
    assert (agent.round.route, agent.round.accepted, agent.round.drafted) == ("held", 3, 10)
    assert len(agent.round.actions) == 3 and agent.round.stages_ns == {}  # nothing was encoded
    for _ in range(3):
        agent.act(observation)
    assert (agent.round.route, agent.round.accepted, len(agent.round.actions)) == ("gave_up", 0, 10)


@pytest.mark.parametrize(("length", "accepted", "drafted"), [(1, 1, 1), (1, 16, 16), (1, None, 5), (1, 0, 0)])
def test_a_proposal_of_one_action_is_executed_whatever_was_verified_of_the_chunk(
    policy, observation, length, accepted, drafted
):
    class Short(Method):
        name, claims, routes = "short", frozenset({Seam.ROUND}), ("short",)

        def propose(self, call):
            return Proposal(torch.zeros(1, 16, 7), length, "short", accepted, drafted)

    agent = agent_of(policy, Short())
    agent.act(observation)
    assert agent.round.route == "short" and len(agent.round.actions) == 1 and agent.needs_observation
    assert (agent.round.accepted, agent.round.drafted) == (accepted, drafted)


def test_methods_see_the_steps_that_the_full_path_took_and_rounds_start_at_control_step_0(policy, observation):
    methods = Methods([WarmStart(0.45)])
    methods.attach(policy)
    noise = torch.randn((1, 16, 7), generator=torch.Generator().manual_seed(0))
    first, second = (call_policy(policy, methods, observation, noise).call for _ in range(2))
    assert first.schedule == policy.model.flow.schedule()
    assert second.schedule.times == (pytest.approx(0.45), *policy.model.flow.schedule().times[6:])
    assert first.control_step == 0


def test_no_more_of_a_proposal_is_executed_than_the_window(policy, observation):
    class Whole(Method):
        name, claims, routes = "whole", frozenset({Seam.ROUND}), ("whole",)

        def propose(self, call):
            return Proposal(torch.zeros(1, 16, 7), 16, "whole")

    agent = agent_of(policy, Whole())
    agent.act(observation)
    assert agent.round.actions.shape == (10, 7)


def test_a_required_context_is_refused_with_the_reason(policy):
    class Keys(Method):
        name, requires = "keys", KVContext

    class Features:
        pass

    class Other(Method):
        name: ClassVar[str] = "other"
        requires: ClassVar[type] = Features

    agent_of(policy, Keys())
    with pytest.raises(ValueError, match="'other' requires a context of the kind Features.*produces a KVContext"):
        agent_of(policy, Other())


def test_the_dense_reference_starts_from_the_inputs(policy, observation):
    """A method that spoils the encoding must not be compared with the dense policy on its own spoiled encoding."""

    class Blind(Counted):
        name = "blind"

        def stages(self, model, prefill_ops, step_ops):
            def encode(inputs):
                return model.encode(replace(inputs, images=torch.zeros_like(inputs.images)))

            return model.stages()._replace(encode=encode)

    agent = agent_of(policy, Blind())
    agent.act(observation)
    plain = agent_of(policy)
    plain.act(observation)
    assert torch.equal(dense_chunk(policy, observation, agent._noise(0)), plain.round.chunk)
    assert agent.dense_error() > 1e-3


@pytest.mark.parametrize(
    ("shape", "length", "accepted", "drafted"),
    [((16, 7), 5, None, None), ((1, 3, 7), 3, None, None), ((1, 16, 7), -1, None, None), ((1, 16, 7), 1, 50, 10)]
    + [((1, 16, 7), 1, accepted, drafted) for accepted, drafted in ((-1, 10), (11, 10), (1, 17), (1, None))],
)
def test_a_proposal_that_cannot_be_executed_or_accounted_for_is_refused(
    policy, observation, shape, length, accepted, drafted
):
    class Broken(Method):
        name, claims, routes = "broken", frozenset({Seam.ROUND}), ("full", "broken")

        def propose(self, call):
            return Proposal(torch.zeros(shape), length, "broken", accepted, drafted)

    with pytest.raises(RuntimeError, match="the proposal of route 'broken'"):
        agent_of(policy, Broken()).act(observation)


def test_methods_that_count_under_one_name_are_refused(policy, observation):
    class Counting(Watching):
        name = "counting"

        def counters(self):
            return {"rounds": 1.0}

    agent = agent_of(policy, Counting(), Counting())
    with pytest.raises(RuntimeError, match="'counting' counts .'rounds'."):
        agent.counters()


def test_a_start_on_the_schedules_grid_takes_no_extra_step(policy):
    flow = policy.model.flow
    for step in range(1, 10):
        rest = flow.schedule().starting_at(flow.time(step / 10))
        assert len(rest.computed) == 10 - step
    with pytest.raises(ValueError, match="run one way"):
        Schedule((1.0, 1.0, 0.0), (True, True))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claims", (Seam.ROUND,)),
        ("claims", {"round"}),
        ("claims", [Seam.ROUND]),
        ("routes", ["full"]),
        ("routes", "full"),
        ("routes", (1,)),
        ("activity_counters", {"steps"}),
        ("activity_counters", (None,)),
    ],
)
def test_a_method_that_declares_itself_in_another_type_is_refused(name, value):
    method = Method()
    setattr(method, name, value)
    with pytest.raises(ValueError, match=f"'dense' must have a .* as {name}, got"):
        Methods([method])


def test_a_method_needs_files_by_path(tmp_path):
    class Needs(Method):
        name = "needs"

        def files(self, policy):
            return self.paths

    method, there = Needs(), tmp_path / "draft"
    assert needed_files(Method(), tmp_path) == []
    method.paths = iter([there])
    assert needed_files(method, tmp_path) == [there]
    for wrong in (tmp_path, "draft", None):
        method.paths = [there, wrong]
        with pytest.raises(ValueError, match="'needs' must name files that it needs, got"):
            needed_files(method, tmp_path)
    method.paths = None
    with pytest.raises(ValueError, match="files of the method 'needs' cannot be named: its code raises TypeError"):
        needed_files(method, tmp_path)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), RuntimeError("x")])
def test_what_the_code_of_a_method_raises_is_named(error):
    with pytest.raises(ValueError, match=f"it fails: its code raises {type(error).__name__}"), naming("it fails"):
        raise error
    for passed in (ValueError("a sentence"), KeyboardInterrupt()):
        with pytest.raises(type(passed)) as told, naming("it fails"):
            raise passed
        assert told.value is passed


def test_methods_without_ops_leave_the_walk_to_the_dense_ones(policy):
    """So that a backend can tell a prefill that nothing hooks into."""
    agent = agent_of(policy, Pull(0.1), Given([]))
    assert agent.methods.prefill_ops is agent.methods.step_ops is DENSE
    assert agent_of(policy, Watching()).methods.step_ops is not DENSE
    assert Method.ordered is False
