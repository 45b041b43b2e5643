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
from replan.accel.flash.draft import Draft, DraftConfig, draft_path, save_draft
from replan.accel.nirvana import Nirvana
from replan.accel.rmuscle.method import RMuscle
from replan.eval.describe import describe
from replan.eval.evaluate import make_plan
from replan.eval.registry import Files, Registry, _file_name
from replan.eval.spec import BadInput, make_spec, read_toml
from replan.eval.worker import Worker
from replan.policies import checkpoint
from replan.policies.pi0 import TINY, Pi0, Pi0Processor
from replan.policies.training.train import initialise
from replan.results.schema import Mark

REFERENCE = Path(replan.results.__file__).with_name("reference")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """Path of an untrained policy with an untrained draft beside it."""
    path = tmp_path_factory.mktemp("policy") / "untrained.safetensors"
    words = ("<pad>", "put", "the", "toy", "dog", "hairbrush", "in", "red", "blue", "bin")
    state, action = TINY.state_dim, TINY.action_dim
    processor = Pi0Processor(
        cameras=("third", "wrist"),
        image_size=TINY.image_size,
        words=words,
        max_tokens=8,
        state_mean=(0.0,) * state,
        state_std=(1.0,) * state,
        action_mean=(0.0,) * action,
        action_std=(1.0,) * action,
        gripper=(6,),
        replan=10,
    )
    generator = torch.Generator().manual_seed(0)
    model, draft = Pi0(TINY), Draft(DraftConfig.of(TINY))
    initialise(model, generator)
    draft.start_from(model.vlm[0], generator)
    checkpoint.save(path, checkpoint.Header("pi0", asdict(TINY), asdict(processor), {"marks": ["untrained"]}), model)
    save_draft(draft_path(path), draft, {}, [path])
    return str(path)


def test_files_of_a_method_are_those_of_its_parts(policy):
    registry = Registry()
    own = registry.policy(policy).files.sha256
    assert own.keys() == {policy} and len(own[policy]) == 64
    files = {
        spec: registry.method(spec, policy).files.sha256 for spec in ("dense", "few_step", "flash", "flash+dp_cache")
    }
    assert files["dense"] == files["few_step"] == {}
    assert files["flash"] == files["flash+dp_cache"]
    assert files["flash"].keys() == {f"{policy}.flash-draft"} and not set(files["flash"].values()) & set(own.values())


def test_the_weights_of_a_row_are_the_digest_that_inspect_and_drafts_give_a_policy(policy, tmp_path):
    copy = Path(shutil.copyfile(policy, tmp_path / "a.safetensors"))
    (tmp_path / "b.json").write_text("{}")
    for paths in ([copy], [copy, tmp_path / "b.json"], [tmp_path / "b.json", copy]):
        assert Files({str(path): path for path in paths}).digest == checkpoint.files_hash(paths)
    assert Files({"a": copy}).digest == checkpoint.file_hash(copy)
    assert Files().digest == ""


def test_what_the_card_says_is_read(policy, tmp_path):
    info = Registry().policy(policy)
    assert (info.marks, info.trained_on) == ((Mark("untrained", "untrained"),), None)
    header = checkpoint.read_header(Path(policy))
    card = {"suites": ["conveyor", "libero_object"], "marks": ["tiny: trained here"]}
    checkpoint.save(tmp_path / "other.safetensors", replace(header, card=card), Pi0(TINY))
    info = Registry().policy(str(tmp_path / "other.safetensors"))
    assert (info.marks, info.trained_on) == ((Mark("tiny", "trained here"),), ("conveyor", "libero_object"))


def test_policy_fits_the_spaces_that_it_was_made_for_and_says_why_it_does_not_fit_others(policy):
    registry = Registry()
    env = registry.environment(registry.suites()["conveyor"], {})
    incompatibilities = registry.policy(policy).incompatibilities
    assert incompatibilities(env.observation_space, env.action_space) == []
    image = spaces.Box(0, 255, (256, 256, 3), np.uint8)
    views = {"agentview": image, "wrist": image, "state": spaces.Box(-1, 1, (8,)), "instruction": spaces.Text(9)}
    assert incompatibilities(spaces.Dict(views), spaces.Box(-1, 1, (14,))) == [
        "the suite has no camera 'third', but ['agentview', 'wrist']",
        f"the suite's state is (8,), the policy's ({TINY.state_dim},)",
        f"the suite's action is (14,), the policy's ({TINY.action_dim},)",
    ]


def test_missing_file_of_a_method_is_named_and_only_methods_that_need_it_are_refused(policy, tmp_path):
    alone = str(shutil.copyfile(policy, tmp_path / "alone.safetensors"))
    assert Registry().method("dense", alone).files.sha256 == {}
    with pytest.raises(
        BadInput, match=r"method 'dp_cache\+flash' needs '.*alone\.flash-draft\.safetensors'.*'flash' needs"
    ):
        Registry().method("dp_cache+flash", alone)


def test_unknown_policy_and_method_are_named(policy):
    with pytest.raises(ValueError, match="unknown policy 'pi0-tny'"):
        Registry().policy("pi0-tny")
    with pytest.raises(ValueError, match="unknown method 'flsh'; did you mean flash"):
        Registry().method("flsh", policy)


def test_counters_routes_and_shortened_schedules_are_those_of_all_parts(policy):
    info = {
        spec: Registry().method(spec, policy) for spec in ("dense", "flash", "dp_cache", "flash+dp_cache", "few_step")
    }
    assert info["dense"].activity_counters == ()
    assert info["flash"].activity_counters != () != info["dp_cache"].activity_counters
    both = info["flash"].activity_counters + info["dp_cache"].activity_counters
    assert info["flash+dp_cache"].activity_counters == both
    assert info["dense"].routes == ("full",)
    assert info["flash+dp_cache"].routes == ("full", "flash", "fallback")
    assert info["flash+dp_cache"].reschedules == ("dp_cache",)
    assert Registry().method("few_step:steps=3", policy).reschedules == ("few_step",)
    assert info["dense"].reschedules == info["flash"].reschedules == ()
    assert not any(each.ordered for each in info.values())


def test_precision_is_that_of_the_policy(policy):
    agent = Registry().agent(policy, "dense", "bfloat16", "cpu")
    assert {parameter.dtype for parameter in agent.policy.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("file", sorted(REFERENCE.rglob("*.toml")), ids=lambda file: file.stem)
def test_reference_specification_works_as_it_is(file, monkeypatch):
    registry = Registry()
    # Fingerprints would need the benchmarks to be installed.
    suites = {name: replace(suite, fingerprint=None) for name, suite in registry.suites().items()}
    monkeypatch.setattr(registry, "suites", lambda: suites)
    for method in (Nirvana, RMuscle):  # libraries are not committed: `make reference` builds them
        monkeypatch.setattr(method, "files", lambda self, policy: [])
        monkeypatch.setattr(method, "first_observations", lambda self, policy: frozenset())
    spec = make_spec({**read_toml(file), "out": "unused"}, suites)
    plan = make_plan(spec, registry, command="test", started="2026-01-01")
    assert len(plan.jobs) == len({job.key for job in plan.jobs}) > 0
    assert all(plan.record.activity_counters[method] for method in spec.method if method != "dense")


def test_real_policy_plays_a_real_episode_with_every_method_and_agents_do_not_disturb_each_other(policy):
    registry = Registry()
    methods = "dense,flash:gripper=false,few_step,dp_cache"  # an untrained gripper switches in every draft
    plain = {
        "policy": policy,
        "method": methods,
        "episodes": 1,
        "out": "unused",
        "set": {"speed": "15"},
        "device": "cpu",
    }
    spec = make_spec({**plain, "clock": "realtime", "latency": "profile:flash-triton-4090d"}, registry.suites())
    plan = make_plan(spec, registry, command="test", started="2026-01-01")
    worker = Worker(registry, plan.spec, plan.host)
    rows = {job.method: worker.play(job) for job in plan.jobs}
    assert [row.error for row in rows.values()] == [None] * 4
    assert len({row.observation_hash for row in rows.values()}) == 1
    for row in rows.values():
        assert len(row.rounds) > 1
        assert all(each.host_ns > 0 and each.cpu_ns > 0 and each.stages_ns for each in row.rounds)
        assert row.sim_ns >= sum(each.latency_ns for each in row.rounds)
        assert all((each.drafted is None) == (each.accepted is None) for each in row.rounds)
    assert any(each.drafted for each in rows["flash:gripper=false"].rounds)
    assert worker.play(plan.jobs[0]).trajectory_hash == rows["dense"].trajectory_hash


def test_no_file_of_a_method_takes_the_name_of_the_policys_or_of_another(policy):
    path = Path(policy)
    others = [
        path.with_suffix(".table"),
        path.with_name(f"{path.stem}.lib.bin"),
        path.with_name(f"{path.stem}.lib.json"),
    ]
    draft = draft_path(path)
    names = [_file_name("p", path, file) for file in (*others, draft, path.parent / "other" / draft.name)]
    assert len({"p", *names}) == 6
    assert names[3] == "p.flash-draft"  # as in runs that were recorded before


@pytest.mark.parametrize("method", ["dense", "few_step", "flash"])
def test_the_code_of_everything_that_decides_an_episode_is_recorded(method):
    """A part without a digest would count as not recorded, and its rows would be compared with none of another run."""
    code = Registry().code("conveyor", "pi0-tiny", method)
    assert code.keys() == {"suite", "policy", "method"} and all(code.values())


def test_instructions_with_words_that_a_policy_lacks_are_refused_before_it_is_loaded(policy, tmp_path):
    """The untrained policy knows the conveyor's words, but neither 'either' nor those of packing."""
    suites = Registry().suites()

    def of(**fields):
        return describe(make_spec({"out": str(tmp_path), "policy": policy, **fields}, suites), Registry())

    assert of().policies.keys() == {policy}
    with pytest.raises(BadInput, match=r"task 'dog-either' and of 1 more in suite 'conveyor-either': .*\['either'\]"):
        of(suite=["conveyor", "conveyor-either"])
    with pytest.raises(BadInput, match=r"task 'leg-screw-top' in suite 'packing'.*--task"):
        of(suite="packing", task="leg-screw-top")
