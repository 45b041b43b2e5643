"""Messages of openpi's protocol: msgpack with NumPy arrays. What comes in is data only, and bounded.

An array is a map of bytes keys (``__ndarray__``, ``data``, ``dtype``, ``shape``), a NumPy number likewise
(``__npgeneric__``), as openpi's client and server write them. Arrays of objects, which only pickle could carry, exist
in neither direction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..spec import BadInput

MOST_BYTES = 16 << 20
"""Largest message: three uncompressed camera images of 1080 lines fit, and the memory of a server is safe."""

KINDS = "biuf"  # of NumPy types: booleans and numbers
_MOST_ITEMS = 4096  # of a list or map that is not an array
_MOST_CONTAINERS = 1000  # of a message: each can take 48 bytes of memory for one of the message


class WireError(ValueError):
    """A message that is not one of the protocol."""


def require() -> None:
    """Makes sure that the packages for servers are there.

    Raises:
        BadInput: They are not.
    """
    try:
        import msgpack  # noqa: F401
        import websockets.sync.client  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"policies on servers need {error.name or 'websockets'}; pip install 'replan[remote]'"
        ) from error


def pack(message: Mapping[str, Any]) -> bytes:
    """Returns a message as bytes.

    Raises:
        WireError: It contains something that the protocol cannot carry.
    """
    import msgpack

    try:
        return msgpack.Packer(default=_packed).pack(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"a message cannot be sent: {error}") from error


def unpack(data: bytes | str) -> dict[Any, Any]:
    """Returns what a message contains.

    Raises:
        WireError: It is no map in msgpack, or an array in it has another type or size than it says.
    """
    import msgpack

    if isinstance(data, str):
        raise WireError(f"a message must be binary (msgpack), got the text {data[:80]!r}")
    containers = 0

    def counted(value: Any) -> Any:
        nonlocal containers
        containers += 1
        if containers > _MOST_CONTAINERS:
            raise WireError(f"a message contains more than {_MOST_CONTAINERS} lists and maps")
        return _unpacked(value) if isinstance(value, dict) else value

    limits = {"max_array_len": _MOST_ITEMS, "max_map_len": _MOST_ITEMS, "max_ext_len": 0}
    try:
        message = msgpack.unpackb(data, object_hook=counted, list_hook=counted, **limits)
    except WireError:
        raise
    except Exception as error:  # msgpack has its own for each fault, some of them without a text
        raise WireError(f"a message is not msgpack: {error or type(error).__name__}") from error
    if not isinstance(message, dict):
        raise WireError(f"a message must be a map, got {type(message).__name__}")
    return message


def _packed(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in KINDS:
            raise WireError(f"arrays of {value.dtype} cannot be sent, only numbers and booleans")
        if isinstance(value, np.ndarray):
            return {
                b"__ndarray__": True,
                b"data": value.tobytes(),
                b"dtype": value.dtype.str,
                b"shape": value.shape,
            }
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _unpacked(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" in value:
        kind, shape, data = _kind(value), value.get(b"shape"), value.get(b"data")
        if not isinstance(shape, list) or not all(type(side) is int and side >= 0 for side in shape):
            raise WireError(f"the shape of an array must be a list of whole numbers, got {str(shape)[:80]}")
        if not isinstance(data, bytes) or len(data) != math.prod(shape) * kind.itemsize:
            length = len(data) if isinstance(data, bytes) else type(data).__name__
            raise WireError(f"an array {kind} {str(shape)[:80]} must have as many bytes as that takes, got {length}")
        try:
            return np.frombuffer(data, kind).reshape(shape).copy()  # a message's own memory is read-only
        except (ValueError, OverflowError) as error:  # more dimensions than NumPy has
            raise WireError(f"an array cannot be made: {error}") from error
    if b"__npgeneric__" in value:
        kind, number = _kind(value), value.get(b"data")
        try:
            if not isinstance(number, (bool, int, float)):
                raise TypeError(f"{type(number).__name__} is no number")
            return kind.type(number)
        except (TypeError, ValueError, OverflowError) as error:
            raise WireError(f"a number of type {kind} cannot be made: {error}") from error
    return value


def _kind(value: dict[Any, Any]) -> np.dtype[Any]:
    name = value.get(b"dtype")
    try:
        if not isinstance(name, str) or len(name) > 8:
            raise TypeError
        kind = np.dtype(name)
    except (TypeError, ValueError) as error:
        raise WireError(f"the type of an array must be a NumPy name such as '<f4', got {str(name)[:80]!r}") from error
    if kind.kind not in KINDS or kind.fields:
        raise WireError(f"arrays of {name!r} are refused: only numbers and booleans are read")
    return kind
