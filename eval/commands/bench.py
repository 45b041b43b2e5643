"""``replan bench``: what a round of each method costs, against dense rounds that take turns with it."""

from __future__ import annotations

import math
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ..spec import DTYPES, BadInput
from . import FiniteRange, json_option, show

if TYPE_CHECKING:
    from ...policies.policy import Policy
    from ..bench import Cost, Machine, SpeedUp


@click.command()
@click.option("--policy", metavar="NAME|PATH", help="A policy with its weights.")
@click.option("--family", metavar="KIND", help="In place of a policy: random weights of this family.  [pi0.5]")
@click.option("--size", metavar="NAME", default="tiny", show_default=True, help="Size of the family's model.")
@click.option(
    "--method",
    "methods",
    metavar="METHOD,...",
    default="few_step:steps=5",
    show_default=True,
    help="Methods; dense is always there.",
)
@click.option("--rounds", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Rounds per method.")
@click.option(
    "--views", type=click.IntRange(1, 8), default=2, show_default=True, help="Cameras that a family is given."
)
@click.option(
    "--words", type=click.IntRange(1, 200), default=16, show_default=True, help="Prompt tokens that it is given."
)
@click.option(
    "--change",
    type=FiniteRange(0, 1),
    default=0.05,
    show_default=True,
    help="Share of the pixels that change from round to round.",
)
@click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Precision.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it runs.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Processor threads.")
@json_option
def bench(
    policy: str | None,
    family: str | None,
    size: str,
    methods: str,
    rounds: int,
    views: int,
    words: int,
    change: float,
    dtype: str,
    device: str,
    threads: int,
) -> dict[str, Any]:
    """Measure what a round of each method costs."""
    import torch
    from tqdm import tqdm

    from ... import accel
    from ...policies.policy import load_policy
    from ...policies.seams import needed_files
    from ...policies.untrained import observations, untrained
    from ..bench import DENSE, WARMUP
    from ..bench import bench as measure

    if policy and family:
        raise BadInput("--policy and --family exclude each other: a policy has a family and weights")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: torch finds no GPU here")
    torch.set_num_threads(threads)
    names = [name.strip() for name in methods.split(",") if name.strip() and name.strip() != DENSE]
    with tempfile.TemporaryDirectory(prefix="replan-bench-") as folder:
        if policy:
            used = load_policy(policy, getattr(torch, dtype), device)
        else:
            options: dict[str, Any] = {"views": views, "words": words, "dtype": getattr(torch, dtype)}
            used = untrained(family or "pi0.5", size, Path(folder), device=device, **options)
        parsed = {name: accel.parse(name) for name in names}
        if not policy:
            for each in parsed.values():
                for method in each:
                    method.make_files(used)
                    if missing := [file.name for file in needed_files(method, used.path) if not file.exists()]:
                        raise BadInput(
                            f"{method.name} needs {', '.join(missing)}, which cannot be made up for random weights; "
                            "name a policy that has it with --policy"
                        )
        seen = observations(used, rounds + 2 * WARMUP, change)
        costs, machine = measure(used, parsed, seen, lambda each: tqdm(each, desc="rounds", disable=None))
    about = _about(used, seen[0], bool(policy), threads)
    show(_table(costs))
    show("\n".join([f"{key}: {value}" for key, value in about.items()] + _notes(machine)))
    return {**about, "machine": asdict(machine), "costs": [_plain(cost, costs[0]) for cost in costs]}


def _about(policy: Policy, observation: Any, trained: bool, threads: int) -> dict[str, Any]:
    """Returns what a stranger needs to measure the same."""
    import torch

    from ..provenance import processor

    model = policy.model
    with torch.inference_mode():
        inputs = policy.processor.inputs(observation).to(model.device, model.dtype)
        prefix = model.encode(inputs)
    return {
        "policy": policy.name + ("" if trained else " (untrained weights: errors mean nothing)"),
        "parameters": sum(each.numel() for each in model.parameters()),
        "scope": "observation in the host's memory to actions in the host's memory; no server, no transport",
        "views": inputs.images.shape[1],
        "prompt tokens": int(inputs.token_mask.sum()),
        "prefix rows": prefix.embeddings.shape[1],
        "horizon": model.horizon,
        "steps": model.flow.steps,
        "precision": str(model.dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name() if model.device.type == "cuda" else processor(),
        "threads": threads,
        "torch": torch.__version__,
    }


def _interval(ratio: SpeedUp) -> str:
    return "" if math.isnan(ratio.low) else f" [{ratio.low:.2f}, {ratio.high:.2f}]"


def _table(costs: list[Cost]) -> str:
    from tabulate import tabulate

    from ...results.stats import durations
    from ..bench import speed_up

    rows = []
    for cost in costs:
        ratio, round_ = speed_up(cost, costs[0]), durations(cost.ns)
        share = {route: count / len(cost.ns) for route, count in cost.routes.items()}
        rows.append(
            {
                "method": cost.method,
                "p50 ms": _ms(round_.p50),
                "p90 ms": _ms(round_.p90),
                "speed-up": "" if cost is costs[0] else f"{ratio.value:.2f}{_interval(ratio)}",
                "stages ms": "  ".join(f"{name} {_ms(median(ns))}" for name, ns in cost.stages_ns.items()),
                "GFLOP": f"{cost.flops / 1e9:.4g}",
                "MB moved": f"{cost.bytes / 1e6:.4g}",
                "% of floor": f"{100 * cost.floor_ns / median(cost.ns):.0f}",
                "routes": " ".join(f"{name} {part:.0%}" for name, part in share.items()),
                "error": f"{cost.error:.3g}",
            }
        )
        if cost.peak_bytes is not None:
            rows[-1]["peak MB"] = f"{cost.peak_bytes / 1e6:.0f}"
    return tabulate(rows, headers="keys", disable_numparse=True)


def _notes(machine: Machine) -> list[str]:
    return [
        f"rated between the rounds: {machine.flops / 1e9:.0f} GFLOP/s, {machine.bytes / 1e9:.1f} GB/s",
        "% of floor: the time that matrix products, convolutions and attention need at these rates, per median",
        "observations are made up: how often a draft is accepted or a token taken over says nothing of a robot",
    ]


def _plain(cost: Cost, dense: Cost) -> dict[str, Any]:
    from ..bench import speed_up

    ratio = asdict(speed_up(cost, dense))
    return {
        **vars(cost),
        "speed_up": {key: None if math.isnan(value) else value for key, value in ratio.items()},
    }


def _ms(ns: float) -> str:
    return "" if math.isnan(ns) else f"{ns / 1e6:.4g}"
