"""What the families share of conventions: states and actions scaled by channel, views, and text tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from . import processing
from .checkpoint import check_sizes
from .model import Inputs

if TYPE_CHECKING:
    import gymnasium
    from typing_extensions import Self

_MOST = {"cameras": 8, "words": 1 << 20, "max_tokens": 1024, "replan": 1024}
"""Largest values in a checkpoint, well beyond any published policy."""


@dataclass(frozen=True)
class Standardised:
    """A :class:`~replan.policies.processing.Processor` of scaled states and actions.

    Conventions travel inside the checkpoint, so that weights and statistics cannot be separated.

    Attributes:
        cameras: Observation keys of the views, in the model's order.
        image_size: Side of an image in pixels.
        words: Vocabulary of the word tokenizer; the index is the token. Index 0 is padding. With ``<unk>`` in it,
            unknown words are read as that one and instructions that are too long are cut; without it both are refused.
        max_tokens: Tokens that an instruction is padded to.
        state_mean: [state_dim]; the policy sees (x - mean) / std.
        state_std: [state_dim].
        action_mean: [action_dim] of the environment's actions.
        action_std: [action_dim].
        gripper: Indices of the gripper channels, one per arm; all others are continuous.
        replan: Actions of a chunk that are executed before the next round (the replan window).
        mirror: Whether the policy was trained on mirrored images (left to right). LIBERO's policies were: the benchmark
            renders upside down, and OpenVLA, openpi and LeRobot rotate that by 180 degrees instead of flipping it.
        relative: Whether the continuous channels are differences to the state's channels of the same index (openpi's
            DeltaActions), for environments whose actions are absolute joint positions.

    Raises:
        ValueError: The statistics do not fit each other, or a gripper is not an action channel.
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
        processing.check_statistics("state", self.state_mean, self.state_std)
        processing.check_statistics("action", self.action_mean, self.action_std)
        channels = len(self.action_mean)
        named = set(self.gripper)
        if not named or len(named) < len(self.gripper) or not named < set(range(channels)):
            raise ValueError(
                f"gripper must name some of the {channels} action channels, each once, and not all, got {self.gripper}"
            )
        if self.relative and len(self.state_mean) < channels:
            raise ValueError(f"relative actions need {channels} state channels, got {len(self.state_mean)}")
        sizes = {"image_size": self.image_size, "max_tokens": self.max_tokens, "replan": self.replan}
        check_sizes({**sizes, "cameras": len(self.cameras), "words": self.vocabulary}, _MOST)
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras must differ, got {self.cameras}")

    @classmethod
    def of(cls, config: Any, **conventions: Any) -> Self:
        """Returns the conventions of a policy that is made here; a family adds those that follow from the dimensions.

        Args:
            config: The model's dimensions.
            conventions: The fields of this class.
        """
        return cls(**conventions)

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous action channels."""
        return [channel for channel in range(len(self.action_mean)) if channel not in self.gripper]

    @property
    def vocabulary(self) -> int:
        """Number of tokens that a prompt may contain."""
        return len(self.words)

    @property
    def padding(self) -> int:
        """Token behind those of a prompt, which is never one of theirs."""
        return 0

    def check(self, config: Any) -> None:
        """Raises ValueError unless a model of these dimensions fits the conventions."""
        widths = {"state": len(self.state_mean), "action": len(self.action_mean), "image": self.image_size}
        padded = {"state": getattr(config, "state_dim", widths["state"]), "action": config.action_dim}
        if self.image_size != config.image_size or any(widths[name] > wide for name, wide in padded.items()):
            raise ValueError(
                f"state, action and image sizes are {tuple(widths.values())}, the model has "
                f"{(*padded.values(), config.image_size)}"
            )
        if self.vocabulary > config.vocab or self.replan > config.horizon:
            raise ValueError(
                f"{self.vocabulary} words and a replan window of {self.replan} do not fit a model with a vocabulary of "
                f"{config.vocab} and a horizon of {config.horizon}"
            )

    def incompatibilities(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> list[str]:
        """Returns a phrase for each reason why the policy cannot act in an environment with these spaces."""
        return processing.incompatibilities(
            observations, actions, self.cameras, len(self.state_mean), len(self.action_mean)
        )

    def unreadable(self, instruction: str) -> str | None:
        """Returns why the policy cannot read an instruction, as a sentence; None where it can."""
        try:
            self.tokenize(self.prompt(instruction, torch.zeros(len(self.state_mean))))
        except processing.ObservationError as error:
            return str(error)
        return None

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the text that the model reads; ``state`` [state_dim] is normalised."""
        return processing.plain(instruction)

    def tokenize(self, prompt: str) -> list[int]:
        """Returns the padded tokens of a prompt.

        Raises:
            ObservationError: A word is not in the vocabulary, or the prompt is too long.
        """
        return processing.word_tokens(prompt, self.words, self.max_tokens)

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        """Returns model inputs of batch 1, float32 on the CPU.

        Raises:
            ObservationError: An entry is missing or of another type or shape, or a value is not finite.
        """
        state = processing.checked_state(observation, len(self.state_mean))
        normalised = self.normalise_state(torch.from_numpy(state))
        tokens = torch.tensor([self.tokenize(self.prompt(processing.checked_instruction(observation), normalised))])
        return self.assemble(torch.from_numpy(self.views(observation))[None], tokens, normalised[None])

    def assemble(self, images: Tensor, tokens: Tensor, state: Tensor) -> Inputs:
        """Returns the inputs of a batch.

        Args:
            images: [B, V, S, S, 3] uint8, as :meth:`views` has them.
            tokens: [B, T], as :meth:`tokenize` has them.
            state: [B, state_dim], normalised.
        """
        mask = tokens != self.padding
        return Inputs(images=processing.pixels(images), tokens=tokens, token_mask=mask, state=state)

    def views(self, observation: Mapping[str, Any]) -> np.ndarray:
        """Returns an observation's images as the policy sees them, uint8 [V, image_size, image_size, 3]."""
        return processing.views(observation, self.cameras, self.image_size, self.mirror)

    def normalise_state(self, state: Tensor) -> Tensor:
        """Standardises [.., state_dim]."""
        return (state - torch.tensor(self.state_mean)) / torch.tensor(self.state_std)

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Environment actions -> the policy's space.

        Args:
            actions: [.., action_dim].
            state: [.., state_dim] in which the actions were chosen, in the environment's units; broadcast to them.
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
            chunk: [.., A]; channels beyond the environment's are padding.
            state: [state_dim] of the observation that the chunk answers.
        """
        native = chunk[..., : len(self.action_mean)].float().cpu() * torch.tensor(self.action_std) + torch.tensor(
            self.action_mean
        )
        return (native + self._origin(torch.from_numpy(np.asarray(state, np.float32)))).numpy()

    def _origin(self, state: Tensor) -> Tensor:
        """What actions are measured from: the state's own channels where they are relative, zero otherwise."""
        count = len(self.action_mean)
        if not self.relative:
            return torch.zeros(count)
        origin = state[..., :count].clone()
        origin[..., list(self.gripper)] = 0
        return origin
