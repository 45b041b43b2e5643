"""``replan gate``: whether a run allows a merge. The exit code says what came out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ...files import write_file
from ..spec import BadInput
from . import CommandFailed, FiniteRange, Percent, check_output, json_option, margin_option, show

CODES = {"FAIL": 1, "INSUFFICIENT": 3, "NOT COMPARABLE": 4}


class NotPassed(CommandFailed):
    """The gate did not pass."""

    def __init__(self, outcome: str, result: dict[str, Any]) -> None:
        super().__init__(f"the gate says {outcome}", result)
        self.exit_code = CODES[outcome]


@click.command()
@click.argument("directory", metavar="RUN")
@click.option("--against", metavar="RUN|FILE", help="Compare with the same methods of an older run, not with dense.")
@margin_option
@click.option("--retention", type=Percent(), metavar="PERCENT", help="Solved cells to keep, checked instead of it.")
@click.option(
    "--slower", type=Percent(1000), metavar="PERCENT", help="How much longer a route, or an action, may take."
)
@click.option("--error", type=FiniteRange(min=0), help="Largest mean action error.")
@click.option("--registered", metavar="HASH", help="Refuse other limits or another specification than registered.")
@click.option("--markdown", metavar="FILE", help="Also write Markdown, for a pull request.")
@click.option("--junit", metavar="FILE", help="Also write JUnit XML, for a build server.")
@json_option
def gate(
    directory: str,
    against: str | None,
    margin: float,
    retention: float | None,
    slower: float | None,
    error: float | None,
    registered: str | None,
    markdown: str | None,
    junit: str | None,
) -> dict[str, Any]:
    """Say whether a run allows a merge.

    Exit codes: 0 PASS, 1 FAIL, 2 bad input, 3 INSUFFICIENT (too few cells to tell), 4 NOT COMPARABLE.
    """
    from ...results import gate_report
    from ...results.gate import Limits
    from ...results.gate import gate as check
    from ...results.leaderboard import to_json
    from ...results.store import FILE, Store

    if against is not None and not against.strip():
        raise BadInput(f"--against {against!r} names no run; write --against RUN")
    check_output("--markdown", markdown, "report of the gate", b"### replan gate:")
    check_output(
        "--junit", junit, "report of the gate", b'<?xml version="1.0" encoding="utf-8"?>\n<testsuite name="replan gate"'
    )
    limits = Limits(margin, retention, slower, error)
    with ExitStack() as stack:
        run = stack.enter_context(Store.open(directory))
        folder = str(Path(against).parent) if against and Path(against).name == FILE else against
        older = stack.enter_context(Store.open(folder)) if folder else None
        result = check(run, older, limits)
    if registered is not None and registered != result.registration:
        raise BadInput(f"{registered!r} was registered, and these limits and this run are {result.registration!r}")
    show(gate_report.text(result))
    for path, written in ((markdown, gate_report.markdown), (junit, gate_report.junit)):
        if path is not None:
            write_file(path, written(result))
    outcome = result.outcome.value
    plain = {
        "outcome": outcome,
        "registration": result.registration,
        "limits": vars(limits),
        "checks": to_json(result.checks),
    }
    if outcome != "PASS":
        raise NotPassed(outcome, plain)
    return plain
