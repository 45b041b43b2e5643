"""The commands of ``replan``. They import what is slow to import inside their functions.

A command returns a dictionary of plain values: what ``--json`` prints (see :mod:`..cli`).
"""

from __future__ import annotations

from typing import Any

import click

mixed_option = click.option(
    "--allow-mixed", is_flag=True, help="Compare what other code played, or other runs timed; it is marked."
)
json_option = click.option("--json", is_flag=True, expose_value=False, help="End stdout with one line of JSON.")


class CommandFailed(Exception):
    """A command ran, and its result is a failure: a suite that does not work, an installation that stopped.

    Attributes:
        exit_code: Exit code.
        result: What ``--json`` prints besides the message.
    """

    exit_code = 1

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.result = result or {}


class NotForThisPython(CommandFailed):
    """What was requested exists for other versions of Python only. A script may go on without it."""

    exit_code = 3
