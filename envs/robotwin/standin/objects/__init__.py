"""Procedural stand-ins for RoboTwin's objects, in its own format.

Upstream's meshes cannot be had from a package registry. These have the same names, and plausible shapes, sizes and
colours: those that upstream's sentences call an object by. How an object is gripped and stood is upstream's convention.
"""

from __future__ import annotations

from pathlib import Path

from . import articulated, bins, desk, drinks, food, household, tableware, tools
from .articulated import Articulated, write_articulated
from .model import Model, write

CATALOGUE: dict[str, dict[int, Model]] = {
    name: variants
    for kind in (tableware, drinks, food, desk, household, tools, bins)
    for name, variants in kind.MODELS.items()
}
ARTICULATED: dict[str, dict[int, Articulated]] = articulated.MODELS


def build_objects(folder: Path) -> None:
    """Writes every object's variants into ``folder``, as upstream's task code looks for them."""
    for name, variants in CATALOGUE.items():
        for index, model in variants.items():
            write(model, folder / name, index)
    for name, jointed in ARTICULATED.items():
        for index, model in jointed.items():
            write_articulated(model, folder / name, index)
