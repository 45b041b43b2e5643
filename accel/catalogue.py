"""What can be said about every method without a policy: what ``replan methods`` lists."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from ..policies.checkpoint import CheckpointError
from ..policies.families import family, kinds
from ..policies.model import FlowModel
from ..policies.seams import Method, obstacle


@dataclass(frozen=True)
class Entry:
    """A method.

    Attributes:
        name: As users write it.
        summary: What it does, in one sentence.
        seams: What it replaces.
        options: Their defaults as users write them, by name; None where a value has to be given.
        limit: Options with which it is exactly dense; empty where there are none.
        counters: Those that have to move.
        routes: That its rounds may take.
        families: Kinds of policies that it runs on.
        refused: The other ones, and why not.
        papers: arXiv identifiers.
    """

    name: str
    summary: str
    seams: tuple[str, ...]
    options: dict[str, str | None]
    limit: str
    counters: tuple[str, ...]
    routes: tuple[str, ...]
    families: tuple[str, ...]
    refused: dict[str, str]
    papers: tuple[str, ...]


def describe(kind: type[Method]) -> Entry:
    """Returns what a method says about itself, and what the models of all families say to it."""
    refused = {name: reason for name, model in _models().items() if (reason := obstacle(kind, model, name))}
    return Entry(
        name=kind.name,
        summary=_summary(kind),
        seams=tuple(sorted(seam.value for seam in kind.claims)),
        options=_options(kind),
        limit=kind.limit,
        counters=tuple(kind.activity_counters),
        routes=tuple(kind.routes),
        families=tuple(name for name in _models() if name not in refused),
        refused=refused,
        papers=kind.papers,
    )


def _models() -> dict[str, type[FlowModel]]:
    """The model of each family; without those of packages that cannot be used."""
    models = {}
    for name in kinds():
        try:
            models[name] = family(name).model
        except CheckpointError:
            continue
    return models


def _summary(kind: type[Method]) -> str:
    if kind is Method:
        return "The policy without a method."
    text = " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", text.replace("``", "`"), maxsplit=1)[0]


def _options(kind: type[Method]) -> dict[str, str | None]:
    if kind is Method:
        return {}
    parameters = inspect.signature(kind).parameters
    return {name: None if each.default is each.empty else _text(each.default) for name, each in parameters.items()}


def _text(value: Any) -> str:
    """Returns a value as users write it."""
    if isinstance(value, tuple):
        return "/".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
