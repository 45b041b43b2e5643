"""Acceleration methods: opt-in layers over one dense policy, found by name.

Packages of other authors add methods with an entry point of the group ``replan.methods``: its name is the method's, its
value a subclass of :class:`~replan.policies.seams.Method`.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..policies import entry_points
from ..policies.seams import Method, Methods, naming
from .bac import BAC
from .catalogue import Entry, describe
from .compiled import Compile
from .cudagraph import CUDAGraph
from .dp_cache import DPCache
from .eventful import Eventful
from .fastv import FastV
from .few_step import FewStep
from .flash.method import Flash
from .hold import Hold
from .nirvana import Nirvana
from .probe_flow import ProbeFlow
from .rmuscle.action_cache import ActionCache
from .rmuscle.context_cache import ContextCache
from .rmuscle.loop_cache import LoopCache
from .rmuscle.method import RMuscle
from .stale_prefix import StalePrefix
from .tome import ToMe
from .triton_backend import Triton
from .vla_cache import VLACache
from .vla_pruner import VLAPruner
from .wam_cache import WAMCache
from .warm_start import WarmStart
from .window import Window

GROUP = "replan.methods"
BUILT_IN: dict[str, type[Method]] = {
    kind.name: kind
    for kind in (
        Method,
        Window,
        Hold,
        StalePrefix,
        FewStep,
        Compile,
        CUDAGraph,
        Triton,
        WarmStart,
        DPCache,
        BAC,
        ProbeFlow,
        Flash,
        WAMCache,
        VLACache,
        Eventful,
        FastV,
        VLAPruner,
        ToMe,
        ContextCache,
        ActionCache,
        LoopCache,
        RMuscle,
        Nirvana,
    )
}


_PLAIN = {"bool": bool, "int": int, "float": float, "str": str}
"""Types that the text of an option is read as."""


class UnknownMethod(ValueError):
    """A method or an option that does not exist."""


def parse(spec: str) -> list[Method]:
    """Returns the methods that a specification names, with disjoint claims.

    Args:
        spec: Names joined by ``+``, each with options after colons: ``flash:delta=0.1:refresh=4``. Tuples are
            written with slashes: ``dp_cache:keep=0/1/2``.

    Raises:
        UnknownMethod: A name or an option is unknown, or a value cannot be read.
        ValueError: A value is out of range, two methods claim the same seam, or a method's own code fails.
    """
    parts = spec.split("+")
    if len(parts) > 1 and Method.name in parts:
        rest = "+".join(part for part in parts if part != Method.name) or Method.name
        raise UnknownMethod(f"{Method.name!r} is the policy without a method and combines with none; write {rest!r}")
    methods = [_one(part) for part in parts]
    Methods(methods)
    return methods


def known_methods() -> list[str]:
    """Returns the names of all methods, those of other authors' packages included."""
    methods, reasons = _others()
    return sorted({*BUILT_IN, *methods, *reasons})


def every_method() -> tuple[list[Entry], dict[str, str]]:
    """Returns descriptions of all methods, and why those that are missing cannot be used, by name."""
    methods, reasons = _others()
    return [describe(kind) for kind in (*BUILT_IN.values(), *methods.values())], reasons


@cache
def _others() -> tuple[dict[str, type[Method]], dict[str, str]]:
    """Methods of other packages by name, and why those that are missing cannot be used."""
    return entry_points.load(GROUP, BUILT_IN, "method", _fault)


def _fault(name: str, kind: Any) -> str | None:
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        return "is not a subclass of Method"
    if getattr(kind, "name", None) != name:
        return f"calls itself {kind.name!r}, and results would name it so"
    return None


def _kind(name: str) -> type[Method]:
    methods, reasons = _others()
    if name in reasons:
        raise UnknownMethod(f"the method {name!r} cannot be used: {reasons[name]}")
    kind = BUILT_IN.get(name) or methods.get(name)
    if kind is None:
        if re.match(r"-?\.?\d", name):
            raise UnknownMethod(
                f"unknown method {name!r}: commas separate methods, and the values of an option are written with "
                "slashes, as in tau=0.9/0.95"
            )
        known = known_methods()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known
        raise UnknownMethod(f"unknown method {name!r}; did you mean {', '.join(near)}?")
    return kind


def _one(part: str) -> Method:
    name, *texts = part.split(":")
    kind = _kind(name)
    with naming(f"the method {name!r} cannot be used"):  # from here on the method's own code may run
        parameters = inspect.signature(kind).parameters
        arguments = _arguments(name, kind, parameters, texts)
        missing = [key for key, each in parameters.items() if each.default is each.empty and key not in arguments]
        if missing:
            raise UnknownMethod(f"{name!r} needs a value for {' and '.join(missing)}: {name}:{missing[0]}=VALUE")
        try:
            return kind(**arguments)
        except ValueError as error:
            raise ValueError(str(error) if name in str(error) else f"{name}: {error}") from error


def _arguments(
    name: str, kind: type[Method], parameters: Mapping[str, inspect.Parameter], texts: list[str]
) -> dict[str, Any]:
    """Reads the options of a method as the types of its constructor's parameters."""
    known = {key: each for key, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    arguments: dict[str, Any] = {}
    for option in texts:
        key, equals, text = option.partition("=")
        if not equals or key not in known:
            takes = ", ".join(str(each.replace(annotation=each.empty)) for each in known.values()) or "none"
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}=?" if near else ""
            raise UnknownMethod(f"{name!r} has no option {option!r}; it takes {takes}{hint}")
        if key in arguments:
            raise UnknownMethod(f"{name!r} is given {key} twice; write several values with slashes, as in {key}=1/2")
        arguments[key] = _read(name, key, text, _type(kind, known[key]))
    return arguments


def _type(kind: type[Method], parameter: inspect.Parameter) -> Any:
    """Returns the type of a parameter: its annotation, or that of its default where it has none that can be found."""
    try:
        found = typing.get_type_hints(kind.__init__).get(parameter.name)
    except Exception:  # an annotation names what is imported for type checkers only
        written = parameter.annotation
        found = _PLAIN.get(written.removesuffix("| None").strip()) if isinstance(written, str) else written
    if found in (None, parameter.empty):
        found = str if parameter.default in (None, parameter.empty) else type(parameter.default)
    return found


def _read(method: str, key: str, text: str, kind: Any) -> Any:
    """Reads an option's text as a type: a plain one, a tuple of plain ones, or either of them or None."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if type(None) in items and text.lower() == "none":
            return None
        kind = next(item for item in items if item is not type(None))
        origin, items = typing.get_origin(kind), typing.get_args(kind)
    if tuple in (kind, origin):
        return tuple(_read(method, key, item, items[0] if items else str) for item in text.split("/"))
    if kind not in _PLAIN.values():
        raise UnknownMethod(f"the option {key} of {method!r} is of a type that cannot be written here: {kind}")
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise UnknownMethod(f"{method}: {key} must be of type {kind.__name__}, got {shown!r}") from error
