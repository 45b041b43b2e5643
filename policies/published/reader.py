"""Reading published weights: sharded safetensors of any layout, into a module on the meta device, strictly.

A file fits name by name and shape by shape or is refused, since a tolerant loader silently leaves random layers behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..weights import JAX, CheckpointError, check_fit, is_jax, open_safetensors, read_tensor

Layout = Mapping[str, Mapping[str, Tensor]]
"""Name of a parameter of ours -> published name -> the rows of ours that it fills, top to bottom."""


WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"


class Source:
    """The tensors of a published checkpoint, read one at a time.

    Args:
        where: Published name -> (open file, name in that file).
        path: What it was opened from, for messages.
    """

    def __init__(self, where: dict[str, tuple[Any, str]], path: Path) -> None:
        self._where, self.path = where, path

    @property
    def names(self) -> list[str]:
        """Published names."""
        return list(self._where)

    def shape(self, name: str) -> list[int]:
        """Returns the shape of a tensor.

        Raises:
            CheckpointError: There is none of this name.
        """
        if name not in self._where:
            raise CheckpointError(f"{self.path} lacks {name}")
        file, key = self._where[name]
        return file.get_slice(key).get_shape()

    def renamed(self, names: Mapping[str, str]) -> Source:
        """Returns the tensors under other names (new name -> name here), without those that get no name."""
        return Source({new: self._where[name] for new, name in names.items()}, self.path)

    def fill(self, module: nn.Module, layout: Layout, dtype: torch.dtype) -> None:
        """Loads a module of which the meta device holds the shapes; see ``read``."""
        module.load_state_dict(self.read(layout, dtype), assign=True)

    def read(self, layout: Layout, dtype: torch.dtype) -> dict[str, Tensor]:
        """Returns parameters by our names; it holds one published matrix in memory at a time besides them.

        Args:
            layout: Which published tensors each parameter is made of.
            dtype: Precision of every parameter.

        Raises:
            CheckpointError: A name is missing or unknown, a shape or number type differs, or a value is not finite in
                this precision.
        """
        found = {name: file.get_slice(key) for name, (file, key) in self._where.items()}
        check_fit(found, {name: part for parts in layout.values() for name, part in parts.items()}, self.path)
        return {ours: torch.cat([self._read(name, dtype) for name in parts]) for ours, parts in layout.items()}

    def _read(self, name: str, dtype: torch.dtype) -> Tensor:
        file, key = self._where[name]
        return read_tensor(file, key, dtype, self.path)


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Opens a safetensors file, or a folder with ``WEIGHTS`` or ``INDEX``.

    Raises:
        CheckpointError: Nothing is there, a shard is missing, or something is not safetensors.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(open_safetensors(file)) for file in files_of(path)]
        yield Source({name: (file, name) for file in files for name in file.keys()}, path)


def files_of(path: Path) -> list[Path]:
    """Returns the file of the weights, or its shards.

    Raises:
        CheckpointError: One of them is missing, or the index is damaged.
    """
    index = path / INDEX
    if index.is_file():
        try:
            shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
            files = [path / Path(shard).name for shard in shards]  # next to the index, whatever else it says
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError) as error:
            raise CheckpointError(f"{index} does not say which shards there are ({error!r}); fetch it again") from error
    else:
        files = [path / WEIGHTS if path.is_dir() else path]
    for file in files:
        if not file.is_file():
            raise CheckpointError(f"there are no weights at {file}{f': {JAX}' if is_jax(path) else ''}")
    return files
