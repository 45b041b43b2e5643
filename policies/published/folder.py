"""Which published layout a folder has, decided by the names of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..stored import Stored
from ..weights import CheckpointError
from .convention import Convention, convention_file, read_convention
from .fast_wam_policy import open_fast_wam
from .groot_policy import open_groot
from .paligemma import open_paligemma
from .reader import Source, open_source
from .xvla_policy import open_xvla


class Layout(NamedTuple):
    """A kind of published folder.

    Attributes:
        mark: A part of a tensor's name that no other kind has.
        what: What such a folder is, in a few words.
        code: Whose code wrote it.
        open: Reads it, from its weights, the folder, the convention and the tokenizer that was named.
    """

    mark: str
    what: str
    code: str
    open: Callable[[Source, Path, Convention, str], Stored]


LAYOUTS = (
    Layout("paligemma_with_expert.", "a pi0 or pi0.5", "openpi's PyTorch code or lerobot", open_paligemma),
    Layout("action_head.", "a GR00T", "NVIDIA's code", open_groot),
    Layout("transformer.soft_prompt_hub.", "an X-VLA", "the authors' code or lerobot", open_xvla),
    Layout("mot.mixtures.", "a Fast-WAM", "lerobot", open_fast_wam),
)


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
        layout = next((each for each in LAYOUTS if any(each.mark in name for name in source.names)), None)
        if layout is None:
            known = "; ".join(f"{each.what} of {each.code}" for each in LAYOUTS)
            raise CheckpointError(
                f"the weights of {folder} have no known layout ({', '.join(source.names[:2])}, ...); known are {known}"
            )
        if file is None or said is None:
            raise CheckpointError(
                f"{folder} is {layout.what} of {layout.code}, which does not say how its views are called here and "
                "what its channels are: write --convention libero, or that of a file of yours"
            )
        try:
            stored = layout.open(source, folder, said, tokenizer)
        except CheckpointError:
            raise
        except Exception as error:  # a value of another type, or a tensor of another rank, somewhere in others' files
            raise CheckpointError(
                f"{folder} cannot be read as {layout.what} ({type(error).__name__}: {error}); fetch it again"
            ) from error
    return replace(stored, files=(*stored.files, file))
