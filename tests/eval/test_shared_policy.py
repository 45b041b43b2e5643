"""All agents of a process act with one copy of the weights, which none of them may leave changed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from play import play
from replan import accel
from replan.eval.evaluate import make_plan
from replan.eval.registry import MethodInfo, Registry
from replan.eval.spec import BadInput, make_spec
from replan.eval.worker import Worker
from replan.policies import gemma, processing
from replan.policies.agent import ChunkAgent
from replan.policies.planner import PlannerAgent
from replan.policies.policy import load_policy
from replan.policies.seams import Method
from replan.policies.snapshot import changes, snapshot
from replan.policies.untrained import observations


@torch.no_grad()
def add_to_a_weight(policy):
    next(policy.model.parameters()).view(-1)[0] += 1e-3


@torch.no_grad()
def exchange_two_weights(policy):
    flat = next(policy.model.parameters()).view(-1)
    flat[:4] = flat[:4].flip(0).clone()


def register_a_hook(policy):
    policy.model.vision.register_forward_hook(lambda *_: None)


def replace_a_stage(policy):
    policy.model.step = policy.model.step


def replace_a_layer(policy):
    policy.model.vision = torch.nn.Identity()


def change_a_statistic(policy):
    object.__setattr__(policy.processor, "action_std", (2.0, *policy.processor.action_std[1:]))


WAYS = {
    add_to_a_weight: r"model\.[\w.]+",
    exchange_two_weights: r"model\.[\w.]+",
    register_a_hook: r"model\.vision\._forward_hooks\[\d+\]",
    replace_a_stage: r"model\.step",
    replace_a_layer: r"model\._modules\['vision'\]",
    change_a_statistic: r"processor\.action_std\[0\]",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_change_of_a_policy_is_seen_and_named(way):
    policy = load_policy("pi0-tiny")
    before = snapshot(policy)
    assert changes(before, snapshot(policy)) == []
    way(policy)
    assert any(re.fullmatch(WAYS[way], each) for each in changes(before, snapshot(policy)))


def test_compiling_stages_alters_nothing_that_others_use():
    policy = load_policy("pi0-tiny")
    before = snapshot(policy)
    agent = ChunkAgent(policy, accel.parse("compile:backend=eager"))
    agent.reset(0)
    agent.act(observations(policy, 1)[0])
    assert changes(before, snapshot(policy)) == []


@pytest.mark.parametrize(("place", "name"), [(gemma.GemmaLayer, "forward"), (torch.nn.functional, "linear")])
def test_a_function_that_is_replaced_for_everybody_is_seen(monkeypatch, place, name):
    policy = load_policy("pi0-tiny")
    before = snapshot(policy)
    monkeypatch.setattr(place, name, lambda *_: None)
    assert any(each.endswith(f".{name}()") for each in changes(before, snapshot(policy)))
    monkeypatch.undo()
    assert changes(before, snapshot(policy)) == []


def autocast():
    torch.set_autocast_enabled("cpu", True)


def another_device():
    torch.set_default_device("meta")


def no_mkldnn():
    torch.backends.mkldnn.enabled = False


def another_attention():
    torch.backends.cuda.enable_flash_sdp(False)


def no_denormals():
    torch.set_flush_denormal(True)


def new_spelling_of_a_precision():  # of which torch does not tell the old one any more
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def numpy_that_raises():
    np.seterr(all="raise")


@pytest.fixture
def restored():
    errors, precision = np.geterr(), torch.backends.mkldnn.matmul.fp32_precision
    yield
    np.seterr(**errors)
    torch.backends.mkldnn.matmul.fp32_precision = precision
    torch.set_autocast_enabled("cpu", False)
    torch.set_default_device(None)
    torch.backends.mkldnn.enabled = True
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_flush_denormal(False)


SETTINGS = {
    autocast: "torch.is_autocast_enabled('cpu')",
    another_device: "torch.get_default_device",
    no_mkldnn: "torch.backends.mkldnn.enabled",
    another_attention: "torch.backends.cuda.flash_sdp_enabled",
    no_denormals: "torch.set_flush_denormal",
    new_spelling_of_a_precision: "torch.get_float32_matmul_precision",
    numpy_that_raises: "numpy.geterr",
}


@pytest.mark.parametrize("way", SETTINGS, ids=lambda way: way.__name__)
def test_a_setting_of_the_process_that_is_left_changed_is_seen_and_named(restored, way):
    policy = load_policy("pi0-tiny")
    before = snapshot(policy)
    way()
    assert SETTINGS[way] in changes(before, snapshot(policy))


def test_a_constant_and_a_function_of_torch_that_are_replaced_are_seen(monkeypatch):
    policy = load_policy("pi0-tiny")
    before = snapshot(policy)
    monkeypatch.setattr(processing, "MOST_ENLARGED", 9)
    monkeypatch.setattr(torch, "rsqrt", lambda *_: None)
    assert changes(before, snapshot(policy)) == ["replan.policies.processing.MOST_ENLARGED", "torch.rsqrt()"]


class Poison(Method):
    """Changes the shared policy after its own first episode, where its own rows do not show it."""

    name = "poison"

    def attach(self, policy):
        self.policy = policy

    def end(self, success):
        self.way(self.policy)

    def way(self, policy):
        add_to_a_weight(policy)


class Hooking(Poison):
    def way(self, policy):
        register_a_hook(policy)


class Replacing(Poison):
    def way(self, policy):
        replace_a_stage(policy)


class Hasty(Poison):
    """Changes it when it is attached."""

    def attach(self, policy):
        add_to_a_weight(policy)


class Warming(Poison):
    """Changes it in a round."""

    def observe_full(self, call):
        add_to_a_weight(self.policy)


class Casting(Poison):
    def way(self, policy):
        autocast()


KINDS = {
    "cast": Casting,
    "dense": Method,
    "poison": Poison,
    "hook": Hooking,
    "replace": Replacing,
    "hasty": Hasty,
    "warming": Warming,
}


class Poisoned(Registry):
    def method(self, spec, policy):
        return MethodInfo()

    def agent(self, policy, method, dtype, device):
        super().agent(policy, "dense", dtype, device)
        return ChunkAgent(self._policies[policy], [KINDS[method]()])


def worker_of(*methods, registry=None):
    registry = registry or Poisoned()
    plain = {"method": ["dense", *methods], "episodes": 1, "set": {"speed": "15"}, "device": "cpu", "out": "unused"}
    prepared = make_plan(make_spec(plain, registry.suites()), registry, command="test", started="2026-01-01")
    return Worker(registry, prepared.spec, prepared.host), prepared.jobs


@pytest.mark.parametrize("method", ["poison", "hook", "replace"])
def test_a_method_that_leaves_the_shared_policy_changed_has_failed_and_dense_has_not(method):
    worker, (dense, job) = worker_of(method)
    assert worker.play(dense).failure is None
    row = worker.play(job)
    assert (row.status, row.success, row.outcome) == ("done", False, "raised")
    assert row.failure.startswith(f"Altered: method {method!r} changed the policy that all methods share: model.")


def test_a_method_that_leaves_autocast_on_has_failed(restored):
    worker, (_, job) = worker_of("cast")
    row = worker.play(job)
    assert row.outcome == "raised" and "torch.is_autocast_enabled('cpu')" in row.failure


class InPlace:
    """Normalises the state where it lies."""

    def reset(self, seed):
        pass

    def plan(self, observation):
        observation["state"] -= 1
        return np.full((20, 7), np.sin(observation["state"].sum()))


class Writing(Registry):
    def method(self, spec, policy):
        return MethodInfo()

    def agent(self, policy, method, dtype, device):
        return PlannerAgent(InPlace())


def test_an_episode_of_a_policy_that_writes_into_observations_does_not_depend_on_being_the_first_of_its_process():
    first, (dense, job) = worker_of("other", registry=Writing())
    second, _ = worker_of("other", registry=Writing())
    second._warm.add((job.policy, job.method))
    rows = [worker.play(job) for worker in (first, second)]
    assert [row.failure for row in rows] == [None, None]
    assert rows[0].trajectory_hash == rows[1].trajectory_hash


@pytest.mark.parametrize("method", ["hasty", "warming"])
def test_a_method_that_changes_the_policy_before_its_first_episode_is_refused(method):
    worker, jobs = worker_of(method)
    with pytest.raises(BadInput, match=f"{method!r} changed the policy that all methods share: model"):
        worker.build(jobs)


def test_no_row_comes_from_a_process_in_which_a_method_changed_the_policy(tmp_path):
    outcomes, hashes = {}, {}
    for methods in ("dense", "dense,poison"):
        rows = play(tmp_path / methods, method=methods, episodes=2).values()
        hashes[methods] = {row.cell: row.trajectory_hash for row in rows if row.method == "dense"}
        outcomes = {row.outcome for row in rows if row.method == "poison"}
    assert outcomes == {"raised"}
    assert hashes["dense,poison"] == hashes["dense"]
