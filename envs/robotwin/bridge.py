"""A world that runs in another interpreter: the user's own, with the versions that upstream asks for."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from .serve import receive, send
from .upstream import NoRenderer, Source
from .world import UnstableScene, Watch

_SERVER = Path(__file__).with_name("serve.py")
_KNOWN: dict[str, type[Exception]] = {
    **{error.__name__: error for error in (UnstableScene, NoRenderer, ImportError, ValueError)},
    "ModuleNotFoundError": ImportError,
}


class SimulatorError(RuntimeError):
    """The process that runs RoboTwin died, or raised something unexpected."""


class RemoteWorld:
    """A ``World``, with the same methods, in a process of its own.

    A process that died (simulators abort natively) is started again by the next :meth:`reset`.

    Args:
        source: Where upstream's code and assets are.
        python: The interpreter that has upstream's packages.

    Raises:
        ImportError: It cannot import upstream.
        NoRenderer: SAPIEN found no device to render with.
        SimulatorError: It cannot be started.
    """

    def __init__(self, source: Source, python: str) -> None:
        self._source, self._python = source, python
        self.ticks = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def reset(self, task: str, seed: int, about: dict[str, str] | None = None) -> int:
        """See ``World.reset``."""
        if self._process is None:
            self._start()
        return self._ask("reset", task, seed, about)

    def played_about(self) -> dict[str, str] | None:
        """See ``World.played_about``."""
        return self._ask("played_about")

    def versions(self) -> dict[str, str]:
        """See ``World.versions``."""
        return self._ask("versions")

    def instruction(self, kind: str, choice: int) -> str:
        """See ``World.instruction``."""
        return self._ask("instruction", kind, choice)

    def act(self, action: np.ndarray, kind: str) -> tuple[bool, bool]:
        """See ``World.act``."""
        return self._ask("act", action, kind)

    def hold(self, ticks: int) -> None:
        """See ``World.hold``."""
        self._ask("hold", ticks)

    def solved(self) -> bool:
        """See ``World.solved``."""
        return self._ask("solved")

    def observe(self, render: bool) -> dict[str, np.ndarray]:
        """See ``World.observe``."""
        return self._ask("observe", render)

    def state(self) -> np.ndarray:
        """See ``World.state``."""
        return self._ask("state")

    def demonstrate(self, every: int, render: bool = False, watch: Watch | None = None) -> bool:
        """See ``World.demonstrate``."""
        self._send(("demonstrate", (every, render, watch is not None)))
        while (answer := self._answer())[0] == "watch":
            assert watch is not None
            try:
                watch(*answer[1])
            except BaseException:
                self._send(False)
                self._receive()  # the answer that it stopped
                raise
            self._send(True)
        return answer[1]

    @property
    def failure(self) -> str:
        """See ``World.failure``."""
        return self._ask("failure")

    def close(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        self._requests.close()  # which ends the server
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._answers.close()
        self._stderr.close()

    def _start(self) -> None:
        self._stderr = tempfile.TemporaryFile()
        try:
            process = subprocess.Popen(
                [self._python, str(_SERVER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        except OSError as error:
            raise SimulatorError(f"{self._python} cannot be started: {error.strerror}") from None
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._requests = Connection(os.dup(process.stdin.fileno()), readable=False)
        self._answers = Connection(os.dup(process.stdout.fileno()), writable=False)
        process.stdin.close()
        process.stdout.close()
        try:
            self._ask("open", **asdict(self._source))
        except Exception:
            self.close()
            raise

    def _ask(self, call: str, *arguments: Any, **named: Any) -> Any:
        self._send((call, named or arguments))
        return self._answer()[1]

    def _send(self, request: Any) -> None:
        if self._process is None:
            raise SimulatorError("RoboTwin's process died; reset first")
        try:
            send(self._requests, request)
        except OSError:
            raise self._died() from None

    def _answer(self) -> tuple[Any, ...]:
        answer = self._receive()
        if answer[0] == "error":
            _, kind, text = answer
            raise _KNOWN.get(kind, SimulatorError)(text if kind in _KNOWN else f"RoboTwin raised {kind}: {text}")
        self.ticks = answer[2]
        return answer

    def _receive(self) -> Any:
        try:
            return receive(self._answers)
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> SimulatorError:
        assert self._process is not None
        try:
            status = self._process.wait(10)
        except subprocess.TimeoutExpired:  # it has only closed its pipes
            self._process.kill()
            status = self._process.wait()
        self._stderr.seek(0)
        last = (self._stderr.read().decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        self.close()
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return SimulatorError(f"RoboTwin's process ended with {how}; its last output: {last}")
