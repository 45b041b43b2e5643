"""``replan flips``: the cells that two methods ended differently, as a table and as videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...results.schema import BASELINE
from ..spec import BadInput, unknown
from . import CommandFailed, check_output, json_option, named, show


@click.command()
@click.argument("directory", metavar="RUN")
@click.option("--method", required=True, metavar="METHOD", help="Method of the run.")
@click.option("--against", default=BASELINE, metavar="METHOD", show_default=True, help="What it is compared with.")
@click.option(
    "--out", metavar="DIR", callback=named, default="flips", show_default=True, help="Gets videos and a page."
)
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Most videos; losses first.")
@json_option
def flips(directory: str, method: str, against: str, out: str, limit: int) -> dict[str, Any]:
    """Show the cells that one method solved and another lost."""
    from tabulate import tabulate

    from ...results import flips as found
    from ...results.store import Store
    from ..flips import PAGE, show_flips
    from ..registry import Registry
    from ..video import check_encoder

    if limit:
        check_encoder()
    page = Path(out) / PAGE
    check_output("--out", str(page), "page", b"<!doctype html")
    with Store.open(directory) as store:
        methods = {row.method for row in store.episodes()}
        for name in (method, against):
            if name not in methods:
                raise unknown("method of this run", name, methods)
        if method == against:
            raise BadInput(f"--method and --against are both {method!r}; name two methods")
        comparison = found.flips(store, method, against)
        show(tabulate(_table(comparison), headers="keys"))
        show(comparison.sentence)
        shown = show_flips(comparison, store, Registry(), out, limit)
    videos = [each.video for each in shown if each.video]
    refused = [each.reason for each in shown if each.reason]
    show(f"wrote {page}; {len(videos)} of {len(shown)} flips have a video")
    result = {
        "page": str(page),
        "sentence": comparison.sentence,
        "patterns": [vars(each) for each in comparison.patterns],
        "cells": [
            {
                "cell": each.flipped.row.cell,
                "lost": each.flipped.lost,
                "video": each.video,
                "parted": each.parted,
                "reason": each.reason,
            }
            for each in shown
        ],
    }
    if refused:
        raise CommandFailed(f"{len(refused)} of the flips cannot be shown; the first: {refused[0]}", result)
    return result


def _table(comparison: Any) -> list[dict[str, Any]]:
    return [
        {
            "task": each.label,
            "cells": each.cells,
            f"{comparison.against} alone": each.lost,
            f"{comparison.method} alone": each.gained,
            "both": each.both,
            "neither": each.neither,
        }
        for each in comparison.patterns
    ]
