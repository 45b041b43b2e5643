"""What policies of published folders share: a tokenizer's file, and grippers that count the other way round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import about
from ..families import family
from ..processing import ObservationError
from ..standardised import Standardised
from ..stored import Stored
from ..tokens import open_tokenizer
from .reader import files_of

_SHOWN = 120  # characters of a prompt in a message: GR00T's have thousands


@dataclass(frozen=True)
class Published(Standardised):
    """Conventions of a policy whose text is made into tokens by a published tokenizer.

    Attributes:
        tokenizer: Its file.
        pad: Token that fills a prompt up.
        inverted: Whether a gripper is 1 open and 0 closed in the policy's data, where the environment opens at -1 and
            closes at 1. Actions are then one of these two.
    """

    tokenizer: Path = field(kw_only=True)
    pad: int = field(default=0, kw_only=True)
    inverted: bool = field(default=False, kw_only=True)

    @property
    def padding(self) -> int:
        """See :class:`Standardised`."""
        return self.pad

    @property
    def vocabulary(self) -> int:
        """Number of tokens that a prompt may contain."""
        return open_tokenizer(self.tokenizer).size

    def tokenize(self, prompt: str) -> list[int]:
        """Returns the padded tokens of a prompt.

        Raises:
            ObservationError: They are more than the policy reads, or none, or one is padding.
        """
        tokens = open_tokenizer(self.tokenizer).encode(prompt)
        if not 0 < len(tokens) <= self.max_tokens or self.pad in tokens:
            raise ObservationError(
                f"the prompt must have 1 to {self.max_tokens} tokens other than {self.pad}, got {len(tokens)} from "
                f"{prompt[:_SHOWN]!r}{'...' if len(prompt) > _SHOWN else ''}"
            )
        return tokens + [self.pad] * (self.max_tokens - len(tokens))

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """See :class:`Standardised`."""
        if self.inverted:
            actions = actions.clone()
            actions[..., list(self.gripper)] = (1 - actions[..., list(self.gripper)]) / 2
        return super().normalise_actions(actions, state)

    def normalise_gripper(self, action: np.ndarray) -> Tensor:
        """See :class:`Standardised`."""
        action = np.asarray(action, np.float32)
        return super().normalise_gripper((1 - action) / 2 if self.inverted else action)

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """See :class:`Standardised`."""
        native = super().actions(chunk, state)
        if self.inverted:
            grippers = list(self.gripper)
            native[..., grippers] = -np.sign(2 * native[..., grippers] - 1)
        return native


def stored(
    folder: Path,
    layout: str,
    kind: str,
    config: Any,
    conventions: tuple[type[Any], Mapping[str, Any]],
    files: Sequence[Path],
    fill: Callable[[Path, Any, torch.dtype], None],
) -> Stored:
    """Returns a published folder as a policy.

    Args:
        folder: Where it lies.
        layout: Who wrote it, in a few words.
        kind: Its family.
        config: The model's dimensions.
        conventions: Class of its processor, and the fields.
        files: What was read besides the weights.
        fill: Loads the weights at a path into a model of these dimensions, in a precision.

    Raises:
        CheckpointError: The conventions are out of range, or do not fit the model.
    """
    processor, values = conventions
    with about(folder):
        made = processor(**values)
        made.check(config)
    weights = files_of(folder)
    return Stored(
        path=weights[0],
        files=(*weights, *files),
        layout=layout,
        family=family(kind),
        config=config,
        processor=made,
        card={},
        fill=partial(fill, folder),
    )
