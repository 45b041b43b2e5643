"""Recordings as a training set: frames of several folders in one sequence, normalised by a policy's conventions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..families import Family
from ..model import Inputs
from ..processing import UNKNOWN, split_words
from .recording import Conventions, Frames

HELD_OUT = 50  # every 50th episode of a folder is held out, its first one always
LONGER = 8  # words that an instruction may have beyond the longest of the recordings
REPLAN = 10  # actions per round of the policies trained here: half a second at 20 Hz
LEAST_STD = 1e-3  # a channel that moves less is constant, and must not be amplified


class Unmeasured(NamedTuple):
    """Conventions that a training set decides.

    Attributes:
        family: Whose they will be.
        config: Dimensions of the model, of which the training set decides those of states and actions.
        known: Vocabulary to begin with.
    """

    family: Family
    config: Any
    known: tuple[str, ...] = ("<pad>",)


class Dataset:
    """Frames of several folders as one sequence; the images stay mapped uint8."""

    def __init__(self, folders: list[Path], processor: Any, held_out: bool) -> None:
        """Keeps the training or the held-out (every 50th, from the first) episodes of each folder.

        Args:
            folders: Recordings.
            processor: Conventions of the policy (``Standardised``), or whose are to be measured (:class:`Unmeasured`).
            held_out: Which of the two to keep.

        Raises:
            ValueError: The policy sees other images than were recorded, recordings have other channels than each other
                or the policy, or there is no episode to keep.
        """
        parts = [Frames.load(folder) for folder in folders]
        widths = {(part.state.shape[1], *part.actions.shape[1:]) for part in parts}
        if len(widths) > 1:
            raise ValueError(
                f"the recordings differ in channels of the state, actions per chunk and channels of an action: "
                f"{' and '.join(map(str, sorted(widths)))}; train on those of one suite"
            )
        ranks = [np.unique(part.episode, return_inverse=True)[1] for part in parts]
        keep = [np.flatnonzero((rank % HELD_OUT == 0) == held_out) for rank in ranks]
        if not sum(map(len, keep)):
            raise ValueError(
                f"{', '.join(map(str, folders))}: every {HELD_OUT}th episode is held out, the first one always, and "
                "there is no other; record 2 or more"
            )
        self.images = [part.images for part in parts]
        self.where = np.concatenate([np.stack([np.full(len(k), n), k], 1) for n, k in enumerate(keep)])
        self.state = torch.from_numpy(np.concatenate([part.state[k] for part, k in zip(parts, keep, strict=True)]))
        actions = np.concatenate([part.actions[k] for part, k in zip(parts, keep, strict=True)])
        self.actions = torch.from_numpy(actions.astype(np.float32))
        text = np.concatenate([part.instruction[k] for part, k in zip(parts, keep, strict=True)])
        self.suites = sorted({part.conventions.suite for part in parts})
        if isinstance(processor, Unmeasured):
            processor = self._statistics(parts[0].conventions, folders, *processor)
        self.processor: Any = processor
        for part in parts:
            seen, wanted = part.conventions, self.processor
            if (seen.cameras, seen.image_size, False) != (wanted.cameras, wanted.image_size, wanted.mirror):
                raise ValueError(
                    f"the recordings have {', '.join(seen.cameras)} at {seen.image_size} pixels, and the policy sees "
                    f"{', '.join(wanted.cameras)} at {wanted.image_size}{', mirrored' if wanted.mirror else ''}"
                )
        channels = self.state.shape[1], self.actions.shape[2]
        if channels != (known := (len(self.processor.state_mean), len(self.processor.action_mean))):
            raise ValueError(f"the recordings have {channels} channels of state and action, and the policy {known}")
        self.actions = self.processor.normalise_actions(self.actions, self.state[:, None])
        self.state = self.processor.normalise_state(self.state)
        prompts = [self.processor.prompt(str(each), state) for each, state in zip(text, self.state, strict=True)]
        tokens = {prompt: self.processor.tokenize(prompt) for prompt in sorted(set(prompts))}
        self.tokens = torch.tensor([tokens[prompt] for prompt in prompts])

    def _statistics(
        self, conventions: Conventions, folders: list[Path], family: Family, config: Any, known: tuple[str, ...]
    ) -> Any:
        """Standardisation measured on a training set, with the vocabulary of all its recordings."""
        words, longest = vocabulary(folders)
        if conventions.open_language and UNKNOWN not in known:
            known = (*known, UNKNOWN)
        known = (*known, *(word for word in words if word not in known))
        if len(known) > config.vocab:
            if not conventions.open_language:
                raise ValueError(f"the policy's vocabulary has {config.vocab} words at most, and needs {len(known)}")
            known = known[: config.vocab]  # the most common; the others are read as one
        state_std = self.state.std(0).clamp_min(LEAST_STD)
        count = self.actions.shape[-1]
        plain = family.processor.of(
            config,
            cameras=conventions.cameras,
            image_size=conventions.image_size,
            words=known,
            max_tokens=longest + LONGER,
            state_mean=tuple(self.state.mean(0).tolist()),
            state_std=tuple(state_std.tolist()),
            action_mean=(0.0,) * count,
            action_std=(1.0,) * count,
            gripper=conventions.gripper,
            replan=REPLAN,
            relative=conventions.relative,
        )
        actions = plain.normalise_actions(self.actions, self.state[:, None]).flatten(0, 1)
        action_std = actions.std(0)
        action_std[action_std < LEAST_STD] = 1.0  # a channel that the expert never moves
        return replace(plain, action_mean=tuple(actions.mean(0).tolist()), action_std=tuple(action_std.tolist()))

    def __len__(self) -> int:
        """Number of frames."""
        return len(self.where)

    def batch(self, index: np.ndarray, shift: int = 0, rng: np.random.Generator | None = None) -> tuple[Inputs, Tensor]:
        """Returns the inputs and the normalised chunks [B, H, A] of some frames, their images shifted at random."""
        images = np.stack([self.images[part][row] for part, row in self.where[index]])
        if shift and rng is not None:
            images = shifted(images, shift, rng)
        inputs = self.processor.assemble(torch.from_numpy(images), self.tokens[index], self.state[index])
        return inputs, self.actions[index]


def shifted(images: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Moves every image of [B, V, S, S, 3] by up to ``most`` pixels each way, repeating its border."""
    wide = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most), (0, 0)), mode="edge")
    result = np.empty_like(images)
    size = images.shape[2]
    for place in np.ndindex(*images.shape[:2]):
        down, across = rng.integers(2 * most + 1, size=2)
        result[place] = wide[place][down : down + size, across : across + size]
    return result


def vocabulary(folders: list[Path]) -> tuple[list[str], int]:
    """Returns the words of all instructions of some recordings, the most common first, and the longest's length."""
    counts: Counter[str] = Counter()
    longest = 0
    for text in {str(text) for folder in folders for text in np.unique(Frames.load(folder).instruction)}:
        words = split_words(text)
        counts.update(words)
        longest = max(longest, len(words))
    return sorted(counts, key=lambda word: (-counts[word], word)), longest


def learn_words(processor: Any, folders: list[Path], config: Any) -> Any:
    """Returns the conventions with the words that are new in some recordings, so that training continues with them.

    Raises:
        ValueError: The model's token embedding has no rows left for them.
    """
    words, longest = vocabulary(folders)
    known = processor.words
    if UNKNOWN not in known:
        known += tuple(word for word in words if word not in known)
    if len(known) > config.vocab:
        raise ValueError(f"the policy's vocabulary has {config.vocab} words at most, and needs {len(known)}")
    return replace(processor, words=known, max_tokens=max(processor.max_tokens, longest + LONGER))
