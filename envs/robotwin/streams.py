"""Random streams for upstream, which samples from the global generators.

Like ``world.py``, this file also runs in the user's own interpreter.
"""

from __future__ import annotations

import contextlib
import io
import random  # noqa: TID251 - upstream samples from the global generator, which is restored
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np


class Streams:
    """States of the global generators of Python and numpy, for upstream alone.

    torch has no part in it: all that upstream's tasks do with it is to seed it, and that is taken out.

    Args:
        seed: Where both start.
    """

    def __init__(self, seed: int = 0) -> None:
        self._own: Any = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        self._callers: Any = None
        self._outputs: Any = None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts them in the place of the caller's, and these back afterwards. Prints and warnings are not shown."""
        outer = self._callers, self._outputs
        self._callers, self._outputs = _states(), (sys.stdout, sys.stderr)
        _put(self._own)
        out, err = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        try:
            with out, err, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self._own = _states()
            _put(self._callers)
            self._callers, self._outputs = outer

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within :meth:`in_place`: gives the caller its own streams and outputs back for a while."""
        self._own = _states()
        _put(self._callers)
        try:
            with contextlib.redirect_stdout(self._outputs[0]), contextlib.redirect_stderr(self._outputs[1]):
                yield
        finally:
            self._callers = _states()
            _put(self._own)


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def _put(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
