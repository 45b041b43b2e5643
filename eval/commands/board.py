"""``replan board``: the leaderboard of one or several run directories."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from ...files import write_file
from ...results.escaping import visible
from . import check_output, error_lines, json_option, mixed_option, rows_option, show


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@click.option("--html", metavar="FILE", help="Also write one self-contained page with plots.")
@click.option("--title", metavar="TEXT", help="Heading of the page.  [the directories]")
@click.option("--markdown", is_flag=True, help="Print Markdown instead of text.")
@mixed_option
@rows_option
@json_option
def board(
    directories: tuple[str, ...],
    html: str | None,
    title: str | None,
    markdown: bool,
    allow_mixed: bool,
    episode_rows: bool,
) -> dict[str, Any]:
    """Show what runs have measured, as a table."""
    from ...results import leaderboard, tables
    from ...results.export import episode_records
    from ...results.marks import RANK
    from ...results.store import Store

    check_output("--html", html, "page", b"<!doctype html", b"<html")
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
        named = zip(directories, stores, strict=True)
        each = {"rows": leaderboard.to_json(episode_records(named))} if episode_rows else {}
    return {"board": leaderboard.to_json(rows), "rank_rule": RANK, "html": html, **each}
