"""What published files leave open about a policy: the names of views, the meaning of channels, the prompt.

A convention is a TOML file: one that comes with replan, by its name, or a user's own, by its path. Nothing is guessed:
where a folder does not say something and no convention does, the policy is refused.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import about, from_plain
from ..weights import CheckpointError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FOLDER = Path(__file__).with_name("conventions")
_MOST = 1 << 16  # bytes


@dataclass(frozen=True)
class Openpi:
    """What a checkpoint of openpi does not say, since its training configuration does.

    Attributes:
        views: Published names of the views, in the model's order.
        horizon: Actions in a chunk.
        replan: Actions that are executed before the next round.
        relative: Whether the continuous channels are differences to the state's.
        format: How the prompt is made, a key of :data:`replan.policies.pi05.PROMPTS`; pi0 has ``instruction`` alone.
        asset: Which of the folders in ``assets`` has the statistics; where there is one only, empty.
    """

    views: tuple[str, ...]
    horizon: int
    replan: int
    relative: bool
    format: str
    asset: str


@dataclass(frozen=True)
class Groot:
    """What a folder of GR00T N1.6 does not say.

    Attributes:
        robot: Tag of the robot, under which the folder has its statistics, views and encoders.
        state: For each channel of the environment's state, the published group that it belongs to.
        action: The same for its actions.
        replan: Actions that are executed before the next round.
        inverted: Whether a gripper is 1 open and 0 closed in the data, where the environment has -1 and 1.
    """

    robot: str
    state: tuple[str, ...]
    action: tuple[str, ...]
    replan: int
    inverted: bool


@dataclass(frozen=True)
class XVLAFacts:
    """What a folder of X-VLA does not say.

    Attributes:
        views: Published names of the views, in the model's order; lerobot's folders have them.
        domain: Number of the robot among those of the model; lerobot's folders have it where a step gives it.
        replan: Actions that are executed before the next round; lerobot's folders have it.
        raw: Observation keys of views that are seen as the benchmark renders them, upside down.
        hand: Rotation vector from the frame of the state's rotation to that of the actions', for policies of poses.
    """

    views: tuple[str, ...]
    domain: int
    replan: int
    raw: tuple[str, ...]
    hand: tuple[float, float, float]


@dataclass(frozen=True)
class Convention:
    """How a benchmark's observations and actions meet those of published policies.

    Attributes:
        state: Channels of the environment's state.
        action: Channels of its action.
        gripper: Indices of the gripper channels.
        mirror: Whether policies see the views mirrored.
        cameras: Published name of a view -> observation key.
        openpi: What checkpoints of openpi leave open, by the family.
        groot: What folders of GR00T N1.6 leave open; None where nothing is known.
        x_vla: The same for X-VLA.
    """

    state: int
    action: int
    gripper: tuple[int, ...]
    mirror: bool
    cameras: dict[str, str]
    openpi: dict[str, Openpi]
    groot: Groot | None
    x_vla: XVLAFacts | None

    def view(self, published: str) -> str:
        """Returns the observation key of a published view.

        Raises:
            CheckpointError: The convention does not name it.
        """
        if published not in self.cameras:
            raise CheckpointError(
                f"the policy sees {published!r}, and the convention has {', '.join(self.cameras)}: add it to [cameras] "
                "in a convention of your own"
            )
        return self.cameras[published]


_TABLES = {"groot": Groot, "x_vla": XVLAFacts}
"""Tables that a convention may leave out, and then says nothing about policies of that layout."""


def conventions() -> list[str]:
    """Returns the names of the conventions that come with replan."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def convention_file(name: str) -> Path:
    """Returns the file of a convention.

    Args:
        name: One of ``conventions()``, or the path of a TOML file.

    Raises:
        CheckpointError: There is none.
    """
    if name in conventions():
        return _FOLDER / f"{name}.toml"
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    raise CheckpointError(f"unknown convention {name!r}; known are {', '.join(conventions())}, and FILE.toml")


def read_convention(path: Path) -> Convention:
    """Reads a convention.

    Raises:
        CheckpointError: It is not TOML, or a field is missing, unknown or of another type.
    """
    with about(path):
        if path.stat().st_size > _MOST:
            raise ValueError(f"it is longer than {_MOST} bytes")
        plain = tomllib.loads(path.read_text("utf-8"))
        cameras, facts = plain.get("cameras", {}), plain.get("openpi", {})
        if not isinstance(facts, dict) or not isinstance(cameras, dict):
            raise ValueError("cameras and openpi must be tables")
        if not all(isinstance(key, str) for key in cameras.values()):
            raise ValueError("every camera must be the name of an observation")
        tables = {name: from_plain(kind, plain[name]) if name in plain else None for name, kind in _TABLES.items()}
        openpi = {family: from_plain(Openpi, values) for family, values in facts.items()}
        return from_plain(Convention, {**plain, **tables, "openpi": openpi})
