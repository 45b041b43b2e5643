"""What a resumed run says: what it takes from its directory, and what it measures again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow, Run
    from .cells import Job


def reused(out: str, jobs: Sequence[Job], rows: Sequence[EpisodeRow], runs: Sequence[Run]) -> Iterator[str]:
    """Yields what a resumed run takes from its directory, and what it measures again since the code has changed.

    Args:
        out: The directory.
        jobs: All jobs of the run.
        rows: Measured episodes that the directory holds.
        runs: What measured them.
    """
    keys = {job.key for job in jobs}
    here = sum(row.key in keys for row in rows)
    if here:
        commits = ", ".join(dict.fromkeys(run.commit[:12] + run.commit[40:] for run in runs))
        yield f"{out}: {here} of {len(keys)} episodes are there, measured by the same code (commit {commits})"
    cells = {(job.cell.key, job.method): job for job in jobs}
    for name in dict.fromkeys(job.method for job in jobs):
        old = [row for row in rows if row.method == name and row.key not in keys and (row.cell, name) in cells]
        if old:
            now = cells[old[0].cell, name].code
            changed = " and ".join(part for part in now if old[0].code.get(part) != now[part]) or "files"
            yield (
                f"{out}: {len(old)} episodes of {name!r} were measured by other code ({changed} changed) and "
                "are measured again; the board shows both versions"
            )
