"""``replan board``: the leaderboard of one or several run directories."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from ..spec import BadInput
from . import json_option, mixed_option


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
    from ...results.store import Store

    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(directory)) for directory in directories]
        rows = leaderboard.board(stores, allow_mixed=allow_mixed)
        click.echo(tables.markdown(rows) if markdown else tables.text(rows))
        if html:
            from ...results import report

            page = report.render(stores, title=title or ", ".join(directories), allow_mixed=allow_mixed)
            try:
                Path(html).write_text(page, encoding="utf-8")
            except OSError as error:
                raise BadInput(f"cannot write {html!r}: {error.strerror}") from error
            click.echo(f"wrote {html}", err=True)
    return {"board": leaderboard.to_json(rows), "html": html}
