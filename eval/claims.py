"""Claims on what only one process at a time should use: a processor core, a run directory.

A claim is a name in Linux's abstract socket space: no file, and it goes when the process does, however that ends. On
other systems nothing is claimed; there the store refuses episodes that two evaluations both write.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .spec import BadInput


def claim(name: str) -> socket.socket | None:
    """Claims a name; returns what holds it, or None if another process of this machine holds it."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0replan-{name}")
    except OSError:
        holder.close()
        return None
    return holder


@contextmanager
def claim_directory(out: Path) -> Iterator[None]:
    """Keeps a second evaluation out of a run directory.

    Raises:
        BadInput: Another process holds it.
    """
    if sys.platform != "linux":
        yield
        return
    holder = claim(f"run-{hashlib.sha256(os.fsencode(os.path.realpath(out))).hexdigest()}")
    if holder is None:
        raise BadInput(f"another evaluation is writing to {out}; wait for it, or choose another --out")
    with holder:
        yield


def claim_core(cores: Iterable[int]) -> socket.socket | None:
    """Pins this process to the first core that no worker of any evaluation on this machine has claimed.

    Returns:
        What holds the core until this process ends; None, and no pinning, where all are claimed.
    """
    for core in cores:
        holder = claim(f"core-{core}")
        if holder is not None:
            os.sched_setaffinity(0, {core})
            return holder
    return None


def cores() -> list[int]:
    """Returns the processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def shared_cores(workers: int) -> int | None:
    """Returns the number of cores where there are fewer than workers, None where each worker has its own."""
    count = len(cores())
    return None if workers <= count else count
