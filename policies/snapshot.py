"""What a loaded policy is, written down: agents share one, so that none of them may leave it changed.

Parameters and buffers are compared by content, everything else that could make it act in another way by value or
identity: hooks, attributes, methods of its classes, functions of the package and of torch, global settings. Private
attributes of a family's own are its caches (see :class:`.modulated.Modulated`) and may change.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from .policy import Policy

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
OWN = frozenset(vars(nn.Module()))  # private names of every module, such as those of hooks
BY_CONTENT = ("_parameters", "_buffers")  # listed by name instead, so that a shared one is read once
PACKAGE = __package__ or __name__
SHARED = (torch.__name__, F.__name__)  # modules of others whose functions layers call
MODULE = "a module"
# torch.compile puts these names into modules whose code it traces, and counts the modules that are made.
COMPILED = ("__compiled_fn_", "__resume_at_")
MADE = {f"{nn.Module.__module__}.Module.{name}" for name in ("__init__", "__setstate__")}

Snapshot = Mapping[str, Any]
"""Values by what they are, such as ``model.vision.weight``; equal values are equal parts of a policy."""


def snapshot(policy: Policy) -> Snapshot:
    """Returns what decides how a policy acts. It reads all weights once, at the speed of memory."""
    parts: dict[str, Any] = {}
    classes: dict[type, None] = dict.fromkeys(Tensor.__mro__)
    for name, tensor in (*policy.model.named_parameters("model"), *policy.model.named_buffers("model")):
        parts[name] = _content(tensor)
    for name, module in policy.model.named_modules(prefix="model"):
        parts.update(_attributes(name, module))
        classes.update(dict.fromkeys(type(module).__mro__))
    parts.update(_values("processor", policy.processor))
    classes.update(dict.fromkeys(type(policy.processor).__mro__))
    for each in classes:
        if each is not object:
            parts.update(_functions(f"{each.__module__}.{each.__qualname__}", vars(each)))
    for name in sorted(sys.modules):
        if name.startswith(f"{PACKAGE}.") or name in SHARED:
            names = vars(sys.modules[name])
            parts.update({name: MODULE, **dict(_functions(name, names))})
            parts.update((f"{name}.{key}", repr(value)) for key, value in names.items() if _is_constant(key, value))
    parts.update({name: _setting(read) for name, read in SETTINGS.items()})
    for name, value in vars(torch_module).items():
        if name.startswith("_global_"):
            parts.update(_values(f"torch.nn.modules.module.{name}", value))
    return parts


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Returns what of a policy is not what it was. A module that was imported meanwhile changes nothing."""
    new = {name for name, value in after.items() if value == MODULE} - before.keys()
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name) and not {name, name.rpartition(".")[0]} & new]


def _content(tensor: Tensor) -> Any:
    """Returns type, shape and a digest of a tensor's bytes.

    The digest is of the sums of rows and of columns, as whole numbers modulo 2^64 in a square: a change of one number,
    and one that moves numbers about, changes sums. Exact on every device, and some 50 times as fast as SHA-256 of all.
    """
    flat = tensor.detach().reshape(-1)
    if flat.storage_offset():  # 8 bytes at a time are read from the start of the memory only
        flat = flat.clone()
    data = flat.view(torch.uint8)
    whole = data.numel() // 8 * 8
    words = data[:whole].view(torch.int64)
    side = math.isqrt(words.numel())
    square = words[: side * side].view(side, side)
    digest = hashlib.sha256()
    for part in (square.sum(0), square.sum(1), words[side * side :], data[whole:]):
        digest.update(part.cpu().numpy().tobytes())
    return tensor.dtype, tuple(tensor.shape), digest.hexdigest()


def _attributes(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object is known by to others, and what stands in for a method of its class."""
    for key, value in vars(thing).items():
        kept = getattr(type(thing), key, None)
        public = not key.startswith("_") or key in OWN or kept is not None
        if public and key not in BY_CONTENT and not isinstance(kept, cached_property):
            yield from _values(f"{name}.{key}", value)


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PLAIN):
        yield name, repr(value)  # NaN equals itself
    elif isinstance(value, Tensor):
        yield name, _content(value)
    elif isinstance(value, np.ndarray):
        yield name, (value.dtype, value.shape, hashlib.sha256(value.tobytes()).hexdigest())
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _values(f"{name}[{index}]", each)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _values(f"{name}[{key!r}]", each)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _attributes(name, value)
    else:
        yield name, id(value)


def _functions(name: str, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields what can be called by its identity."""
    for key, value in list(namespace.items()):
        if key.startswith(COMPILED) or f"{name}.{key}" in MADE:  # a loaded policy runs neither
            continue
        if callable(value) or isinstance(value, (classmethod, staticmethod, property)):
            yield f"{name}.{key}()", id(value)


def _is_constant(name: str, value: Any) -> bool:
    return name.isupper() and isinstance(value, PLAIN)


def _setting(read: Callable[[], Any]) -> Any:
    """Returns a setting, or why it cannot be read: torch refuses where its old and its new spelling contradict."""
    try:
        return read()
    except Exception as error:
        return str(error)


SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype": torch.get_default_dtype,
    "torch.get_default_device": lambda: str(torch.get_default_device()),
    "torch.get_num_threads": torch.get_num_threads,
    "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled,
    "torch.set_flush_denormal": lambda: bool(torch.tensor(1e-310, dtype=torch.float64) * 1 == 0),  # it can only be seen
    **{f"torch.is_autocast_enabled({kind!r})": partial(torch.is_autocast_enabled, kind) for kind in ("cpu", "cuda")},
    **{
        f"torch.backends.cudnn.{name}": partial(getattr, torch.backends.cudnn, name)
        for name in ("allow_tf32", "enabled", "benchmark", "deterministic")
    },
    "torch.backends.mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
    **{
        f"torch.backends.cuda.{name}": getattr(torch.backends.cuda, name)
        for name in ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "math_sdp_enabled", "cudnn_sdp_enabled")
    },
    "numpy.geterr": lambda: repr(np.geterr()),
}
"""Settings that everything in a process shares."""
