"""``replan video``: an episode of a run, shown again."""

from __future__ import annotations

from typing import Any

import click

from ..spec import BadInput
from . import check_output, json_option, show

MOST = 4  # episodes side by side


@click.command()
@click.argument("directory", metavar="RUN")
@click.argument("cell", metavar="CELL")
@click.option("--method", "methods", metavar="METHOD,...", help="Show these side by side.  [the run's first]")
@click.option("--out", metavar="FILE.mp4", help="Video to write.  [TASK-STATE-METHOD.mp4 in this folder]")
@json_option
def video(directory: str, cell: str, methods: str | None, out: str | None) -> dict[str, Any]:
    """Show a stored episode again, as a video.

    CELL is TASK:STATE, such as dog-red:3, or the beginning of the cell's address in `replan export`. The stored actions
    are played again; an episode that does not come out as it was stored is refused.
    """
    from ...results.store import Store
    from ..footage import follow
    from ..registry import Registry
    from ..stored import find_cell, of_method
    from ..video import check_encoder, write_video

    check_encoder()
    registry = Registry()
    with Store.open(directory) as store:
        rows = find_cell(store.episodes(), cell)
        names = [name.strip() for name in methods.split(",")] if methods else [rows[0].method]
        if not 0 < len(names) <= MOST:
            raise BadInput(f"--method {methods!r} names {len(names)} methods; a video shows 1 to {MOST}")
        chosen = [of_method(rows, name) for name in names]
        task, state = chosen[0].task, chosen[0].init_state
        name = out or f"{task}-{state}-{'-'.join(names)}.mp4".replace("/", "_").replace(":", "_")
        check_output("--out", name, "video", b"\0\0\0")
        courses = [follow(row, store, registry) for row in chosen]
        write_video(name, courses, registry)
    show(f"wrote {name}")
    return {
        "video": name,
        "episodes": [
            {
                "key": course.row.key,
                "method": course.row.method,
                "outcome": course.row.outcome,
                "seconds": course.end_ns / 1e9,
                "bit_equal": course.bit_equal,
            }
            for course in courses
        ],
    }
