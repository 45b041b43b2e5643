"""The real suites, policies and methods behind the harness: untrained weights on the conveyor."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import replan.results
import torch
from gymnasium import spaces
from play import make_cells, make_jobs, make_spec
from replan.accel.flash.draft import Draft, draft_path, save_draft
from replan.eval.bench import Bench
from replan.eval.clock import check_routes, parse_latency
from replan.eval.spec import read_toml
from replan.eval.worker import Worker
from replan.policies import checkpoint
from replan.policies.checkpoint import CheckpointError
from replan.policies.pi0 import TINY, Pi0
from replan.policies.processor import Processor
from replan.policies.training.train import initialise

REFERENCE = Path(replan.results.__file__).with_name("reference")


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


def test_checkpoints_of_a_method_are_the_policy_and_the_files_of_its_parts(policy):
    bench = Bench()
    found = bench.checkpoints([policy], ["dense", "flash", "flash+dp_cache", "few_step"])[policy]
    assert found["dense"].keys() == found["few_step"].keys() == {policy}
    assert found["flash"].keys() == found["flash+dp_cache"].keys() == {policy, f"{policy}.flash-draft"}
    assert all(len(sha256) == 64 for files in found.values() for sha256 in files.values())
    assert found["flash"][policy] == found["dense"][policy] != found["flash"][f"{policy}.flash-draft"]
    assert bench.marks(policy) == ("untrained",)


def test_what_the_card_says_about_suites_is_read(policy, tmp_path):
    assert Bench().trained_on(policy) is None
    header = checkpoint.read_header(Path(policy))
    told = replace(header, card={"suites": ["conveyor", "libero_object"]})
    checkpoint.save(tmp_path / "told.safetensors", told, Pi0(TINY))
    assert Bench().trained_on(str(tmp_path / "told.safetensors")) == ("conveyor", "libero_object")


def test_policy_fits_the_spaces_that_it_was_made_for_and_others_are_told_apart(policy):
    bench = Bench()
    env = bench.environment(bench.suites()["conveyor"], {})
    assert bench.misfits(policy, env.observation_space, env.action_space) == []
    image = spaces.Box(0, 255, (256, 256, 3), np.uint8)
    views = {"agentview": image, "wrist": image, "state": spaces.Box(-1, 1, (8,)), "instruction": spaces.Text(9)}
    assert bench.misfits(policy, spaces.Dict(views), spaces.Box(-1, 1, (14,))) == [
        "it has no camera 'third', but ['agentview', 'wrist']",
        f"its state is (8,), not ({TINY.state_dim},)",
        f"its action is (14,), not ({TINY.action_dim},)",
    ]


def test_missing_draft_is_told_by_name_and_only_to_who_needs_it(policy, tmp_path):
    alone = shutil.copyfile(policy, tmp_path / "alone.safetensors")
    assert Bench().checkpoints([str(alone)], ["dense"])
    with pytest.raises(CheckpointError, match=r"flash needs .*alone\.flash-draft\.safetensors"):
        Bench().checkpoints([str(alone)], ["dense", "flash"])


def test_unknown_policy_and_method_are_named():
    with pytest.raises(ValueError, match="unknown policy 'pi0-tny'"):
        Bench().checkpoints(["pi0-tny"], ["dense"])
    with pytest.raises(ValueError, match="unknown method 'flsh'; did you mean flash"):
        Bench().must_move("flsh")


def test_counters_that_prove_activity_are_those_of_all_parts():
    bench = Bench()
    assert bench.must_move("dense") == ()
    assert bench.must_move("flash+dp_cache") == bench.must_move("flash") + bench.must_move("dp_cache")
    assert bench.must_move("flash") != ()


def test_routes_and_shortened_schedules_are_those_of_all_parts():
    bench = Bench()
    assert bench.routes("dense") == ("full",)
    assert bench.routes("few_step+flash") == ("full", "flash", "fallback")
    assert bench.reschedules("flash+dp_cache") == ("dp_cache",)
    assert bench.reschedules("few_step:steps=3") == ("few_step",)
    assert bench.reschedules("dense") == bench.reschedules("flash") == ()


@pytest.mark.parametrize("file", sorted(REFERENCE.rglob("*.toml")), ids=lambda file: file.stem)
def test_reference_specification_works_as_it_is(file):
    bench = Bench()
    spec = make_spec({**read_toml(file), "out": "unused"}, bench.suites())
    check_routes(parse_latency(spec.latency), {method: bench.routes(method) for method in spec.method})
    assert make_cells(spec, bench.suites())


def test_real_policy_plays_a_real_episode_with_every_method_and_agents_do_not_disturb_each_other(policy):
    bench = Bench()
    methods = "dense,flash,few_step,dp_cache"
    plain = {"policy": policy, "method": methods, "episodes": 1, "out": "unused", "set": {"speed": "15"}}
    spec = make_spec({**plain, "clock": "realtime", "latency": "profile:flash-triton-4090d"}, bench.suites())
    jobs = make_jobs(spec, make_cells(spec, bench.suites()), bench.checkpoints([policy], spec.method), None)
    worker = Worker(bench, spec)
    rows = {job.method: worker.play(job) for job in jobs}
    assert [row.error for row in rows.values()] == [None] * 4
    assert len({row.observation_hash for row in rows.values()}) == 1
    for row in rows.values():
        assert len(row.rounds) > 1
        assert all(call.host_ns > 0 and call.cpu_ns > 0 and call.stages_ns for call in row.rounds)
        assert row.sim_ns >= sum(call.latency_ns for call in row.rounds)
    assert worker.play(jobs[0]).trajectory_hash == rows["dense"].trajectory_hash
