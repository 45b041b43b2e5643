"""``replan library``: libraries of executions, from which methods take work over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...results.escaping import counted
from ..spec import BadInput
from . import json_option, named, show


@click.group()
def library() -> None:
    """Libraries of executions, from which methods take work over."""


@library.command()
@click.option("--policy", metavar="NAME|PATH", help="The policy that plays; the suite's own if missing.")
@click.option("--suite", required=True, metavar="NAME", help="Suite; `replan envs` lists them.")
@click.option("--task", "tasks", metavar="NAME,...", help="Tasks to play; all of the suite if missing.")
@click.option(
    "--episodes", type=click.IntRange(min=1), default=6, show_default=True, help="Episodes per task at first."
)
@click.option(
    "--more",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Episodes per task that then fill gaps.",
)
@click.option(
    "--neurons", default="0.25,0.5,0.75", show_default=True, metavar="SHARE,...", help="Shares that masks are made for."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=500, show_default=True, help="Different seeds share no initial state."
)
@click.option(
    "--out", metavar="DIR", callback=lambda c, o, v: v and named(c, o, v), help="Next to a policy of yours if missing."
)
@click.option("--overwrite", is_flag=True, help="Replace the library that is there.")
@json_option
def build(
    policy: str | None,
    suite: str,
    tasks: str | None,
    episodes: int,
    more: int,
    neurons: str,
    seed: int,
    out: str | None,
    overwrite: bool,
) -> dict[str, Any]:
    """Play episodes with the dense policy and keep those that succeed."""
    from ...accel.library import INDEX, library_path
    from ...policies.families import shipped_policies
    from ..library import Builder
    from ..registry import Registry

    try:
        ratios = tuple(float(text) for text in neurons.split(","))
    except ValueError as error:
        raise BadInput(f"--neurons must be shares such as 0.25,0.5, got {neurons!r}") from error
    builder = Builder(Registry(), suite, policy, ratios=ratios, seed=seed)
    folder = Path(out) if out else library_path(builder.player.policy.path)
    if not out and builder.player.policy.path in shipped_policies().values():
        raise BadInput(
            f"{builder.player.policy.name!r} comes with replan, and what lies next to it is used by everybody's "
            f"evaluations here; write --out DIR, and evaluate rmuscle:library=DIR (--out {folder} to do it anyway)"
        )
    if (folder / INDEX).exists() and not overwrite:
        raise BadInput(f"{str(folder)!r} holds a library; write another --out, or --overwrite to replace it")
    built = builder.build(builder.player.tasks(tasks), episodes, more, folder)
    by_task = ", ".join(f"{counted(number, 'episode')} of {task}" for task, number in built.episodes.items())
    show(f"{built.folder}: {by_task}, {counted(built.rounds, 'round')}, {built.bytes / 1e6:.1f} MB")
    return {"library": str(built.folder), "episodes": built.episodes, "rounds": built.rounds, "bytes": built.bytes}
