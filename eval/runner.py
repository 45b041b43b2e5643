"""Runs an evaluation: gives jobs to worker processes and writes what comes back.

Only this process writes the store, one whole episode at a time: the run can be killed at any moment and started again.

An episode that cannot be finished is never a failure of the policy, so it gets no success value:

* its worker dies (simulators abort natively) or hangs: it is run once more in a new worker, then recorded as an error;
* an exception is raised in it: it is recorded as an error at once, since the same cell would raise it again. The worker
  is replaced, since the exception may have left anything behind.

Starting the run again tries the errors again.

The episodes of a method that learns across episodes form a chain: one process plays them in a fixed order. A chain that
was interrupted is played again from its start in a fresh agent; what the store holds already has to come again equal.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from ..envs import SuiteUnavailable
from ..results.escaping import visible
from ..results.schema import EpisodeRow, Run
from ..results.store import Store, StoreError
from .cells import address, make_batches, make_chains
from .claims import claim_directory
from .clock import write_trace
from .spec import BadInput
from .worker import Host, failed
from .workers import LocalWorker, build, local_workers, loss, play

if TYPE_CHECKING:
    from .cells import Cell, Job
    from .registry import Registry
    from .spec import Spec

TRACE = "trace.jsonl"  # what a run with measured latency leaves in its directory
ATTEMPTS = 2  # of an episode whose worker died or hung


def run(spec: Spec, jobs: Sequence[Job], record: Run, host: Host, registry: Registry, *, progress: bool = True) -> None:
    """Runs the jobs that the run directory does not hold yet.

    Args:
        spec: The evaluation, its device resolved.
        jobs: Its jobs. Their order decides when an episode is measured, not what it is.
        record: What produces the run; the directory must not hold another one.
        host: This machine.
        registry: Where suites, policies and methods come from.
        progress: Whether to show a progress bar on stderr.

    Raises:
        BadInput: An environment, policy or method refuses to be built; or another process is writing to the run
            directory.
        SuiteUnavailable: A worker died or hung while it was set up.
        RuntimeError: A worker cannot be set up for another reason.
        StoreError: The run directory holds another run.
    """
    if spec.latency == "measured" and (Path(spec.out) / TRACE).is_dir():
        raise BadInput(f"{str(Path(spec.out) / TRACE)!r} is a folder, where the run writes its trace; remove it")
    with claim_directory(Path(spec.out)), Store.start(spec.out, record) as store:
        stored = {row.key: row.trajectory_hash for row in store.episodes() if row.status == "done"}
        batches = make_batches((job for job in jobs if job.place is None and job.key not in stored), registry.suites())
        chains = [chain for chain in make_chains(jobs) if any(job.key not in stored for job in chain)]
        try:
            if batches or chains:
                count = sum(map(len, (*batches, *chains)))
                with local_workers(spec, registry, host, count) as workers, _bar(jobs, store, progress) as show:
                    _build(workers, [*batches, *([job] for chain in chains for job in chain)])
                    for row in _play(workers, batches, spec, host):
                        store.add(row)
                        show(row)
                    for chain in chains:
                        for row in _play_chain(workers[0], chain, stored, spec, host):
                            store.add(row)
                            show(row)
        except BaseException:
            with suppress(OSError, StoreError):  # the first error is what the user must know
                _leave_trace(spec, store)
            raise
        _leave_trace(spec, store)


def _leave_trace(spec: Spec, store: Store) -> None:
    """Writes what replays the run, where it was measured."""
    if spec.latency == "measured":
        write_trace(Path(spec.out) / TRACE, store.episodes())


def _build(workers: list[LocalWorker], batches: Sequence[Sequence[Job]]) -> None:
    """Builds everything once, so that what cannot be built is known before anything is measured.

    Every worker builds the first suite, beginning with the batch that it will play first, and keeps it; one of them has
    tried the other suites before.
    """
    first, *others = _one_of_each(batches)
    for suite in others:
        _ask_to_build({workers[0]: _one_of_each(batches)[suite]}, suite)
    turns = range(len(workers))
    _ask_to_build({workers[i]: _one_of_each([*batches[i:], *batches[:i]])[first] for i in turns}, first)


def _one_of_each(batches: Sequence[Sequence[Job]]) -> dict[str, list[Cell]]:
    """Returns the first cell of each combination of settings, by suite."""
    cells: dict[str, dict[str, Cell]] = {}
    for cell in (batch[0].cell for batch in batches):
        cells.setdefault(cell.suite, {}).setdefault(address(cell.settings), cell)
    return {suite: list(first.values()) for suite, first in cells.items()}


def _ask_to_build(cells: dict[LocalWorker, list[Cell]], suite: str) -> None:
    for worker in cells:
        worker.serve(suite)
    for future in [worker.ask(build, own) for worker, own in cells.items()]:
        try:
            refusal = future.result()
        except Exception as error:
            raise SuiteUnavailable(
                f"suite {suite!r} could not be set up: {loss(error)}; see `replan doctor`"
            ) from error
        if refusal is not None:
            raise (BadInput if refusal.bad_input else RuntimeError)(refusal.text)


def _play(workers: list[LocalWorker], batches: Sequence[Sequence[Job]], spec: Spec, host: Host) -> Iterator[EpisodeRow]:
    """Yields the row of each job when it is finished."""
    waiting = deque(map(deque, batches))
    taken: dict[LocalWorker, deque[Job]] = {worker: deque() for worker in workers}  # what is left of each one's batch
    losses: Counter[str] = Counter()  # times that a job lost its worker, by key
    busy: dict[LocalWorker, tuple[Job, Future[EpisodeRow]]] = {}
    while waiting or busy or any(taken.values()):
        for worker in workers:
            if worker not in busy and (job := _next_job(worker, taken, waiting)):
                worker.serve(job.cell.suite)
                busy[worker] = job, worker.ask(play, job)
        finished, _ = wait([future for _, future in busy.values()], return_when=FIRST_COMPLETED)
        for worker, (job, future) in list(busy.items()):
            if future not in finished:
                continue
            del busy[worker]
            try:
                row = replace(future.result(), retries=losses[job.key])
            except Exception as error:
                worker.restart()
                losses[job.key] += 1
                if losses[job.key] < ATTEMPTS:
                    taken[worker].appendleft(job)
                    continue
                row = failed(job, spec, host, loss(error), retries=losses[job.key] - 1)
            else:
                if row.status == "error":
                    worker.restart()
            yield row


def _next_job(worker: LocalWorker, taken: dict[LocalWorker, deque[Job]], waiting: deque[deque[Job]]) -> Job | None:
    """Takes the worker's next job: of its own batch, of a new one, or at last of the worker that has most left."""
    if not taken[worker] and waiting:
        taken[worker] = waiting.popleft()
    if taken[worker]:
        return taken[worker].popleft()
    most = max(taken.values(), key=len)
    return most.pop() if most else None


def _play_chain(
    worker: LocalWorker, chain: Sequence[Job], stored: Mapping[str, str], spec: Spec, host: Host
) -> Iterator[EpisodeRow]:
    """Plays a chain from its start in a fresh agent; yields the rows that the store lacks.

    An episode that cannot be measured ends the chain: what the method would do after it is unknown, so the episodes
    after it become errors as well.

    Args:
        worker: The one worker of the run.
        chain: All jobs of the chain, in order.
        stored: Trajectory hashes of the measured episodes that the store holds, by key.
        spec: The evaluation.
        host: This machine.
    """
    hashes, losses = dict(stored), Counter[str]()
    waiting = deque(chain)
    worker.restart()
    while waiting:
        job = waiting.popleft()
        worker.serve(job.cell.suite)
        try:
            row = replace(worker.ask(play, job).result(), retries=losses[job.key])
        except Exception as error:
            worker.restart()
            losses[job.key] += 1
            if losses[job.key] < ATTEMPTS:
                waiting = deque(chain)
                continue
            row = failed(job, spec, host, loss(error), retries=losses[job.key] - 1)
        if row.status == "done" and job.key not in hashes:
            hashes[job.key] = row.trajectory_hash
            yield row
        elif row.status == "error" or row.trajectory_hash != hashes[job.key]:
            why = row.error or f"its trajectory is {row.trajectory_hash[:12]}, and was {hashes[job.key][:12]} before"
            if job.key not in hashes:
                yield row
            for later in waiting:
                if later.key not in hashes:
                    place = f"episode {job.place} of the chain of {job.method!r} (cell {job.cell.key[:12]})"
                    yield failed(later, spec, host, f"not played, because {place} did not come out: {why}")
            worker.restart()
            return


@contextmanager
def _bar(jobs: Sequence[Job], store: Store, progress: bool) -> Iterator[Callable[[EpisodeRow], None]]:
    """Shows a bar with each method's success so far; yields what has to be called with every new row."""
    keys = {job.key for job in jobs}
    successes: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    with tqdm(total=len(jobs), unit="episode", file=sys.stderr, disable=not progress, smoothing=0.1) as bar:

        def show(row: EpisodeRow, steps: int = 1) -> None:
            measured[row.method] += row.status == "done"
            successes[row.method] += bool(row.success)
            rates = [f"{name} {successes[name] / count:.0%}" for name, count in sorted(measured.items()) if count]
            bar.set_postfix_str(", ".join(rates), refresh=False)
            if row.status == "error":
                text = f"error, {row.method} on {row.task} {row.init_state}: {row.error}"
                bar.write(visible(text, keep="\n"), file=sys.stderr)
            bar.update(steps)

        for row in store.episodes():
            if row.status == "done" and row.key in keys:
                show(row)
        bar.unpause()
        yield show
