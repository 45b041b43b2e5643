"""What an evaluation says on stderr while it runs: a bar on a terminal, and lines for a log."""

from __future__ import annotations

import sys
import time  # noqa: TID251 - a log gets a line now and then
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ..results.escaping import visible
from .rows import is_fault

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow
    from .cells import Job

SILENT_S = 10.0  # of building, after which a user wonders what goes on
APART_S = 30.0  # between two lines of a log

Say = Callable[[str], None]


def say(text: str) -> None:
    """Prints a line."""
    print(visible(text), file=sys.stderr, flush=True)


def waited(future: Future[Any], doing: Callable[[], str], shown: bool) -> Any:
    """Returns the result of a future, and says what its worker is doing where that takes long.

    Args:
        future: The future.
        doing: Returns what that is.
        shown: Whether to say it.
    """
    said = ""
    while shown and not wait([future], SILENT_S).done:
        if (text := doing()) != said:
            say(text)
        said = text
    return future.result()


@contextmanager
def progress(jobs: Sequence[Job], done: Sequence[EpisodeRow], shown: bool) -> Iterator[Callable[[EpisodeRow], None]]:
    """Shows each method's success so far; yields what has to be called with every new row.

    Faults are said in any case.

    Args:
        jobs: All jobs of the run.
        done: Rows that it has already.
        shown: Whether to show anything else.
    """
    keys = {job.key for job in jobs}
    successes: Counter[str] = Counter()
    measured: Counter[str] = Counter()

    def tally(row: EpisodeRow) -> str:
        measured[row.method] += row.status == "done"
        successes[row.method] += bool(row.success)
        return ", ".join(f"{name} {successes[name] / count:.0%}" for name, count in sorted(measured.items()) if count)

    before = [tally(row) for row in done if row.key in keys]
    with _display(len(jobs), len(before), shown) as (write, update):

        def show(row: EpisodeRow) -> None:
            if is_fault(row):
                what, why = row.outcome or row.status, row.error or row.failure
                write(visible(f"{what}, {row.method} on {row.task} {row.init_state}: {why}", keep="\n"))
            update(tally(row))

        yield show


@contextmanager
def _display(total: int, count: int, shown: bool) -> Iterator[tuple[Say, Say]]:
    """Yields what writes a line, and what counts one episode more under a text."""
    if not shown:
        yield say, lambda _: None
    elif sys.stderr.isatty():
        with tqdm(total=total, initial=count, unit="episode", file=sys.stderr, smoothing=0.1) as bar:

            def update(text: str) -> None:
                bar.set_postfix_str(text, refresh=False)
                bar.update()

            yield lambda text: bar.write(text, file=sys.stderr), update
    else:
        begun = last = time.monotonic()
        played = 0

        def log(text: str) -> None:
            nonlocal last, played
            played += 1
            now = time.monotonic()
            if now - last >= APART_S or count + played == total:
                last = now
                say(f"{count + played}/{total} episodes, {(now - begun) / played:.2g} s each: {text}")

        yield say, log
