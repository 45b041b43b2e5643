"""Suites of other packages are installed, listed, checked, evaluated and recorded, and nothing of ours names them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from replan.envs.suite import BUILT_IN

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(install):
    """A folder with the package."""
    return install("replan-shelf")


def run(site, *command):
    return subprocess.run(
        list(map(str, command)), env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True
    )


def replan(site, *arguments):
    """Runs the installed command; returns its exit code and its JSON."""
    done = run(site, Path(sys.executable).with_name("replan"), *arguments, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_it_is_listed_checked_and_set_up(site):
    _, listed = replan(site, "envs", "shelf")
    assert listed["suites"][0]["marks"] == ["toy: a point instead of a robot"] and not listed["unavailable"]
    assert replan(site, "doctor", "shelf", "conveyor")[0] == 0
    assert replan(site, "setup", "shelf") == (
        0,
        {"setup": "shelf", "done": ["everything needed is installed; the checks passed"]},
    )


def test_it_keeps_the_contract(site):
    code = "from replan.envs import SUITES; from replan.envs.check import check_suite; check_suite(SUITES['shelf'])"
    done = run(site, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr


def test_it_is_evaluated_with_a_policy_of_ours(site, tmp_path):
    arguments = [
        "--suite",
        "shelf",
        "--policy",
        "pi0-tiny",
        "--episodes",
        "2",
        "--workers",
        "2",
        "--out",
        tmp_path / "run",
    ]
    code, result = replan(site, "eval", *arguments)
    assert (code, result["episodes"], result["errors"]) == (0, 2, 0)
    code = (
        "import sys; from pathlib import Path; from replan.results.store import Store\n"
        "with Store.open(Path(sys.argv[1])) as store: print(store.runs[0].packages['replan-shelf'])"
    )
    assert run(site, sys.executable, "-c", code, tmp_path / "run").stdout.strip() == "0.3.0"


def test_its_expert_is_recorded(site, tmp_path):
    arguments = ["--suite", "shelf", "--task", "low", "--episodes", "2", "--workers", "1", "--out", tmp_path / "data"]
    code, result = replan(site, "collect", *arguments)
    assert (code, result["success"]) == (0, {"low": 1.0})
    assert (tmp_path / "data" / "low" / "images.npy").is_file()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'broken'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("SUITES = ()", "SUITES must be a tuple of Suite, got ()"),
        ("from replan_shelf.suite import SUITES", "INSTALL must be an Install, got None"),
        (
            "from dataclasses import replace\nfrom replan_shelf.suite import INSTALL, SUITES\n"
            "SUITES = (replace(SUITES[0], name='conveyor'),)",
            "the suite name 'conveyor' is taken",
        ),
        (
            "from dataclasses import replace\nfrom replan_shelf.suite import INSTALL, SUITES\n"
            "SUITES = (replace(SUITES[0], name='other', env_id='replan/ConveyorSorting-v0'),)",
            "the Gymnasium id 'replan/ConveyorSorting-v0' is taken",
        ),
        (
            "from dataclasses import replace\nfrom replan_shelf.suite import INSTALL, SUITES\n"
            "SUITES = (replace(SUITES[0], name='other', env_id='shelf/Other-v0'),)\n"
            "INSTALL = replace(INSTALL, name='libero')",
            "the name 'libero' for `replan setup` is taken",
        ),
    ],
    ids=["missing", "raises", "exits", "empty", "no-install", "name", "id", "setup"],
)
def test_a_broken_package_costs_only_its_own_suites(site, tmp_path, module, reason):
    copy = shutil.copytree(site, tmp_path / "site")
    info = copy / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[replan.suites]\nbroken = broken\n")
    if module is not None:
        (copy / "broken.py").write_text(module)
    code, listed = replan(copy, "envs")
    assert code == 0 and {"conveyor", "libero_goal", "shelf"} <= {suite["suite"] for suite in listed["suites"]}
    assert listed["unavailable"].keys() == {"broken"} and reason in listed["unavailable"]["broken"]
    code, result = replan(copy, "doctor", "broken")
    assert code == 1 and reason in result["suites"]["broken"]["problem"]


@pytest.mark.parametrize("folder", BUILT_IN)
def test_a_suite_is_named_by_one_line_outside_its_folder(folder):
    """And by the packaging: pyproject.toml, the Makefile, tools and docs."""
    own = {ROOT / "envs" / each for each in BUILT_IN}  # one suite may build on another
    naming = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for part in ("accel", "envs", "eval", "kernels", "policies", "results")
        for path in (ROOT / part).rglob("*.py")
        if not own & set(path.parents)
        for line in path.read_text().splitlines()
        if re.search(rf"""envs[./]{folder}\b|(from|import) [.\w]*\b{folder}\b|^\s*"{folder}",?$""", line)
    ]
    assert naming == [f'envs/suite.py: "{folder}",']
