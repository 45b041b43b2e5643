"""Published Fast-WAM folders of lerobot as policies, with two things that these folders name instead of holding.

Wan's image encoder is the folder ``vae`` of Wan-AI/Wan2.2-TI2V-5B-Diffusers, to be copied into the policy's. The texts
are embedded once, elsewhere: UMT5-XXL is larger than the policy. ``text_embeddings.safetensors`` has a tensor
[tokens, text_width] for each instruction, under the instruction itself, and docs/families.md shows how to make it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import processing
from ..fast_wam import FastWAM, FastWAMConfig, FastWAMProcessor
from ..processing import ObservationError
from ..stored import Stored
from ..tokens import find_tokenizer
from ..weights import CheckpointError, open_safetensors
from . import lerobot
from .convention import Convention
from .fast_wam import fill
from .files import read_json, table
from .names import count_layers
from .processor import Published, stored
from .reader import Source, files_of

VAE = "vae"
VAE_WEIGHTS = "diffusion_pytorch_model.safetensors"
TEXTS = "text_embeddings.safetensors"
WHERE = "it has an embedding of each instruction, which docs/families.md shows how to make"

_TOGGLE = "fastwam_action_toggle_processor"
_MIXTURES, _LAYERS = "model.mot.mixtures", "model.mot.layers"


@cache
def open_texts(path: Path) -> dict[str, range]:
    """Returns the rows of the table of embeddings that each instruction has; row 0 is padding.

    Raises:
        CheckpointError: It is not a safetensors file, or has something else than matrices of one width.
    """
    rows, start, widths = {}, 1, set()
    with open_safetensors(path) as file:
        for name in file.keys():
            shape = file.get_slice(name).get_shape()
            if len(shape) != 2 or not shape[0]:
                raise CheckpointError(f"{path} must have a matrix for each instruction, got {list(shape)} for {name!r}")
            rows[name] = range(start, start := start + shape[0])
            widths.add(shape[1])
    if len(widths) != 1:
        raise CheckpointError(f"{path} must have embeddings of one width, got {sorted(widths) or 'none'}")
    return rows


def read_texts(path: Path) -> Tensor:
    """Returns the table of embeddings [rows, text_width], float32, with zeros for padding."""
    with open_safetensors(path) as file:
        texts = [file.get_tensor(name).float() for name in file.keys()]
    return torch.cat([torch.zeros(1, texts[0].shape[1]), *texts])


@dataclass(frozen=True, kw_only=True)
class PublishedFastWAM(Published, FastWAMProcessor):
    """Conventions of a published Fast-WAM: its tokenizer is the file of embedded instructions."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that a prompt may contain."""
        return 1 + sum(map(len, open_texts(self.tokenizer).values()))

    def prompt(self, instruction: str, state: Tensor) -> str:
        """Returns the instruction as it is; what is around it is part of its embedding."""
        return instruction

    def tokenize(self, prompt: str) -> list[int]:
        """Returns the padded tokens of an instruction.

        Raises:
            ObservationError: The instruction is not embedded, or has more tokens than the policy reads.
        """
        texts = open_texts(self.tokenizer)
        if prompt not in texts:
            raise ObservationError(
                f"{self.tokenizer} has no embedding of {prompt!r}, but of {len(texts)} other instructions: add it, as "
                "docs/families.md shows"
            )
        rows = list(texts[prompt])
        if len(rows) > self.max_tokens:
            raise ObservationError(f"the prompt must have 1 to {self.max_tokens} tokens, got {len(rows)} of {prompt!r}")
        return rows + [0] * (self.max_tokens - len(rows))

    def views(self, observation: Mapping[str, Any]) -> np.ndarray:
        """See :class:`~replan.policies.standardised.Standardised`; images must be square, since lerobot stretches."""
        for camera in self.cameras:
            processing.square_image(observation, camera, self.image_size)
        return super().views(observation)


def open_fast_wam(source: Source, folder: Path, convention: Convention, tokenizer: str) -> Stored:
    """Returns a published folder as a policy; see :func:`.paligemma.open_paligemma`.

    Raises:
        CheckpointError: A file or a value is missing, or the folder and the convention do not fit each other.
    """
    values = lerobot.read_config(folder, "fastwam")
    read = lerobot.read_processors(folder, convention.state, convention.action, (_TOGGLE,))
    views = sorted(lerobot.views(values))  # the public code's order, whatever the file's
    encoder = folder / VAE / "config.json"
    if not encoder.is_file():
        raise CheckpointError(
            f"{folder} has no image encoder: copy the folder {VAE} of Wan-AI/Wan2.2-TI2V-5B-Diffusers into it"
        )
    wan = read_json(encoder)
    texts = find_tokenizer(folder, tokenizer, WHERE, (TEXTS,))
    size = values.get("image_size")
    if size != [side := size[0] if isinstance(size, list) and size else 0, side * len(views)]:
        raise CheckpointError(
            f"image_size in {lerobot.CONFIG} is {size}, and only {len(views)} squares side by side are supported"
        )
    conventions = dict(
        cameras=tuple(convention.view(read.names.get(name, name)) for name in views),
        image_size=side,
        words=(),
        max_tokens=lerobot.whole(values, "context_len"),
        state_mean=read.state.mean,
        state_std=read.state.std,
        action_mean=read.action.mean,
        action_std=read.action.std,
        gripper=convention.gripper,
        replan=lerobot.whole(values, "n_action_steps"),
        mirror=convention.mirror,
        relative=read.absolute is not None,
        tokenizer=texts,
        inverted=_inverted(read.options.get(_TOGGLE), folder, convention),
    )
    config = read_config(values, wan, source, side, 1 + sum(map(len, open_texts(texts).values())))
    mean, std = (_numbers(wan, name, encoder) for name in ("latents_mean", "latents_std"))

    def load(path: Path, model: FastWAM, dtype: torch.dtype) -> None:
        fill(path, path / VAE / VAE_WEIGHTS, mean, std, read_texts(texts), model, dtype)

    files = [folder / lerobot.CONFIG, *read.files, encoder, *files_of(folder / VAE / VAE_WEIGHTS), texts]
    return stored(folder, "lerobot, Fast-WAM", "fast_wam", config, (PublishedFastWAM, conventions), files, load)


def read_config(
    values: Mapping[str, Any], wan: Mapping[str, Any], source: Source, image_size: int, vocab: int
) -> FastWAMConfig:
    """Returns the dimensions of a published folder's model; most are shapes.

    Args:
        values: Of the policy's ``config.json``.
        wan: Of the image encoder's.
        source: The policy's weights.
        image_size: Side of a view in pixels.
        vocab: Rows of the table of text embeddings.

    Raises:
        CheckpointError: A value or a tensor is missing or of another type, or they do not fit each other.
    """
    video, block = f"{_MIXTURES}.video", f"{_LAYERS}.0.blocks"
    width, latents = source.shape(f"{video}.patch_embedding.weight")[:2]
    action_width, action_dim = source.shape(f"{_MIXTURES}.action.action_encoder.weight")
    text_width, state_dim = source.shape("model.proprio_encoder.weight")
    scheduler = table(values, "action_scheduler", lerobot.CONFIG)
    shift = values.get("sigma_shift") or scheduler.get("infer_shift")
    if not isinstance(shift, (int, float)) or wan.get("is_residual") is not True:
        raise CheckpointError(
            f"infer_shift in {lerobot.CONFIG} must be a number, got {shift!r}, and is_residual in the image encoder's "
            f"true, got {wan.get('is_residual')!r}"
        )
    multiples = wan.get("dim_mult")
    multiples = multiples if isinstance(multiples, list) else []
    base, halves = lerobot.whole(wan, "base_dim"), wan.get("temperal_downsample")
    try:
        return FastWAMConfig(
            image_size=image_size,
            vae_widths=tuple(base * multiple for multiple in (1, *multiples)),
            vae_blocks=lerobot.whole(wan, "num_res_blocks"),
            vae_halves_frames=tuple(halves) if isinstance(halves, list) else (),
            vae_patch=lerobot.whole(wan, "patch_size"),
            latents=latents,
            width=width,
            mlp=source.shape(f"{block}.video.ffn.0.weight")[0],
            depth=count_layers(source, f"{_LAYERS}."),
            heads=lerobot.whole(table(values, "video_dit_config", lerobot.CONFIG), "num_heads"),
            action_width=action_width,
            action_mlp=source.shape(f"{block}.action.ffn.0.weight")[0],
            text_width=text_width,
            time_width=source.shape(f"{video}.time_embedding.0.weight")[1],
            vocab=vocab,
            state_dim=state_dim,
            action_dim=action_dim,
            horizon=lerobot.whole(values, "action_horizon"),
            steps=lerobot.whole(values, "num_inference_steps"),
            shift=float(shift),
        )
    except CheckpointError:
        raise
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"the shapes of {source.path} are not those of a Fast-WAM: {error}") from error


def _inverted(step: Mapping[str, Any] | None, folder: Path, convention: Convention) -> bool:
    """Returns whether a step turns 1 for an open gripper into -1."""
    if step is None:
        return False
    given = step.get("toggle_dimensions")
    channels = tuple(sorted(each % convention.action for each in given)) if isinstance(given, list) else given
    if channels and channels != convention.gripper:
        raise CheckpointError(f"{folder} toggles {given}, where the convention's gripper has {convention.gripper}")
    return bool(channels)


def _numbers(values: Mapping[str, Any], name: str, path: Path) -> list[float]:
    found = values.get(name)
    least = 0 if name.endswith("_std") else -math.inf  # a latent is divided by it
    if not isinstance(found, list) or not all(isinstance(x, (int, float)) and least < x < math.inf for x in found):
        raise CheckpointError(f"{path}: {name} must be a list of numbers{', above 0' * (not least)}, got {found!r}")
    return found
