"""A policy on disk: everything about it but its weights, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .families import Family
from .processing import Processor


@dataclass(frozen=True)
class Stored:
    """A policy that has been recognised and not loaded.

    Attributes:
        path: File of the weights, or the first of them; what methods need, such as a draft, lies next to it.
        files: All files that the policy is made of.
        layout: Who wrote it, in a few words.
        family: The family that reads it.
        config: The model's dimensions.
        processor: Observation and action conventions.
        card: How it was made; empty where the files do not say.
        fill: Loads the weights into a model of these dimensions, in a precision.
    """

    path: Path
    files: tuple[Path, ...]
    layout: str
    family: Family
    config: Any
    processor: Processor
    card: dict[str, Any]
    fill: Callable[[Any, torch.dtype], None]
