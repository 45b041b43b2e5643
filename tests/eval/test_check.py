"""``check_policy`` finds what the harness could not live with: each fault is planted, and named."""

from __future__ import annotations

import random  # noqa: TID251 - whether it is used
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fake import FakeAgent, FakeRegistry
from replan.eval.check import BrokenPromise, check_policy
from replan.eval.commands.policy import check as check_command
from replan.eval.registry import MethodInfo, PolicyInfo
from replan.eval.remote.client import RemotePolicy
from replan.eval.spec import BadInput


class Faulty(FakeRegistry):
    """The fake policy with something changed in its agent."""

    def __init__(self, kind=FakeAgent, **info):
        super().__init__()
        self.kind, self.info = kind, info

    def policy(self, name):
        return PolicyInfo(**{"code": "0", **self.info})

    def method(self, spec, policy):
        return MethodInfo(routes=("full",))

    def agent(self, policy, method, dtype, device):
        agent = self.kind("dense")
        agent._host_ns = lambda: 50  # of which its stages are a part
        return agent


def check(registry):
    check_policy("fake", "belt", registry=registry)


def test_a_policy_that_keeps_the_contract_passes():
    check(Faulty())


class Remembers(FakeAgent):
    episodes_begun = 0

    def reset(self, seed):
        super().reset(seed)
        self.episodes_begun += 1
        self.rng = np.random.default_rng([seed, self.episodes_begun])


class DiffersByAgent(FakeAgent):
    made = 0

    def __init__(self, method):
        super().__init__(method)
        DiffersByAgent.made += 1
        self.salt = DiffersByAgent.made

    def reset(self, seed):
        super().reset(seed)
        self.rng = np.random.default_rng([seed, self.salt])


class Uses(FakeAgent):
    def _call(self, observation):
        round = super()._call(observation)
        round.actions = round.actions + np.float32(self.sample())
        return round


class UsesRandom(Uses):
    sample = staticmethod(lambda: 0 * random.random())


class UsesNumPy(Uses):
    sample = staticmethod(lambda: 0 * np.random.rand())  # noqa: NPY002


class UsesTorch(Uses):
    sample = staticmethod(lambda: 0 * float(torch.rand(1)))


class Writes(FakeAgent):
    def act(self, observation):
        action = super().act(observation)
        observation["state"][0] += 1
        return action


class Wide(FakeAgent):
    def act(self, observation):
        return np.zeros(3, np.float32) if super().act(observation) is not None else None


class Silent(FakeAgent):
    def act(self, observation):
        action = super().act(observation)
        self.round = None
        return action


class Undeclared(FakeAgent):
    def _call(self, observation):
        round = super()._call(observation)
        round.route = "shortcut"
        return round


class Slow(FakeAgent):
    def _call(self, observation):
        round = super()._call(observation)
        round.stages_ns = {"encode": 10**9}
        return round


class Guesses(FakeAgent):
    def _call(self, observation):
        round = super()._call(observation)
        round.accepted, round.drafted = 5, 4
        return round


class Counts(FakeAgent):
    def counters(self):
        return {"rate": float("nan")}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Remembers, "acts differently"),
        (DiffersByAgent, "another agent of this policy: from control step"),
        (UsesRandom, "random was used"),
        (UsesNumPy, "numpy.random was used"),
        (UsesTorch, "torch was used"),
        (Writes, "wrote into the observation's 'state'"),
        (Wide, "it acts.*shape"),
        (Silent, "made no round where needs_observation was True"),
        (Undeclared, "'shortcut' is not declared"),
        (Slow, "more than the round"),
        (Guesses, "accepted 5 of 4"),
        (Counts, "counters must be finite"),
    ],
)
def test_a_planted_fault_is_found_and_named(kind, words):
    with pytest.raises(BrokenPromise, match=words):
        check(Faulty(kind))


def test_what_does_not_fit_or_has_no_digest_of_its_code_is_named():
    with pytest.raises(BrokenPromise, match="its state is"):
        check(Faulty(incompatibilities=lambda *_: ["its state is (2,), not (3,)"]))
    with pytest.raises(BrokenPromise, match="no digest"):
        check(Faulty(code=""))


def test_a_policy_that_does_not_exist_is_bad_input_and_no_broken_promise():
    class Nobody(FakeRegistry):
        def policy(self, name):
            raise BadInput("no such policy")

    with pytest.raises(BadInput, match="no such policy"):
        check(Nobody())


def test_the_command_knows_suite_and_method_where_the_policy_says_them(monkeypatch):
    checked = []
    monkeypatch.setattr("replan.eval.check.check_policy", lambda *a, **k: checked.append((*a, k["method"])))
    assert CliRunner().invoke(check_command, ["pi0-tiny-hard"]).exit_code == 0
    assert checked == [("pi0-tiny-hard", "conveyor-hard", "dense")]


def test_a_server_is_checked_with_the_method_that_it_runs(monkeypatch):
    about = {"method": "few_step:steps=3", "suites": ["no such suite", "conveyor"]}
    monkeypatch.setattr(RemotePolicy, "_server", lambda self: SimpleNamespace(about=about, metadata={}, url="ws://x:1"))
    checked = []
    monkeypatch.setattr("replan.eval.check.check_policy", lambda *a, **k: checked.append((*a, k["method"])))
    said = CliRunner().invoke(check_command, ["ws://x:1"])
    assert checked == [("ws://x:1", "conveyor", "few_step:steps=3")], said.exception
    about["suites"] = None
    said = CliRunner().invoke(check_command, ["ws://x:1"])
    assert "nothing says which suite 'ws://x:1' is for; name it with --suite" in str(said.exception)
