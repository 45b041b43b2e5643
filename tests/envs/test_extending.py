"""The example of a suite in docs/extending.md, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_of_a_suite_keeps_the_contract(tmp_path):
    section = (DOCS / "extending.md").read_text().partition("## An environment or suite")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    (tmp_path / "shelf.py").write_text(code)
    done = subprocess.run([sys.executable, "shelf.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the suite keeps the contract\n"), done.stderr
