"""Tensors of safetensors files: written whole, opened with a reason where that fails, and read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from ..files import write_file

JAX = "it is a JAX checkpoint, and only PyTorch's are read: openpi's convert_jax_model_to_pytorch.py converts"

STORED = ("F16", "BF16", "F32")
"""Number types of weights, as safetensors names them. float64 is none: rounded to what the model runs in, it would no
longer be the file that the hash in a result names; and integers and 4- to 8-bit floats mean nothing without a scale."""

_LONGEST = 600
_PICKLED = "is a pickled file, which is never loaded, since it may run any code: convert it to safetensors first"
_FOREIGN = {
    b"version https://git-lfs": "is a Git LFS pointer and not the weights: fetch them with `git lfs pull`",
    b"PK\x03\x04": _PICKLED,
    b"\x80": _PICKLED,
    b"<": "is a web page and not weights: its download failed; fetch it again",
}
"""How a file begins that is no safetensors, and what it is."""


class CheckpointError(ValueError):
    """A file that is not the checkpoint it should be.

    Its message is one line that a terminal can show, whatever the file has written into it.
    """

    def __init__(self, message: str) -> None:
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message[: _LONGEST + 1])
        super().__init__(shown if len(message) <= _LONGEST else f"{shown[:_LONGEST]}...")


def is_jax(folder: Path) -> bool:
    """Returns whether a folder is a checkpoint of JAX, as openpi publishes them."""
    return any((folder / name).exists() for name in ("params", "_METADATA", "_CHECKPOINT_METADATA"))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Writes tensors with texts about them, whole or not at all; the folder must exist."""
    write_file(path, safetensors_torch.save(dict(tensors), None if about is None else dict(about)))


def open_safetensors(path: Path) -> safe_open:
    """Opens a file for reading, tensor by tensor.

    Raises:
        CheckpointError: There is no such file, or it is not safetensors; the message says what it is instead.
    """
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, not a file")
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise CheckpointError(f"{path} {_what_else(path, error)}") from error
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {path}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _what_else(path: Path, error: SafetensorError) -> str:
    """Returns what a file is that safetensors refuses, as the end of a sentence."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length, begin = int.from_bytes(file.read(8), "little"), file.read(1)
        if size == 0:
            return "is empty: its download did not begin; fetch it again"
        if begin == b"{":  # the header of a safetensors file
            header = file.read(max(length - 1, 0)) if 8 + length <= size else b""
            if (expected := 8 + length + _data_bytes(begin + header)) > size:
                return f"is cut short ({size} of {expected} bytes): its download did not finish; fetch it again"
            return f"is a damaged safetensors file ({error}); fetch it again"
        file.seek(0)
        start = file.read(64)
    return next(
        (what for magic, what in _FOREIGN.items() if start.startswith(magic)), f"is not a safetensors file ({error})"
    )


def _data_bytes(header: bytes) -> int:
    """Returns how many bytes of tensors a header announces; 0 where it cannot be read."""
    try:
        return max(entry["data_offsets"][1] for name, entry in json.loads(header).items() if name != "__metadata__")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return 0


def check_fit(found: Mapping[str, Any], wanted: Mapping[str, Tensor], origin: object) -> None:
    """Refuses weights that do not fit key by key and shape by shape, before any of them is read.

    Args:
        found: Slices of open files, by the names that are wanted.
        wanted: Tensors of these shapes, which may be on the meta device.
        origin: The file, for messages.

    Raises:
        CheckpointError: A key is missing or unknown, or a shape or a number type is another one.
    """
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(f"{origin}: {_few('missing', missing)}; {_few('unknown', unknown)}")
    for name, part in found.items():
        if part.get_dtype() not in STORED:
            raise CheckpointError(f"{origin}: {name} is stored as {part.get_dtype()}, not as {', '.join(STORED)}")
        if list(part.get_shape()) != list(wanted[name].shape):
            raise CheckpointError(f"{origin}: {name} is {part.get_shape()}, expected {list(wanted[name].shape)}")


def read_tensor(file: safe_open, key: str, dtype: torch.dtype, origin: object) -> Tensor:
    """Returns a copy of a tensor in a precision.

    Raises:
        CheckpointError: It cannot be read, or a value is not finite in this precision.
    """
    try:
        # A copy, so that no parameter stays mapped to the file.
        tensor = file.get_tensor(key).to(dtype, copy=True)
    except SafetensorError as error:
        raise CheckpointError(f"{origin}: {key} cannot be read: {error}") from error
    if not torch.isfinite(tensor).all():
        raise CheckpointError(f"{origin}: {key} holds values that are not finite in {dtype}")
    return tensor


def _few(what: str, names: list[str]) -> str:
    return f"{len(names)} {what} keys" + (
        f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
    )
