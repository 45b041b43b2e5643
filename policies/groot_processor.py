"""Conventions of a GR00T N1.6: bounds that clip, cropped images, and a prompt in which visual tokens have places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import processing
from .cropped import cropped
from .model import Inputs
from .standardised import Standardised

if TYPE_CHECKING:
    from typing_extensions import Self

CHAT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{instruction}{images}<|im_end|>\n"
IMAGE = "<image {number}><img>{places}</img>"
PLACE = "<IMG_CONTEXT>"
"""The published prompt, one of its images (counted from 1), and the text of ``image_token``."""


@dataclass(frozen=True, kw_only=True)
class GrootProcessor(Standardised):
    """Conventions of a GR00T. Bounds are a mean and a standard deviation too: the middle, and half of what is between.

    Attributes:
        robot: Index of the robot whose encoders and decoder are used.
        image_token: As in the model's configuration.
        tokens_per_view: As in the model's configuration.
        chat: Whether the prompt is the published chat, for a tokenizer that knows its marks. Without it the words of
            the instruction come first and the places of the visual tokens behind them.
        formal: Whether instructions are read in lower case and without punctuation.
        state_clip: [state_dim] whether a channel, once normalised, is kept within [-1, 1].
        action_clip: The same for actions, in both directions.
        edge: Side that an image is scaled to before and after the crop. 0 is no crop: an image is then scaled once.
        crop: Part of each side that the crop keeps.
    """

    robot: int
    image_token: int
    tokens_per_view: int
    chat: bool
    formal: bool
    state_clip: tuple[bool, ...]
    action_clip: tuple[bool, ...]
    edge: int
    crop: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.state_clip) != len(self.state_mean) or len(self.action_clip) != len(self.action_mean):
            raise ValueError(
                f"state_clip and action_clip must have a value per channel, got {len(self.state_clip)} for "
                f"{len(self.state_mean)} and {len(self.action_clip)} for {len(self.action_mean)}"
            )
        if self.image_token < len(self.words):
            raise ValueError(f"image_token {self.image_token} is that of the word {self.words[self.image_token]!r}")
        if self.robot < 0 or self.edge not in range(1025) or not 0 < self.crop <= 1:
            raise ValueError(
                f"robot must be at least 0, edge in 0..1024 and crop in (0, 1], got {self.robot}, {self.edge} and "
                f"{self.crop}"
            )

    @classmethod
    def of(cls, config: Any, **conventions: Any) -> Self:
        """See :class:`Standardised`: the first robot of the model, bare instructions, images that are not cropped."""
        return cls(
            **conventions,
            robot=0,
            image_token=config.image_token,
            tokens_per_view=config.tokens_per_view,
            chat=False,
            formal=False,
            state_clip=(False,) * len(conventions["state_mean"]),
            action_clip=(False,) * len(conventions["action_mean"]),
            edge=0,
            crop=1.0,
        )

    def check(self, config: Any) -> None:
        """Raises ValueError unless a model of these dimensions fits the conventions."""
        super().check(config)
        own = self.image_token, self.tokens_per_view
        if own != (config.image_token, config.tokens_per_view) or self.robot >= config.robots:
            raise ValueError(
                f"robot {self.robot}, image_token and tokens_per_view {own} do not fit a model of {config.robots} "
                f"robots with {config.image_token} and {config.tokens_per_view}"
            )

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the text that the model reads; the state is not in it."""
        if self.formal:
            instruction = re.sub(r"[^\w\s]", "", instruction.lower())
        if not self.chat:
            return instruction
        places = PLACE * self.tokens_per_view
        images = (IMAGE.format(number=number + 1, places=places) for number in range(len(self.cameras)))
        return CHAT.format(instruction=instruction, images="".join(images))

    def tokenize(self, prompt: str) -> list[int]:
        """Returns the padded tokens of a prompt and, behind them, the places of the visual tokens.

        Raises:
            ObservationError: A word is not in the vocabulary, or the prompt is too long.
        """
        return super().tokenize(prompt) + [self.image_token] * (len(self.cameras) * self.tokens_per_view)

    def assemble(self, images: Tensor, tokens: Tensor, state: Tensor) -> Inputs:
        """See :class:`Standardised`; the inputs name the robot."""
        return replace(super().assemble(images, tokens, state), embodiment=torch.full((len(images),), self.robot))

    def views(self, observation: Mapping[str, Any]) -> np.ndarray:
        """See :class:`Standardised`.

        Raises:
            ObservationError: An image that would be cropped is not square: it would have other tokens than the model.
        """
        if not self.edge:
            return super().views(observation)
        images = []
        for camera in self.cameras:
            image = processing.camera_image(observation, camera, self.image_size)
            if image.shape[0] != image.shape[1]:
                raise processing.ObservationError(f"camera {camera!r} must be square, got {list(image.shape)}")
            images.append(cropped(image[:, ::-1] if self.mirror else image, self.image_size, self.edge, self.crop))
        return np.stack(images)

    def normalise_state(self, state: Tensor) -> Tensor:
        """Scales [.., state_dim], and keeps channels within their bounds; one that is constant in the data is 0."""
        scaled = super().normalise_state(state)
        constant = torch.tensor(self.state_std) <= processing.SMALLEST
        return torch.where(constant, 0.0, _bounded(scaled, self.state_clip))

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """See :class:`Standardised`; channels are kept within their bounds."""
        return _bounded(super().normalise_actions(actions, state), self.action_clip)

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """See :class:`Standardised`; channels are kept within their bounds."""
        return super().actions(_bounded(chunk[..., : len(self.action_mean)], self.action_clip), state)


def _bounded(x: Tensor, clip: tuple[bool, ...]) -> Tensor:
    return torch.where(torch.tensor(clip, device=x.device), x.clamp(-1, 1), x)
