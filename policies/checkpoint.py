"""Checkpoints: one safetensors file that carries its own configuration, loaded strictly or not at all."""

from __future__ import annotations

import hashlib
import json
import types
import typing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

FORMAT = 1
STORED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_T = TypeVar("_T")


class CheckpointError(ValueError):
    """A file that is not the checkpoint it should be."""


@dataclass(frozen=True)
class Header:
    """What a checkpoint says about itself.

    Attributes:
        kind: Name of the family, such as ``pi0``, or of a method's own file, such as ``flash-draft``.
        config: Configuration of the module, as plain values.
        processor: The policy's conventions, as plain values; empty for a draft.
        card: How it was made and what a reader of its results must know. Two entries have a meaning: ``marks``, which
            go on every row, and ``suites``, which it was trained on; both are lists of texts.

    Raises:
        CheckpointError: ``marks`` or ``suites`` is something else.
    """

    kind: str
    config: dict[str, Any]
    processor: dict[str, Any]
    card: dict[str, Any]

    def __post_init__(self) -> None:
        for name in ("marks", "suites"):
            texts = self.card.get(name, [])
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise CheckpointError(f"{name} in the card must be a list of texts, got {texts!r}")


def save(path: Path, header: Header, module: nn.Module, dtype: torch.dtype = torch.float16) -> None:
    """Writes the module's state and its header; ``dtype`` is the stored precision."""
    state = {name: tensor.detach().to(dtype).contiguous() for name, tensor in module.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(state, path, {"replan": json.dumps({"format": FORMAT, **asdict(header)})})


def open_safetensors(path: Path) -> safe_open:
    """Opens a file for reading, tensor by tensor.

    Raises:
        CheckpointError: The file is not safetensors.
    """
    try:
        return safe_open(path, "pt")
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is not a safetensors file ({error}); pickled checkpoints are never loaded: convert them first"
        ) from error


def read_header(path: Path) -> Header:
    """Reads the header alone.

    Raises:
        CheckpointError: The file is missing, not safetensors, or not one of ours.
    """
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    with open_safetensors(path) as file:
        text = (file.metadata() or {}).get("replan")
    if text is None:
        raise CheckpointError(f"{path} is a safetensors file, but carries no replan header")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header ({error})") from error
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} has another checkpoint format than {FORMAT}; write it again with this version")
    try:
        return from_plain(Header, header)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def load_weights(path: Path, module: nn.Module) -> None:
    """Fills a module with the weights of a file, in the module's precision.

    Args:
        path: The checkpoint.
        module: May be on the meta device, so that a file which does not fit costs no memory; it is on the CPU
            afterwards.

    Raises:
        CheckpointError: A key is missing or unknown, a shape differs, or a value is not a finite floating-point number.
    """
    expected = module.state_dict()
    with open_safetensors(path) as file:
        try:
            shapes = {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in list(file.keys())}
            load_strictly(shapes, expected, path)
            state = {name: file.get_tensor(name) for name in shapes}
        except SafetensorError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    for name, tensor in state.items():
        if tensor.dtype not in STORED:
            raise CheckpointError(f"{path}: {name} is stored as {tensor.dtype}, not as a 16- to 64-bit float")
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds values that are not finite")
        # A copy, so that no parameter stays mapped to the file.
        state[name] = tensor.to(expected[name].dtype, copy=True)
    module.load_state_dict(state, assign=True)


def load_strictly(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], origin: object) -> None:
    """Refuses weights that do not fit key by key and shape by shape.

    Raises:
        CheckpointError: A key is missing or unknown, or a shape differs.
    """
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(f"{origin}: {_few('missing', missing)}; {_few('unknown', unknown)}")
    for name, tensor in found.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(f"{origin}: {name} is {list(tensor.shape)}, expected {list(wanted[name].shape)}")


def _few(what: str, names: list[str]) -> str:
    return f"{len(names)} {what} keys" + (
        f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else ""
    )


def from_plain(kind: type[_T], values: Any) -> _T:
    """Rebuilds a frozen dataclass from JSON values: lists become tuples, and every value has its field's type.

    A class that has changed since checkpoints of it were written has a static method ``upgrade`` that is given the
    values first. Ranges are the class's own business (``__post_init__``).

    Raises:
        CheckpointError: A field is missing or unknown, has another type, or is out of range.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"the {kind.__name__} of the checkpoint is {values!r}, not a table")
    upgrade = getattr(kind, "upgrade", None)
    values = upgrade(values) if upgrade else values
    hints = typing.get_type_hints(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if missing := sorted(names - values.keys()):
        raise CheckpointError(f"the {kind.__name__} of the checkpoint lacks {', '.join(missing)}")
    if unknown := sorted(values.keys() - names):
        raise CheckpointError(
            f"the {kind.__name__} of the checkpoint has unknown fields {', '.join(map(repr, unknown))}"
        )
    typed = {name: _typed(value, hints[name], f"{kind.__name__}.{name}") for name, value in values.items()}
    try:
        return kind(**typed)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the {kind.__name__} of the checkpoint: {error}") from error


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Returns a JSON value as its annotation has it: of a plain type, a tuple, a table, or one of several."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for part in parts:
            try:
                return _typed(value, part, name)
            except CheckpointError:
                continue
    elif origin is tuple:
        items = value if isinstance(value, (list, tuple)) else None
        if items is not None and parts[-1] is ...:
            parts = parts[:1] * len(items)
        if items is not None and len(items) == len(parts):
            numbered = enumerate(zip(items, parts, strict=True))
            return tuple(_typed(item, part, f"{name}[{number}]") for number, (item, part) in numbered)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = {dict: "a table", type(None): "null"}.get(origin or hint, getattr(hint, "__name__", hint))
    raise CheckpointError(f"{name} must be {expected}, got {value!r}")


def check_sizes(sizes: dict[str, int], most: int = 1 << 20) -> None:
    """Raises ValueError unless all sizes lie in 1..most; the default is four times the largest published vocabulary."""
    if wrong := {name: value for name, value in sizes.items() if not 1 <= value <= most}:
        raise ValueError(f"sizes must be whole numbers in 1..{most}, got {wrong}")


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file, read piece by piece: published weights have several GB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
