"""Recordings: labelled frames in a folder, with the conventions of the suite that they come from."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import write_file
from ..checkpoint import from_plain

ORIGIN = "origin.json"
ARRAYS = ("images", "state", "instruction", "actions", "episode")


@dataclass(frozen=True)
class Conventions:
    """What training needs to know about a suite.

    Attributes:
        suite: Its name.
        cameras: Observation keys of the views, in the model's order.
        gripper: Gripper channels of the action, one per arm.
        relative: Whether actions are absolute joint positions in the state's order, so that a policy does better to
            predict differences.
        image_size: Side in pixels that the views were scaled to.
        open_language: Whether an evaluation uses instructions that no recording contains.
    """

    suite: str
    cameras: tuple[str, ...]
    gripper: tuple[int, ...]
    relative: bool
    image_size: int
    open_language: bool = False

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Returns the plain values of a recording that was made before ``open_language`` existed."""
        return {"open_language": False, **values}


@dataclass
class Frames:
    """Labelled frames.

    Attributes:
        images: uint8 [N, V, S, S, 3].
        state: float32 [N, state_dim].
        instruction: [N] str.
        actions: float32 [N, H, A], the expert's chunks in the environment's convention.
        episode: int64 [N], for splitting by episode.
        conventions: Those of the suite.
    """

    images: np.ndarray
    state: np.ndarray
    instruction: np.ndarray
    actions: np.ndarray
    episode: np.ndarray
    conventions: Conventions

    def save(self, path: Path, origin: dict[str, Any]) -> None:
        """Writes the arrays uncompressed, one file per array, so that training can map the images into memory.

        The folder appears under its name when it is whole.

        Args:
            path: The folder.
            origin: What it was recorded with, as JSON values.

        Raises:
            OSError: It cannot be written.
        """
        partial = path.with_name(f"{path.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        for name in ARRAYS:
            _save(partial / f"{name}.npy", getattr(self, name))
        write_file(partial / "conventions.json", json.dumps(asdict(self.conventions), indent=1))
        write_file(partial / ORIGIN, json.dumps(origin, indent=1))
        partial.rename(path)

    @staticmethod
    def load(path: Path) -> Frames:
        """Maps the arrays of a folder into memory.

        Raises:
            FileNotFoundError: A file is missing.
        """
        plain = json.loads((path / "conventions.json").read_text())
        conventions = from_plain(Conventions, plain)
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        return Frames(**arrays, conventions=conventions)


def _save(path: Path, array: np.ndarray) -> None:
    """Writes an array; ``numpy.save`` alone does not say which file it was, nor that the disk is full."""
    try:
        np.save(path, array)
    except OSError as error:
        number = error.errno or errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from error
