"""The real suites, policies and methods behind the harness: untrained weights on the conveyor."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from play import make_cells, make_jobs, make_spec
from replan.accel.flash.draft import Draft, draft_path, save_draft
from replan.eval.bench import Bench
from replan.eval.worker import Worker
from replan.policies import checkpoint
from replan.policies.pi0 import TINY, Pi0
from replan.policies.processor import Processor
from replan.policies.training.train import initialise


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Path of an untrained policy with an untrained draft beside it."""
    path = tmp_path_factory.mktemp("policy") / "untrained.safetensors"
    words = ("", "put", "the", "toy", "dog", "hairbrush", "in", "red", "blue", "bin")
    state, action = TINY.state_dim, TINY.action_dim
    processor = Processor(
        cameras=("third", "wrist"),
        image_size=TINY.image_size,
        words=words,
        max_tokens=8,
        state_mean=(0.0,) * state,
        state_std=(1.0,) * state,
        action_mean=(0.0,) * action,
        action_std=(1.0,) * action,
        gripper=6,
        replan=10,
    )
    generator = torch.Generator().manual_seed(0)
    model, draft = Pi0(TINY), Draft(TINY)
    initialise(model, generator)
    draft.start_from(model, generator)
    checkpoint.save(path, checkpoint.Header("pi0", asdict(TINY), asdict(processor), {"marks": ["untrained"]}), model)
    save_draft(draft_path(path), draft, TINY, {}, path)
    return str(path)


def test_checkpoints_cover_the_policy_and_what_lies_beside_it(policy):
    bench = Bench()
    found = bench.checkpoints(policy)
    assert set(found) == {policy, f"{policy}.flash-draft"}
    assert all(len(sha256) == 64 for sha256 in found.values())
    assert bench.marks(policy) == ("untrained",)


def test_unknown_policy_and_method_are_named():
    with pytest.raises(ValueError, match="unknown policy 'pi0-tny'"):
        Bench().checkpoints("pi0-tny")
    with pytest.raises(ValueError, match="unknown method 'flsh'; did you mean flash"):
        Bench().must_move("flsh")


def test_counters_that_prove_activity_are_those_of_all_parts():
    bench = Bench()
    assert bench.must_move("dense") == ()
    assert bench.must_move("flash+dp_cache") == bench.must_move("flash") + bench.must_move("dp_cache")
    assert bench.must_move("flash") != ()


def test_real_policy_plays_a_real_episode_with_every_method_and_agents_do_not_disturb_each_other(policy):
    bench = Bench()
    methods = "dense,flash,few_step,dp_cache"
    plain = {"policy": policy, "method": methods, "episodes": 1, "out": "unused", "set": {"speed": "15"}}
    spec = make_spec({**plain, "clock": "realtime", "latency": "profile:flash-triton-4090d"}, bench.suites())
    jobs = make_jobs(spec, make_cells(spec, bench.suites()), {}, None)
    worker = Worker(bench, spec)
    rows = {job.method: worker.play(job) for job in jobs}
    assert [row.error for row in rows.values()] == [None] * 4
    assert len({row.observation_hash for row in rows.values()}) == 1
    for row in rows.values():
        assert len(row.rounds) > 1
        assert all(call.host_ns > 0 and call.cpu_ns > 0 and call.stages_ns for call in row.rounds)
        assert row.sim_ns >= sum(call.latency_ns for call in row.rounds)
    assert worker.play(jobs[0]).trajectory_hash == rows["dense"].trajectory_hash
