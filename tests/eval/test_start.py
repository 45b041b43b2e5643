"""What the commands import: a command that shows, or gives work to other processes, starts at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = ("torch", "scipy.stats", "mujoco", "matplotlib", "jinja2")
SPY = f"""
import sys
from replan.eval.cli import main
if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SystemExit as end:
        code = end.code
    print("imported:", *(name for name in {SLOW} if name in sys.modules))
    sys.exit(code)
"""


def imported(folder, *arguments):
    script = folder / "spy.py"  # a file, since workers import the script of their parent
    script.write_text(SPY)
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("imported:")[2].split()


@pytest.mark.parametrize("command", ["--help", "eval --help", "board --help", "methods --help", "--version", "envs"])
def test_nothing_slow_is_imported_to_say_what_there_is(tmp_path, command):
    assert not imported(tmp_path, *command.split())


def test_neither_a_run_nor_its_board_imports_in_the_command_what_only_workers_need(tmp_path):
    out = str(tmp_path / "run")
    assert not imported(tmp_path, "eval", "--policy", "pi0-tiny", "--episodes", "1", "--out", out)
    assert not imported(tmp_path, "board", out)
