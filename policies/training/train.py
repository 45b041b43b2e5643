"""Flow-matching behaviour cloning in two single-thread processes, which on two cores beat one process with two threads.

Resumable: ``state.safetensors`` in the run folder holds weights, averages and optimiser; what is shipped is
``policy.safetensors``, the averaged weights with the policy's conventions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from tqdm import tqdm

from ...files import write_file
from .. import checkpoint
from ..families import Family, family, size
from ..initial import initialise
from ..model import FlowModel, Inputs
from ..policy import IN_FOLDER
from ..weights import open_safetensors
from .dataset import Dataset, Unmeasured, learn_words
from .recording import Frames

STATE = "state.safetensors"
KEEP_EVERY = 500  # steps: some three minutes on two cores, the most that a kill can cost
_BRANCHES = 2  # samples of noise and time for each encoded prefix: the prefix is most of the work


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights, besides the data.

    Attributes:
        steps: Optimiser steps in all.
        batch: Frames per step, over all processes.
        rate: Peak learning rate, reached after ``warmup`` steps and decayed linearly to zero.
        warmup: Steps of linear warm-up.
        average: Decay of the exponential moving average of the weights; 0.998 averages about the last 500 steps.
        seed: Seeds initial weights, batches and noise.
        family: Kind of the model, where training starts afresh.
        model: Which of the family's sizes, where training starts afresh.
        shift: Largest random shift of each image, in pixels each way. Without it, training overfits few demonstrations
            (Kostrikov et al., "Image Augmentation Is All You Need", 2020).
    """

    steps: int
    batch: int = 48
    rate: float = 1e-3
    warmup: int = 150
    average: float = 0.998
    seed: int = 0
    family: str = "pi0"
    model: str = "tiny"
    shift: int = 0


def fit(config: Any, processor: Any) -> Any:
    """Returns the dimensions with those that a suite's conventions decide."""
    decided = {"state_dim": len(processor.state_mean), "action_dim": len(processor.action_mean)}
    return replace(config, **{name: value for name, value in decided.items() if hasattr(config, name)})


def flow_loss(model: FlowModel, inputs: Inputs, actions: Tensor, generator: torch.Generator) -> Tensor:
    """Conditional flow matching with pi0's time distribution, Beta(1.5, 1) towards noise, for every family.

    Args:
        model: The policy.
        inputs: Batch of B observations.
        actions: [B, H, A], normalised.
        generator: Samples noise and times.
    """
    context = model.condition(model.prefill(model.encode(inputs)), inputs).expand(_BRANCHES)
    actions = actions.repeat(_BRANCHES, 1, 1)
    noise = torch.randn(actions.shape, generator=generator)
    # Beta(1.5, 1) by inversion: its distribution function is t^1.5.
    level = 0.001 + 0.999 * torch.rand(len(actions), generator=generator) ** (1 / 1.5)
    time = model.flow.time(1.0 - level)
    x = model.flow.mix(actions, noise, time[:, None, None])
    return (model.step(x, time, context) - model.flow.target(actions, noise)).square().mean()


def train(folders: list[Path], out: Path, recipe: Recipe, start: Path | None = None, workers: int = 2) -> None:
    """Leaves ``policy.safetensors``, ``log.jsonl`` and ``state.safetensors`` in ``out``; run again, it continues.

    Args:
        folders: Recordings, as ``collect`` wrote them.
        out: Run folder.
        recipe: What to do.
        start: Checkpoint whose weights and words to start from, and, on the suites that it was trained on, statistics;
            None starts afresh.
        workers: Processes.

    Raises:
        ValueError: Recordings, recipe and ``start`` do not go together, or the run folder holds another training, or
            one that is damaged.
    """
    if recipe.batch % workers:
        raise ValueError(f"{workers} processes cannot share a batch of {recipe.batch} frames equally; choose others")
    _, config, data, _ = _beginning(folders, recipe, start)  # here its errors are sentences
    if (length := data.actions.shape[1]) != config.horizon:
        raise ValueError(f"the recordings have chunks of {length} actions, and the model of {config.horizon}")
    out.mkdir(parents=True, exist_ok=True)
    plan = {**asdict(recipe), "data": [str(folder) for folder in folders], "start": str(start), "workers": workers}
    note = out / "recipe.json"
    with checkpoint.about(note):
        before = json.loads(note.read_bytes()) if note.exists() else plan
    if before != plan:
        changed = sorted(key for key in plan if before.get(key) != plan[key])
        raise ValueError(
            f"{out} holds a training with other {', '.join(changed)}; choose another folder or the same values"
        )
    if (out / STATE).exists():
        with open_safetensors(out / STATE):  # raises where it is cut short
            pass
    write_file(note, json.dumps(plan, indent=1))
    rendezvous = out / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    spawn(_work, (workers, rendezvous, folders, out, recipe, start), nprocs=workers)


def _work(
    rank: int, world: int, rendezvous: Path, folders: list[Path], out: Path, recipe: Recipe, start: Path | None
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{rendezvous.absolute()}", rank=rank, world_size=world)
    known, config, data, suites = _beginning(folders, recipe, start)
    check = Dataset(folders, data.processor, held_out=True)
    model = known.model(config)
    initialise(model, torch.Generator().manual_seed(recipe.seed))
    nn.init.zeros_(cast("nn.Linear", model.get_submodule(model.predicts)).weight)
    if start:
        checkpoint.load_weights(start, model)
    averaged = {name: value.clone() for name, value in model.state_dict().items()}
    # A second moment over 50 steps instead of 1000: trainings here are a few thousand steps long.
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, betas=(0.9, 0.98), weight_decay=0.01)
    first = _restore(out / STATE, model, averaged, optimizer)
    share = recipe.batch // world
    losses: list[float] = []
    bar = tqdm(range(first, recipe.steps), initial=first, total=recipe.steps, disable=rank > 0, mininterval=10)
    for step in bar:
        # Keyed by the step, so that a stopped training ends with the weights of one that was not.
        rng = np.random.default_rng([recipe.seed, rank, step])
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        rate = recipe.rate * min((step + 1) / recipe.warmup, 1 - step / recipe.steps)
        for group in optimizer.param_groups:
            group["lr"] = max(rate, 1e-6)
        index = rng.integers(len(data), size=share)
        loss = flow_loss(model, *data.batch(index, recipe.shift, rng), generator)
        loss.backward()
        _mean_gradients(model, world)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        decay = min(recipe.average, (1 + step) / (10 + step))  # the first steps, far from any good weights, fade fast
        for name, value in model.state_dict().items():
            averaged[name].lerp_(value, 1 - decay)
        done = step + 1
        if rank == 0 and (done % KEEP_EVERY == 0 or done == recipe.steps):
            row = {"step": done, "samples": done * recipe.batch, "train": float(np.mean(losses)), "rate": rate}
            row |= _validate(model, averaged, check)
            with (out / "log.jsonl").open("a") as log:
                log.write(json.dumps(row) + "\n")
            bar.set_postfix(train=f"{row['train']:.3f}", held_out=f"{row['held_out']:.3f}")
            losses = []
            card = {
                "marks": ["tiny model trained here"],
                "suites": suites,
                "steps": done,
                "samples": done * recipe.batch,
            }
            _keep(out, known, model, averaged, optimizer, done, data.processor, card)
    dist.destroy_process_group()


def _beginning(folders: list[Path], recipe: Recipe, start: Path | None) -> tuple[Family, Any, Dataset, list[str]]:
    """Returns family and dimensions, the training set with the policy's conventions, and the suites it will know."""
    if start is None:
        known = family(recipe.family)
        config = size(known, recipe.model)
        data = Dataset(folders, Unmeasured(known, config), held_out=False)
        return known, fit(config, data.processor), data, data.suites
    header = checkpoint.read_header(start)
    with checkpoint.about(start):
        known = family(header.kind)
        config = checkpoint.from_plain(known.config, header.config)
        processor = checkpoint.from_plain(known.processor, header.processor)
    known_suites = header.card.get("suites", [])
    if {Frames.load(folder).conventions.suite for folder in folders} <= set(known_suites):
        return known, config, Dataset(folders, learn_words(processor, folders, config), held_out=False), known_suites
    # Another suite has another spread of states and actions, so its statistics are measured anew.
    data = Dataset(folders, Unmeasured(known, config, processor.words), held_out=False)
    return known, config, data, data.suites


def _mean_gradients(model: nn.Module, world: int) -> None:
    """Averages all gradients over the processes in one message."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, mean in zip(gradients, (flat / world).split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def _validate(model: FlowModel, averaged: dict[str, Tensor], check: Dataset) -> dict[str, float]:
    """Held-out flow loss of the averaged weights, on fixed frames and noise."""
    own = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(averaged)
    index = np.random.default_rng(0).integers(len(check), size=192)  # four batches: a second of work
    loss = float(flow_loss(model, *check.batch(index), torch.Generator().manual_seed(0)))
    model.load_state_dict(own)
    return {"held_out": loss}


def _keep(
    out: Path,
    known: Family,
    model: FlowModel,
    averaged: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    step: int,
    processor: Any,
    card: dict[str, Any],
) -> None:
    """Writes training state and checkpoint; a kill leaves the last ones whole."""
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    state |= {f"averaged.{name}": value for name, value in averaged.items()}
    for number, moments in optimizer.state_dict()["state"].items():
        state |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    write_file(out / STATE, save(state, {"step": str(step)}))
    final = known.model(model.config)
    final.load_state_dict(averaged)
    header = checkpoint.Header(known.kind, asdict(model.config), asdict(processor), card)
    checkpoint.save(out / IN_FOLDER, header, final)


def _restore(path: Path, model: FlowModel, averaged: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> int:
    """Reads back what :func:`_keep` wrote, in place, and returns the steps done; 0 where nothing was written yet."""
    if not path.exists():
        return 0
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "averaged": {}, "optimizer": {}}
    with safe_open(path, "pt") as file:
        step = int(file.metadata()["step"])
        for key in file.keys():
            part, name = key.split(".", 1)
            parts[part][name] = file.get_tensor(key)
    model.load_state_dict(parts["model"])
    averaged.update(parts["averaged"])
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in parts["optimizer"].items():
        number, name = key.split(".", 1)
        moments.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return step
