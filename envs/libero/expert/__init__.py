"""Scripted experts for LIBERO's tasks."""

from __future__ import annotations

from typing import Any

from .expert import Expert

__all__ = ["Expert", "make_expert"]


def make_expert(problem: Any) -> Expert:
    """Returns the expert for the task of a LIBERO environment (``ControlEnv(...).env``)."""
    return Expert(problem)
