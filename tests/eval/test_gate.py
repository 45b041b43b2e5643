"""``replan gate`` as a workflow runs it, on a real run of the conveyor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import replan.policies

CHECKPOINT = Path(replan.policies.__path__[0]) / "checkpoints" / "pi0-tiny.safetensors"
# The steps of the example in docs/gate.md, with `replan` on the path.
WORKFLOW = """
set -e
replan eval --method dense --episodes 6 --out "$RUN" --policy "$POLICY" > /dev/null
replan gate "$RUN" --against "$BASE" --margin "$MARGIN" --markdown gate.md --junit gate.xml
"""


@pytest.mark.slow
def test_the_workflow_passes_a_wide_margin_and_says_that_six_cells_are_too_few_for_a_small_one(tmp_path):
    def workflow(run, policy, margin):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        given = {"RUN": run, "BASE": "base", "POLICY": str(policy), "MARGIN": margin, "PATH": path}
        done = subprocess.run(
            ["bash", "-c", WORKFLOW], cwd=tmp_path, env={**os.environ, **given}, capture_output=True, text=True
        )
        return done.returncode, done.stdout.rpartition("\n")[0].rpartition("\n")[2], done.stderr

    assert workflow("base", CHECKPOINT, "45")[:2] == (4, "NOT COMPARABLE")  # with itself
    assert workflow("now", CHECKPOINT, "3")[:2] == (3, "INSUFFICIENT")
    assert workflow("now", CHECKPOINT, "45")[:2] == (0, "PASS")
    assert "PASS" in (tmp_path / "gate.md").read_text()
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "0"
