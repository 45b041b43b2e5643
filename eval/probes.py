"""Runs a suite's checks, each in a process of its own: graphics drivers and simulators crash when they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from ..envs import opengl
from ..envs.checks import NOT_SET_UP, Check

TIMEOUT = 600  # seconds; the first image of a software driver takes a minute on a busy machine


class NotSetUp(str):
    """The problem of a suite that nobody has installed or configured, so that nothing is broken."""


def run_check(check: Check, suite: str = "") -> str | None:
    """Runs a check.

    Args:
        check: What has to work.
        suite: Name of the suite, if the result depends on it.

    Returns:
        None if it works, else the cause in one line (as :class:`NotSetUp` if that is all), or the signal that ended the
        process.
    """
    command = [sys.executable, "-c", check.code, suite]
    environment = dict(os.environ)
    if environment.get("MUJOCO_GL") == opengl.chosen:  # chosen again: a library may just have been installed
        environment.pop("MUJOCO_GL", None)
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return f"no result within {TIMEOUT} s"
    if process.returncode == 0:
        return None
    if process.returncode < 0:
        return f"the process was killed by {signal.Signals(-process.returncode).name}"
    cause = _cause(process.stderr) or f"the process ended with exit code {process.returncode}"
    not_set_up = process.returncode == NOT_SET_UP or cause.startswith("ModuleNotFoundError")
    return NotSetUp(cause) if not_set_up else cause


def _cause(stderr: str) -> str:
    """Returns the last line that is no destructor's: what Python ignores is reported around the error itself."""
    cause, ignored = "", False
    for line in stderr.splitlines():
        if line.startswith("Exception ignored in"):
            ignored = True
        elif not ignored:
            cause = line.strip() or cause
        elif not line.startswith((" ", "Traceback")):
            ignored = False  # the exception's own line, the last of what is ignored
    return cause
