"""Setting suites up and finding out what is missing, with checks that need no simulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from replan.envs import INSTALLS, SUITES, UNAVAILABLE, Install
from replan.envs.checks import FIRST_OBSERVATION, MUJOCO_RENDERING, Check
from replan.envs.errors import SystemPackagesMissing
from replan.envs.libero import package
from replan.eval import probes
from replan.eval.cli import main
from replan.eval.commands import CommandFailed, setup
from replan.eval.probes import run_check

FINE = Check("")


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
        ("class A:\n def __del__(self): raise OSError('late')\na = A()\n1 / 0", "ZeroDivisionError: division by zero"),
        ("class A:\n def __del__(self): raise OSError('early')\nA()\n1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os.abort()", "the process was killed by SIGABRT"),
        ("import os; os._exit(7)", "the process ended with exit code 7"),
    ],
)
def test_a_check_returns_the_problem_and_cannot_crash_the_caller(code, problem):
    assert run_check(Check(code)) == problem


def test_a_check_that_hangs_ends(monkeypatch):
    monkeypatch.setattr(probes, "TIMEOUT", 1)
    assert run_check(Check("import time; time.sleep(60)")) == "no result within 1 s"


def test_every_suite_has_checks_and_a_name_for_setup():
    assert INSTALLS.keys() == SUITES.keys()
    assert all(install.checks for install in INSTALLS.values())
    assert {"conveyor", "libero", "robotwin"} <= {install.name for install in INSTALLS.values()}


def test_rendering_is_checked_with_the_backend_that_was_chosen(monkeypatch):
    assert run_check(MUJOCO_RENDERING) is None
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    assert "nonsense" in (run_check(MUJOCO_RENDERING) or "")


def test_backend_is_chosen_anew_unless_the_user_chose(monkeypatch):
    print_it = Check("import os, sys; sys.exit(os.environ.get('MUJOCO_GL', 'free'))")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr("replan.envs.opengl.chosen", "egl")  # when only EGL was installed
    assert run_check(print_it) == "free"
    monkeypatch.setattr("replan.envs.opengl.chosen", None)
    assert run_check(print_it) == "egl"


def test_the_first_observation_of_a_suite_is_checked():
    assert run_check(FIRST_OBSERVATION, "conveyor") is None
    assert "KeyError" in (run_check(FIRST_OBSERVATION, "no such suite") or "")


def test_unavailable_suite_names_the_fix(monkeypatch, tmp_path):
    monkeypatch.setenv("REPLAN_CACHE", str(tmp_path))
    files = INSTALLS["robotwin"].checks[-1]
    assert (run_check(files, "robotwin") or "").endswith("run `replan setup robotwin`")
    assert run_check(files, "robotwin-real") is None


@pytest.fixture
def install(monkeypatch):
    """Replaces parts of what the suites of a name need."""

    def replace_parts(name, **changes):
        for suite, each in INSTALLS.items():
            if each.name == name:
                monkeypatch.setitem(INSTALLS, suite, replace(each, **changes))

    return replace_parts


@pytest.fixture
def checks(install, monkeypatch, tmp_path):
    """Suites that work, suites that lack files, and suites that crash for want of a system package."""
    count = tmp_path / "count"
    counted = Check(
        f"open({str(count)!r}, 'a').write('x'); import sys; sys.exit('no files; run `replan setup libero`')"
    )
    crashes = Check("import os; os.abort()", packages=(("libfake",),))
    for name in {each.name for each in INSTALLS.values()}:
        install(name, checks=(FINE,))
    install("libero", checks=(FINE, counted), lock=None)
    install("robotwin", checks=(crashes, FINE), lock=None)
    return count


def test_doctor_says_a_fix_once(replan, install):
    for name in {each.name for each in INSTALLS.values()}:
        install(name, checks=(FINE,))
    install("libero", checks=(Check("import sys; sys.exit('no `x`; run `replan setup libero`')", packages=(("y",),)),))
    _, out, _ = replan("doctor", "libero_goal")
    assert out[0].split(maxsplit=1)[1] == "no `x`; run `replan setup libero`"


def test_doctor_has_one_line_per_suite_with_the_fix(replan, checks):
    code, out, err = replan("doctor", "--json")
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in out[:-1]}
    assert code == 1
    assert lines.keys() == SUITES.keys()
    assert lines["conveyor"] == "ok"
    assert lines["libero_goal"] == "no files; run `replan setup libero`"
    assert lines["robotwin"] == "the process was killed by SIGABRT; run `replan setup robotwin`"
    result = json.loads(out[-1])
    assert result["suites"]["conveyor"] == {"ok": True, "problem": None}
    assert result["suites"]["libero_goal"] == {"ok": False, "problem": "no files; run `replan setup libero`"}
    assert "robotwin" in result["error"] and "conveyor" not in result["error"]
    assert checks.read_text() == "x"  # what does not depend on the suite is checked once


def test_a_suite_that_nobody_set_up_is_a_note_unless_it_is_named(replan, install):
    for name in {each.name for each in INSTALLS.values()}:
        install(name, checks=(FINE,))
    unconfigured = Check("import os, sys; print('name a folder', file=sys.stderr, flush=True); os._exit(3)")
    install("robotwin", checks=(unconfigured,))
    install("libero", checks=(Check("import nosuch_simulator"),))
    code, out, err = replan("doctor")
    assert (code, err) == (0, "")
    assert any(line.startswith("robotwin-real") and line.endswith("name a folder") for line in out)
    assert any(line.startswith("libero_goal") and "No module named 'nosuch_simulator'" in line for line in out)
    assert replan("doctor", "robotwin")[0] == replan("doctor", "conveyor", "libero_goal")[0] == 1


def test_the_first_observation_tells_what_is_not_configured_from_what_is_broken(monkeypatch):
    monkeypatch.delenv("REPLAN_ROBOTWIN_ROOT", raising=False)
    problem = run_check(FIRST_OBSERVATION, "robotwin-real")
    assert isinstance(problem, probes.NotSetUp) and "REPLAN_ROBOTWIN_ROOT" in problem
    assert not isinstance(run_check(FIRST_OBSERVATION, "no such suite"), probes.NotSetUp)


def test_doctor_checks_the_suites_that_are_named(replan, checks):
    assert replan("doctor", "conveyor") == (0, [f"{'conveyor':{max(map(len, SUITES))}}  ok"], "")
    code, out, _ = replan("doctor", "libero_gaol", "--json")
    assert code == 2 and "unknown suite 'libero_gaol'; did you mean 'libero_goal'" in json.loads(out[-1])["error"]
    assert not checks.exists()


def test_entry_points_that_failed_are_listed_with_the_reason(replan, checks, monkeypatch):
    monkeypatch.setitem(UNAVAILABLE, "shelf", "shelf.suite cannot be loaded (No module named 'boards')")
    code, out, _ = replan("doctor", "shelf")
    assert (code, len(out)) == (1, 1) and "No module named 'boards'" in out[0]
    code, out, _ = replan("envs", "shelf", "--json")
    assert code == 0 and "shelf, unavailable: shelf.suite cannot be loaded" in out[0]
    assert json.loads(out[-1])["unavailable"].keys() == {"shelf"}
    assert any("shelf, unavailable" in line for line in replan("envs")[1])
    for suite in ("shelf", "shelf-high"):  # an entry point may have suites of other names
        code, out, _ = replan("eval", "--suite", suite, "--out", str(checks.parent / "run"), "--json")
        assert code == 2 and "shelf.suite cannot be loaded (No module named 'boards')" in json.loads(out[-1])["error"]


def test_a_suite_without_lock_and_prepare_is_set_up_by_its_checks(replan, install):
    install("conveyor", checks=(FINE,), lock=None, prepare=Install("conveyor").prepare)
    code, out, err = replan("setup", "conveyor", "--json")
    assert (code, json.loads(out[-1])["done"]) == (0, ["everything needed is installed; the checks passed"])


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


def test_root_gets_the_system_packages_that_the_distribution_has(replan, install, apt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    fixed = Check(f"import os, sys; sys.exit(not os.path.exists({str(apt)!r}))", packages=(("libold",), ("libnew",)))
    install("conveyor", checks=(fixed, FINE))
    code, out, err = replan("setup", "conveyor", "--json")
    assert (code, apt.read_text()) == (0, "install -y -qq --no-install-recommends libnew\n")
    done = json.loads(out[-1])["done"]
    assert "installing libnew" in done[0] and "the checks passed" in done[-1]
    assert "installing libnew" in err
    assert replan("setup", "conveyor", "--json")[0] == 0
    assert apt.read_text().count("libnew") == 1  # done once


def test_others_get_the_command_and_nothing_is_installed(replan, install, apt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    install("conveyor", checks=(Check("import sys; sys.exit('no GL')", packages=(("libold",), ("libnew",))),))
    code, out, _ = replan("setup", "conveyor", "--json")
    assert code == 1 and not apt.exists()
    error = json.loads(out[-1])["error"]
    assert error.startswith("no GL. ") and "as root: apt-get install" in error and "libold" in error


def test_what_prepare_lacks_of_the_system_is_installed_and_prepare_repeated(replan, install, apt, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def prepare(say):
        if not apt.exists():
            raise SystemPackagesMissing("no Vulkan device", (("libold",), ("libnew",)))
        say("the driver renders")

    install("conveyor", checks=(FINE,), prepare=prepare)
    code, out, _ = replan("setup", "conveyor", "--json")
    assert code == 0
    assert json.loads(out[-1])["done"][:2] == ["no Vulkan device; installing libnew", "the driver renders"]


def test_setup_that_does_not_help_says_so(replan, install):
    install("conveyor", checks=(Check("import sys; sys.exit('the floor is gone')"),))
    code, out, _ = replan("setup", "conveyor", "--json")
    assert (code, json.loads(out[-1])["error"]) == (1, "conveyor does not work yet: the floor is gone")
    code, out, _ = replan("setup", "libro", "--json")
    assert (code, json.loads(out[-1])["error"]) == (2, "unknown benchmark 'libro'; did you mean 'libero'?")


def test_second_package_of_the_same_import_name_is_refused(replan, checks, monkeypatch):
    monkeypatch.setattr(package, "_version", {"hf-libero": "0.1.4"}.get)
    code, out, _ = replan("setup", "libero", "--json")
    error = json.loads(out[-1])["error"]
    assert code == 2 and "hf-libero 0.1.4 is installed" in error and "pip uninstall hf-libero" in error


def test_python_that_upstream_refuses_exits_with_3(replan, checks, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    code, out, err = replan("setup", "robotwin", "--json")
    error = "RoboTwin's task code needs Python 3.10 or 3.11, this is 3.12.1; all else works without it"
    assert (code, json.loads(out[-1])["error"], err) == (3, error, f"error: {error}\n")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("robotwin", "goes_on"), [(0, True), (3, True), (1, False)])
def test_make_goes_on_without_the_suite_that_this_python_cannot_have(tmp_path, robotwin, goes_on):
    shutil.copy(Path(__file__).parents[2] / "Makefile", tmp_path)
    scripts = {"tools/setup.sh": "", ".venv/bin/replan": f'echo "$2"\n[ "$2" != robotwin ] || exit {robotwin}'}
    for name, script in scripts.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["make", "-s", "setup-suites"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["libero", "aloha", "robotwin"]
    assert (done.returncode == 0) is goes_on, done.stderr


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch):
    """A lock of one package that only this folder has; pip may look nowhere else and writes to a folder of its own."""
    source, lock = tmp_path / "source", tmp_path / "requirements.lock"
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
    lock.write_text(f"tiny-simulator==1.2 \\\n    --hash=sha256:{sha256}")
    for name, value in (
        ("PIP_CONFIG_FILE", os.devnull),
        ("PIP_NO_INDEX", "1"),
        ("PIP_FIND_LINKS", str(wheel.parent)),
        ("PIP_TARGET", str(tmp_path / "site")),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return lock


def test_packages_are_installed_by_hash_and_without_their_dependencies(wheelhouse):
    done = []
    setup.install_packages(wheelhouse, done.append)
    assert done == ["installed tiny-simulator 1.2"]
    wheelhouse.write_text(wheelhouse.read_text().replace("sha256:", "sha256:" + "0" * 8)[:-9])
    with pytest.raises(CommandFailed, match="pip could not install the packages"):
        setup.install_packages(wheelhouse, done.append)
    assert len(done) == 1


def test_setup_of_a_suite_that_is_set_up_changes_nothing():
    pytest.importorskip("libero", reason="LIBERO is not installed; `replan setup libero` installs it")
    before, done = setup._installed(), []
    lock = INSTALLS["libero_goal"].lock
    setup.install_packages(lock, done.append)
    assert done == [f"the packages of {lock} are installed"] and lock.is_file()
    assert setup._installed() == before


def test_a_cache_that_cannot_be_written_is_bad_input(replan, install):
    def full(say):
        raise OSError(30, "Read-only file system", "/cache/vulkan")

    install("conveyor", prepare=full)
    code, _, err = replan("setup", "conveyor")
    assert code == 2 and "'/cache/vulkan'; if the cache folder cannot be written, name another in REPLAN_CACHE" in err
