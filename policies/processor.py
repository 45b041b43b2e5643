"""From an environment's observation to model inputs, and from a normalised chunk back to the environment's actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import checkpoint
from .pi0 import Inputs

UNKNOWN = "<unk>"


class ObservationError(ValueError):
    """An observation or an instruction that the policy cannot read."""


@dataclass(frozen=True)
class Processor:
    """The policy's own conventions. It travels inside the checkpoint, so weights and statistics cannot be separated.

    Attributes:
        cameras: Observation keys of the views, in the model's order.
        image_size: Side of a view in pixels.
        words: Vocabulary of the word tokenizer; the index is the token. Index 0 is padding. With ``<unk>`` among them
            other words are read as that one, and sentences that are too long are cut; without it both are refused.
        max_tokens: Tokens an instruction is padded to.
        state_mean: [state_dim], as ``state_std``; the policy sees (x - mean) / std.
        state_std: See ``state_mean``.
        action_mean: [action_dim], as ``action_std``.
        action_std: See ``action_mean``.
        gripper: Indices of the gripper channels, one an arm; all others are continuous. A number stands for one.
        replan: Actions of a chunk that are executed before the next call (the replan window).
        mirror: Whether the policy saw its views mirrored left to right. LIBERO's policies did: the benchmark draws
            upside down, and OpenVLA, openpi and LeRobot turn that by 180 degrees instead of flipping it.
        relative: Whether the policy's continuous channels are differences to the state's channels of the same numbers
            (openpi's DeltaActions), for environments whose actions are absolute joint positions.

    Raises:
        ValueError: The statistics do not fit each other, or a gripper is no action channel.
    """

    cameras: tuple[str, ...]
    image_size: int
    words: tuple[str, ...]
    max_tokens: int
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]
    gripper: tuple[int, ...]
    replan: int
    mirror: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        """Refuses conventions that contradict each other."""
        if isinstance(self.gripper, int):
            object.__setattr__(self, "gripper", (self.gripper,))
        for name, mean, std in (
            ("state", self.state_mean, self.state_std),
            ("action", self.action_mean, self.action_std),
        ):
            if len(mean) != len(std) or not (np.isfinite([*mean, *std]).all() and min(std, default=0) > 0):
                raise ValueError(f"{name}_mean and {name}_std must be finite and equally long, {name}_std above zero")
        channels = len(self.action_mean)
        if not self.gripper or not all(isinstance(g, int) and 0 <= g < channels for g in self.gripper):
            raise ValueError(f"gripper must name some of the {channels} action channels, got {self.gripper}")
        if self.relative and len(self.state_mean) < channels:
            raise ValueError(f"relative actions need {channels} state channels, got {len(self.state_mean)}")

    @classmethod
    def from_plain(cls, values: Any) -> Processor:
        """Rebuilds the conventions that a checkpoint carries.

        Raises:
            CheckpointError: A field is missing or unknown, or the conventions contradict each other.
        """
        younger = {"mirror": False, "relative": False}  # than the first checkpoints, which meant these
        try:
            return checkpoint.from_plain(cls, {**younger, **values} if isinstance(values, dict) else values)
        except (TypeError, ValueError) as error:
            raise checkpoint.CheckpointError(f"the policy's conventions: {error}") from error

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous action channels."""
        return [channel for channel in range(len(self.action_mean)) if channel not in self.gripper]

    def tokenize(self, instruction: str) -> list[int]:
        """Returns the padded tokens of an instruction.

        Raises:
            ObservationError: A word is not in the vocabulary, or the instruction is too long.
        """
        words = split_words(instruction)
        if UNKNOWN in self.words:
            words = [word if word in self.words else UNKNOWN for word in words[: self.max_tokens]]
        if unknown := [word for word in words if word not in self.words]:
            raise ObservationError(f"words {unknown} are not in the policy's vocabulary ({', '.join(self.words[1:])})")
        if not 0 < len(words) <= self.max_tokens:
            raise ObservationError(f"the instruction must have 1 to {self.max_tokens} words, got {instruction!r}")
        return [self.words.index(word) for word in words] + [0] * (self.max_tokens - len(words))

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        """Returns model inputs of batch 1, float32 on the CPU.

        Raises:
            ObservationError: A camera is missing, an image or the state has the wrong shape, or a value is not finite.
        """
        state = np.asarray(observation["state"], np.float32)
        if state.shape != (len(self.state_mean),) or not np.isfinite(state).all():
            raise ObservationError(f"the state must be {len(self.state_mean)} finite numbers, got {state.tolist()}")
        tokens = torch.tensor([self.tokenize(observation["instruction"])])
        return Inputs(
            images=self.pixels(torch.from_numpy(views(observation, self.cameras, self.image_size, self.mirror))[None]),
            tokens=tokens,
            token_mask=tokens != 0,
            state=self.normalise_state(torch.from_numpy(state)[None]),
        )

    @staticmethod
    def pixels(images: Tensor) -> Tensor:
        """uint8 [B, V, S, S, 3] -> float32 [B, V, 3, S, S] in [-1, 1]."""
        return images.permute(0, 1, 4, 2, 3).float().div_(127.5).sub_(1.0)

    def normalise_state(self, state: Tensor) -> Tensor:
        """Standardises [.., state_dim]."""
        return (state - torch.tensor(self.state_mean)) / torch.tensor(self.state_std)

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Environment actions -> the policy's space.

        Args:
            actions: [.., action_dim].
            state: [.., state_dim] that the actions were chosen in, as the environment gave it; broadcast to them.
        """
        return (actions - self._origin(state) - torch.tensor(self.action_mean)) / torch.tensor(self.action_std)

    def normalise_gripper(self, action: np.ndarray) -> Tensor:
        """Returns the gripper channels of one environment action [action_dim] in the policy's space, [G]."""
        grippers = list(self.gripper)
        mean, std = torch.tensor(self.action_mean)[grippers], torch.tensor(self.action_std)[grippers]
        return (torch.from_numpy(np.asarray(action, np.float32))[grippers] - mean) / std

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """The policy's space -> environment actions, float32.

        Args:
            chunk: [.., action_dim].
            state: [state_dim] of the observation that the chunk answers.
        """
        native = chunk.float().cpu() * torch.tensor(self.action_std) + torch.tensor(self.action_mean)
        return (native + self._origin(torch.from_numpy(np.asarray(state, np.float32)))).numpy()

    def _origin(self, state: Tensor) -> Tensor:
        """What actions are measured from: the state's own channels where they are relative, nothing otherwise."""
        count = len(self.action_mean)
        if not self.relative:
            return torch.zeros(count)
        origin = state[..., :count].clone()
        origin[..., list(self.gripper)] = 0
        return origin


def split_words(instruction: str) -> list[str]:
    """Returns the words of a sentence in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", instruction.lower())


def views(observation: Mapping[str, Any], cameras: Sequence[str], size: int, mirror: bool = False) -> np.ndarray:
    """Returns an observation's views as a policy sees them: uint8 [V, size, size, 3].

    A view of another size is scaled with antialiasing, keeping its proportions, and centred on black (openpi's
    ``resize_with_pad``).

    Args:
        observation: The environment's observation.
        cameras: Keys of the views, in the model's order.
        size: Side in pixels.
        mirror: Swaps left and right.

    Raises:
        ObservationError: A camera is missing, or is no uint8 [H, W, 3].
    """
    found = []
    for camera in cameras:
        if camera not in observation:
            raise ObservationError(f"the observation lacks camera {camera!r}; it has {sorted(observation)}")
        view = np.asarray(observation[camera])
        if view.ndim != 3 or view.shape[2] != 3 or not view.size or view.dtype != np.uint8:
            raise ObservationError(f"camera {camera!r} must be uint8 [H, W, 3], got {view.dtype} {list(view.shape)}")
        view = _fit(view, size)
        found.append(view[:, ::-1] if mirror else view)
    return np.stack(found)


def _fit(view: np.ndarray, size: int) -> np.ndarray:
    height, width = view.shape[:2]
    if height == width == size:
        return view
    scale = size / max(height, width)
    inner = max(1, round(height * scale)), max(1, round(width * scale))
    image = torch.from_numpy(np.ascontiguousarray(view)).permute(2, 0, 1)[None].float()
    image = F.interpolate(image, inner, mode="bilinear", antialias=True, align_corners=False).round().clamp(0, 255)
    fitted = np.zeros((size, size, 3), np.uint8)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    fitted[top : top + inner[0], left : left + inner[1]] = image[0].permute(1, 2, 0).byte().numpy()
    return fitted
