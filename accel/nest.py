"""Tensors in what the stages of a model take and return: tuples, lists and dataclasses of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns a nest of tuples, lists and dataclasses with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: mapped(getattr(value, each.name), change) for each in fields(value)})
    if isinstance(value, (tuple, list)):
        items = [mapped(each, change) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def leaves(value: Any) -> Iterator[Any]:
    """Yields what a nest contains, in order."""
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, each.name) for each in fields(value)]
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from leaves(each)
    else:
        yield value
