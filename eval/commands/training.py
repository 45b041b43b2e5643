"""``replan train`` and ``train-draft``: from recordings to a policy with its draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..spec import BadInput
from . import FiniteRange, json_option, named

LARGEST_SEED = 2**63 - 1  # that torch takes


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Optimiser steps in total.")
@click.option("--batch", type=click.IntRange(min=1), default=48, show_default=True, help="Frames per step.")
@click.option("--rate", type=FiniteRange(min=0, min_open=True), default=1e-3, show_default=True, help="Learning rate.")
@click.option("--warmup", type=click.IntRange(min=1), default=150, show_default=True, help="Steps until the full rate.")
@click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True, help="Seed of everything random."
)
@click.option(
    "--family", metavar="KIND", default="pi0", show_default=True, help="Family of the model, without --start."
)
@click.option(
    "--model",
    metavar="SIZE",
    default="tiny",
    show_default=True,
    help="Size of the model, without --start.",
)
@click.option("--shift", type=click.IntRange(0, 16), default=0, help="Largest random shift of an image, in pixels.")
@click.option("--start", metavar="NAME|PATH", help="Start from this policy's weights and statistics.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Processes that share a batch."
)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    callback=named,
    help="An interrupted training is resumed by the same command.",
)
@json_option
def train(
    folders: tuple[str, ...],
    steps: int,
    batch: int,
    rate: float,
    warmup: int,
    seed: int,
    family: str,
    model: str,
    shift: int,
    start: str | None,
    workers: int,
    out: str,
) -> dict[str, Any]:
    """Train a tiny policy on recordings by flow matching. A folder named twice counts twice."""
    from ...policies.policy import IN_FOLDER, open_policy
    from ...policies.training import train as training

    recipe = training.Recipe(steps, batch, rate, warmup, seed=seed, family=family, model=model, shift=shift)
    data = [_recording(folder) for folder in folders]
    training.train(data, Path(out), recipe, open_policy(start).path if start else None, workers)
    return {"policy": str(Path(out) / IN_FOLDER)}


@click.command("train-draft")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option("--policy", required=True, metavar="NAME|PATH", help="The frozen policy that the draft imitates.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=100, show_default=True, help="Passes over the observations."
)
@click.option(
    "--frames",
    type=click.IntRange(min=64),
    default=20_000,
    show_default=True,
    help="Largest number of observations used.",
)
@click.option(
    "--seed", type=click.IntRange(0, LARGEST_SEED), default=0, show_default=True, help="Seed of everything random."
)
@json_option
def train_draft(folders: tuple[str, ...], policy: str, epochs: int, frames: int, seed: int) -> dict[str, Any]:
    """Train FLASH's draft for a policy on recorded observations. It is written next to the policy."""
    from ...accel.flash.draft import draft_path
    from ...accel.flash.training import train_draft as run
    from ...policies.policy import open_policy

    path = draft_path(open_policy(policy).path)
    error = run(policy, [_recording(folder) for folder in folders], epochs=epochs, frames=frames, seed=seed)
    return {"draft": str(path), "validation_rms": error}


def _recording(folder: str) -> Path:
    if not (Path(folder) / "images.npy").is_file():
        raise BadInput(f"{folder!r} is not a recording: it lacks images.npy; replan collect writes one folder per task")
    return Path(folder)
