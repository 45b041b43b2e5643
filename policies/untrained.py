"""Policies of random weights: what a round costs does not depend on training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files import write_file
from . import families
from .initial import initialise
from .policy import Policy

MARK = "untrained weights"


def untrained(
    kind: str,
    size: str,
    folder: Path,
    *,
    views: int = 2,
    words: int = 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Policy:
    """Makes a policy with random weights and the plainest conventions.

    Args:
        kind: The family.
        size: A configuration of it by name.
        folder: Where methods find, next to the policy, what they need besides. The weights are not written.
        views: Cameras.
        words: Tokens of the prompt.
        dtype: Precision of the weights.
        device: Where they are.

    Raises:
        ValueError: The family, or a configuration of this name, does not exist, or does not fit views and words.
    """
    known = families.family(kind)
    config = families.size(known, size)
    channels, state_dim = config.action_dim, getattr(config, "state_dim", config.action_dim)
    processor = known.processor.of(
        config,
        cameras=tuple(f"view{number}" for number in range(views)),
        image_size=config.image_size,
        words=("<pad>", *(f"word{number}" for number in range(1, words + 1))),
        max_tokens=words,
        state_mean=(0.0,) * state_dim,
        state_std=(1.0,) * state_dim,
        action_mean=(0.0,) * channels,
        action_std=(1.0,) * channels,
        gripper=(channels - 1,),
        replan=min(10, config.horizon),
    )
    processor.check(config)
    with torch.device(device), _precision(dtype):
        model = known.model(config)
    initialise(model, torch.Generator(device).manual_seed(0))
    model.requires_grad_(False).eval()
    path = folder / "policy.safetensors"
    write_file(path, json.dumps({"untrained": kind, "size": size, **asdict(config)}))  # what others are tied to
    return Policy(f"{kind} {size}", path, (path,), model, processor, {"marks": [MARK]})


def observations(policy: Policy, count: int, change: float = 0.05) -> list[Mapping[str, Any]]:
    """Returns what a policy might see in successive rounds: noise of which a share is renewed.

    The instruction has as many words of the policy's vocabulary as its prompt holds.

    Args:
        policy: The policy.
        count: Rounds.
        change: Share of the pixels that differ from those of the round before.
    """
    rng = np.random.default_rng(0)
    processor: Any = policy.processor
    shape = (processor.image_size, processor.image_size, 3)
    images = {camera: rng.integers(256, size=shape, dtype=np.uint8) for camera in processor.cameras}
    instruction = " ".join(processor.words[1 : processor.max_tokens + 1])
    rounds = []
    for _ in range(count):
        for camera, image in images.items():
            renewed = rng.random(shape[:2]) < change
            images[camera] = np.where(renewed[..., None], rng.integers(256, size=shape, dtype=np.uint8), image)
        state = rng.standard_normal(len(processor.state_mean)).astype(np.float32)
        rounds.append({**images, "state": state, "instruction": instruction})
    return rounds


@contextmanager
def _precision(dtype: torch.dtype) -> Iterator[None]:
    """Makes new weights of this precision, so that those of a large model exist once only."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
