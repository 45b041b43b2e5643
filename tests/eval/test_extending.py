"""The example of an agent in docs/extending.md, as it stands there."""

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
