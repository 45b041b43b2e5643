"""A policy: weights and the conventions that belong to them, found by name or path."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .families import family, shipped_policies
from .model import FlowModel
from .processing import Processor
from .published.reader import INDEX, WEIGHTS
from .stored import Stored
from .weights import JAX, CheckpointError, is_jax

_HUB = re.compile(r"[\w.-]+/[\w.-]+")

IN_FOLDER = "policy.safetensors"
"""The checkpoint in a folder that is a policy; ``replan train`` writes it under this name."""

_PICKLED = (".pt", ".pth", ".bin", ".ckpt")

OPTIONS = ("convention", "tokenizer")
"""What may follow a published folder, since its files do not say it."""


@dataclass(frozen=True)
class Policy:
    """Weights and the conventions that belong to them.

    Attributes:
        name: Name in results.
        path: File of the weights, or the first of them; what methods need, such as a draft, lies next to it.
        files: All files that it is made of.
        model: The network, in evaluation mode.
        processor: Observation and action conventions.
        card: How it was made; ``card["marks"]`` goes on every row.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    model: FlowModel
    processor: Processor
    card: dict[str, Any]


def open_policy(name: str | Path) -> Stored:
    """Recognises a policy without loading its weights.

    Args:
        name: A policy that comes with this package or with a family of another one; a file; a folder that contains
            ``policy.safetensors``; or a published folder, with what it does not say behind it:
            ``DIR:convention=libero:tokenizer=FILE``.

    Raises:
        CheckpointError: It is none of these, or it is damaged or incomplete.
    """
    shipped = shipped_policies()
    if str(name) in shipped:
        return _own(shipped[str(name)])
    place, options = _options(str(name))
    path = Path(place)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:  # a name that is too long for a path, for example
        raise CheckpointError(f"{place[:80]!r} cannot be a policy: {error.strerror}") from error
    if not is_file and not is_folder:
        hub = "; nothing is downloaded: fetch a Hub id and name the folder" if _HUB.fullmatch(place) else ""
        raise CheckpointError(
            f"unknown policy {place!r}: no such file or folder{hub}, and known by name are {', '.join(sorted(shipped))}"
        )
    own = path if is_file else path / IN_FOLDER
    if own.is_file():
        if options:
            raise CheckpointError(f"{own} says everything about itself; leave {', '.join(options)} out")
        return _own(own)
    if any((path / file).exists() for file in (WEIGHTS, INDEX)):
        # Not an import statement: how published folders are read is no part of the code of policies that are not one.
        return importlib.import_module(".published.folder", __package__).open_folder(path, **options)
    raise CheckpointError(f"the folder {path} is not a policy: {_why_not(path)}")


def _why_not(folder: Path) -> str:
    """Returns why a folder is no policy."""
    if is_jax(folder):
        return JAX
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLED)
    if pickled:
        return f"it has pickled weights ({pickled[0]}), which are never loaded: write them as {WEIGHTS}"
    return f"it contains neither {IN_FOLDER} nor {WEIGHTS}"


def _options(name: str) -> tuple[str, dict[str, str]]:
    """Returns a name without the options behind it, and these."""
    if Path(name).exists():
        return name, {}
    if "://" in name:
        raise CheckpointError(f"this needs the weights of a policy, and {name!r} is on a server: name a checkpoint")
    place, *options = name.split(":")
    pairs = [option.partition("=") for option in options]
    for key, equals, value in pairs:
        if key not in OPTIONS or not equals or not value:
            raise CheckpointError(
                f"{place!r} is followed by {key + equals + value!r}; a policy takes {' and '.join(OPTIONS)}, as in "
                "DIR:convention=libero:tokenizer=FILE"
            )
    return place, {key: value for key, _, value in pairs}


def _own(path: Path) -> Stored:
    """Recognises a checkpoint in our own format."""
    header = checkpoint.read_header(path)
    with checkpoint.about(path):
        kind = family(header.kind)
        config = checkpoint.from_plain(kind.config, header.config)
        processor = checkpoint.from_plain(kind.processor, header.processor)
        processor.check(config)
    return Stored(
        path=path,
        files=(path,),
        layout="replan",
        family=kind,
        config=config,
        processor=processor,
        card=header.card,
        fill=partial(checkpoint.load_weights, path),
    )


def bundled_policies() -> list[str]:
    """Returns the names of the policies that come with this package and with the families of other authors."""
    return sorted(shipped_policies())


def load_policy(name: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> Policy:
    """Loads a policy by name or path.

    Args:
        name: See :func:`open_policy`.
        dtype: Precision of the weights.
        device: Where the weights go.

    Raises:
        CheckpointError: The file is missing, foreign, damaged, or does not fit its own configuration.
    """
    stored = open_policy(name)
    with checkpoint.about(stored.path), torch.device("meta"):  # no memory is taken before the file is found to fit
        model = stored.family.model(stored.config)
    stored.fill(model, dtype)
    model.requires_grad_(False).eval().to(device)
    return Policy(policy_name(stored.path), stored.path, stored.files, model, stored.processor, stored.card)


def policy_name(path: Path) -> str:
    """Returns the name of a policy: its file's, or its folder's where the file has the name of all."""
    return path.parent.name if path.name in (IN_FOLDER, WEIGHTS) else path.stem
