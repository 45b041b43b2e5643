"""Published X-VLA folders as policies: of lerobot and of the authors, in joints or in poses of one hand.

Poses are absolute. A rotation is six numbers in the model, the first two columns of its matrix, and a rotation vector
in the environment. The state is the measured one, as in lerobot; the authors' client gives the last pose that it had
planned instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.spatial.transform import Rotation
from torch import Tensor

from .. import processing
from ..stored import Stored
from ..tokens import find_tokenizer, marks
from ..weights import CheckpointError
from ..xvla import XVLAProcessor
from . import lerobot
from .convention import Convention, XVLAFacts
from .files import read_json
from .processor import Published, stored
from .reader import Source
from .statistics import Scale
from .xvla import fill, recognise
from .xvla_folder import GRIPPERS, Images, action_mode, authors_images, lerobot_images, read_config

if TYPE_CHECKING:
    import gymnasium

TOKENIZER = "that of X-VLA is the file tokenizer.json of facebook/bart-large"
"""Where its tokenizer is found."""

PAD = "<pad>"
MARKS = ("<s>", "</s>", PAD)
MAX_TOKENS = 50
"""Tokens of a prompt in the authors' processor, which has that as a constant."""

_STEPS = (
    "xvla_image_to_float",
    "xvla_imagenet_normalize",
    "xvla_add_domain_id",
    "xvla_rotation_6d_to_axis_angle",
)
_GREY = (124, 116, 104)
"""ImageNet's mean colour: lerobot pads with zeros what it has standardised."""

_POSE, _SIX = 9, slice(3, 9)


@dataclass(frozen=True, kw_only=True)
class PublishedXVLA(Published, XVLAProcessor):
    """Conventions of a published X-VLA.

    Attributes:
        scaling: How views are scaled; see :class:`.xvla_folder.Images`.
        raw: Views that are seen as the benchmark renders them, upside down.
    """

    scaling: str
    raw: tuple[str, ...]

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the text that the model reads: the instruction as it is."""
        return instruction

    def views(self, observation: Mapping[str, Any]) -> np.ndarray:
        """See :class:`~replan.policies.standardised.Standardised`."""
        images = []
        for camera in self.cameras:
            image = processing.camera_image(observation, camera, self.image_size)
            if camera in self.raw:
                image = image[::-1]
            elif self.mirror:
                image = image[:, ::-1]
            images.append(scaled(image, self.image_size, self.scaling))
        return np.stack(images)


@dataclass(frozen=True, kw_only=True)
class PublishedJoints(PublishedXVLA):
    """Conventions of a published X-VLA whose channels are those of the environment.

    Attributes:
        logits: Channels of an action that the model gives as logits, and the environment has in 0..1.
    """

    logits: tuple[int, ...]

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """See :class:`~replan.policies.standardised.Standardised`."""
        logits = list(self.logits)
        chunk = chunk.clone()
        chunk[..., logits] = chunk[..., logits].sigmoid()
        return super().actions(chunk, state)


@dataclass(frozen=True, kw_only=True)
class PublishedPose(PublishedXVLA):
    """Conventions of a published X-VLA that gives poses of one hand.

    The environment's state is position, rotation vector and what is not read; its action is position, rotation vector
    and gripper. The policy's chunk has position, six numbers and the gripper's logit first.

    Attributes:
        hand: Rotation vector from the frame of the state's rotation to that of the actions'.
    """

    hand: tuple[float, float, float]

    @property
    def continuous(self) -> list[int]:
        """Indices of the continuous channels of the policy's chunk."""
        return list(range(_POSE))

    def incompatibilities(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> list[str]:
        """See :class:`~replan.policies.processing.Processor`; actions must be absolute."""
        reasons = super().incompatibilities(observations, actions)
        high = getattr(actions, "high", None)
        if not reasons and high is not None and np.max(high[3:6]) < math.pi:
            reasons = [
                f"the policy gives absolute poses, and the suite's rotations end at {np.max(high[3:6]):g}: choose its "
                "absolute controller (in LIBERO --set controller=absolute)"
            ]
        return reasons

    def normalise_state(self, state: Tensor) -> Tensor:
        """Environment states [.., S] -> position, six numbers of the action's frame, and zero for the gripper."""
        turned = Rotation.from_rotvec(np.reshape(state[..., 3:6].numpy(), (-1, 3))) * Rotation.from_rotvec(self.hand)
        six = torch.from_numpy(six_numbers(turned)).to(state.dtype).reshape(*state.shape[:-1], 6)
        return torch.cat([state[..., :3], six, torch.zeros_like(state[..., :1])], -1)

    def normalise_actions(self, actions: Tensor, state: Tensor) -> Tensor:
        """Environment actions [.., 7] -> position, six numbers and the gripper, whose sign is that of its logit."""
        turned = Rotation.from_rotvec(np.reshape(actions[..., 3:6].numpy(), (-1, 3)))
        six = torch.from_numpy(six_numbers(turned)).to(actions.dtype).reshape(*actions.shape[:-1], 6)
        return torch.cat([actions[..., :3], six, actions[..., 6:7]], -1)

    def actions(self, chunk: Tensor, state: np.ndarray) -> np.ndarray:
        """The policy's space [.., A] -> position, rotation vector, and 1 for a closed gripper or -1, float32."""
        pose = chunk[..., : _POSE + 1].float().cpu().numpy()
        vectors = rotation_vectors(pose[..., _SIX].reshape(-1, 6)).reshape(*pose.shape[:-1], 3)
        gripper = np.where(pose[..., _POSE:] > 0, 1.0, -1.0)
        return np.concatenate([pose[..., :3], vectors, gripper], -1).astype(np.float32)


def six_numbers(rotations: Rotation) -> np.ndarray:
    """Returns rotations as the first two columns of their matrices, [N, 6]."""
    return rotations.as_matrix()[..., :2].swapaxes(-1, -2).reshape(-1, 6)


def rotation_vectors(six: np.ndarray) -> np.ndarray:
    """Returns the rotation vectors [N, 3] of two columns [N, 6] that need not be orthogonal, nor of length 1."""
    first, second = six[:, :3].astype(np.float64), six[:, 3:].astype(np.float64)
    first = first / (np.linalg.norm(first, axis=-1, keepdims=True) + 1e-6)
    second = second - (first * second).sum(-1, keepdims=True) * first
    second = second / (np.linalg.norm(second, axis=-1, keepdims=True) + 1e-6)
    return Rotation.from_matrix(np.stack([first, second, np.cross(first, second)], -1)).as_rotvec()


def scaled(image: np.ndarray, size: int, scaling: str) -> np.ndarray:
    """Returns an image uint8 [H, W, 3] as uint8 [size, size, 3]; see :class:`.xvla_folder.Images`."""
    height, width = image.shape[:2]
    if height == width == size:
        return image
    if scaling != "lerobot":
        how = Image.Resampling.BICUBIC if scaling == "bicubic" else Image.Resampling.BILINEAR
        return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((size, size), how))
    ratio = max(height, width) / size
    inner = int(height / ratio), int(width / ratio)
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float()
    pixels = F.interpolate(pixels, inner, mode="bilinear", align_corners=False).round().byte()
    fitted = np.full((size, size, 3), _GREY, np.uint8)
    fitted[size - inner[0] :, size - inner[1] :] = pixels[0].permute(1, 2, 0).numpy()
    return fitted


def open_xvla(source: Source, folder: Path, convention: Convention, tokenizer: str) -> Stored:
    """Returns a published folder as a policy; see :func:`.paligemma.open_paligemma`.

    Raises:
        CheckpointError: A file, a value or a mark of the tokenizer is missing, or the folder and the convention do not
            fit each other.
    """
    facts = convention.x_vla
    if facts is None:
        raise CheckpointError(f"{folder} is an X-VLA, and the convention has no [x_vla]")
    opened = recognise(source)
    values = lerobot.read_config(folder, "xvla") if opened.lerobot else read_json(folder / lerobot.CONFIG)
    mode = action_mode(values)
    if mode == "ee6d" and (convention.action, convention.gripper) != (7, (6,)):
        raise CheckpointError(
            f"{folder} gives poses (action_mode ee6d), which are read for one hand only: seven channels of which the "
            f"last is the gripper, and the convention has {convention.action} and {convention.gripper}"
        )
    read = _of_lerobot if opened.lerobot else _of_authors
    about, images, files = read(values, folder, convention, facts)
    path = find_tokenizer(folder, tokenizer, TOKENIZER)
    tokens = marks(path, MARKS, TOKENIZER)
    config = read_config(values, opened.source, opened.lerobot, images.size)
    conventions: dict[str, Any] = dict(
        image_size=images.size,
        scaling=images.scaling,
        words=(),
        gripper=convention.gripper,
        mirror=convention.mirror,
        raw=facts.raw,
        tokenizer=path,
        pad=tokens[PAD],
        **about,
    )
    kind: type[PublishedXVLA] = PublishedPose if mode == "ee6d" else PublishedJoints
    if kind is PublishedPose:
        conventions["hand"] = facts.hand
    else:
        conventions["logits"] = tuple(channel for channel in GRIPPERS[mode] if channel < convention.action)
    layout = f"{'lerobot' if opened.lerobot else 'X-VLA'}{', older names' if opened.older else ''}, {mode}"
    return stored(folder, layout, "x_vla", config, (kind, conventions), [*files, path], fill)


def _of_lerobot(
    values: dict[str, Any], folder: Path, convention: Convention, facts: XVLAFacts
) -> tuple[dict[str, Any], Images, list[Path]]:
    read = lerobot.read_processors(folder, convention.state, convention.action, _STEPS)
    pose = action_mode(values) == "ee6d"
    plain = Scale.of_nothing(convention.state), Scale.of_nothing(convention.action)
    if pose and ((read.state, read.action) != plain or read.absolute is not None):
        raise CheckpointError(
            f"{folder} scales states or actions that are poses, or takes one from the other, which is not supported"
        )
    if "xvla_rotation_6d_to_axis_angle" in read.options and not pose:
        raise CheckpointError(
            f"{folder} makes rotations of actions that are no poses (action_mode in {lerobot.CONFIG})"
        )
    prompt = read.options.get("tokenizer_processor", {})
    if prompt.get("padding", "max_length") != "max_length" or prompt.get("padding_side", "right") != "right":
        raise CheckpointError(
            f"{folder} does not fill prompts up behind the text, which the policy would see: {prompt}"
        )
    domain = {"domain_id": facts.domain, **read.options.get("xvla_add_domain_id", {})}
    about = dict(
        cameras=tuple(convention.view(read.names.get(name, name)) for name in lerobot.views(values)),
        max_tokens=read.max_tokens,
        replan=lerobot.whole(values, "n_action_steps"),
        relative=read.absolute is not None,
        embodiment=lerobot.whole(domain, "domain_id"),
        state_mean=read.state.mean,
        state_std=read.state.std,
        action_mean=read.action.mean,
        action_std=read.action.std,
    )
    return about, lerobot_images(values), [folder / lerobot.CONFIG, *read.files]


def _of_authors(
    values: dict[str, Any], folder: Path, convention: Convention, facts: XVLAFacts
) -> tuple[dict[str, Any], Images, list[Path]]:
    state, action = Scale.of_nothing(convention.state), Scale.of_nothing(convention.action)
    about = dict(
        cameras=tuple(map(convention.view, facts.views)),
        max_tokens=MAX_TOKENS,
        replan=facts.replan,
        embodiment=facts.domain,
        state_mean=state.mean,
        state_std=state.std,
        action_mean=action.mean,
        action_std=action.std,
    )
    path = folder / "preprocessor_config.json"
    return about, authors_images(path), [folder / lerobot.CONFIG, path]
