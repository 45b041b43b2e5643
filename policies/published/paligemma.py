"""Published folders of pi0 and pi0.5, of openpi or lerobot, as policies: dimensions, conventions, files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from .. import processing
from ..pi05 import Pi05Processor
from ..stored import Stored
from ..tokens import find_tokenizer
from ..weights import CheckpointError
from . import lerobot, openpi
from .convention import Convention
from .pi0 import Opened, dimensions, fill, recognise
from .processor import Published, stored
from .reader import Source
from .statistics import Scale

STEPS = 10
"""Denoising steps of openpi's configurations."""

MAX_TOKENS = {"pi0": 48, "pi0.5": 200}
"""Tokens of a prompt in openpi's configurations."""

_TYPES = {"pi0.5": "pi05"}
"""Family -> its name in lerobot's ``config.json``, where that is another one."""

_LEROBOT_STEPS = {"pi0": ("pi0_new_line_processor",), "pi0.5": ("pi05_prepare_state_tokenizer_processor_step",)}


TOKENIZER = (
    "that of PaliGemma is the file tokenizer.model of google/paligemma-3b-pt-224, for which its licence has to be "
    "accepted"
)
"""Where its tokenizer is found."""


@dataclass(frozen=True)
class PublishedPi0(Published):
    """Conventions of a published pi0."""

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the text that the model reads: the instruction, and the end of its line."""
        return f"{processing.plain(instruction)}\n"


@dataclass(frozen=True)
class PublishedPi05(Published, Pi05Processor):
    """Conventions of a published pi0.5."""


def open_paligemma(source: Source, folder: Path, convention: Convention, tokenizer: str) -> Stored:
    """Returns a published folder as a policy.

    Args:
        source: Its weights.
        folder: Where they lie.
        convention: What the folder does not say.
        tokenizer: The tokenizer's file, or a folder with one; empty to look for it.

    Raises:
        CheckpointError: A file is missing or damaged, or the folder and the convention do not fit each other.
    """
    opened = recognise(source)
    read = _of_lerobot if opened.code == "lerobot" else _of_openpi
    facts, config, files = read(opened, folder, convention)
    path = find_tokenizer(folder, tokenizer, TOKENIZER)
    values = dict(
        image_size=config.image_size,
        words=(),
        gripper=convention.gripper,
        mirror=convention.mirror,
        tokenizer=path,
        **facts,
    )
    kind = PublishedPi05 if opened.family == "pi0.5" else PublishedPi0
    layout = f"{opened.code}, {opened.family}"
    return stored(folder, layout, opened.family, config, (kind, values), [*files, path], fill)


def _of_openpi(opened: Opened, folder: Path, convention: Convention) -> tuple[dict[str, Any], Any, list[Path]]:
    facts = convention.openpi.get(opened.family)
    if facts is None:
        raise CheckpointError(
            f"{folder} is a {opened.family} of openpi, and the convention has no [openpi.{opened.family!r}]"
        )
    file = openpi.statistics_file(folder, facts)
    state, action = openpi.scales(file, opened.family, convention.state, convention.action)
    values = dict(
        cameras=tuple(map(convention.view, facts.views)),
        max_tokens=MAX_TOKENS[opened.family],
        replan=facts.replan,
        relative=facts.relative,
        **_format(opened, facts.format),
        **_scaled(state, action),
    )
    return values, dimensions(opened.source, opened.family, facts.horizon, STEPS), [file]


def _of_lerobot(opened: Opened, folder: Path, convention: Convention) -> tuple[dict[str, Any], Any, list[Path]]:
    config = lerobot.read_config(folder, _TYPES.get(opened.family, opened.family))
    read = lerobot.read_processors(folder, convention.state, convention.action, _LEROBOT_STEPS[opened.family])
    if read.absolute not in (None, convention.gripper):
        raise CheckpointError(
            f"{folder} keeps the action channels {read.absolute} absolute, where the convention's gripper has "
            f"{convention.gripper}"
        )
    values = dict(
        cameras=tuple(convention.view(read.names.get(name, name)) for name in lerobot.views(config)),
        max_tokens=read.max_tokens,
        replan=lerobot.whole(config, "n_action_steps"),
        relative=read.absolute is not None,
        **_format(opened, "state"),  # lerobot's step always writes it
        **_scaled(read.state, read.action),
    )
    horizon, steps = lerobot.whole(config, "chunk_size"), lerobot.whole(config, "num_inference_steps")
    made = dimensions(opened.source, opened.family, horizon, steps)
    return values, made, [folder / lerobot.CONFIG, *read.files]


def _format(opened: Opened, name: str) -> dict[str, str]:
    return {"format": name} if opened.family == "pi0.5" else {}


def _scaled(state: Scale, action: Scale) -> dict[str, Any]:
    return dict(state_mean=state.mean, state_std=state.std, action_mean=action.mean, action_std=action.std)
