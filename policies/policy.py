"""A policy: weights and the conventions that belong to them, found by name or path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .families import family, shipped_policies
from .model import FlowModel
from .processing import Processor
from .weights import JAX, CheckpointError, is_jax

_HUB = re.compile(r"[\w.-]+/[\w.-]+")

IN_FOLDER = "policy.safetensors"
"""The checkpoint in a folder that is a policy; ``replan train`` writes it under this name."""


@dataclass(frozen=True)
class Policy:
    """Weights and the conventions that belong to them.

    Attributes:
        name: Name in results.
        path: The checkpoint's file; what methods need, such as a draft, lies next to it.
        model: The network, in evaluation mode.
        processor: Observation and action conventions.
        card: How it was made; ``card["marks"]`` goes on every row.
    """

    name: str
    path: Path
    model: FlowModel
    processor: Processor
    card: dict[str, Any]


def policy_path(name: str | Path) -> Path:
    """Returns the checkpoint file of a policy.

    Args:
        name: A policy that comes with this package or with a family of another one, a file, or a folder that contains
            ``policy.safetensors``.

    Raises:
        CheckpointError: It is none of these.
    """
    shipped = shipped_policies()
    if str(name) in shipped:
        return shipped[str(name)]
    path = Path(name)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:  # a name that is too long for a path, for example
        raise CheckpointError(f"{str(name)[:80]!r} cannot be a policy: {error.strerror}") from error
    if is_file:
        return path
    if not is_folder:
        hub = "; nothing is downloaded: fetch a Hub id and name the file" if _HUB.fullmatch(str(name)) else ""
        raise CheckpointError(
            f"unknown policy {str(name)!r}: no such file or folder{hub}, and known by name are "
            f"{', '.join(sorted(shipped))}"
        )
    if (path / IN_FOLDER).is_file():
        return path / IN_FOLDER
    if any((path / file).exists() for file in ("model.safetensors", "model.safetensors.index.json")):
        reason = checkpoint.PUBLISHED
    elif is_jax(path):
        reason = JAX
    else:
        reason = f"it contains no {IN_FOLDER}"
    raise CheckpointError(f"the folder {path} is not a policy: {reason}")


def bundled_policies() -> list[str]:
    """Returns the names of the policies that come with this package and with the families of other authors."""
    return sorted(shipped_policies())


def read_processor(path: Path, header: checkpoint.Header) -> Processor:
    """Returns the conventions of a checkpoint from its header, without reading its weights.

    Raises:
        CheckpointError: The file is not a policy's checkpoint, or the conventions contradict each other.
    """
    with checkpoint.about(path):
        return checkpoint.from_plain(family(header.kind).processor, header.processor)


def load_policy(name: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Policy:
    """Loads a policy by name or path.

    Args:
        name: See :func:`policy_path`.
        dtype: Precision of the weights.
        device: Where the weights go.

    Raises:
        CheckpointError: The file is missing, foreign, damaged, or does not fit its own configuration.
    """
    path = policy_path(name)
    header = checkpoint.read_header(path)
    with checkpoint.about(path):
        kind = family(header.kind)
        config = checkpoint.from_plain(kind.config, header.config)
        processor = checkpoint.from_plain(kind.processor, header.processor)
        processor.check(config)
        with torch.device("meta"):  # no memory is taken before the file has been found to fit
            model = kind.model(config)
    checkpoint.load_weights(path, model, dtype)
    model.requires_grad_(False).eval().to(device)
    return Policy(policy_name(path), path, model, processor, header.card)


def policy_name(path: Path) -> str:
    """Returns the name of a policy in results: its file's, or its folder's where the file has the name of all."""
    return path.parent.name if path.name == IN_FOLDER else path.stem
