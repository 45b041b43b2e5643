"""Tokenizers of published policies, from a local file: SentencePiece models and Hugging Face's ``tokenizer.json``.

Nothing is downloaded: some of them are behind a licence that everybody has to accept for themselves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from .weights import CheckpointError

VARIABLE = "REPLAN_TOKENIZER"
"""Environment variable with the path of a tokenizer, for who evaluates the same kind of policy again and again."""

FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "paligemma_tokenizer.model")
"""Names under which a folder has its tokenizer, the first that is there."""

PACKAGES = {".json": "tokenizers", ".model": "sentencepiece"}


class Tokenizer(Protocol):
    """Text to tokens."""

    @property
    def size(self) -> int:
        """Number of tokens of text, without those that its users added."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, with those that begin and end one."""
        ...

    def token(self, text: str) -> int | None:
        """Returns the token that stands for a whole text, such as a mark; None where there is none."""
        ...


@dataclass(frozen=True)
class _SentencePiece:
    model: Any

    @property
    def size(self) -> int:
        return self.model.vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.model.encode(text, add_bos=True)

    def token(self, text: str) -> int | None:
        token = self.model.piece_to_id(text)
        return None if token == self.model.unk_id() else token


@dataclass(frozen=True)
class _Fast:
    model: Any

    @property
    def size(self) -> int:
        return self.model.get_vocab_size(with_added_tokens=False)

    def encode(self, text: str) -> list[int]:
        return self.model.encode(text).ids

    def token(self, text: str) -> int | None:
        return self.model.token_to_id(text)


def find_tokenizer(folder: Path, given: str, where: str, names: Sequence[str] = FILES) -> Path:
    """Returns the file of the tokenizer that a policy is to be read with.

    Args:
        folder: The policy's folder.
        given: A file, or a folder with one, that the user named; it wins over everything else. Then comes the
            environment variable ``REPLAN_TOKENIZER``, then the policy's folder.
        where: Where the tokenizer of this kind of policy is found, as the end of a sentence.
        names: What its file may be called, the first that is there.

    Raises:
        CheckpointError: There is none.
    """
    named = given or os.environ.get(VARIABLE, "")
    place = Path(named) if named else folder
    if place.is_file():
        return place
    for name in names:
        if (place / name).is_file():
            return place / name
    raise CheckpointError(
        f"{place} has no tokenizer ({', '.join(names)}): write --tokenizer FILE or set {VARIABLE}; {where}"
    )


@cache
def open_tokenizer(path: Path) -> Tokenizer:
    """Opens a tokenizer's file.

    Raises:
        CheckpointError: It is of another kind or damaged, or the package that reads it is not installed.
    """
    package = PACKAGES.get(path.suffix)
    if package is None:
        raise CheckpointError(f"the tokenizer {path} must be a .model (SentencePiece) or a .json (tokenizers) file")
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise CheckpointError(f"the tokenizer {path} needs {package}: pip install 'replan[tokenizers]'") from error
    try:
        if package == "sentencepiece":
            return _SentencePiece(module.SentencePieceProcessor(model_file=str(path)))
        model = module.Tokenizer.from_file(str(path))
        model.no_padding()
        model.no_truncation()
        return _Fast(model)
    except Exception as error:  # both packages raise bare exceptions
        raise CheckpointError(f"the tokenizer {path} cannot be read ({error}); fetch it again") from error


def marks(path: Path, wanted: Sequence[str], where: str) -> dict[str, int]:
    """Returns the token of each mark that prompts of a kind of policy have; cut into pieces, it would be another text.

    Args:
        path: The tokenizer's file.
        wanted: The marks.
        where: Where the tokenizer of this kind of policy is found, as the end of a sentence.

    Raises:
        CheckpointError: The tokenizer has no token for one of them.
    """
    tokenizer = open_tokenizer(path)
    tokens = {mark: tokenizer.token(mark) for mark in wanted}
    if missing := [mark for mark, token in tokens.items() if token is None]:
        raise CheckpointError(f"the tokenizer {path} has no token for {', '.join(missing)}; {where}")
    return {mark: token for mark, token in tokens.items() if token is not None}
