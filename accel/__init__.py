"""Acceleration methods: opt-in layers over one dense policy, found by name.

Packages of other authors add methods with an entry point of the group ``replan.methods``: its name is the method's, its
value a subclass of :class:`~replan.policies.seams.Method`.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from functools import cache
from importlib.metadata import entry_points
from typing import Any

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
    return sorted({*BUILT_IN, *_others()})


@cache
def _others() -> dict[str, type[Method] | str]:
    """Methods of other packages by name; the reason in place of one that cannot be loaded."""
    found: dict[str, type[Method] | str] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in BUILT_IN:
            continue  # a built-in method is never replaced: results name it
        try:
            kind = entry.load()
        except (Exception, SystemExit) as error:  # another package's code: whatever it raises, ours goes on
            kind = f"{entry.value} raises {type(error).__name__}: {error}"
        if not isinstance(kind, str) and not (isinstance(kind, type) and issubclass(kind, Method)):
            kind = f"{entry.value} is not a subclass of Method"
        elif not isinstance(kind, str) and kind.name != entry.name:
            kind = f"{entry.value} calls itself {kind.name!r}, and results would name it so"
        if entry.name in found:
            kind = "several installed packages have a method of this name"
        found[entry.name] = kind
    return found


def _kind(name: str) -> type[Method]:
    kind = BUILT_IN.get(name) or _others().get(name)
    if kind is None:
        known = known_methods()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise UnknownMethod(f"unknown method {name!r}; did you mean {', '.join(near)}?")
    if isinstance(kind, str):
        raise UnknownMethod(f"the method {name!r} cannot be used: {kind}")
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
