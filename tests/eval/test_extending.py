"""The examples in docs/extending.md, as they are printed there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {
    section.partition("\n")[0]: section for section in (DOCS / "extending.md").read_text("utf-8").split("\n## ")
}


def test_the_example_of_an_agent_runs_and_prints_what_it_says(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", SECTIONS["An agent"], flags=re.DOTALL)
    (printed,) = re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{printed}\n"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Returns a function that runs ``replan``, with the suite and the policies of the page as an installed package."""
    site = tmp_path_factory.mktemp("site")
    shelf, reach = (
        re.findall(r"```python\n(.*?)```", SECTIONS[title], flags=re.DOTALL)[0]
        for title in ("An environment or suite", "A policy of any kind")
    )
    (site / "shelf.py").write_text(shelf)
    (site / "reach.py").write_text(reach)
    installed = site / "reach-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: reach\nVersion: 1.0\n")
    (installed / "RECORD").write_text("shelf.py,,\nreach.py,,\n")
    (installed / "entry_points.txt").write_text(
        "[replan.suites]\nshelf = shelf\n[replan.policies]\nscript = reach:SCRIPT\nimitator = reach:IMITATOR\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def python(*arguments, code=0):
        done = subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def replan(*arguments, code=0):
        done = python("-c", "from replan.eval.cli import main; main()", *arguments, "--json", code=code)
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    missing = replan("eval", "--suite", "shelf", "--policy", "imitator", "--out", site / "none", code=2)
    assert "imitator.safetensors" in missing["error"]
    python("-c", "import reach; reach.train()")
    return replan


def test_the_scripted_and_the_torch_policy_of_the_page_are_on_one_leaderboard(package, tmp_path):
    for policy in ("script", "imitator"):
        run = package("eval", "--suite", "shelf", "--policy", policy, "--episodes", "5", "--out", tmp_path / policy)
        assert (run["episodes"], run["errors"]) == (5, 0)
    rows = package("board", tmp_path / "script", tmp_path / "imitator", "--html", tmp_path / "board.html")["board"]
    assert {row["policy"]: row["success"]["rate"] for row in rows} == {"script": 1.0, "imitator": 1.0}
    badges = {row["policy"]: json.dumps(row["marks"]) for row in rows}
    assert "scripted" in badges["script"] and "scripted" not in badges["imitator"]
    assert all("code not recorded" not in text for text in badges.values())
    assert "it knows the heights" in (tmp_path / "board.html").read_text()


@pytest.mark.parametrize("policy", ["script", "imitator"])
def test_the_policies_of_the_page_keep_the_contract(package, policy):
    assert package("policy", "check", policy, "--suite", "shelf")["policy"] == policy


def test_a_policy_of_any_kind_is_refused_where_it_does_not_fit(package, tmp_path):
    for arguments, words in (
        (["--suite", "shelf", "--policy", "script", "--method", "flash"], "acts inside flow models"),
        (["--suite", "conveyor", "--policy", "script"], "the suite's action is (7,), the policy's (1,)"),
    ):
        refused = package("eval", *arguments, "--episodes", "1", "--out", tmp_path / "run", code=2)
        assert words in refused["error"]


def test_examples_of_packages_are_the_code_that_is_installed_and_evaluated():
    """tests/test_third_party.py runs these packages; the page must show the same code."""
    page = (DOCS / "extending.md").read_text()
    shown = re.findall(r"`(tests/third_party/[^`]*)`:\n\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(shown) >= 2
    for path, code in shown:
        assert code.strip() in (DOCS.parent / path).read_text(), path
