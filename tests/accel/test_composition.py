"""Every method on every family, and every pair of methods that may act together: they run, and their limit is dense."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from replan import accel
from replan.accel import library
from replan.accel.rmuscle.recording import RATIOS, Recording
from replan.policies.agent import ChunkAgent
from replan.policies.families import family, kinds, size
from replan.policies.model import CONTAINS
from replan.policies.seams import Seam, obstacle
from replan.policies.untrained import observations, untrained

KNOWN = 3  # rounds: methods that replace every second one leave two to the others
# Models are smaller than tiny, since there are many pairs.
SMALL = {"steps": 6}
SMALLER = {"pi0": dict(vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)}
# By method, options with which it acts in a few rounds, and those with which it is dense ({n} is the policy's steps).
ACTS_AND_LIMITS = {
    "window": ("execute=2", "execute=1"),
    "hold": ("rounds=1", "rounds=0"),
    "stale_prefix": ("every=2", "every=1"),
    "few_step": ("steps=2", "steps={n}"),
    "warm_start": ("tau=0.5", "tau=1"),
    "dp_cache": ("keep=0/1", "keep={all}"),
    "bac": ("updates=2", "updates={n}"),
    "probe_flow": ("least=4:high=1.9", "least={n}"),
    "flash": ("delta=99:gripper=false:refresh=1", "delta=0"),
    "wam_cache": ("attention=0.4", "attention=1"),
    "vla_cache": ("relevant=0.1:similarity=-1:layers=all", "static=0"),
    "eventful": ("ratio=0.5", "ratio=1"),
    "fastv": ("layer=1:keep=0.5", "keep=1"),
    "vla_pruner": ("layer=1:keep=0.5:window=1", "keep=1"),
    "tome": ("merge=0.2", "merge=0"),
    "context_cache": ("ratio=0.4", "ratio=1"),
    "action_cache": ("ratio=0.5", "ratio=1"),
    "loop_cache": ("tokens=0.4", "tokens=1:neurons=1"),
    "rmuscle": ("similarity=-1", "tokens=1:neurons=1"),
    "nirvana": ("given=1:similarity=-1", "given=0"),
}
BACKENDS = ("compile", "cudagraph", "triton")  # equal within rounding, and two of them need a GPU: test_backends.py
NAMES = [name for name in accel.BUILT_IN if name != "dense" and name not in BACKENDS]


def specs(policy, name):
    steps = policy.model.flow.steps
    acts, limit = ACTS_AND_LIMITS[name]
    return f"{name}:{acts}", f"{name}:{limit.format(n=steps, all='/'.join(map(str, range(steps))))}"


def play(policy, methods, frames):
    agent = ChunkAgent(policy, methods, window=1)
    agent.reset(3)
    chunks = []
    for observation in frames:
        agent.act(observation)
        while agent.round is None:  # an action of the last round
            agent.act(observation)
        chunks.append(agent.round.chunk)
        agent.idle(10**9)
    agent.end(True)
    return torch.cat(chunks), agent


@pytest.fixture(scope="module")
def small():
    """Makes the tiny sizes smaller."""

    def smaller(known, name):
        return replace(size(known, name), **SMALL, **SMALLER.get(known.kind, {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replan.policies.families.size", smaller)
        yield


@pytest.fixture(scope="module")
def families(tmp_path_factory, small):
    """A tiny policy of every family with what methods need next to it, rounds, and the dense answer, made once."""
    made = {}

    def make(kind):
        if kind not in made:
            policy = untrained(kind, "tiny", tmp_path_factory.mktemp(kind), words=8)
            frames = observations(policy, KNOWN)
            dense, _ = play(policy, (), frames[:2])
            recording = Recording()
            play(policy, [recording], frames)
            episode = library.Episode(str(frames[0]["instruction"]), "first", recording.entries)
            about = {"ratios": RATIOS, "anchors": recording.anchors, "neurons": recording.neurons}
            library.write(library.library_path(policy.path), [episode], policy.files, **about)
            if "flash" in {name for name in NAMES if obstacle(accel.BUILT_IN[name], type(policy.model), kind) is None}:
                accel.BUILT_IN["flash"]().make_files(policy)
            made[kind] = policy, frames, dense
        return made[kind]

    return make


def runs_on(kind):
    return [name for name in NAMES if obstacle(accel.BUILT_IN[name], family(kind).model, kind) is None]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in kinds() for name in runs_on(kind)])
def test_a_method_that_lists_a_family_acts_on_it_and_is_dense_at_its_limit(families, kind, name):
    policy, frames, dense = families(kind)
    acts, limit = specs(policy, name)
    (method,) = accel.parse(acts)
    chunks, agent = play(policy, [method], frames)
    assert chunks.isfinite().all()
    assert all(agent.counters()[counter] > 0 for counter in method.activity_counters)
    chunks, _ = play(policy, accel.parse(limit), frames[:2])
    assert torch.equal(chunks, dense)


def clash(one, other):
    """Returns the seam for which two methods are refused, or None."""
    mine, others = accel.BUILT_IN[one].claims, accel.BUILT_IN[other].claims
    if shared := mine & others:
        return min(shared)
    inside = {seam for outer, inner in CONTAINS.items() for seam in inner if outer in mine | others}
    return min((inside & (mine | others)), default=None)


PERMITTED = [pair for pair in itertools.combinations(runs_on("pi0"), 2) if clash(*pair) is None]
REFUSED = [pair for pair in itertools.combinations(runs_on("pi0"), 2) if clash(*pair)]


@pytest.mark.parametrize(("one", "other"), PERMITTED, ids=map("+".join, PERMITTED))
def test_a_pair_that_claims_permit_acts_and_is_dense_at_its_joint_limit(families, one, other):
    policy, frames, dense = families("pi0")
    acts, limits = ("+".join(each) for each in zip(specs(policy, one), specs(policy, other), strict=True))
    if {one, other} == {"bac", "nirvana"}:  # bac learns from a round that starts at the noise: without a reference
        frames = [{**frames[0], "instruction": "word1"}, *frames]
    chunks, agent = play(policy, accel.parse(acts), frames)
    assert chunks.isfinite().all()
    moved = {counter: agent.counters().get(counter, 0) for m in agent.methods.all for counter in m.activity_counters}
    assert all(moved.values()), moved
    chunks, _ = play(policy, accel.parse(limits), frames[-KNOWN:][:2])
    assert torch.equal(chunks, dense)


@pytest.mark.parametrize(("one", "other"), REFUSED, ids=map("+".join, REFUSED))
def test_any_other_pair_is_refused_with_the_seam_that_both_want(one, other):
    required = {"window": ":execute=2"}
    with pytest.raises(ValueError, match="cannot be combined") as refused:
        accel.parse(f"{one}{required.get(one, '')}+{other}{required.get(other, '')}")
    assert repr(one) in str(refused.value) and repr(other) in str(refused.value)
    assert any(seam.value in str(refused.value) for seam in Seam)
