"""Setting suites up and finding out what is missing, with trials that need no simulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from replan.envs import SUITES
from replan.eval import probes
from replan.eval.cli import main
from replan.eval.commands import CommandFailed, setup
from replan.eval.probes import Trial, attempt, family

FINE = Trial("")


@pytest.fixture
def replan(capsys):
    """Runs a command in this process; returns its exit code, the lines of stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main(list(arguments))
        out, err = capsys.readouterr()
        return end.value.code, out.splitlines(), err

    return call


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", None),
        ("import sys; sys.exit('the mesh is missing')", "the mesh is missing"),
        ("import sys; print('noise'); print('more', file=sys.stderr); 1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os.abort()", "the process was killed by SIGABRT"),
        ("import os; os._exit(7)", "the process ended with exit code 7"),
    ],
)
def test_a_trial_says_what_went_wrong_and_cannot_take_us_down(code, problem):
    assert attempt(Trial(code)) == problem


def test_a_trial_that_hangs_ends(monkeypatch):
    monkeypatch.setattr(probes, "TIMEOUT", 1)
    assert attempt(Trial("import time; time.sleep(60)")) == "no answer within 1 s"


def test_every_suite_has_trials_and_can_be_set_up():
    assert {family(suite) for suite in SUITES.values()} == probes.TRIALS.keys() == setup.PREPARE.keys()


def test_drawing_is_tried_with_the_backend_that_was_chosen(monkeypatch):
    assert attempt(probes.DRAWING) is None
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert "nonsense" in (attempt(probes.DRAWING) or "")


def test_backend_is_chosen_anew_unless_the_user_chose(monkeypatch):
    print_it = Trial("import os, sys; sys.exit(os.environ.get('MUJOCO_GL', 'free'))")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr("replan.envs.opengl.chosen", "egl")  # when only EGL was there
    assert attempt(print_it) == "free"
    monkeypatch.setattr("replan.envs.opengl.chosen", None)
    assert attempt(print_it) == "egl"


def test_a_suite_is_tried_whole():
    assert attempt(probes.PLAYING, "conveyor") is None
    assert "KeyError" in (attempt(probes.PLAYING, "no such suite") or "")


def test_unavailable_suite_says_what_mends_it(monkeypatch, tmp_path):
    monkeypatch.setenv("REPLAN_CACHE", str(tmp_path))
    assert (attempt(probes.ROBOTWIN_FILES, "robotwin") or "").endswith("run `replan setup robotwin`")
    assert attempt(probes.ROBOTWIN_FILES, "robotwin-real") is None


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """One family that works, one that lacks files, one that dies for want of a system package."""
    count = tmp_path / "count"
    counted = Trial(
        f"open({str(count)!r}, 'a').write('x'); import sys; sys.exit('no files; run `replan setup libero`')"
    )
    dies = Trial("import os; os.abort()", packages=(("libfake",),))
    monkeypatch.setattr(probes, "TRIALS", {"conveyor": (FINE,), "libero": (FINE, counted), "robotwin": (dies, FINE)})
    return count


def test_doctor_has_a_line_a_suite_with_what_mends_it(replan, trials):
    code, out, err = replan("doctor", "--json")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out[:-1]}
    assert code == 1
    assert lines.keys() == SUITES.keys()
    assert lines["conveyor"] == "ok"
    assert lines["libero_goal"] == "no files; run `replan setup libero`"
    assert lines["robotwin"] == "the process was killed by SIGABRT; run `replan setup robotwin`"
    told = json.loads(out[-1])
    assert told["suites"]["conveyor"] == {"ok": True, "problem": None}
    assert told["suites"]["libero_goal"] == {"ok": False, "problem": "no files; run `replan setup libero`"}
    assert "robotwin" in told["error"] and "conveyor" not in told["error"]
    assert trials.read_text() == "x"  # what does not depend on the suite is tried once


def test_doctor_looks_at_the_suites_that_are_asked_for(replan, trials):
    assert replan("doctor", "conveyor") == (0, [f"{'conveyor':{max(map(len, SUITES))}}  ok"], "")
    code, out, _ = replan("doctor", "libero_gaol", "--json")
    assert code == 2 and "unknown suite 'libero_gaol'; did you mean 'libero_goal'" in json.loads(out[-1])["error"]
    assert not trials.exists()


@pytest.fixture
def apt(monkeypatch, tmp_path):
    """A distribution that has `libnew` and not `libold`; returns the log of what was installed."""
    log = tmp_path / "installed"
    for name, script in (
        ("apt-get", f'[ "$1" = update ] || echo "$@" >> {log}'),
        ("apt-cache", '[ "$2" = libnew ]'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return log


def test_root_gets_the_system_packages_that_the_distribution_has(replan, trials, apt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mended = Trial(f"import os, sys; sys.exit(not os.path.exists({str(apt)!r}))", packages=(("libold",), ("libnew",)))
    probes.TRIALS["conveyor"] = (mended, FINE)
    code, out, err = replan("setup", "conveyor", "--json")
    assert (code, apt.read_text()) == (0, "install -y -qq --no-install-recommends libnew\n")
    did = json.loads(out[-1])["did"]
    assert "installing libnew" in did[0] and "loaded and drawn" in did[-1]
    assert "installing libnew" in err
    assert replan("setup", "conveyor", "--json")[0] == 0
    assert apt.read_text().count("libnew") == 1  # done once


def test_others_are_told_the_command_and_nothing_is_installed(replan, trials, apt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    probes.TRIALS["conveyor"] = (Trial("import sys; sys.exit('no GL')", packages=(("libold",), ("libnew",))),)
    code, out, _ = replan("setup", "conveyor", "--json")
    assert code == 1 and not apt.exists()
    told = json.loads(out[-1])["error"]
    assert told.startswith("no GL. ") and "as root: apt-get install" in told and "libold" in told


def test_setup_that_does_not_help_says_so(replan, trials):
    probes.TRIALS["conveyor"] = (Trial("import sys; sys.exit('the floor is gone')"),)
    code, out, _ = replan("setup", "conveyor", "--json")
    assert (code, json.loads(out[-1])["error"]) == (1, "conveyor does not work yet: the floor is gone")
    code, out, _ = replan("setup", "libro", "--json")
    assert (code, json.loads(out[-1])["error"]) == (2, "unknown benchmark 'libro'; did you mean 'libero'?")


def test_second_package_of_the_same_import_name_is_refused(replan, trials, monkeypatch):
    monkeypatch.setattr(setup, "_version", {"hf-libero": "0.1.4"}.get)
    code, out, _ = replan("setup", "libero", "--json")
    told = json.loads(out[-1])["error"]
    assert code == 2 and "hf-libero 0.1.4 is installed" in told and "pip uninstall hf-libero" in told


def test_python_that_upstream_refuses_is_told(replan, trials, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    code, out, err = replan("setup", "robotwin", "--json")
    told = "RoboTwin's task code needs Python 3.10 or 3.11, this is 3.12.1; all else works without it"
    assert (code, json.loads(out[-1])["error"], err) == (3, told, f"error: {told}\n")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("robotwin", "goes_on"), [(0, True), (3, True), (1, False)])
def test_make_goes_on_without_the_suite_that_this_python_cannot_have(tmp_path, robotwin, goes_on):
    shutil.copy(Path(__file__).parents[2] / "Makefile", tmp_path)
    scripts = {"tools/setup.sh": "", ".venv/bin/replan": f'echo "$2: told"\n[ "$2" = libero ] || exit {robotwin}'}
    for name, script in scripts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["make", "-s", "setup-suites"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["libero: told", "robotwin: told"]
    assert (done.returncode == 0) is goes_on, done.stderr


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch):
    """A lock of one package that only this folder has; pip may look nowhere else and writes to a folder of its own."""
    source, lock = tmp_path / "source", tmp_path / "envs" / "libero" / "requirements.lock"
    (source / "src").mkdir(parents=True)
    (source / "src" / "tiny_simulator.py").write_text("")
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "tiny-simulator"\nversion = "1.2"\ndependencies = ["not-to-be-had"]\n'
    )
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path / "wheels", source]
    subprocess.run(build, check=True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    sha256 = subprocess.run([*pip, "hash", wheel], capture_output=True, text=True, check=True).stdout.split(":")[-1]
    lock.parent.mkdir(parents=True)
    lock.write_text(f"tiny-simulator==1.2 \\\n    --hash=sha256:{sha256}")
    for name, value in (
        ("PIP_CONFIG_FILE", os.devnull),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(wheel.parent)),
        ("PIP_TARGET", str(tmp_path / "site")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("replan.envs.__file__", str(tmp_path / "envs" / "__init__.py"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return lock


def test_packages_are_installed_by_hash_and_without_what_they_ask_for(wheelhouse):
    did = []
    setup._install("libero", did.append)
    assert did == ["installed tiny-simulator 1.2"]
    wheelhouse.write_text(wheelhouse.read_text().replace("sha256:", "sha256:" + "0" * 8)[:-9])
    with pytest.raises(CommandFailed, match="pip could not install the packages"):
        setup._install("libero", did.append)
    assert len(did) == 1


def test_setup_of_a_suite_that_is_set_up_changes_nothing():
    pytest.importorskip("libero", reason="LIBERO is not installed; `replan setup libero` installs it")
    before = setup._installed()
    did = []
    setup.prepare_libero(did.append)
    assert len(did) == 1 and did[0].endswith("requirements.lock are installed")
    assert setup._installed() == before
    assert Path(did[0].split()[3]).is_file()


def test_a_cache_that_cannot_be_written_is_told_in_a_sentence(replan, monkeypatch):
    def full(say):
        raise OSError(30, "Read-only file system", "/cache/vulkan")

    monkeypatch.setitem(setup.PREPARE, "conveyor", full)
    code, _, err = replan("setup", "conveyor")
    assert code == 2 and "'/cache/vulkan'; if the cache folder cannot be written, name another in REPLAN_CACHE" in err
