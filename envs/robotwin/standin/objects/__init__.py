"""Procedural stand-ins for RoboTwin's objects, in its own format.

Upstream's meshes cannot be had from a package registry. These have the same names, and plausible shapes, sizes and
colours: those that upstream's sentences call an object by. How an object is gripped and stood is upstream's convention.
"""

from __future__ import annotations

from pathlib import Path

from . import articulated, bins, desk, drinks, food, household, tableware, tools
from .model import write


def build_objects(folder: Path) -> None:
    """Writes every object's variants into ``folder``, as upstream's task code looks for them."""
    for kind in (tableware, drinks, food, desk, household, tools, bins):
        for name, models in kind.models().items():
            for index, model in models.items():
                write(model, folder / name, index)
    for name, models in articulated.models().items():
        for index, model in models.items():
            articulated.write(model, folder / name, index)
