"""The examples in docs/extending.md, as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_of_an_agent_runs_and_prints_what_it_says(tmp_path):
    section = (DOCS / "extending.md").read_text().partition("## An agent")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (printed,) = re.findall(r"^print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{printed}\n"


def test_examples_of_packages_are_the_code_that_is_installed_and_evaluated():
    """tests/test_third_party.py runs these packages; the page must show the same code."""
    page = (DOCS / "extending.md").read_text()
    shown = re.findall(r"`(tests/third_party/[^`]*)`:\n\n```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(shown) >= 2
    for path, code in shown:
        assert code.strip() in (DOCS.parent / path).read_text(), path
