"""The command line: ``replan COMMAND``.

Scripts may rely on this in every command: exit code 0 is success, 2 is bad input (the message says what to write
instead), 3 is a request for what exists for other versions of Python only, 1 is anything else, 130 is Ctrl-C. With
``--json`` the last line on stdout is one JSON object, also after an error; progress and messages go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ..results.store import StoreError
from .commands import CommandFailed
from .commands.board import board
from .commands.collect import collect
from .commands.compare import compare
from .commands.envs import envs
from .commands.evaluate import evaluate_command
from .commands.setup import doctor, setup
from .commands.training import train, train_draft
from .commands.verify import verify
from .spec import RunStopped


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
def replan() -> None:
    """Make the replanning rounds of vision-language-action policies fast, and measure what that costs."""


for command in (evaluate_command, board, compare, verify, envs, setup, doctor, collect, train, train_draft):
    replan.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command and leaves the process with its exit code.

    Args:
        arguments: Command line without the program's name; those of the process if missing.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the numeric libraries when they are imported
    code, result = _run(arguments)
    if "--json" in arguments:
        print(json.dumps(result, allow_nan=False))
    sys.exit(code)


def _run(arguments: list[str]) -> tuple[int, dict[str, Any]]:
    """Returns the exit code, and what ``--json`` prints."""
    try:
        result = replan.main(arguments, prog_name="replan", standalone_mode=False, obj=arguments)
        return 0, result if isinstance(result, dict) else {}  # --help returns its exit code, which is 0
    except click.ClickException as error:
        error.show()
        return error.exit_code, _error_json(error, error.format_message())
    except click.Abort as error:
        click.echo("interrupted; the same command resumes", err=True)
        return 130, _error_json(error, "interrupted")
    except CommandFailed as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code, {**error.result, **_error_json(error, str(error))}
    except RunStopped as error:
        click.echo(f"error: {error}", err=True)
        return 1, _error_json(error, str(error))
    except (ValueError, StoreError) as error:
        click.echo(f"error: {error}", err=True)
        return 2, _error_json(error, str(error))
    except Exception as error:
        from ..envs import SuiteUnavailable  # here, since it takes half a second

        if isinstance(error, SuiteUnavailable):
            click.echo(f"error: {error}", err=True)
            return 2, _error_json(error, str(error))
        traceback.print_exc()
        return 1, _error_json(error, str(error))


def _error_json(error: Exception, message: str) -> dict[str, Any]:
    return {"error": message, "kind": type(error).__name__}
