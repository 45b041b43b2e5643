"""The command line: ``replan COMMAND``.

Scripts may rely on this in every command: exit code 0 is success, 2 is bad input (the message says what to write
instead), 3 is a request for what exists for other versions of Python only, 4 is a disk or a stream that cannot be
written or read (full, read-only, gone), 1 is anything else, 130 is Ctrl-C, 143 is SIGTERM. ``gate`` has its own meaning
for three of them: 1 is FAIL, 3 INSUFFICIENT, 4 NOT COMPARABLE. With ``--json`` the last
line on stdout is one JSON object, in ASCII, also after an error; progress and messages go to stderr.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from ..files import is_wrong_path
from ..results.escaping import visible
from ..results.store import StoreError, StoreUnavailable
from .commands import CommandFailed, show
from .commands.analyze import analyze
from .commands.bench import bench
from .commands.board import board
from .commands.collect import collect
from .commands.compare import compare
from .commands.envs import envs
from .commands.evaluate import evaluate_command
from .commands.export import export
from .commands.flips import flips
from .commands.frontier import frontier
from .commands.gate import gate
from .commands.library import library
from .commands.methods import methods
from .commands.plan import plan
from .commands.policy import policy
from .commands.replay import replay
from .commands.serve import serve_command
from .commands.setup import doctor, setup
from .commands.training import train, train_draft
from .commands.verify import verify
from .commands.video import video
from .commands.watch import watch
from .spec import BadInput, RunStopped

LONGEST = 2_000  # characters of a message
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)  # said also where no file is named


class Terminated(KeyboardInterrupt):
    """Another process asked this one to end (SIGTERM)."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="replan", message="replan %(version)s")
def replan() -> None:
    """Make the replanning rounds of vision-language-action policies fast, and measure what that costs."""


for command in (
    evaluate_command,
    board,
    compare,
    gate,
    export,
    plan,
    watch,
    bench,
    analyze,
    verify,
    video,
    flips,
    replay,
    frontier,
    policy,
    envs,
    methods,
    setup,
    doctor,
    collect,
    train,
    train_draft,
    library,
    serve_command,
):
    replan.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and leaves the process with its exit code.

    Args:
        arguments: Command line without the program's name; those of the process if missing.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the numeric libraries when they are imported
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the table's characters shows others
    code, result = _run(arguments)
    if "--json" in arguments:
        try:
            show(json.dumps(result, allow_nan=False))
        except CommandFailed as error:
            code = _failed(error, error.exit_code)[0]
    sys.exit(code)


def _run(arguments: list[str]) -> tuple[int, dict[str, Any]]:
    """Returns the exit code, and what ``--json`` prints."""
    try:
        for argument in arguments:
            if "\0" in argument or not _is_unicode(argument):
                raise BadInput(f"the argument {ascii(argument)} is not UTF-8 text")
        with _terminable():
            result = replan.main(arguments, prog_name="replan", standalone_mode=False, obj=arguments)
        return 0, result if isinstance(result, dict) else {}  # --help returns its exit code, which is 0
    except click.ClickException as error:
        text = io.StringIO()
        error.show(text)  # with the usage
        return _failed(error, error.exit_code, error.format_message(), text.getvalue().rstrip())
    except click.Abort as error:
        if isinstance(error.__cause__, EOFError):  # which click takes for Ctrl-D, and no command asks for input
            return _fault(error.__cause__)
        code, what = (143, "terminated") if isinstance(error.__cause__, Terminated) else (130, "interrupted")
        return _failed(error, code, what, f"{what}; the same command resumes")
    except CommandFailed as error:
        code, failure = _failed(error, error.exit_code)
        return code, {**error.result, **failure}
    except StoreUnavailable as error:
        return _failed(error, 4)
    except RunStopped as error:
        return _failed(error, 1)
    except (ValueError, StoreError) as error:
        return _failed(error, 2)
    except Exception as error:
        from ..envs import SuiteUnavailable  # here, since it takes half a second

        if isinstance(error, SuiteUnavailable):
            return _failed(error, 2)
        if isinstance(error, OSError) and (error.filename is not None or error.errno in DISK):
            place = f"{str(error.filename)[:200]!r}: " if error.filename is not None else ""
            return _failed(error, 2 if is_wrong_path(error) else 4, f"{place}{error.strerror}")
        return _fault(error)


def _fault(error: BaseException) -> tuple[int, dict[str, Any]]:
    """Shows where in the code an error comes from, since nobody expected it; returns as ``_failed`` does."""
    with suppress(OSError):
        traceback.print_exception(error)
    return 1, _error_json(error, str(error))


def _failed(error: Exception, code: int, message: str = "", shown: str = "") -> tuple[int, dict[str, Any]]:
    """Says on stderr what went wrong; returns the exit code and what ``--json`` prints."""
    message = _cut(message or str(error))
    with suppress(OSError):  # nobody is left who could read it
        click.echo(visible(_cut(shown) or f"error: {message}", keep="\n"), err=True)
    return code, _error_json(error, message)


def _cut(text: str) -> str:
    """Returns a message without the middle of what it quotes, if that is pages long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def _error_json(error: BaseException, message: str) -> dict[str, Any]:
    return {"error": message, "kind": type(error).__name__}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _terminable() -> Iterator[None]:
    """Lets SIGTERM end a command as Ctrl-C does: its workers are stopped, and what it wrote is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated
