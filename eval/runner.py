"""Runs an evaluation: gives jobs to worker processes and writes what comes back.

Each worker is a process of its own, also a single one, so that graphics drivers and compilers cannot take the run
down; and each has a pool of its own, so that a worker which dies or hangs is replaced alone. Only this process writes
the store, one whole episode at a time: the run can be killed at any moment and started again.

An episode that cannot be finished is never a failure of the policy, so it gets no success value:

* its worker dies (simulators abort natively) or hangs: it is run once more in a new worker, then recorded as an error;
* an exception is raised in it: it is recorded as an error at once, since the same cell would raise it again. The worker
  is replaced, since nobody knows what the exception left behind.

Starting the run again tries the errors again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import socket
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebble import ProcessExpired, ProcessPool
from tqdm import tqdm

from ..envs import SuiteUnavailable
from ..results.schema import EpisodeRow, Run
from ..results.store import Store
from .cells import address, make_batches
from .clock import write_trace
from .spec import BadInput
from .worker import Worker, failed

if TYPE_CHECKING:
    from .bench import Bench
    from .cells import Cell, Job
    from .spec import Spec

TRACE = "trace.jsonl"  # what a run with measured latency leaves in its directory
ATTEMPTS = 2  # of an episode whose worker died or hung
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run(spec: Spec, jobs: Sequence[Job], record: Run, bench: Bench, *, progress: bool = True) -> None:
    """Runs the jobs that the run directory does not hold yet.

    Args:
        spec: The evaluation.
        jobs: Its jobs. Their order decides when an episode is measured, not what it is.
        record: What produces the run; the directory must not hold another one.
        bench: Where suites, policies and methods come from.
        progress: Whether to show a progress bar on stderr.

    Raises:
        BadInput: An environment, policy or method refuses to be built as asked; or another process is writing to the
            run directory.
        SuiteUnavailable: A worker died or hung while it was set up.
        RuntimeError: A worker cannot be set up for another reason.
        StoreError: The run directory holds another run.
    """
    with _alone(Path(spec.out)), Store.start(spec.out, record) as store:
        done = store.done_keys()
        batches = make_batches((job for job in jobs if job.key not in done), bench.suites())
        try:
            if batches:
                missing = sum(map(len, batches))
                with _workers(spec, bench, missing) as workers, _bar(jobs, store, progress) as show:
                    _build(workers, batches)
                    for row in _play(workers, batches, spec):
                        store.add(row)
                        show(row)
        finally:
            if spec.latency == "measured":
                write_trace(Path(spec.out) / TRACE, store.episodes())


def crowding(spec: Spec) -> str | None:
    """Returns what a reader has to know where workers share processor cores, None where each has its own."""
    cores = len(_cores())
    return None if spec.workers <= cores else f"{spec.workers} workers on {cores} cores: latency was not measured alone"


def _build(workers: list[_Process], batches: Sequence[Sequence[Job]]) -> None:
    """Builds all that is needed once, so that what cannot be built is known before anything is measured.

    Every worker builds the first suite, begins what it is going to play first, and stays; one of them has tried the
    other suites before.
    """
    first, *others = _one_of_each(batches)
    for suite in others:
        _ask_to_build({workers[0]: _one_of_each(batches)[suite]}, suite)
    turns = range(len(workers))
    _ask_to_build({workers[i]: _one_of_each([*batches[i:], *batches[:i]])[first] for i in turns}, first)


def _one_of_each(batches: Sequence[Sequence[Job]]) -> dict[str, list[Cell]]:
    """Returns the first cell of each combination of settings, by suite."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in (batch[0].cell for batch in batches):
        found.setdefault(cell.suite, {}).setdefault(address(cell.settings), cell)
    return {suite: list(cells.values()) for suite, cells in found.items()}


def _ask_to_build(cells: dict[_Process, list[Cell]], suite: str) -> None:
    for worker in cells:
        worker.serve(suite)
    for future in [worker.ask(_build_worker, those) for worker, those in cells.items()]:
        try:
            refusal = future.result()
        except Exception as error:
            why = f"{_what_happened(error)}; see `replan doctor`"
            raise SuiteUnavailable(f"suite {suite!r} could not be set up: {why}") from error
        if refusal is not None:
            raise (BadInput if refusal.bad_input else RuntimeError)(refusal.text)


def _play(workers: list[_Process], batches: Sequence[Sequence[Job]], spec: Spec) -> Iterator[EpisodeRow]:
    """Yields the row of each job when it is finished."""
    waiting = deque(map(deque, batches))
    taken: dict[_Process, deque[Job]] = {worker: deque() for worker in workers}  # what is left of each worker's batch
    losses: Counter[str] = Counter()  # times that a job lost its worker, by key
    busy: dict[_Process, tuple[Job, Future[EpisodeRow]]] = {}
    while waiting or busy or any(taken.values()):
        for worker in workers:
            if worker not in busy and (job := _next_job(worker, taken, waiting)):
                worker.serve(job.cell.suite)
                busy[worker] = job, worker.ask(_play_job, job)
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
                row = failed(job, spec, _what_happened(error), retries=losses[job.key] - 1)
            else:
                if row.status == "error":
                    worker.restart()
            yield row


def _next_job(worker: _Process, taken: dict[_Process, deque[Job]], waiting: deque[deque[Job]]) -> Job | None:
    """Takes the worker's next job: of its own batch, of a new one, or at last of the worker that has most left."""
    if not taken[worker] and waiting:
        taken[worker] = waiting.popleft()
    if taken[worker]:
        return taken[worker].popleft()
    most = max(taken.values(), key=len)
    return most.pop() if most else None


def _what_happened(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the worker hung: no result before the timeout"
    if isinstance(error, ProcessExpired):
        if error.exitcode < 0:
            return f"the worker was killed by {signal.Signals(-error.exitcode).name}"
        return f"the worker died with exit code {error.exitcode}"
    return f"the worker was lost: {type(error).__name__}: {error}"


class _Process:
    """A worker process, replaced by another one on demand.

    It serves one suite at a time: simulators leave memory and graphics contexts behind, which others trip over.

    Args:
        spec: The evaluation.
        bench: Where suites, policies and methods come from.
    """

    def __init__(self, spec: Spec, bench: Bench) -> None:
        self._spec, self._setup = spec, (bench, spec)
        self._suite: str | None = None
        self._start()

    def serve(self, suite: str) -> None:
        """Replaces the process if it has served another suite."""
        if self._suite not in (None, suite):
            self.restart()
        self._suite = suite

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Calls a module-level function in the process."""
        return self._pool.schedule(function, args=arguments, timeout=self._spec.timeout)

    def restart(self) -> None:
        """Replaces the process, whatever state it is in."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """Ends the process."""
        self._pool.stop()
        self._pool.join()

    def _start(self) -> None:
        spawn: Any = multiprocessing.get_context("spawn")  # a child of a process with threads must not be forked
        self._pool = ProcessPool(1, initializer=_begin, initargs=self._setup, context=spawn)


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Keeps a second evaluation out of the run directory (on Linux; elsewhere the store refuses equal episodes)."""
    if sys.platform != "linux":
        yield
        return
    claim = _hold(f"run-{hashlib.sha256(bytes(out.resolve())).hexdigest()}")
    if claim is None:
        raise BadInput(f"another evaluation is writing to {out}; wait for it, or choose another --out")
    with claim:
        yield


def _hold(name: str) -> socket.socket | None:
    """Holds a name that only one process of this machine can have; None if another one has it.

    It is a name in Linux's abstract socket space: no file, and it goes when the process does, however that ends.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0replan-{name}")
    except OSError:
        claim.close()
        return None
    return claim


@contextmanager
def _workers(spec: Spec, bench: Bench, jobs: int) -> Iterator[list[_Process]]:
    """Starts the worker processes, single-threaded and each on its own core where there are enough."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # before a process starts: read on import of NumPy and torch
    with ExitStack() as stack:
        stack.callback(_restore, before)
        workers = []
        for _ in range(min(spec.workers, jobs)):
            workers.append(_Process(spec, bench))
            stack.callback(workers[-1].stop)
        yield workers


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def _bar(jobs: Sequence[Job], store: Store, progress: bool) -> Iterator[Callable[[EpisodeRow], None]]:
    """Shows a bar with each method's success so far; yields what has to be called with every new row."""
    ours = {job.key for job in jobs}
    successes: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    with tqdm(total=len(jobs), unit="episode", file=sys.stderr, disable=not progress, smoothing=0.1) as bar:

        def show(row: EpisodeRow, steps: int = 1) -> None:
            measured[row.method] += row.status == "done"
            successes[row.method] += bool(row.success)
            rates = [f"{name} {successes[name] / count:.0%}" for name, count in sorted(measured.items()) if count]
            bar.set_postfix_str(", ".join(rates), refresh=False)
            if row.status == "error":
                bar.write(f"error, {row.method} on {row.task} {row.init_state}: {row.error}", file=sys.stderr)
            bar.update(steps)

        for row in store.episodes():
            if row.status == "done" and row.key in ours:
                show(row)
        bar.unpause()
        yield show


# ---- Inside a worker process -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Refusal:
    """Why a worker cannot be built, as text: exceptions of other packages may not survive the way between processes."""

    bad_input: bool
    text: str


_setup: tuple[Bench, Spec]
_worker: Worker | None = None
_core: socket.socket | None = None


def _begin(bench: Bench, spec: Spec) -> None:
    global _setup, _core
    if not crowding(spec) and hasattr(os, "sched_setaffinity"):
        _core = _claim(_cores())
    _setup = bench, spec


def _claim(cores: Iterable[int]) -> socket.socket | None:
    """Keeps this process to the first core that no worker of any run on this machine has; to none where all are taken.

    Returns:
        What holds the core until this process ends.
    """
    for core in cores:
        claim = _hold(f"core-{core}")
        if claim is not None:
            os.sched_setaffinity(0, {core})
            return claim
    return None


def _this_worker() -> Worker:
    global _worker
    if _worker is None:
        _worker = Worker(*_setup)
    return _worker


def _build_worker(cells: list[Cell]) -> _Refusal | None:
    try:
        _this_worker().build(cells)
    except (ValueError, TypeError, SuiteUnavailable) as error:
        return _Refusal(True, str(error))
    except (Exception, SystemExit):
        return _Refusal(False, traceback.format_exc())
    return None


def _play_job(job: Job) -> EpisodeRow:
    return _this_worker().play(job)
