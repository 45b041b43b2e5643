"""Checkpoints: one safetensors file that carries its own configuration, loaded strictly or not at all."""

from __future__ import annotations

import hashlib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..files import joined
from .weights import CheckpointError, check_fit, open_safetensors, read_tensor, write_tensors

FORMAT = 1
PUBLISHED = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
"""What the weights of published folders are called."""
_T = TypeVar("_T")


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
    write_tensors(path, state, {"replan": json.dumps({"format": FORMAT, **asdict(header)})})


def read_header(path: Path) -> Header:
    """Reads the header alone.

    Raises:
        CheckpointError: The file is missing, not safetensors, or not one of ours.
    """
    with open_safetensors(path) as file:
        text = (file.metadata() or {}).get("replan")
    if text is None:
        published = "it is part of a published folder: name that, which has its other files too"
        own = "only checkpoints that replan train wrote can be evaluated"
        raise CheckpointError(
            f"{path} carries no replan header: {published if PUBLISHED.fullmatch(path.name) else own}"
        )
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has a damaged header ({error})") from error
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise CheckpointError(f"{path} has another checkpoint format than {FORMAT}; write it again with this version")
    with about(path):
        return from_plain(Header, header)


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Turns whatever the block raises into a :class:`CheckpointError` that names the file.

    A configuration is data of others, and so is the code of a family from another package: neither may end in a
    traceback.
    """
    try:
        yield
    except (ValueError, SystemExit) as error:
        raise CheckpointError(f"{path}: {error}") from error
    except Exception as error:
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error


def load_weights(path: Path, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Fills a module with the weights of a file.

    Args:
        path: The checkpoint.
        module: May be on the meta device, so that a file which does not fit costs no memory; it is on the CPU
            afterwards.
        dtype: Precision of every parameter.

    Raises:
        CheckpointError: A key is missing or unknown, a shape or number type differs, or a value is not finite in this
            precision.
    """
    expected = module.state_dict()
    with open_safetensors(path) as file:
        check_fit({name: file.get_slice(name) for name in file.keys()}, expected, path)
        state = {name: read_tensor(file, name, dtype, path) for name in expected}
    module.load_state_dict(state, assign=True)


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
        try:
            return float(value)
        except OverflowError:  # a whole number of hundreds of digits
            pass
    elif isinstance(value, origin or hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = {dict: "a table", type(None): "null"}.get(origin or hint, getattr(hint, "__name__", hint))
    raise CheckpointError(f"{name} must be {expected}, got {value!r}")


def check_sizes(sizes: Mapping[str, int], most: Mapping[str, int] | int = 1 << 20) -> None:
    """Checks the dimensions of a configuration: a damaged header must not take memory, or steps, for hours.

    Args:
        sizes: Value by name.
        most: Largest value of all, or by name; a name without one may have a million, four times the largest published
            vocabulary.

    Raises:
        ValueError: A size is not in 1..most.
    """
    limits = {name: most if isinstance(most, int) else most.get(name, 1 << 20) for name in sizes}
    wrong = [
        f"{name} must be in 1..{limits[name]}, got {value}"
        for name, value in sizes.items()
        if not 1 <= value <= limits[name]
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def file_hash(path: Path) -> str:
    """Returns the SHA-256 of a file, read piece by piece: published weights have several GB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def files_hash(files: Sequence[Path]) -> str:
    """Returns the SHA-256 of a file, or one of several files' in any order."""
    return joined(map(file_hash, files))
