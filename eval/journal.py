"""What an episode has come to so far, in a file: all that is left of it when its worker process dies or hangs."""

from __future__ import annotations

import os
import pickle
import struct
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

_HEAD = struct.Struct("<?qq")  # whether the agent is at work, control steps, simulated nanoseconds


class Entry(NamedTuple):
    """What a journal holds.

    Attributes:
        agent_acting: Whether the policy or its method was at work, and not the environment or the harness.
        steps: Control steps executed.
        sim_ns: Simulated time, in nanoseconds.
        notes: What the worker noted, in order.
    """

    agent_acting: bool = False
    steps: int = 0
    sim_ns: int = 0
    notes: tuple[Any, ...] = ()


class Journal:
    """The writer's side, in the worker process.

    Args:
        path: The file. It keeps what it holds until :meth:`begin`: the process that takes the place of a dead one opens
            it before the dead one's last entry has been read.
    """

    def __init__(self, path: str | Path = os.devnull) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._regular = str(path) != os.devnull

    def begin(self, key: str) -> None:
        """Forgets everything and begins the entry of a job."""
        if self._regular:
            os.ftruncate(self._file, 0)
        os.lseek(self._file, _HEAD.size, os.SEEK_SET)
        self.turn(agent_acting=False, steps=0, sim_ns=0)
        self.note(key)

    def turn(self, *, agent_acting: bool, steps: int, sim_ns: int) -> None:
        """Says who is at work from now on."""
        os.lseek(self._file, 0, os.SEEK_SET)
        os.write(self._file, _HEAD.pack(agent_acting, steps, sim_ns))
        os.lseek(self._file, 0, os.SEEK_END)

    def note(self, item: Any) -> None:
        """Adds a plain value."""
        os.write(self._file, pickle.dumps(item))


def read_journal(path: str | Path, key: str) -> Entry:
    """Returns the entry of a job; an empty one where the worker was lost before it began it."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return Entry()
    if len(data) < _HEAD.size:
        return Entry()
    notes, file = [], BytesIO(data[_HEAD.size :])
    try:
        while True:
            notes.append(pickle.load(file))  # our own worker's: it runs our code anyway
    except (EOFError, pickle.UnpicklingError):  # the end, or a note that was being written
        pass
    if not notes or notes[0] != key:
        return Entry()
    agent_acting, steps, sim_ns = _HEAD.unpack_from(data)
    return Entry(agent_acting, steps, sim_ns, tuple(notes[1:]))
