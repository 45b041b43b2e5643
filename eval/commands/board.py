"""``replan board``: the leaderboard of one or several run directories."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ...files import write_file
from ...results.escaping import visible
from ..spec import BadInput
from . import error_lines, json_option, mixed_option, show


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@click.option("--html", metavar="FILE", help="Also write one self-contained page with plots.")
@click.option("--title", metavar="TEXT", help="Heading of the page.  [the directories]")
@click.option("--markdown", is_flag=True, help="Print Markdown instead of text.")
@mixed_option
@json_option
def board(
    directories: tuple[str, ...], html: str | None, title: str | None, markdown: bool, allow_mixed: bool
) -> dict[str, Any]:
    """Show what runs have measured, as a table."""
    from ...results import leaderboard, tables
    from ...results.marks import RANK
    from ...results.store import Store

    if html is not None and not html.strip():
        raise BadInput(f"--html {html!r} names no file; write --html FILE.html")
    if html and not _is_page(Path(html)):
        raise BadInput(f"--html {html!r} exists and is no page; name another file, or remove this one")
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(directory)) for directory in directories]
        rows = leaderboard.board(stores, allow_mixed=allow_mixed)
        show(tables.markdown(rows) if markdown else tables.text(rows))
        if any(row.errors for row in rows):
            click.echo(f"errors:\n{visible(error_lines(stores), keep=chr(10))}", err=True)
        if html:
            from ...results import report

            page = report.render(stores, title=title or ", ".join(directories), allow_mixed=allow_mixed)
            write_file(html, page)
            click.echo(f"wrote {html}", err=True)
    return {"board": leaderboard.to_json(rows), "rank_rule": RANK, "html": html}


def _is_page(path: Path) -> bool:
    """Returns whether a page may be written here: there is nothing yet, or a page. A database must not be lost."""
    if not path.is_file():
        return True
    with path.open("rb") as file:
        return file.read(64).lstrip().lower().startswith((b"<!doctype html", b"<html")) or not path.stat().st_size
