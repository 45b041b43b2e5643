"""Parts of RoboTwin that need no scene: timing, the asset tree, stored scenes, the Vulkan driver, a foreign pickle."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from multiprocessing import Pipe

import numpy as np
import pytest
from replan.envs import SUITES, SuiteUnavailable
from replan.envs.demonstrations import TRAINING_SEED
from replan.envs.robotwin import find_scenes, planner, seeds, serve, vulkan
from replan.envs.robotwin.planner import ACCELERATION, SPEED, STEP, CpuPlanner
from replan.envs.robotwin.source import open_standin
from replan.envs.robotwin.standin import build
from replan.envs.robotwin.tasks import COUNT, STORED, TASKS, standin_tasks

TIMER = CpuPlanner.__new__(CpuPlanner)  # timing needs no robot


@pytest.mark.parametrize("far", [0.002, 0.1, 0.9, 1.1, 3.0])
def test_a_way_is_timed_as_fast_as_the_limits_allow(far):
    rng = np.random.default_rng(0)
    turn = rng.uniform(-1, 1, 6)
    turn *= far / np.abs(turn).max()
    start = rng.normal(size=6)
    times, position, velocity, acceleration, duration = TIMER.TOPP(np.stack([start, start + turn]))
    np.testing.assert_allclose(position[0], start)
    np.testing.assert_allclose(position[-1], start + turn)
    np.testing.assert_allclose(velocity[[0, -1]], 0, atol=1e-9)
    assert np.abs(velocity).max() <= SPEED + 1e-9
    assert np.abs(acceleration).max() <= ACCELERATION + 1e-9
    np.testing.assert_allclose(np.gradient(position, times, axis=0), velocity, atol=2 * STEP)  # they belong together
    # Bang-bang is the fastest: with a top speed, the ramps cover SPEED^2 / ACCELERATION.
    ramps = SPEED**2 / ACCELERATION
    fastest = 2 * np.sqrt(far / ACCELERATION) if far < ramps else SPEED / ACCELERATION + far / SPEED
    assert duration == pytest.approx(fastest)
    assert len(times) == int(duration / STEP)


def test_the_timing_is_that_of_the_library_which_upstream_uses():
    toppra = pytest.importorskip("toppra", reason="toppra is not installed; run `replan setup robotwin`")
    toppra.setup_logging("CRITICAL")
    limits = np.tile([-1.0, 1.0], (6, 1))
    for far in (0.05, 0.5, 2.0):
        way = np.stack([np.zeros(6), far * np.linspace(-1, 0.7, 6)])
        constraints = [
            toppra.constraint.JointVelocityConstraint(limits),
            toppra.constraint.JointAccelerationConstraint(limits),
        ]
        spline = toppra.SplineInterpolator([0, 1], way)
        theirs = toppra.algorithm.TOPPRA(constraints, spline, parametrizer="ParametrizeConstAccel").compute_trajectory()
        times, position, velocity, _, duration = TIMER.TOPP(way)
        assert duration == pytest.approx(theirs.duration, abs=1e-5)
        np.testing.assert_allclose(position, theirs(times), atol=1e-5)
        np.testing.assert_allclose(velocity, theirs(times, 1), atol=1e-5)


@pytest.mark.parametrize("way", [np.zeros((2, 6)), np.zeros((3, 6)), np.zeros((1, 6))])
def test_what_is_no_way_is_refused(way):
    with pytest.raises(ValueError, match="the way"):
        TIMER.TOPP(way)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    for package in ("trimesh", "gym_aloha"):
        pytest.importorskip(package, reason=f"{package} is not installed; run `replan setup robotwin`")
    return build.build(tmp_path_factory.mktemp("cache"))


def test_stored_scenes_belong_to_the_tree_that_is_built_and_to_this_planner(built):
    stored = json.loads(STORED.read_text())
    assert stored["fingerprint"]["assets"] == build.digest(built)
    assert stored["fingerprint"]["planner"] == f"cpu {planner.VERSION}"


def test_the_tree_means_the_same_when_it_is_built_again(built, tmp_path):
    assert build.digest(build.build(tmp_path)) == build.digest(built) == build.meaning(built)


def test_a_changed_file_is_noticed_before_anything_is_measured(built, tmp_path, monkeypatch):
    copy = shutil.copytree(built, build.tree(tmp_path))
    assert build.verify(copy) == build.digest(built)
    mesh = next(copy.rglob("*.glb"))
    mesh.write_bytes(mesh.read_bytes()[:-1])
    with pytest.raises(SuiteUnavailable, match=f"{mesh.name} is not what was built.*replan setup robotwin"):
        build.verify(copy)
    monkeypatch.setenv("REPLAN_CACHE", str(tmp_path))
    with pytest.raises(SuiteUnavailable, match=f"{mesh.name} is not what was built"):
        open_standin()


def test_a_tree_of_another_version_is_noticed(built, tmp_path):
    copy = shutil.copytree(built, tmp_path / "tree")
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "recipe": "older"}))
    with pytest.raises(SuiteUnavailable, match="another version.*replan setup robotwin"):
        build.verify(copy)


def test_every_task_of_the_suite_has_its_scenes():
    stored = json.loads(STORED.read_text())["tasks"]
    assert SUITES["robotwin"].tasks == standin_tasks() == tuple(stored)
    assert set(stored) <= set(TASKS) == set(SUITES["robotwin-real"].tasks)
    for scenes in stored.values():
        assert len(set(scenes)) == COUNT == SUITES["robotwin"].init_states
        assert find_scenes.FIRST <= min(scenes) and max(scenes) < TRAINING_SEED


class Expert:
    """Solves every third scene; every fifth does not come to rest."""

    failure = "nothing"

    def reset(self, task, seed, about=None):
        from replan.envs.robotwin.world import UnstableScene

        self.seed, self.task = seed, task
        if seed % 5 == 0:
            raise UnstableScene(str(seed))

    def demonstrate(self, every):
        return self.seed % 3 == 0 and self.task != "impossible"

    def played_about(self):
        return {"{A}": self.task} if self.task == "checkout" else None


KEY = {"assets": "these", "planner": "cpu 1"}


def test_scenes_are_found_stored_and_found_again(tmp_path, capsys):
    path = seeds.cached(tmp_path, KEY)
    find_scenes.compute(Expert(), KEY, ["wheel", "impossible", "checkout"], path, most=500)
    assert "impossible" in capsys.readouterr().out
    found = seeds.load(KEY, tmp_path, "wheel")
    assert len(found) == COUNT
    assert all(seed % 3 == 0 and seed % 5 and about is None for seed, about in found)
    assert seeds.load(KEY, tmp_path, "checkout")[0] == (found[0][0], {"{A}": "checkout"})
    written = path.stat().st_mtime_ns
    find_scenes.compute(Expert(), KEY, ["wheel"], path, most=500)
    assert path.stat().st_mtime_ns == written  # nothing is searched twice


def test_a_task_that_the_expert_hardly_solves_is_left_out(tmp_path, capsys):
    path = seeds.cached(tmp_path, KEY)
    find_scenes.compute(Expert(), KEY, ["wheel"], path)
    assert (
        f"solves only 4 of {4 + find_scenes.MOST - COUNT + 1} scenes" in capsys.readouterr().out
    )  # then it is hopeless
    with pytest.raises(SuiteUnavailable):
        seeds.load(KEY, tmp_path, "wheel")


def test_scenes_of_other_assets_are_refused_with_the_command_that_finds_them(tmp_path):
    find_scenes.compute(Expert(), KEY, ["wheel"], seeds.cached(tmp_path, KEY), most=500)
    with pytest.raises(SuiteUnavailable, match="assets others.*replan.envs.robotwin.find_scenes wheel"):
        seeds.load({**KEY, "assets": "others"}, tmp_path, "wheel")
    with pytest.raises(SuiteUnavailable, match="find_scenes --real wheel"):
        seeds.load({**KEY, "config": "demo_clean"}, tmp_path, "wheel")


def test_the_driver_that_the_user_names_goes_first(tmp_path, monkeypatch):
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    vulkan.activate(tmp_path)
    assert not environment  # nothing was unpacked
    vulkan.driver(tmp_path).parent.mkdir()
    vulkan.driver(tmp_path).touch()
    vulkan.activate(tmp_path)
    assert environment[vulkan.LOADER_VARIABLE] == str(vulkan.driver(tmp_path))
    environment[vulkan.LOADER_VARIABLE] = "mine.json"
    vulkan.activate(tmp_path)
    assert environment[vulkan.LOADER_VARIABLE] == "mine.json"


def test_a_driver_that_is_none_is_reported(tmp_path):
    pytest.importorskip("sapien", reason="SAPIEN is not installed; run `replan setup robotwin`")
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": "none.so"}}))
    assert vulkan.probe(broken)


def test_plain_values_and_arrays_cross_and_code_does_not():
    here, there = Pipe()
    sent = (
        "done",
        {"head": np.arange(6, dtype=np.uint8).reshape(2, 3), "n": None, "one": np.float32(2)},
        [1, "a", True],
    )
    serve.send(here, sent)
    kind, values, rest = serve.receive(there)
    assert (kind, values["n"], float(values["one"]), rest) == ("done", None, 2.0, (1, "a", True))
    np.testing.assert_array_equal(values["head"], sent[1]["head"])
    assert values["head"].dtype == np.uint8 and values["head"].flags.writeable
    here.send_bytes(pickle.dumps(print))
    with pytest.raises(pickle.UnpicklingError, match="print"):
        serve.receive(there)


def test_a_driver_that_the_user_named_and_that_is_not_there_is_named(monkeypatch):
    monkeypatch.delenv("VK_ICD_FILENAMES", raising=False)
    assert vulkan.fix() == vulkan.FIX
    monkeypatch.setenv("VK_ICD_FILENAMES", "/no/driver.json")
    assert vulkan.fix() == "VK_ICD_FILENAMES names /no/driver.json, which is not there; unset it"
