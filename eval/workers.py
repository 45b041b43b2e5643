"""Worker processes on this machine.

Each worker is a process of its own, also a single one, so that graphics drivers and compilers cannot take the run down;
and each has a pool of its own, so that one that dies or hangs is replaced alone. The upper half of this file runs in
the evaluation's process, the lower half in a worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pebble import ProcessExpired, ProcessPool

from ..envs import SuiteUnavailable
from .claims import claim_core, cores, shared_cores
from .describe import Described, describe
from .journal import Entry, Journal, read_journal
from .rows import Host
from .spec import BadInput, RunStopped
from .worker import REPLAYS, Worker

if TYPE_CHECKING:
    from ..results.schema import EpisodeRow
    from .cells import Job
    from .registry import Registry
    from .spec import Spec

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class LocalWorker:
    """A worker process, replaced by another one on demand.

    It serves one suite at a time: simulators leave memory and graphics contexts behind that disturb others. The process
    starts with the first request.

    Args:
        registry: Where suites, policies and methods come from.
        journal: File for the journal of its process.
        workers: How many there are.

    Attributes:
        timeout: Seconds that an episode may take.
    """

    timeout: float

    def __init__(self, registry: Registry, journal: Path, workers: int) -> None:
        self._begin, self._journal = (registry, journal, workers), journal
        self._suite: str | None = None
        self._start()

    def describe(self, spec: Spec) -> Described:
        """Describes what a specification names, see :func:`.describe.describe`.

        Raises:
            BadInput: There is no such policy or method.
            RuntimeError: Code of a policy or method fails in another way.
            RunStopped: The process does not survive it.
        """
        try:
            described = self._pool.schedule(_describe, args=[spec]).result()
        except ProcessExpired as error:
            raise RunStopped(f"{loss(error)} while policies and methods were described") from error
        if isinstance(described, Refusal):
            raise described.error
        return described

    def set_up(self, spec: Spec, host: Host) -> None:
        """Takes what the following episodes are played for.

        Args:
            spec: The evaluation, its device resolved.
            host: This machine.
        """
        self._what, self.timeout, self._measured = (spec, host), spec.timeout, spec.measures_latency

    def serve(self, suite: str) -> None:
        """Replaces the process if it has served another suite."""
        if self._suite not in (None, suite):
            self.restart()
        self._suite = suite

    def build(self, jobs: list[Job], *, limit: int) -> Future[Refusal | None]:
        """Builds what the jobs need, see :meth:`.worker.Worker.build`.

        Args:
            jobs: The jobs.
            limit: How many times the time limit of an episode it may take.
        """
        self._fresh = False
        return self._pool.schedule(_build, args=[jobs, *self._what], timeout=self.timeout * limit)

    def play(self, job: Job) -> Future[EpisodeRow]:
        """Plays one episode."""
        if self._fresh:
            # To load, and for the first rounds.
            self._pool.schedule(_prepare, args=[job, *self._what], timeout=self.timeout * 2)
            self._fresh = False
        return self._pool.schedule(_play, args=[job, *self._what], timeout=self.time_limit)

    @property
    def time_limit(self) -> float:
        """Seconds that one episode may take; under measured latency it may have to be played again."""
        return self.timeout * (1 + REPLAYS if self._measured else 1)

    def left_behind(self, key: str) -> Entry:
        """Returns what the process had come to in a job when it was lost."""
        return read_journal(self._journal, key)

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
        self._fresh = True  # whether it has built nothing yet
        self._pool = ProcessPool(1, initializer=_begin, initargs=self._begin, context=spawn)


@contextmanager
def local_workers(registry: Registry, workers: int) -> Iterator[list[LocalWorker]]:
    """Yields workers, whose processes are single-threaded and each on its own core where there are enough."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))  # before a process starts: read on import of NumPy and torch
    with ExitStack() as stack:
        stack.callback(_restore, before)
        journals = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replan-")))
        made = []
        for number in range(workers):
            made.append(LocalWorker(registry, journals / f"{number}", workers))
            stack.callback(made[-1].stop)
        yield made


def _restore(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def loss(error: Exception) -> str:
    """Returns what happened to a worker whose future raised."""
    if isinstance(error, TimeoutError):
        return "the worker hung: no result before the timeout"
    if isinstance(error, ProcessExpired):
        if error.exitcode < 0:
            known = -error.exitcode in set(signal.Signals)  # real-time signals have no name
            name = signal.Signals(-error.exitcode).name if known else f"signal {-error.exitcode}"
            return f"the worker was killed by {name}"
        return f"the worker died with exit code {error.exitcode}"
    if isinstance(error, BrokenProcessPool):
        return (
            "the worker ended before it took a task; a script must evaluate under `if __name__ == '__main__':`, since "
            "each worker imports it"
        )
    return f"the worker was lost: {type(error).__name__}: {error}"


# ---- Inside a worker process -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """Why a worker cannot be built, as text: exceptions of other packages may not survive the way between processes."""

    bad_input: bool
    text: str

    @property
    def error(self) -> Exception:
        """The exception to raise in its place."""
        return (BadInput if self.bad_input else RuntimeError)(self.text)


_registry: Registry
_entries: Journal
_worker: Worker | None = None
_core: socket.socket | None = None


def _begin(registry: Registry, journal: Path, workers: int) -> None:
    global _registry, _entries, _core
    if shared_cores(workers) is None and hasattr(os, "sched_setaffinity"):
        _core = claim_core(cores())
    _registry, _entries = registry, Journal(journal)


def _this_worker(spec: Spec, host: Host) -> Worker:
    global _worker
    if _worker is None:
        _worker = Worker(_registry, spec, host, _entries)
    return _worker


def _describe(spec: Spec) -> Described | Refusal:
    """Describes what a specification names; returns why that is not possible, if so."""
    try:
        return describe(spec, _registry)
    except ValueError as error:
        return Refusal(True, str(error))
    except BaseException:
        return Refusal(False, traceback.format_exc())


def _build(jobs: list[Job], spec: Spec, host: Host) -> Refusal | None:
    """Builds what the jobs need; returns why that is not possible, if so."""
    try:
        _this_worker(spec, host).build(jobs)
    except (ValueError, TypeError, SuiteUnavailable) as error:
        return Refusal(True, str(error))
    except BaseException:  # SystemExit and KeyboardInterrupt too: Ctrl-C does not reach a worker
        return Refusal(False, traceback.format_exc())
    return None


def _prepare(job: Job, spec: Spec, host: Host) -> None:
    """Prepares an episode in a process that took another one's place. What fails will fail again in the episode."""
    with suppress(BaseException):
        _this_worker(spec, host).prepare(job)


def _play(job: Job, spec: Spec, host: Host) -> EpisodeRow:
    return _this_worker(spec, host).play(job)
