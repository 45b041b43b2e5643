"""Checks of arguments: type and range. A message has the name, what is right, and the value that was given."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def number(name: str, value: Any, low: float, high: float, unit: str) -> float:
    """Returns a finite number in (low, high].

    Raises:
        ValueError: It is something else; True and text are no numbers.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and low < float(value) <= high:
        return float(value)
    raise ValueError(f"{name} must be in ({low:g}, {high:g}] {unit}, got {value!r}")


def whole(name: str, value: Any, low: int, high: int | None = None, unit: str = "") -> int:
    """Returns a whole number in low..high, or of at least low.

    Raises:
        ValueError: It is something else; True, 1.0 and text are no whole numbers.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        exact = int(value)
        if low <= exact and (high is None or exact <= high):
            return exact
    bounds = f"of at least {low}" if high is None else f"in {low}..{high}"
    raise ValueError(f"{name} must be a whole number {bounds}{f' {unit}' if unit else ''}, got {value!r}")


def flag(name: str, value: Any) -> bool:
    """Returns True or False.

    Raises:
        ValueError: It is something else; "false" and 0 are no flags.
    """
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be True or False, got {value!r}")


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """Returns one of the known words.

    Raises:
        ValueError: It is something else.
    """
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def text(name: str, value: Any) -> str:
    """Returns text that is not blank.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{name} must be text, got {value!r}")
