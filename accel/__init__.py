"""Acceleration methods: opt-in layers over one dense policy, found by name.

Packages of other authors add methods with an entry point of the group ``replan.methods``: its name is the method's, its
value a subclass of :class:`~replan.policies.seams.Method`.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from functools import cache
from typing import Any

from ..policies import entry_points
from ..policies.seams import Method, Methods
from .dp_cache import DPCache
from .few_step import FewStep
from .flash.method import Flash

GROUP = "replan.methods"
BUILT_IN: dict[str, type[Method]] = {kind.name: kind for kind in (Method, FewStep, Flash, DPCache)}


class UnknownMethod(ValueError):
    """A method or an option that does not exist."""


def parse(spec: str) -> list[Method]:
    """Returns the methods that a specification names, with disjoint claims.

    Args:
        spec: Names joined by ``+``, each with options after colons: ``flash:delta=0.1:refresh=4``. Tuples are
            written with slashes: ``dp_cache:keep=0/1/2``.

    Raises:
        UnknownMethod: A name or an option is unknown, or a value cannot be read.
        ValueError: A value is out of range, or two methods claim the same seam.
    """
    methods = [_one(part) for part in spec.split("+")]
    Methods(methods)
    return methods


def known_methods() -> list[str]:
    """Returns the names of all methods, those of other authors' packages included."""
    methods, reasons = _others()
    return sorted({*BUILT_IN, *methods, *reasons})


@cache
def _others() -> tuple[dict[str, type[Method]], dict[str, str]]:
    """Methods of other packages by name, and why those that are missing cannot be used."""
    return entry_points.load(GROUP, BUILT_IN, "method", _fault)


def _fault(name: str, kind: Any) -> str | None:
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        return "is not a subclass of Method"
    if kind.name != name:
        return f"calls itself {kind.name!r}, and results would name it so"
    return None


def _kind(name: str) -> type[Method]:
    methods, reasons = _others()
    if name in reasons:
        raise UnknownMethod(f"the method {name!r} cannot be used: {reasons[name]}")
    kind = BUILT_IN.get(name) or methods.get(name)
    if kind is None:
        known = known_methods()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise UnknownMethod(f"unknown method {name!r}; did you mean {', '.join(near)}?")
    return kind


def _one(part: str) -> Method:
    name, *options = part.split(":")
    kind = _kind(name)
    defaults = {key: value.default for key, value in inspect.signature(kind).parameters.items()}
    types = typing.get_type_hints(kind.__init__)
    arguments: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or key not in defaults:
            known = ", ".join(f"{key}={value}" for key, value in defaults.items()) or "none"
            raise UnknownMethod(f"{name!r} has no option {option!r}; it takes {known}")
        arguments[key] = _read(name, key, text, types[key])
    return kind(**arguments)


def _read(method: str, key: str, text: str, kind: Any) -> Any:
    """Reads an option's text as the type of the constructor's parameter."""
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if typing.get_origin(kind) is tuple:
            return tuple(typing.get_args(kind)[0](item) for item in text.split("/"))
        return kind(text)
    except (ValueError, KeyError) as error:
        raise UnknownMethod(f"{method}: {key}={text!r} is not a {getattr(kind, '__name__', kind)}") from error
