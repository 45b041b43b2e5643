"""Model families by the kind that a checkpoint names. No other file asks which family a policy belongs to.

Packages of other authors add families with an entry point of the group ``replan.policies``: its name is the kind, its
value a :class:`Family`. A policy of another kind is offered in the same group: its name is the policy's, its value a
:class:`~replan.policies.planner.PlannerPolicy`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import entry_points
from .checkpoint import CheckpointError
from .planner import PlannerPolicy

if TYPE_CHECKING:
    from .model import FlowModel

GROUP = "replan.policies"
BUILT_IN = {"pi0": "pi0", "pi0.5": "pi05", "fast_wam": "fast_wam", "groot_n1.6": "groot", "x_vla": "xvla"}
"""Kind -> module in this folder, imported when a checkpoint asks for it."""


@dataclass(frozen=True)
class Family:
    """What loading needs to know about one kind of policy.

    Attributes:
        kind: As checkpoints name it.
        config: Frozen dataclass of the model's dimensions; it refuses values out of range.
        model: The model, built from its configuration alone.
        processor: Frozen dataclass of conventions (a :class:`~replan.policies.processing.Processor`).
        sizes: Configurations by name: ``full`` as published, ``layers`` with the published widths and two layers of
            each kind, ``tiny`` for training on a processor; a family may have more.
        policies: Folder of policies that come with the family's package, ``NAME.safetensors`` each; None if there are
            none.
    """

    kind: str
    config: type[Any]
    model: type[FlowModel]
    processor: type[Any]
    policies: Path | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)


def family(kind: str) -> Family:
    """Returns the family of a kind of checkpoint.

    Raises:
        CheckpointError: There is no such family, or another author's package does not provide one.
    """
    if kind in BUILT_IN:
        return importlib.import_module(f".{BUILT_IN[kind]}", __package__).FAMILY
    families, reasons = _others()
    if kind in reasons:
        raise CheckpointError(f"the family {kind!r} cannot be used: {reasons[kind]}")
    if kind not in families:
        raise CheckpointError(f"no family reads checkpoints of kind {kind!r}; known are {', '.join(kinds())}")
    return families[kind]


def size(family: Family, name: str) -> Any:
    """Returns a configuration of a family by name.

    Raises:
        ValueError: There is none.
    """
    if name not in family.sizes:
        raise ValueError(f"{family.kind} has no size {name!r}; it has {', '.join(family.sizes) or 'none'}")
    return family.sizes[name]


def kinds() -> list[str]:
    """Returns the kinds that can be read."""
    families, reasons = _others()
    return sorted({*BUILT_IN, *families, *reasons})


def shipped_policies() -> dict[str, Path]:
    """Returns the policies that come with this package and with the families of other authors, by name."""
    folders = [family.policies for family in _others()[0].values() if family.policies]
    # This package's come last, so that no other package can replace one of them under its name.
    folders.append(Path(__file__).parent / "checkpoints")
    return {path.stem: path for folder in folders for path in folder.glob("*.safetensors") if "." not in path.stem}


def planner_policies() -> tuple[dict[str, PlannerPolicy], dict[str, str]]:
    """Returns policies of other kinds by name, and why what is missing in this group cannot be used."""
    offered, reasons = _offered()
    return {name: each for name, each in offered.items() if isinstance(each, PlannerPolicy)}, reasons


def _others() -> tuple[dict[str, Family], dict[str, str]]:
    """Families of other packages by kind, and why those that are missing cannot be used."""
    offered, reasons = _offered()
    return {kind: each for kind, each in offered.items() if isinstance(each, Family)}, reasons


@cache
def _offered() -> tuple[dict[str, Any], dict[str, str]]:
    return entry_points.load(GROUP, BUILT_IN, "family or policy", _fault)


def _fault(kind: str, loaded: Any) -> str | None:
    if isinstance(loaded, PlannerPolicy):
        return None
    if not isinstance(loaded, Family):
        return "is neither a Family nor a PlannerPolicy"
    if not (loaded.policies is None or isinstance(loaded.policies, Path)):
        return f"has policies {loaded.policies!r}, which is not a Path"
    return None
