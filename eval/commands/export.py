"""``replan export``: runs as plain tables."""

from __future__ import annotations

import io
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...files import write_file
from ..spec import BadInput
from . import json_option, named

if TYPE_CHECKING:
    from ...results.export import Table


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", required=True, metavar="DIR", callback=named, help="Gets one file of episodes, one of rounds.")
@click.option("--parquet", is_flag=True, help="Write Parquet in place of CSV; needs pyarrow.")
@json_option
def export(directories: tuple[str, ...], out: str, parquet: bool) -> dict[str, Any]:
    """Write runs as tables of episodes and rounds."""
    from ...results import export as exporting
    from ...results.store import Store

    if parquet:
        try:
            import pyarrow  # noqa: F401 # pyright: ignore[reportMissingImports]: it is asked for whether it is here
        except ImportError as error:
            raise BadInput("--parquet needs pyarrow; write pip install pyarrow, or leave --parquet for CSV") from error
    with ExitStack() as stack:
        stores = [(name, stack.enter_context(Store.open(name))) for name in dict.fromkeys(directories)]
        tables = exporting.export(stores)
    Path(out).mkdir(parents=True, exist_ok=True)
    written = {}
    for name, table in tables._asdict().items():
        path = Path(out) / f"{name}.{'parquet' if parquet else 'csv'}"
        write_file(path, _parquet(table) if parquet else exporting.to_csv(table))
        written[name] = {"file": str(path), "rows": table.rows}
        click.echo(f"wrote {path}: {written[name]['rows']} rows", err=True)
    return written


def _parquet(exported: Table) -> bytes:
    import pyarrow  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet  # pyright: ignore[reportMissingImports]

    records = list(exported.records())
    page = io.BytesIO()
    table = pyarrow.table({name: [record.get(name) for record in records] for name in exported.columns})
    pyarrow.parquet.write_table(table, page)
    return page.getvalue()
