"""How a server names the entries of an observation, and what it expects in them.

A convention is a TOML file: one that comes with replan, by its name, or a user's own, by its path. Without one,
messages have the environment's own keys. Nothing is guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...policies.checkpoint import about, from_plain
from ...policies.processing import ObservationError, camera_image, entry, fit
from ..spec import BadInput, read_input

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(__file__).with_name("conventions")
_MOST = 1 << 16  # bytes


@dataclass(frozen=True)
class WireConvention:
    """Names and forms of a server's observations.

    Attributes:
        cameras: Entry of a message -> observation key of the camera.
        state: Entry of the state.
        prompt: Entry of the instruction.
        mirror: Whether the server's images are mirrored, left to right.
        size: Side of the images in pixels that are sent; 0 sends them as they are.
        replan: Actions of a chunk that are executed before the next round; 0 for all of them.
    """

    cameras: dict[str, str]
    state: str
    prompt: str
    mirror: bool
    size: int
    replan: int

    def __post_init__(self) -> None:
        """Refuses names that are given twice and sizes out of range."""
        names = [*self.cameras, self.state, self.prompt]
        if len(set(names)) < len(names) or len(set(self.cameras.values())) < len(self.cameras):
            raise ValueError(f"every name must be given once, got {', '.join(names)}")
        if not 0 <= self.size <= 4096 or not 0 <= self.replan <= 10_000:
            raise ValueError(f"size must be 0 to 4096 and replan 0 to 10000, got {self.size} and {self.replan}")

    def message(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an environment's observation as the server expects it.

        Raises:
            ObservationError: The observation lacks a camera, a state or an instruction.
        """
        images = {name: self._image(observation, camera) for name, camera in self.cameras.items()}
        return {**images, self.state: entry(observation, "state"), self.prompt: entry(observation, "instruction")}

    def observation(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message as an environment's observation; its images keep their size.

        Raises:
            ObservationError: The message lacks an entry, or an image is not one.
        """
        images = {camera: camera_image(message, name, 0) for name, camera in self.cameras.items()}
        if self.mirror:
            images = {camera: image[:, ::-1] for camera, image in images.items()}
        return {**images, "state": entry(message, self.state), "instruction": entry(message, self.prompt)}

    def _image(self, observation: Mapping[str, Any], camera: str) -> np.ndarray:
        image = camera_image(observation, camera, self.size)
        image = image[:, ::-1] if self.mirror else image
        return np.ascontiguousarray(fit(image, self.size) if self.size else image)


def named_convention(name: str) -> WireConvention:
    """Returns a convention.

    Args:
        name: One that comes with replan, such as ``libero``, or the path of a TOML file.

    Raises:
        BadInput: There is none, or it is not TOML.
        CheckpointError: A field is missing, unknown or of another type.
    """
    known = {path.stem: path for path in _FOLDER.glob("*.toml")}
    path = known.get(name, Path(name))
    if name not in known and path.suffix != ".toml":
        raise BadInput(f"unknown convention {name!r} of servers; known are {', '.join(sorted(known))}, and FILE.toml")
    content = read_input(path, "convention", _MOST)
    with about(path):
        return from_plain(WireConvention, tomllib.loads(content.decode()))


def plain_observation(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message that has an environment's own keys as an observation.

    Raises:
        ObservationError: It has neither arrays nor text in it.
    """
    for name, value in message.items():
        if not isinstance(name, str) or not isinstance(value, (np.ndarray, str)):
            raise ObservationError(f"an entry must be an array or a text under a name, got {str(name)[:80]!r}")
    return dict(message)
