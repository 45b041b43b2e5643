"""Runs a world for another process, in the user's own interpreter: ``python serve.py``, started by ``bridge.py``.

Requests come in on standard input and answers go out on standard output, each a pickle of plain values behind its
length. A request is ``(call, arguments)``. Answers are ``("done", value, ticks)``, ``("error", kind, text)`` and, while
a demonstration runs, ``("watch", (observation, target), ticks)``, after each of which one more request says whether to
go on. Arrays travel as type, shape and bytes, because the two processes may have different versions of numpy.

No third process can send anything: the streams are the unnamed pipes that ``bridge.py`` made for this one child, and no
port is opened. What comes out of them is unpickled as plain values alone all the same.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import types
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np


class Stopped(RuntimeError):
    """The other process ended the demonstration."""


def send(connection: Connection, value: Any) -> None:
    """Sends a plain value or an array, or a tuple or dictionary of them."""
    connection.send_bytes(pickle.dumps(_packed(value), protocol=4))


def receive(connection: Connection) -> Any:
    """Returns what :func:`send` sent.

    Raises:
        EOFError: The other process has gone.
    """
    return _unpacked(_PlainOnly(io.BytesIO(connection.recv_bytes())).load())


class _PlainOnly(pickle.Unpickler):
    """Unpickles plain values: a pickle may otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def _packed(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        return {"dtype": array.dtype.str, "shape": value.shape, "bytes": array.tobytes()}
    if isinstance(value, dict):
        return ("dict", {key: _packed(entry) for key, entry in value.items()})
    if isinstance(value, (tuple, list)):
        return ("tuple", [_packed(entry) for entry in value])
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        return np.frombuffer(bytearray(value["bytes"]), value["dtype"]).reshape(value["shape"])
    if isinstance(value, tuple):
        kind, entries = value
        if kind == "dict":
            return {key: _unpacked(entry) for key, entry in entries.items()}
        return tuple(_unpacked(entry) for entry in entries)
    return value


def serve(requests: Connection, answers: Connection) -> None:
    """Answers requests until the other process has gone."""
    # The files next to this one as a package of their own: replan itself is not installed here.
    package = types.ModuleType("replan_robotwin")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[package.__name__] = package
    world_module = importlib.import_module("replan_robotwin.world")
    world: Any = None

    def watch(observation: dict[str, np.ndarray], target: np.ndarray) -> None:
        send(answers, ("watch", (observation, target), world.ticks))
        if not receive(requests):
            raise Stopped

    while True:
        try:
            call, arguments = receive(requests)
        except EOFError:
            return
        try:
            if call == "open":
                world, value = world_module.World(world_module.Source(**arguments)), None
            elif call == "demonstrate":
                every, render, watched = arguments
                value = world.demonstrate(every, render, watch if watched else None)
            else:
                attribute = getattr(world, call)
                value = attribute(*arguments) if callable(attribute) else attribute
            send(answers, ("done", value, world.ticks))
        except Exception as error:
            send(answers, ("error", type(error).__name__, str(error)))


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its files are only importable as a package
    incoming, outgoing = Connection(os.dup(0), writable=False), Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # upstream prints to standard output
    serve(incoming, outgoing)
