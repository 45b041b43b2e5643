"""Runs an evaluation: gives jobs to worker processes and writes what comes back.

Only this process writes the store, one whole episode at a time: the run can be killed at any moment and started again.

What the policy or its method does wrong is an episode that failed (see :mod:`.worker`), and so is one that they do not
end: their process dies twice while they are at work, or the time limit is over then. An episode that the simulator or
the harness could not finish is no failure of the policy, so it gets no success value:

* its worker dies (simulators abort natively) or hangs: it is run once more in a new worker, then recorded as an error;
* an exception is raised in it: it is recorded as an error at once, since the same cell would raise it again.

After an exception the worker is replaced, since it may have left anything behind. A run in which the first episodes of
a method all end by the same exception, loss or time-out stops. Starting it again tries the errors again.

The episodes of a method that learns across episodes form a chain: one process plays them in a fixed order. A chain that
was interrupted is played again from its start in a fresh agent; what the store holds already has to come again equal.
After an episode that the method ended by an exception, a fresh agent goes on: it has learned nothing.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..results.addresses import address
from ..results.schema import RAISED, TIMEOUT, EpisodeRow, Run
from ..results.store import FILE, Store, StoreError
from .cells import make_batches, make_chains
from .claims import claim_directory
from .clock import write_trace
from .progress import progress as shown
from .progress import say, waited
from .resume import reused
from .rows import Host, abandoned, failed, is_fault
from .spec import BadInput, RunStopped
from .worker import BUILDING
from .workers import LocalWorker, local_workers, loss

if TYPE_CHECKING:
    from .cells import Job
    from .registry import Registry
    from .spec import Spec

TRACE = "trace.jsonl"  # what a run with measured latency leaves in its directory
ATTEMPTS = 2  # of an episode whose worker died or hung, and of building a worker that died
ALIKE = 8  # first episodes of a method; where all fail, at least 69 % of all would (0.05^(1/8), one-sided 95 %)


def run(
    spec: Spec,
    jobs: Sequence[Job],
    record: Run,
    host: Host,
    registry: Registry,
    workers: Sequence[LocalWorker] | None = None,
    *,
    progress: bool = True,
) -> None:
    """Runs the jobs that the run directory does not hold yet.

    Args:
        spec: The evaluation, its device resolved.
        jobs: Its jobs. Their order decides when an episode is measured, not what it is.
        record: What produces the run; the directory must not hold another one.
        host: This machine.
        registry: Where suites, policies and methods come from.
        workers: What plays them, and is stopped by the caller; new ones if missing.
        progress: Whether to say on stderr how it goes; faults are said in any case.

    Raises:
        BadInput: An environment, policy or method refuses to be built or cannot act; another process is writing to the
            run directory; or the run cannot be resumed.
        RunStopped: A worker died or hung while it was set up, or the first episodes of a method all failed alike.
        RuntimeError: A worker cannot be set up for another reason.
        StoreError: The run directory holds another run, or cannot be written any more.
    """
    if spec.measures_latency and (Path(spec.out) / TRACE).is_dir():
        raise BadInput(f"{str(Path(spec.out) / TRACE)!r} is a folder, where the run writes its trace; remove it")
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # the check that multiprocessing itself makes
        raise BadInput("this script evaluates when a worker imports it; put that under `if __name__ == '__main__':`")
    with _run_directory(Path(spec.out), record) as store:
        done = [row for row in store.episodes() if row.status == "done"]
        for line in reused(spec.out, jobs, done, store.runs[:-1]) if progress else ():
            say(line)
        stored = {row.key: row.trajectory_hash for row in done}
        batches = make_batches((job for job in jobs if job.place is None and job.key not in stored), registry.suites())
        chains = [chain for chain in make_chains(jobs) if any(job.key not in stored for job in chain)]
        if spec.measures_latency and (begun := [chain for chain in chains if any(job.key in stored for job in chain)]):
            raise BadInput(
                f"the episodes of {begun[0][0].method!r} in {spec.out} were interrupted, and under measured latency "
                "they do not come out the same twice; start again in another --out, or with --latency trace:FILE"
            )
        try:
            if batches or chains:
                count = sum(map(len, (*batches, *chains)))
                alike = Alike()
                made = local_workers(registry, spec.workers) if workers is None else nullcontext(workers)
                with made as every, shown(jobs, done, progress) as show:
                    used = list(every[:count])
                    for worker in used:
                        worker.set_up(spec, host)
                    _build(used, [*batches, *([job] for chain in chains for job in chain)], len(spec.method), progress)
                    for row in _rows(used, batches, chains, stored, spec, host):
                        store.add(row)
                        show(row)
                        alike.see(row)
        except StoreError:  # what it holds cannot be read either
            raise
        except BaseException:
            with suppress(OSError, StoreError):  # the first error is what the user must know
                _leave_trace(spec, store)
            raise
        _leave_trace(spec, store)


@contextmanager
def _run_directory(out: Path, record: Run) -> Iterator[Store]:
    """Opens the store of a run. What was made for a run that then measured nothing is removed again."""
    with claim_directory(out):
        made = [path for path in (out / FILE, out, *out.parents) if not path.exists()]
        try:
            with Store.start(out, record) as store:
                try:
                    yield store
                except BaseException:
                    if not made or store.episodes():
                        made = []
                    raise
        except BaseException:
            for path in made:
                try:
                    path.unlink(missing_ok=True) if path.name == FILE else path.rmdir()
                except OSError:  # somebody else put something in it
                    break
            raise


def _leave_trace(spec: Spec, store: Store) -> None:
    rows = store.episodes() if spec.measures_latency else []
    if rows:
        write_trace(Path(spec.out) / TRACE, rows)


class Alike:
    """Looks for a method that cannot work at all here, before hours are spent on it."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], list[str]] = {}

    def see(self, row: EpisodeRow) -> None:
        """Takes the next row.

        Raises:
            RunStopped: The first episodes of the row's method on its suite all failed alike.
        """
        kinds = self._kinds.setdefault((row.suite, row.method), [])
        if len(kinds) >= ALIKE:
            return
        cause = row.error or row.failure or ""
        kinds.append(cause.partition(":")[0] if is_fault(row) else "")
        if len(kinds) == ALIKE and kinds[0] and len(set(kinds)) == 1:
            raise RunStopped(
                f"method {row.method!r} failed alike in all of its first {ALIKE} episodes on suite {row.suite!r}, so "
                f"the run was stopped; its rows are kept: {cause}"
            )


class Losses:
    """Decides what becomes of the jobs whose worker was lost.

    Args:
        spec: The evaluation.
        host: This machine.
    """

    def __init__(self, spec: Spec, host: Host) -> None:
        self._spec, self._host = spec, host
        self._acting: dict[str, list[bool]] = {}  # by job: for each loss, whether the policy or method was at work

    def of(self, job: Job) -> int:
        """Returns how many times the job lost its worker."""
        return len(self._acting.get(job.key, ()))

    def row(self, job: Job, worker: LocalWorker, error: Exception, *, again: bool = True) -> EpisodeRow | None:
        """Returns the row of a job whose worker was lost, or None where the job is to be played again.

        A policy that does not return in time would not do so again; one that takes its process down may have been
        killed for lack of memory.

        Args:
            job: The job.
            worker: The worker, not yet replaced.
            error: What its future raised.
            again: Whether the job can be played again at all.
        """
        entry, acting = worker.left_behind(job.key), self._acting.setdefault(job.key, [])
        acting.append(entry.agent_acting)
        retries = len(acting) - 1
        if isinstance(error, TimeoutError) and entry.agent_acting:
            text = f"the policy or its method was at work when the episode's {worker.time_limit:g} s were over"
            return abandoned(job, self._spec, self._host, entry, TIMEOUT, text, retries)
        if again and len(acting) < ATTEMPTS:
            return None
        if len(acting) == ATTEMPTS and all(acting):
            text = f"{loss(error)}, {ATTEMPTS} times while the policy or its method was at work"
            return abandoned(job, self._spec, self._host, entry, RAISED, text, retries)
        return failed(job, self._spec, self._host, loss(error), retries)


def _build(workers: list[LocalWorker], batches: Sequence[Sequence[Job]], methods: int, progress: bool) -> None:
    """Builds everything once, so that what cannot be built is known before anything is measured.

    Every worker builds the first suite, beginning with the batch that it will play first, and keeps it; one of them has
    tried the other suites before.
    """
    first, *others = _one_of_each(batches)
    for suite in others:
        _ask_to_build({workers[0]: _one_of_each(batches)[suite]}, suite, methods, progress)
    turns = range(len(workers))
    first_of = {workers[i]: _one_of_each([*batches[i:], *batches[:i]])[first] for i in turns}
    _ask_to_build(first_of, first, methods, progress)


def _one_of_each(batches: Sequence[Sequence[Job]]) -> dict[str, list[Job]]:
    """Returns the first job of each combination of settings and method, by suite."""
    jobs: dict[str, dict[tuple[str, str], Job]] = {}
    for batch in batches:  # of one suite and one combination of settings
        settings = address(batch[0].cell.settings)
        first = jobs.setdefault(batch[0].cell.suite, {})
        for job in batch:
            first.setdefault((settings, job.method), job)
    return {suite: list(each.values()) for suite, each in jobs.items()}


def _ask_to_build(jobs: dict[LocalWorker, list[Job]], suite: str, methods: int, progress: bool) -> None:
    for worker in jobs:
        worker.serve(suite)
    limit = 1 + methods  # the warm-up rounds of each
    futures = {worker: worker.build(own, limit=limit) for worker, own in jobs.items()}
    for attempt in range(1, ATTEMPTS + 1):
        lost = []
        for worker, future in futures.items():
            try:
                refusal = waited(future, partial(_building, worker, suite), progress)
            except Exception as error:
                if attempt == ATTEMPTS or isinstance(error, TimeoutError):
                    raise RunStopped(_not_built(worker, suite, error, limit)) from error
                lost.append(worker)
                continue
            if refusal is not None:
                raise refusal.error
        for worker in lost:
            worker.restart()
        futures = {worker: worker.build(jobs[worker], limit=limit) for worker in lost}


def _building(worker: LocalWorker, suite: str) -> str:
    entry = worker.left_behind(BUILDING)
    if not entry.agent_acting:
        return f"setting up suite {suite!r} and its policy"
    policy, method = entry.notes[0]
    return f"{policy} makes its first rounds with method {method!r}; if that compiles, they take minutes"


def _not_built(worker: LocalWorker, suite: str, error: Exception, limit: int) -> str:
    entry = worker.left_behind(BUILDING)
    if isinstance(error, TimeoutError) and not entry.agent_acting:
        return (
            f"suite {suite!r} was not set up within {limit} times the time limit of an episode, {worker.timeout:g} s; "
            "give a longer --timeout, or see `replan doctor`"
        )
    if entry.agent_acting:
        policy, method = entry.notes[0]
        return (
            f"policy {policy!r} with method {method!r} cannot act in suite {suite!r}: {loss(error)} in the first rounds"
        )
    return f"suite {suite!r} could not be set up: {loss(error)}; see `replan doctor`"


def _rows(
    workers: list[LocalWorker],
    batches: Sequence[Sequence[Job]],
    chains: Sequence[Sequence[Job]],
    stored: Mapping[str, str],
    spec: Spec,
    host: Host,
) -> Iterator[EpisodeRow]:
    """Yields the row of each job that the store lacks when it is finished, those of chains last."""
    yield from _play(workers, batches, spec, host)
    for chain in chains:
        yield from _play_chain(workers[0], chain, stored, spec, host)


def _play(workers: list[LocalWorker], batches: Sequence[Sequence[Job]], spec: Spec, host: Host) -> Iterator[EpisodeRow]:
    """Yields the row of each job when it is finished."""
    waiting = deque(map(deque, batches))
    taken: dict[LocalWorker, deque[Job]] = {worker: deque() for worker in workers}  # what is left of each one's batch
    losses = Losses(spec, host)
    busy: dict[LocalWorker, tuple[Job, Future[EpisodeRow]]] = {}
    while waiting or busy or any(taken.values()):
        for worker in workers:
            if worker not in busy and (job := _next_job(worker, taken, waiting)):
                worker.serve(job.cell.suite)
                busy[worker] = job, worker.play(job)
        finished, _ = wait([future for _, future in busy.values()], return_when=FIRST_COMPLETED)
        for worker, (job, future) in list(busy.items()):
            if future not in finished:
                continue
            del busy[worker]
            try:
                row = replace(future.result(), retries=losses.of(job))
            except Exception as error:
                row = losses.row(job, worker, error)
                worker.restart()
            else:
                if is_fault(row):
                    worker.restart()
            if row is None:
                taken[worker].appendleft(job)
            else:
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
    hashes, losses = dict(stored), Losses(spec, host)
    waiting = deque(chain)
    worker.restart()
    while waiting:
        job = waiting.popleft()
        worker.serve(job.cell.suite)
        try:
            row = replace(worker.play(job).result(), retries=losses.of(job))
        except Exception as error:
            # Under measured latency the episodes before it would not come out the same again.
            row = losses.row(job, worker, error, again=not spec.measures_latency or job is chain[0])
            worker.restart()
            if row is None:
                waiting = deque(chain)
                continue
        else:
            if is_fault(row):
                worker.restart()
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
