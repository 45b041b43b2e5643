"""From an environment's observation to model inputs, and from a normalised chunk back to the environment's actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .pi0 import Inputs


class ObservationError(ValueError):
    """An observation or an instruction that the policy cannot read."""


@dataclass(frozen=True)
class Processor:
    """The policy's own conventions. It travels inside the checkpoint, so weights and statistics cannot be separated.

    Attributes:
        cameras: Observation keys of the views, in the model's order.
        image_size: Side of a view in pixels.
        words: Vocabulary of the word tokenizer; the index is the token. Index 0 is padding.
        max_tokens: Tokens an instruction is padded to.
        state_mean: [state_dim], as ``state_std``; the policy sees (x - mean) / std.
        state_std: See ``state_mean``.
        action_mean: [action_dim], as ``action_std``.
        action_std: See ``action_mean``.
        gripper: Index of the gripper channel; all others are continuous.
        replan: Actions of a chunk that are executed before the next call (the replan window).

    Raises:
        ValueError: The statistics do not fit each other, or the gripper is no action channel.
    """

    cameras: tuple[str, ...]
    image_size: int
    words: tuple[str, ...]
    max_tokens: int
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]
    gripper: int
    replan: int

    def __post_init__(self) -> None:
        """Refuses conventions that contradict each other."""
        for name, mean, std in (
            ("state", self.state_mean, self.state_std),
            ("action", self.action_mean, self.action_std),
        ):
            if len(mean) != len(std) or not (np.isfinite([*mean, *std]).all() and min(std, default=0) > 0):
                raise ValueError(f"{name}_mean and {name}_std must be finite and equally long, {name}_std above zero")
        if not 0 <= self.gripper < len(self.action_mean):
            raise ValueError(f"gripper must be one of the {len(self.action_mean)} action channels, got {self.gripper}")

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous action channels."""
        return [channel for channel in range(len(self.action_mean)) if channel != self.gripper]

    def tokenize(self, instruction: str) -> list[int]:
        """Returns the padded tokens of an instruction.

        Raises:
            ObservationError: A word is not in the vocabulary, or the instruction is too long.
        """
        words = instruction.split()
        unknown = [word for word in words if word not in self.words]
        if unknown:
            raise ObservationError(f"words {unknown} are not in the policy's vocabulary ({', '.join(self.words[1:])})")
        if not 0 < len(words) <= self.max_tokens:
            raise ObservationError(f"the instruction must have 1 to {self.max_tokens} words, got {instruction!r}")
        return [self.words.index(word) for word in words] + [0] * (self.max_tokens - len(words))

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        """Returns model inputs of batch 1, float32 on the CPU.

        Raises:
            ObservationError: A camera is missing, an image or the state has the wrong shape, or a value is not finite.
        """
        views = []
        for camera in self.cameras:
            if camera not in observation:
                raise ObservationError(f"the observation lacks camera {camera!r}; it has {sorted(observation)}")
            view = np.asarray(observation[camera])
            if view.shape != (self.image_size, self.image_size, 3) or view.dtype != np.uint8:
                raise ObservationError(
                    f"camera {camera!r} must be uint8 [{self.image_size}, {self.image_size}, 3], "
                    f"got {view.dtype} {list(view.shape)}"
                )
            views.append(view)
        state = np.asarray(observation["state"], np.float32)
        if state.shape != (len(self.state_mean),) or not np.isfinite(state).all():
            raise ObservationError(f"the state must be {len(self.state_mean)} finite numbers, got {state.tolist()}")
        tokens = torch.tensor([self.tokenize(observation["instruction"])])
        return Inputs(
            images=self.pixels(torch.from_numpy(np.stack(views))[None]),
            tokens=tokens,
            token_mask=tokens != 0,
            state=self.normalise_state(torch.from_numpy(state)[None]),
        )

    @staticmethod
    def pixels(images: torch.Tensor) -> torch.Tensor:
        """uint8 [B, V, S, S, 3] -> float32 [B, V, 3, S, S] in [-1, 1]."""
        return images.permute(0, 1, 4, 2, 3).float().div_(127.5).sub_(1.0)

    def normalise_state(self, state: torch.Tensor) -> torch.Tensor:
        """Standardises [.., state_dim]."""
        return (state - torch.tensor(self.state_mean)) / torch.tensor(self.state_std)

    def normalise_actions(self, actions: torch.Tensor) -> torch.Tensor:
        """Environment actions [.., action_dim] -> the policy's space."""
        return (actions - torch.tensor(self.action_mean)) / torch.tensor(self.action_std)

    def actions(self, chunk: torch.Tensor) -> np.ndarray:
        """The policy's space [.., action_dim] -> environment actions, float32."""
        native = chunk.float().cpu() * torch.tensor(self.action_std) + torch.tensor(self.action_mean)
        return native.numpy()
