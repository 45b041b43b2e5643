"""The commands of ``replan``. They import what is slow to import inside their functions.

A command returns a dictionary of plain values: what ``--json`` prints (see :mod:`..cli`).
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..spec import BadInput

if TYPE_CHECKING:
    from ...results.store import Store

mixed_option = click.option(
    "--allow-mixed", is_flag=True, help="Compare what other code played, or other runs timed; it is marked."
)
json_option = click.option("--json", is_flag=True, expose_value=False, help="End stdout with one line of JSON.")


rows_option = click.option(
    "--rows", "episode_rows", is_flag=True, help="With --json: also a record per episode, as `replan export` has it."
)


def named(context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuses an empty name of a folder, which would be the one that the command runs in."""
    if not value.strip():
        raise click.BadParameter("the name of the folder is empty", context, option)
    return value


def check_output(option: str, name: str | None, kind: str, *beginnings: bytes) -> None:
    """Makes sure that a file may be written: there is none yet, an empty one, or one of its kind.

    A database must not be lost because a name was mistyped.

    Args:
        option: The option that names the file.
        name: What was given; None for nothing.
        kind: What is written, as a noun.
        beginnings: How such a file begins, in lower case.

    Raises:
        BadInput: It must not be replaced, or there is no name.
    """
    if name is None:
        return
    if not name.strip():
        raise BadInput(f"{option} {name!r} names no file; write {option} FILE")
    path = Path(name)
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(128).lstrip().lower()
    if not start.startswith(beginnings) and path.stat().st_size:
        raise BadInput(f"{option} {name!r} exists and is no {kind}; name another file, or remove this one")


class FiniteRange(click.FloatRange):
    """A number in a range; NaN, which every comparison lets pass, and infinity are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reads a number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Percent(click.ParamType):
    """A share that users write in percent, or in points of success: ``3`` and ``3%`` are 0.03.

    Below 1 the sign is needed: 0.03 may be meant as a share.

    Args:
        below: The first number that is too much.
    """

    name = "percent"

    def __init__(self, below: float = 100) -> None:
        self._below = below

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Reads a number."""
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = math.nan
        if not 0 < number < self._below:
            self.fail(f"{value!r} is no percentage above 0 and below {self._below:g}; write 3 or 3%", param, ctx)
        if number < 1 and not text.endswith("%"):
            self.fail(
                f"{value!r} may be meant as a share; write {100 * number:g} for {100 * number:g} %, or {number:g}%",
                param,
                ctx,
            )
        return number / 100


margin_option = click.option(
    "--margin",
    type=Percent(),
    metavar="POINTS",
    default="3",
    show_default=True,
    help="Loss of success that is tolerated.",
)


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


class OutputLost(CommandFailed):
    """Stdout is closed or cannot be written. What was measured is stored nevertheless."""

    exit_code = 4


def show(text: str) -> None:
    """Prints a result on stdout, at once.

    Raises:
        OutputLost: Stdout does not take it.
    """
    if sys.stdout is None:
        raise OutputLost("the result cannot be printed: stdout is closed")
    try:
        print(text, flush=True)
    except OSError as error:
        if sys.stdout is sys.__stdout__:  # what is buffered would fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputLost(f"the result cannot be printed to stdout: {error.strerror}") from error


def error_lines(stores: Iterable[Store], most: int = 3) -> str:
    """Returns the most common texts of the episodes that the harness could not measure, one per line."""
    texts = Counter(
        (row.error or "").strip().rpartition("\n")[2]
        for store in stores
        for row in store.episodes()
        if row.status == "error"
    )
    lines = [f"  {count} x {text}" for text, count in texts.most_common(most)]
    return "\n".join(lines + [f"  and {len(texts) - most} other errors"] * (len(texts) > most))
