"""Which published layout a folder has: one entry a layout, decided by the names of its tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..stored import Stored
from ..weights import CheckpointError
from . import paligemma, pi0
from .convention import convention_file, read_convention
from .reader import open_source

KNOWN = "pi0 and pi0.5 of openpi's PyTorch code and of lerobot"


def open_folder(folder: Path, convention: str = "", tokenizer: str = "") -> Stored:
    """Recognises a published folder.

    Args:
        folder: The checkpoint as it was downloaded.
        convention: What its files do not say: see :mod:`.convention`; empty for none.
        tokenizer: File of the tokenizer; empty to look for it.

    Raises:
        CheckpointError: It is of no known layout, incomplete or damaged, or something that has to be said is not.
    """
    file = convention_file(convention) if convention else None
    said = read_convention(file) if file else None
    with open_source(folder) as source:
        if not any("paligemma_with_expert." in name for name in source.names):
            raise CheckpointError(
                f"the weights of {folder} have no known layout ({', '.join(source.names[:2])}, ...); known are {KNOWN}"
            )
        stored = paligemma.stored(pi0.recognise(source), folder, said, tokenizer)
    return stored if file is None else replace(stored, files=(*stored.files, file))
