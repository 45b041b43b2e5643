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


COMMANDS = """
import contextlib, io, json, sys
from replan.eval.cli import main

for arguments in json.loads(sys.argv[1]):
    if arguments == ["train"]:
        import reach
        reach.train()
        continue
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*arguments, "--json"])
    print(out.getvalue().splitlines()[-1])
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Returns the results of the page's commands, its suite and policies being installed, and what is refused."""
    site, runs = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("runs")
    for name, title in (("shelf", "An environment or suite"), ("reach", "A policy of any kind")):
        (site / f"{name}.py").write_text(re.findall(r"```python\n(.*?)```", SECTIONS[title], flags=re.DOTALL)[0])
    installed = site / "reach-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: reach\nVersion: 1.0\n")
    (installed / "RECORD").write_text("shelf.py,,\nreach.py,,\n")
    policies = re.findall(r"```toml\n(.*?)```", SECTIONS["A policy of any kind"], flags=re.DOTALL)[0]
    names = policies.replace("project.entry-points.", "").replace('"', "")
    (installed / "entry_points.txt").write_text(f"[replan.suites]\nshelf = shelf\n{names}")

    def run(policy, *arguments):
        return [
            "eval",
            "--suite",
            "shelf",
            "--policy",
            policy,
            "--episodes",
            "5",
            "--out",
            str(runs / policy),
            *arguments,
        ]

    commands = {
        "without weights": run("imitator"),
        "training": ["train"],
        **{f"check {policy}": ["policy", "check", policy, "--suite", "shelf"] for policy in ("script", "imitator")},
        "script": run("script"),
        "imitator": run("imitator"),
        "board": ["board", str(runs / "script"), str(runs / "imitator"), "--html", str(runs / "board.html")],
        "with a method": run("script", "--method", "flash"),
        "elsewhere": ["policy", "check", "script", "--suite", "conveyor"],
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(list(commands.values()))],
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    printed = map(json.loads, done.stdout.splitlines())
    results = dict(zip([name for name in commands if name != "training"], printed, strict=True))
    return {**results, "html": (runs / "board.html").read_text()}


def test_the_scripted_and_the_torch_policy_of_the_page_are_on_one_leaderboard(page):
    rows = page["board"]["board"]
    assert [(page[policy]["episodes"], page[policy]["errors"]) for policy in ("script", "imitator")] == [(5, 0)] * 2
    assert {row["policy"]: row["success"]["rate"] for row in rows} == {"script": 1.0, "imitator": 1.0}
    marks = {row["policy"]: json.dumps(row["marks"]) for row in rows}
    assert "scripted" in marks["script"] and "scripted" not in marks["imitator"]
    assert not any("code not recorded" in text for text in marks.values())
    assert "it knows the heights" in page["html"]


def test_the_policies_of_the_page_keep_the_contract(page):
    assert [page[f"check {policy}"].get("policy") for policy in ("script", "imitator")] == ["script", "imitator"]


def test_a_policy_of_any_kind_is_refused_with_the_reason_where_it_cannot_act(page):
    assert "imitator.safetensors" in page["without weights"]["error"]
    assert "acts inside flow models, and policy 'script' is none" in page["with a method"]["error"]
    assert "the suite's action is (7,), the policy's (1,)" in page["elsewhere"]["error"]


def test_examples_of_packages_are_the_code_that_is_installed_and_evaluated():
    """tests/test_third_party.py runs these packages; the page must show the same code."""
    page = (DOCS / "extending.md").read_text()
    shown = re.findall(r"`(tests/third_party/[^`]*)`:\n\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(shown) >= 2
    for path, code in shown:
        assert code.strip() in (DOCS.parent / path).read_text(), path
