"""``replan verify``: plays some cells of a run again and says what comes out equal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from . import CommandFailed, json_option, show


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--cells", type=click.IntRange(min=1), default=5, show_default=True, help="Cells per suite to play.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@json_option
def verify(directory: str, cells: int, workers: int) -> dict[str, Any]:
    """Play cells of a run again and compare what comes out.

    On the machine and with the code that measured them, every action and state has to be equal. On another machine the
    cells have to be equal, and most outcomes are.
    """
    from tabulate import tabulate

    from ..registry import Registry
    from ..verify import verify as play_again

    replays = play_again(directory, Registry(), cells=cells, workers=workers)
    show(
        tabulate(
            [
                {
                    "suite": each.suite,
                    "method": each.method,
                    "level": each.level,
                    "bit-equal": f"{each.bit_equal}/{each.played}",
                    "outcome": f"{each.same_outcome}/{each.played}",
                    "cell": f"{each.same_cell}/{each.played}",
                    "code": "same" if each.same_code == each.played else "other",
                    "machine": "same" if each.same_machine == each.played else "other",
                }
                for each in replays
            ],
            headers="keys",
        )
    )
    result = {"replays": [{**asdict(each), "level": each.level} for each in replays]}
    if any(each.broken or each.failed for each in replays):
        raise CommandFailed(f"{directory} does not come out again as it claims", result)
    return result
