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
from ..checkpoint import about, from_plain
from ..weights import CheckpointError

ORIGIN = "origin.json"
CONVENTIONS = "conventions.json"
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
        write_file(partial / CONVENTIONS, json.dumps(asdict(self.conventions), indent=1))
        write_file(partial / ORIGIN, json.dumps(origin, indent=1))
        partial.rename(path)

    @staticmethod
    def load(path: Path) -> Frames:
        """Maps the arrays of a folder into memory.

        Raises:
            OSError: A file is missing, or cannot be read.
            CheckpointError: A file is damaged, or an array is of another type or shape than this class says, or a
                number in it is not finite.
        """
        plain = (path / CONVENTIONS).read_bytes()
        with about(path / CONVENTIONS):
            conventions = from_plain(Conventions, json.loads(plain))
        frames = Frames(**{name: _load(path / f"{name}.npy") for name in ARRAYS}, conventions=conventions)
        with about(path):
            frames._check()
        return frames

    def _check(self) -> None:
        """Refuses arrays that do not belong together: trained on, they would give a policy of nothing.

        Raises:
            ValueError: An array is of another type or shape, or a number is not finite.
        """
        count, side = len(np.atleast_1d(self.episode)), self.conventions.image_size
        for name, kind, shape in (
            ("images", "uint8", (count, len(self.conventions.cameras), side, side, 3)),
            ("state", "float32", (count, "state_dim")),
            ("instruction", "str", (count,)),
            ("actions", "float32", (count, "horizon", "action_dim")),
            ("episode", "int64", (count,)),
        ):
            array: np.ndarray = getattr(self, name)
            fits = len(array.shape) == len(shape) and all(
                found == wanted or isinstance(wanted, str) for found, wanted in zip(array.shape, shape, strict=True)
            )
            if not fits or not array.size or (array.dtype.kind != "U" if kind == "str" else array.dtype != kind):
                wanted = ", ".join(map(str, shape))
                raise ValueError(f"{name} must be {kind} [{wanted}], got {array.dtype} {list(array.shape)}")
            if kind == "float32" and not np.isfinite(array).all():
                raise ValueError(f"{name} has numbers that are not finite; record it again")


def _load(path: Path) -> np.ndarray:
    """Maps an array into memory.

    Raises:
        OSError: It cannot be read.
        CheckpointError: It is no array.
    """
    try:
        return np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); record it again") from error


def _save(path: Path, array: np.ndarray) -> None:
    """Writes an array; ``numpy.save`` alone does not say which file it was, nor that the disk is full."""
    try:
        np.save(path, array)
    except OSError as error:
        number = error.errno or errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from error
