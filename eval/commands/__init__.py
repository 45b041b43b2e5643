"""The commands of ``replan``, a file each. They import what is slow to import inside their functions.

A command returns a dictionary of plain values: what ``--json`` prints (see :mod:`..cli`).
"""

from __future__ import annotations

from typing import Any

import click

json_option = click.option("--json", is_flag=True, expose_value=False, help="End stdout with one line of JSON.")


class BadNews(Exception):
    """A command that did what it was asked to, and has nothing good to tell.

    Attributes:
        exit_code: Exit code.
        result: What ``--json`` prints besides the message.
    """

    exit_code = 1

    def __init__(self, message: str, result: dict[str, Any] | None = None) -> None:
        """See the class."""
        super().__init__(message)
        self.result = result or {}


class NotForThisPython(BadNews):
    """What was asked for exists for other versions of Python only. A script may go on without it."""

    exit_code = 3
