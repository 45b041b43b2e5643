"""A library of executions: per instruction, the rounds of earlier episodes, for methods that take work over from them.

A library is a folder. ``index.sqlite`` says for which policy it was made and which episodes it holds. One safetensors
file per instruction, a *pack*, holds their rounds: what the model was given, and what a retrieval compares. What the
model makes of that inside is not stored: it is large, and can be computed again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policies.checkpoint import file_hash, files_hash
from ..policies.model import Inputs, Prefix
from ..policies.weights import CheckpointError, open_safetensors, write_tensors

INDEX = "index.sqlite"
FORMAT = 1
_TABLES = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE packs (
    number INTEGER PRIMARY KEY, instruction TEXT NOT NULL UNIQUE, file TEXT NOT NULL, sha256 TEXT NOT NULL
);
CREATE TABLE episodes (
    pack INTEGER NOT NULL REFERENCES packs, start INTEGER NOT NULL, rounds INTEGER NOT NULL,
    first_observation TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Entry:
    """A round of an execution.

    Attributes:
        inputs: Model inputs of batch 1, float32, on the CPU.
        query: [P, n] float16, what retrieval compares: see :func:`query_of`.
        masks: [ratios, groups, layers, ceil(H / 8)] uint8: the important neurons of each ratio, a bit per neuron.
    """

    inputs: Inputs
    query: Tensor
    masks: Tensor


@dataclass(frozen=True)
class Pack:
    """The executions of one instruction.

    Attributes:
        episodes: The rows of each episode, in order.
        queries: [N, P, n] float16.
        states: [N, state_dim] float32, normalised.
        tensors: Everything, by name, with a row per round.
    """

    episodes: tuple[range, ...]
    queries: Tensor
    states: Tensor
    tensors: dict[str, Tensor]

    def inputs(self, row: int) -> Inputs:
        """Returns what the model was given in a round, batch 1, float32."""
        given = {name: tensor[row : row + 1] for name, tensor in self.tensors.items() if name not in ("query", "masks")}
        return Inputs(**{**given, "images": _from_bytes(given["images"])})

    def masks(self, row: int, ratio: int, neurons: int) -> Tensor:
        """Returns [groups, layers, K] the important neurons of a round.

        Args:
            row: The round.
            ratio: Index of the ratio.
            neurons: Neurons of a layer.
        """
        bits = np.unpackbits(self.tensors["masks"][row, ratio].numpy(), axis=-1, count=neurons)
        return torch.from_numpy(bits.nonzero()[-1].reshape(*bits.shape[:2], -1))


def query_of(prefix: Prefix) -> Tensor:
    """Returns [P, n] what retrieval compares: the features halfway through the vision tower, or the embeddings."""
    features = prefix.embeddings[:, prefix.visual_rows()] if prefix.features is None else prefix.features
    return features[0]


def as_bits(masks: Tensor, neurons: int) -> Tensor:
    """Returns [groups, layers, ceil(neurons / 8)] uint8 of the important neurons [groups, layers, K]."""
    chosen = torch.zeros((*masks.shape[:2], neurons), dtype=torch.uint8)
    return torch.from_numpy(np.packbits(chosen.scatter_(-1, masks.cpu(), 1).numpy(), axis=-1))


def library_path(policy: Path) -> Path:
    """Returns where the library of a policy lies if nobody says otherwise: next to it."""
    return policy.with_name(f"{policy.stem}.library")


class Library:
    """A library of executions, opened for reading.

    Args:
        folder: What ``replan library build`` wrote.

    Attributes:
        policy: SHA-256 of the policy's files.
        ratios: Shares of neurons for which it has masks.
        anchors: Steps at which the groups of the masks begin.
        neurons: Neurons of a layer.
        first_observations: Digests of the first observations of its episodes, as rows of results have them.

    Raises:
        CheckpointError: There is none, or it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, path = folder, folder / INDEX
        if not path.is_file():
            raise CheckpointError(f"{folder} is not a library of executions; replan library build makes one")
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as index:
                about = dict(index.execute("SELECT key, value FROM about"))
                self._packs = {
                    str(instruction): (int(number), Path(file).name, str(sha256))
                    for number, instruction, file, sha256 in index.execute(
                        "SELECT number, instruction, file, sha256 FROM packs ORDER BY number"
                    )
                }
                rows = list(
                    index.execute("SELECT pack, start, rounds, first_observation FROM episodes ORDER BY pack, start")
                )
            if int(about["format"]) != FORMAT:
                raise CheckpointError(f"{folder} has format {about['format']}, not {FORMAT}; build it again")
            self.policy = about["policy_sha256"]
            self.ratios = tuple(float(text) for text in about["ratios"].split())
            self.anchors = tuple(int(text) for text in about["anchors"].split())
            self.neurons = int(about["neurons"])
            self._episodes = [(int(pack), range(int(start), int(start) + int(n))) for pack, start, n, _ in rows]
            self.first_observations = frozenset(str(digest) for *_, digest in rows)
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} is damaged ({error}); build the library again") from error

    @property
    def instructions(self) -> list[str]:
        """Instructions that it has a pack for."""
        return list(self._packs)

    @property
    def files(self) -> list[Path]:
        """Its files."""
        return [self._folder / INDEX, *(self._folder / name for _, name, _ in self._packs.values())]

    def require(self, policy: Sequence[Path]) -> None:
        """Makes sure that the library was made with exactly this policy, and is whole.

        Raises:
            CheckpointError: It was not, or is not.
        """
        if self.policy != files_hash(policy):
            raise CheckpointError(
                f"the library {self._folder} was made with other weights than {policy[0]}; build one with replan "
                "library build"
            )
        for _, name, sha256 in self._packs.values():
            path = self._folder / name
            if not path.is_file() or file_hash(path) != sha256:
                raise CheckpointError(f"{path} is not the file that its index describes; build the library again")

    def pack(self, instruction: str) -> Pack | None:
        """Reads the executions of an instruction; None where there are none."""
        if instruction not in self._packs:
            return None
        number, name, _ = self._packs[instruction]
        with open_safetensors(self._folder / name) as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}
        episodes = tuple(rows for pack, rows in self._episodes if pack == number)
        return Pack(episodes, tensors["query"], tensors["state"], tensors)


@dataclass(frozen=True)
class Episode:
    """An execution to be kept.

    Attributes:
        instruction: As the environment gave it.
        first_observation: Digest of its first observation, as rows of results have it.
        entries: Its rounds, in order.
    """

    instruction: str
    first_observation: str
    entries: list[Entry]


def write(
    folder: Path,
    episodes: Sequence[Episode],
    policy: Sequence[Path],
    *,
    ratios: Sequence[float],
    anchors: Sequence[int],
    neurons: int,
) -> None:
    """Writes a library; the index comes last, so that a folder with one is whole.

    Args:
        folder: Is made if it is missing; a library in it is replaced.
        episodes: The executions.
        policy: Files of the policy that made them.
        ratios: Shares of neurons for which the entries have masks.
        anchors: Steps at which the groups of the masks begin.
        neurons: Neurons of a layer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX).unlink(missing_ok=True)
    about = {"format": FORMAT, "policy_sha256": files_hash(policy), "neurons": neurons}
    about |= {"ratios": " ".join(map(str, ratios)), "anchors": " ".join(map(str, anchors))}
    part = folder / f".{INDEX}.part"
    part.unlink(missing_ok=True)
    with closing(sqlite3.connect(part)) as index:
        index.executescript(_TABLES)
        index.executemany("INSERT INTO about VALUES (?, ?)", [(key, str(value)) for key, value in about.items()])
        for number, instruction in enumerate(dict.fromkeys(each.instruction for each in episodes)):
            mine = [each for each in episodes if each.instruction == instruction]
            path, start = folder / f"pack-{number:03}.safetensors", 0
            write_tensors(path, stacked([entry for each in mine for entry in each.entries]))
            index.execute("INSERT INTO packs VALUES (?, ?, ?, ?)", (number, instruction, path.name, file_hash(path)))
            for each in mine:
                row = (number, start, len(each.entries), each.first_observation)
                index.execute("INSERT INTO episodes VALUES (?, ?, ?, ?)", row)
                start += len(each.entries)
        index.commit()
    part.replace(folder / INDEX)


def stacked(entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Returns rounds as a pack has them, with a row each.

    Raises:
        RuntimeError: They have different shapes: a camera went missing.
    """
    columns: dict[str, list[Tensor]] = {field.name: [] for field in fields(Inputs)}
    for entry in entries:
        for name, column in columns.items():
            value: Any = getattr(entry.inputs, name)
            if value is not None:
                column.append(value)
    tensors = {name: torch.cat(column).contiguous() for name, column in columns.items() if column}
    tensors["images"] = _to_bytes(tensors["images"])
    tensors["query"] = torch.stack([entry.query for entry in entries])
    tensors["masks"] = torch.stack([entry.masks for entry in entries])
    return tensors


def _to_bytes(images: Tensor) -> Tensor:
    """Returns images in [-1, 1] as the bytes that they come from, a quarter of the size; as they are if from none."""
    images = images.float()
    stored = (images.add(1).mul(127.5)).round().clamp(0, 255).to(torch.uint8)
    return stored if torch.equal(_from_bytes(stored), images) else images


def join_images(first: Tensor, second: Tensor) -> Tensor:
    """Returns the images of rounds one after the other, as bytes where both are."""
    if first.dtype != second.dtype:
        first, second = _from_bytes(first), _from_bytes(second)
    return torch.cat([first, second])


def _from_bytes(images: Tensor) -> Tensor:
    return images.float().div(127.5).sub(1.0) if images.dtype == torch.uint8 else images
