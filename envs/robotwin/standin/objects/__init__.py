"""Procedural stand-ins for RoboTwin's objects, in its own format."""

from __future__ import annotations

from pathlib import Path

from . import desk, drinks, food, household, tableware, tools
from .model import Model, write

CATALOGUE: dict[str, dict[int, Model]] = {
    **tableware.MODELS,
    **drinks.MODELS,
    **desk.MODELS,
    **food.MODELS,
    **household.MODELS,
    **tools.MODELS,
}


def build_objects(folder: Path) -> None:
    """Writes every object's variants into ``folder``, as upstream's task code looks for them."""
    for name, variants in CATALOGUE.items():
        for index, model in variants.items():
            write(model, folder / name, index)
