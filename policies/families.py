"""Model families by the kind that a checkpoint names. No other file asks which family a policy belongs to.

Packages of other authors add families with an entry point of the group ``replan.policies``: its name is the kind, its
value a :class:`Family`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import CheckpointError

if TYPE_CHECKING:
    from .model import FlowModel

GROUP = "replan.policies"
BUILT_IN = {"pi0": "pi0"}
"""Kind -> module in this folder, imported when a checkpoint asks for it."""


@dataclass(frozen=True)
class Family:
    """What loading needs to know about one kind of policy.

    Attributes:
        kind: As checkpoints name it.
        config: Frozen dataclass of the model's dimensions; it refuses values out of range.
        model: The model, built from its configuration alone.
        processor: Frozen dataclass of conventions (a :class:`~replan.policies.processing.Processor`).
        policies: Folder of policies that come with the family's package, ``NAME.safetensors`` each; None if there are
            none.
    """

    kind: str
    config: type[Any]
    model: type[FlowModel]
    processor: type[Any]
    policies: Path | None = None


def family(kind: str) -> Family:
    """Returns the family of a kind of checkpoint.

    Raises:
        CheckpointError: There is no such family, or another author's package does not provide one.
    """
    if kind in BUILT_IN:
        return importlib.import_module(f".{BUILT_IN[kind]}", __package__).FAMILY
    if kind not in _others():
        raise CheckpointError(f"no family reads checkpoints of kind {kind!r}; known are {', '.join(kinds())}")
    loaded = _others()[kind]
    if isinstance(loaded, str):
        raise CheckpointError(f"the family {kind!r} cannot be used: {loaded}")
    return loaded


def kinds() -> list[str]:
    """Returns the kinds that can be read."""
    return sorted({*BUILT_IN, *_others()})


def shipped_policies() -> dict[str, Path]:
    """Returns the policies that come with this package and with the families of other authors, by name."""
    folders = [family.policies for family in _others().values() if isinstance(family, Family) and family.policies]
    # This package's come last, so that no other package can replace one of them under its name.
    folders.append(Path(__file__).parent / "checkpoints")
    return {path.stem: path for folder in folders for path in folder.glob("*.safetensors") if "." not in path.stem}


@cache
def _others() -> dict[str, Family | str]:
    """Families of other packages by kind; the reason in place of one that cannot be loaded."""
    found: dict[str, Family | str] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in BUILT_IN:
            continue  # a built-in kind is never replaced
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # another package's code: whatever it raises, ours goes on
            loaded = f"{entry.value} raises {type(error).__name__}: {error}"
        if not isinstance(loaded, (Family, str)):
            loaded = f"{entry.value} is not a Family"
        elif isinstance(loaded, Family) and not (loaded.policies is None or isinstance(loaded.policies, Path)):
            loaded = f"{entry.value} has policies {loaded.policies!r}, which is not a Path"
        if entry.name in found:
            loaded = "several installed packages have a family of this name"
        found[entry.name] = loaded
    return found
