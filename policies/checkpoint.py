"""Checkpoints: one safetensors file that carries its own configuration, loaded strictly or not at all."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

FORMAT = 1
_T = TypeVar("_T")


class CheckpointError(ValueError):
    """A file that is not the checkpoint it should be."""


@dataclass(frozen=True)
class Header:
    """What a checkpoint says about itself.

    Attributes:
        kind: ``pi0`` or ``flash-draft``.
        config: Configuration of the module, as plain values.
        processor: The policy's conventions, as plain values; empty for a draft.
        card: How it was made and what a reader of its results must know. Two entries have a meaning: ``marks``, which
            go on every row, and ``suites``, which it was trained on; both are lists of texts.

    Raises:
        CheckpointError: A part has another type.
    """

    kind: str
    config: dict[str, Any]
    processor: dict[str, Any]
    card: dict[str, Any]

    def __post_init__(self) -> None:
        """Refuses what a reader could not make sense of."""
        for name in ("config", "processor", "card"):
            if not isinstance(getattr(self, name), dict):
                raise CheckpointError(f"{name} must be a table, got {getattr(self, name)!r}")
        for name in ("marks", "suites"):
            texts = self.card.get(name, [])
            if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
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
    except ValueError as error:
        raise CheckpointError(f"{path} has a damaged header ({error})") from error
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} has another checkpoint format than {FORMAT}; write it again with this version")
    try:
        return from_plain(Header, header)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def load_weights(path: Path, module: nn.Module) -> None:
    """Copies the weights into the module, converting to its precision.

    Raises:
        CheckpointError: A key is missing or unknown, a shape differs, or a value is not finite.
    """
    wanted = module.state_dict()
    with safe_open(path, "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}
    load_strictly(found, wanted, path)
    for name, tensor in found.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds values that are not finite")
    module.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in found.items()})


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


def from_plain(kind: type[_T], values: dict[str, Any]) -> _T:
    """Rebuilds a frozen dataclass from JSON values: lists become tuples.

    Raises:
        CheckpointError: A field is missing or unknown.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, dict):
        raise CheckpointError(f"the {kind.__name__} of the checkpoint is {values!r}, not a table")
    if names != values.keys():
        raise CheckpointError(f"the {kind.__name__} of the checkpoint differs in {sorted(names ^ values.keys())}")
    return kind(**{name: _tuples(value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
