"""Functions that processors share: from an environment's observation to a model's inputs, and back to its actions."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    import gymnasium

    from .model import Inputs

UNKNOWN = "<unk>"

LARGEST = 1e6
"""Largest size of a statistic."""

SMALLEST = 1 / LARGEST
"""Smallest standard deviation."""

MOST_ENLARGED = 8
"""A side of an image below this part of what the policy sees is a mistake: nothing of a scene is left on it."""


class ObservationError(ValueError):
    """An observation or an instruction that the policy cannot read."""


class Processor(Protocol):
    """The conventions of one policy. Each family has its own dataclass of them, in the family's file."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """Observation keys of the views, in the model's order."""
        ...

    @property
    def replan(self) -> int:
        """Actions of a chunk that are executed before the next round (the replan window)."""
        ...

    @property
    def gripper(self) -> tuple[int, ...]:
        """Indices of the gripper channels of an action."""
        ...

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous action channels."""
        ...

    def check(self, config: Any) -> None:
        """Raises ValueError unless a model of this configuration fits the conventions."""
        ...

    def incompatibilities(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> list[str]:
        """Returns a phrase for each reason why the policy cannot act in an environment with these spaces."""
        ...

    def tokenize(self, prompt: str) -> list[int]:
        """Returns the padded tokens of a prompt; a processor says how it makes one of an instruction."""
        ...

    def inputs(self, observation: Mapping[str, Any]) -> Inputs:
        """Returns model inputs of batch 1, float32 on the CPU, or raises :class:`ObservationError`."""
        ...

    def normalise_state(self, state: Tensor) -> Tensor:
        """Returns states [.., state_dim] of the environment in the policy's space."""
        ...

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Returns environment actions [.., A], chosen in states [.., state_dim], in the policy's space."""
        ...

    def normalise_gripper(self, action: np.ndarray) -> Tensor:
        """Returns the gripper channels of one environment action [A] in the policy's space, [G]."""
        ...

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """Returns environment actions, float32, of a normalised chunk [.., A] chosen in a state [state_dim]."""
        ...


def check_statistics(name: str, mean: Sequence[float], std: Sequence[float]) -> None:
    """Raises ValueError unless mean and standard deviation are of one length and of a size that float32 can use.

    The limits are far from any unit of a robot: they keep (x - mean) / std from overflowing and from vanishing.
    """
    if not mean or len(mean) != len(std):
        raise ValueError(
            f"{name}_mean and {name}_std must be of one length above 0, got {len(mean)} and {len(std)} values"
        )
    for kind, values, least in ((f"{name}_mean", np.abs(mean), 0.0), (f"{name}_std", np.array(std), SMALLEST)):
        inside = (values >= least) & (values <= LARGEST)  # not a number is not inside
        if not inside.all():
            channel = int(inside.argmin())
            value = (mean if kind.endswith("mean") else std)[channel]
            raise ValueError(f"{kind}[{channel}] must be from {least:g} to {LARGEST:g} in size, got {value}")


def incompatibilities(
    observations: gymnasium.Space[Any],
    actions: gymnasium.Space[Any],
    cameras: Sequence[str],
    state_dim: int | None,
    action_dim: int,
) -> list[str]:
    """Returns a phrase for each reason why a policy with these cameras and widths cannot act in these spaces.

    A policy whose ``state_dim`` is None takes any state.
    """
    offered: Mapping[str, Any] = getattr(observations, "spaces", {})
    existing = [name for name, space in offered.items() if len(space.shape or ()) == 3]
    state = offered["state"].shape if "state" in offered else None
    return [
        *(f"the suite has no camera {name!r}, but {existing}" for name in cameras if name not in existing),
        *(
            [f"the suite's state is {state}, the policy's {(state_dim,)}"]
            if state_dim and state != (state_dim,)
            else []
        ),
        *(
            [f"the suite's action is {actions.shape}, the policy's {(action_dim,)}"]
            if actions.shape != (action_dim,)
            else []
        ),
    ]


def entry(observation: Mapping[str, Any], key: str) -> Any:
    """Returns an entry of an observation.

    Raises:
        ObservationError: The observation has no such entry, or is no mapping.
    """
    if not isinstance(observation, Mapping):
        raise ObservationError(f"an observation must be a dict, got {type(observation).__name__}")
    if key not in observation:
        raise ObservationError(f"the observation lacks {key!r}; it has {sorted(map(str, observation))}")
    return observation[key]


def checked_state(observation: Mapping[str, Any], width: int) -> np.ndarray:
    """Returns a copy of the observation's state, float32 [width].

    Raises:
        ObservationError: It is missing, no array of real numbers or of another shape, or a value is not finite.
    """
    value = entry(observation, "state")
    try:
        state = np.array(value)
    except ValueError as error:  # lists of several lengths
        raise ObservationError(f"the state must be {width} finite numbers, got {value!r}") from error
    if state.shape != (width,) or state.dtype.kind not in "fiu":
        raise ObservationError(f"the state must be {width} finite numbers, got {state.dtype} {list(state.shape)}")
    with np.errstate(over="ignore"):  # an overflow is what the next line is about
        state = state.astype(np.float32)
    if not np.isfinite(state).all():
        raise ObservationError(f"the state must be {width} finite numbers, got {state.tolist()}")
    return state


def checked_instruction(observation: Mapping[str, Any]) -> str:
    """Returns the observation's instruction.

    Raises:
        ObservationError: It is missing or no text.
    """
    instruction = entry(observation, "instruction")
    if not isinstance(instruction, str):
        raise ObservationError(f"the instruction must be a text, got {type(instruction).__name__}")
    return instruction


def pixels(images: Tensor) -> Tensor:
    """uint8 [B, V, S, S, 3] -> float32 [B, V, 3, S, S] in [-1, 1]."""
    return images.permute(0, 1, 4, 2, 3).float().div_(127.5).sub_(1.0)


def plain(instruction: str) -> str:
    """Returns an instruction as prompts of the PaliGemma families have it: one line without underscores."""
    return instruction.strip().replace("_", " ").replace("\n", " ")


def bins(state: Tensor) -> list[int]:
    """Returns the bin of each channel of a normalised state [state_dim]: 256 equal ones over [-1, 1].

    What lies above is in the last, 255; what lies below has -1, as in openpi and lerobot.
    """
    return (np.digitize(state.numpy(), np.linspace(-1, 1, 257)[:-1]) - 1).tolist()


def split_words(instruction: str) -> list[str]:
    """Returns the words of an instruction in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", instruction.lower())


def word_tokens(instruction: str, vocabulary: Sequence[str], length: int) -> list[int]:
    """Returns the tokens of an instruction's words, padded with 0.

    Args:
        instruction: The text.
        vocabulary: Words; the index is the token, and index 0 is padding. With ``<unk>`` in it, unknown words are read
            as that one and longer instructions are cut.
        length: Tokens to return.

    Raises:
        ObservationError: A word is not in the vocabulary, or the instruction is empty or too long.
    """
    words = split_words(instruction)
    if UNKNOWN in vocabulary:
        words = [word if word in vocabulary else UNKNOWN for word in words[:length]]
    if unknown := [word for word in words if word not in vocabulary]:
        raise ObservationError(f"words {unknown} are not in the policy's vocabulary ({', '.join(vocabulary[1:])})")
    if not 0 < len(words) <= length:
        raise ObservationError(f"the instruction must have 1 to {length} words, got {instruction!r}")
    return [vocabulary.index(word) for word in words] + [0] * (length - len(words))


def views(observation: Mapping[str, Any], cameras: Sequence[str], size: int, mirror: bool = False) -> np.ndarray:
    """Returns an observation's images as a policy sees them: uint8 [V, size, size, 3].

    An image of another size is scaled with antialiasing, keeping its proportions, and centred on black (openpi's
    ``resize_with_pad``).

    Args:
        observation: The environment's observation.
        cameras: Keys of the views, in the model's order.
        size: Side in pixels.
        mirror: Swaps left and right.

    Raises:
        ObservationError: A camera is missing, or its image cannot be used; see ``camera_image``.
    """
    images = [fit(camera_image(observation, camera, size), size) for camera in cameras]
    return np.stack([image[:, ::-1] if mirror else image for image in images])


def camera_image(observation: Mapping[str, Any], camera: str, size: int) -> np.ndarray:
    """Returns a camera's image, uint8 [H, W, 3].

    Raises:
        ObservationError: The camera is missing, its image is of another type, or it is so small that a policy that sees
            ``size`` pixels sees nothing of a scene on it.
    """
    image = np.asarray(entry(observation, camera))
    if image.ndim != 3 or image.shape[2] != 3 or not image.size or image.dtype != np.uint8:
        raise ObservationError(f"camera {camera!r} must be uint8 [H, W, 3], got {image.dtype} {list(image.shape)}")
    if min(image.shape[:2]) * MOST_ENLARGED < size:
        raise ObservationError(
            f"camera {camera!r} must have sides of at least {math.ceil(size / MOST_ENLARGED)} pixels for a policy that "
            f"sees {size}, got {list(image.shape)}"
        )
    return image


def fit(image: np.ndarray, size: int) -> np.ndarray:
    """Scales an image uint8 [H, W, 3] to [size, size, 3], its proportions kept and the rest black."""
    height, width = image.shape[:2]
    if height == width == size:
        return image
    scale = size / max(height, width)
    inner = max(1, round(height * scale)), max(1, round(width * scale))
    scaled = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float()
    scaled = F.interpolate(scaled, inner, mode="bilinear", antialias=True, align_corners=False).round().clamp(0, 255)
    fitted = np.zeros((size, size, 3), np.uint8)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    fitted[top : top + inner[0], left : left + inner[1]] = scaled[0].permute(1, 2, 0).byte().numpy()
    return fitted
