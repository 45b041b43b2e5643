"""``replan gate`` as a workflow runs it, on a real run of the conveyor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import replan.policies
from click.testing import CliRunner
from replan.eval.commands import Percent
from replan.eval.commands.gate import gate
from replan.eval.commands.plan import plan
from replan.eval.commands.watch import watch
from replan.eval.spec import BadInput
from replan.results import Run, RunIdentity, Store

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


@pytest.fixture
def small(tmp_path):
    """A run without episodes."""
    run = Run({}, RunIdentity(None), {}, "", "2026-01-02T03:04:05+00:00", "unknown", {}, {}, {})
    Store.start(tmp_path / "run", run).close()
    return tmp_path / "run"


@pytest.mark.parametrize("option", ["--markdown", "--junit"])
def test_a_report_replaces_nothing_but_a_report(small, option):
    database = small / "episodes.db"
    before = database.read_bytes()
    for _ in range(2):  # the second one replaces the first one's
        assert CliRunner().invoke(gate, [str(small), option, str(small / "report")]).exception.exit_code == 4
    assert isinstance(CliRunner().invoke(gate, [str(small), option, str(database)]).exception, BadInput)
    assert database.read_bytes() == before


@pytest.mark.parametrize("option", ["--registered", "--against"])
def test_an_empty_option_is_not_taken_for_none(small, option):
    """As a workflow gives it whose variable is not set: the gate must not check less than it was asked to."""
    assert isinstance(CliRunner().invoke(gate, [str(small), option, ""]).exception, BadInput)


@pytest.mark.parametrize("command", [gate, plan, watch])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0.03", "'0.03' may be meant as a share; write 3 for 3 %, or 0.03%"),
        ("100", "no percentage above 0 and below 100"),
        ("500", "no percentage above 0 and below 100"),
        ("0", "no percentage"),
        ("-3", "no percentage"),
        ("nan", "no percentage"),
        ("much", "no percentage"),
    ],
)
def test_a_margin_is_in_points_in_every_command(small, command, value, message):
    said = CliRunner().invoke(command, [str(small), "--margin", value])
    assert said.exit_code == 2 and message in " ".join(said.stderr.split())


def test_limits_are_read_in_percent():
    assert [Percent(1000).convert(text, None, None) for text in ("3", "3%", "0.5%", "250")] == [0.03, 0.03, 0.005, 2.5]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_limit_is_a_finite_number(small, value):
    assert CliRunner().invoke(gate, [str(small), "--error", value]).exit_code == 2
