"""Training the draft: regression to the frozen policy's own chunks (FLASH, appendix A.2, tables 5 and 9)."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ...policies.call import dense
from ...policies.model import Prefix
from ...policies.policy import load_policy
from ...policies.training.dataset import Dataset
from .draft import Draft, DraftConfig, draft_path, save_draft

# The paper's values (appendix A.2, table 9).
PREFIX_STEPS = 16  # longest sampled prefix
PREFIX_DECAY = 0.9  # weight of a step relative to the one before, within the prefix
TAIL_WEIGHT = 0.1  # weight of every step behind it
LAST_RATE = 1e-5  # where the cosine ends


def train_draft(
    name: str | Path,
    folders: list[Path],
    out: Path | None = None,
    *,
    epochs: int = 100,
    batch: int = 64,
    rate: float = 2e-3,
    frames: int = 20_000,
    seed: int = 0,
) -> float:
    """Trains a draft for a policy, keeps the best epoch, and returns its validation RMS over the replan window.

    Args:
        name: Name or path of the frozen policy.
        folders: Recordings whose observations are used; their labels are not.
        out: Where to write; next to the policy if None.
        epochs: Passes over the frames.
        batch: Frames per step.
        rate: Peak learning rate: one epoch of warm-up, then a cosine.
        frames: Largest number of frames, sampled from the recordings.
        seed: Seeds the choice of frames, the teacher's noise and the order.

    Raises:
        ValueError: The policy belongs to a family that has no training of drafts.
    """
    torch.set_num_threads(1)
    policy = load_policy(name)
    model: Any = policy.model  # of PaliGemma's kind, which the types of all families do not say
    processor: Any = policy.processor
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    if not hasattr(model, "vlm"):
        raise ValueError(f"a draft starts from a PaliGemma layer, and the model of {policy.name!r} has none")
    train = _Targets(model, Dataset(folders, processor, held_out=False), frames, rng, generator)
    check = _Targets(model, Dataset(folders, processor, held_out=True), max(frames // 20, batch), rng, generator)
    draft = Draft(DraftConfig.of(model.config))
    draft.start_from(model.vlm[0], generator)
    optimizer = torch.optim.AdamW(draft.parameters(), rate, weight_decay=0.01)
    steps_per_epoch = math.ceil(len(train) / batch)
    best, best_state = math.inf, copy.deepcopy(draft.state_dict())
    bar = tqdm(range(epochs), desc="draft", unit="epoch", mininterval=5)
    for epoch in bar:
        order = torch.from_numpy(rng.permutation(len(train)))
        for number, index in enumerate(order.split(batch)):
            for group in optimizer.param_groups:
                group["lr"] = _rate(rate, epoch * steps_per_epoch + number, epochs * steps_per_epoch, steps_per_epoch)
            prefix, state, target = train.batch(index)
            loss = draft_loss(draft(prefix, state), target, generator)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
        error = _rms(draft, check, processor.replan, processor.continuous)
        bar.set_postfix(rms=f"{error:.4f}")
        if error < best:
            best, best_state = error, copy.deepcopy(draft.state_dict())
    draft.load_state_dict(best_state)
    card = {"validation_rms": best, "frames": len(train), "epochs": epochs, "rate": rate, "batch": batch, "seed": seed}
    save_draft(out or draft_path(policy.path), draft, card, policy.files)
    return best


def draft_loss(chunk: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
    """Smooth L1 (beta 1), the steps of a randomly long prefix weighted by 0.9^h and the tail by 0.1.

    Args:
        chunk: [B, H, A] draft.
        target: [B, H, A] teacher.
        generator: Samples the prefix lengths.
    """
    batch, horizon, _ = target.shape
    length = torch.randint(1, min(PREFIX_STEPS, horizon) + 1, (batch, 1), generator=generator)
    step = torch.arange(horizon)
    weight = torch.where(step < length, PREFIX_DECAY**step, torch.tensor(TAIL_WEIGHT))
    error = F.smooth_l1_loss(chunk, target, beta=1.0, reduction="none").mean(-1)
    return (weight * error).sum() / weight.sum()


class _Targets:
    """Prefix embeddings and teacher chunks of some frames, computed once: both are frozen."""

    def __init__(
        self, model: Any, data: Dataset, frames: int, rng: np.random.Generator, generator: torch.Generator
    ) -> None:
        index = rng.permutation(len(data))[:frames]
        embeddings, masks, states, chunks, self.visual = [], [], [], [], 0
        with torch.inference_mode():
            for part in tqdm(np.array_split(index, math.ceil(len(index) / 64)), desc="teacher", mininterval=5):
                inputs, _ = data.batch(part)
                # All text tokens are kept, so that batches of different instructions stack.
                prefix = model.encode(inputs, drop=False)
                noise = torch.randn((len(part), *model.noise_shape), generator=generator)
                chunks.append(dense(model, prefix, inputs, noise))
                embeddings.append(prefix.embeddings.half())
                masks.append(_whole_mask(prefix))
                states.append(inputs.state)
                self.visual = prefix.visual
        self.embeddings, self.masks = torch.cat(embeddings).clone(), torch.cat(masks).clone()
        self.states, self.chunks = torch.cat(states).clone(), torch.cat(chunks).clone()

    def __len__(self) -> int:
        return len(self.chunks)

    def batch(self, index: Tensor) -> tuple[Prefix, Tensor, Tensor]:
        prefix = Prefix(self.embeddings[index].float(), self.masks[index], self.visual)
        return prefix, self.states[index], self.chunks[index]


def _whole_mask(prefix: Prefix) -> Tensor:
    batch, length, _ = prefix.embeddings.shape
    return torch.ones(batch, length, dtype=torch.bool) if prefix.mask is None else prefix.mask


@torch.no_grad()
def _rms(draft: Draft, check: _Targets, window: int, channels: list[int]) -> float:
    total, count = 0.0, 0
    for index in torch.arange(len(check)).split(256):
        prefix, state, target = check.batch(index)
        error = (draft(prefix, state) - target)[:, :window][..., channels]
        total, count = total + float(error.square().sum()), count + error.numel()
    return math.sqrt(total / count)


def _rate(peak: float, step: int, steps: int, warmup: int) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    return LAST_RATE + (peak - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))
