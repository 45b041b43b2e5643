"""``replan collect``: recordings of a suite's expert, for training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..spec import BadInput, unknown
from . import json_option, named


@click.command()
@click.option("--suite", required=True, metavar="NAME", help="Suite; `replan envs` lists them.")
@click.option("--task", "tasks", metavar="NAME,...", help="Tasks to record; all of the suite if missing.")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    required=True,
    help="Episodes in all: tasks share them, as in `replan eval`.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Different seeds share no initial state.",
)
@click.option("--policy", metavar="NAME|PATH", help="Let this policy act while the expert labels (DAgger).")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--out", required=True, metavar="DIR", callback=named, help="Gets one folder per task; folders that exist are kept."
)
@json_option
def collect(
    suite: str, tasks: str | None, episodes: int, seed: int, policy: str | None, workers: int, out: str
) -> dict[str, Any]:
    """Record episodes that the suite's expert labels, for training."""
    from ...envs import SUITES
    from ...policies.pi0 import TINY
    from ...policies.training.recording import Conventions
    from ..collect import Request, collect_all

    if suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    description = SUITES[suite]
    demonstrations = description.demonstrations
    if demonstrations is None:
        raise BadInput(f"suite {suite!r} has no expert to record")
    requested = [task.strip() for task in tasks.split(",")] if tasks else list(description.tasks)
    for task in requested:
        if task not in description.tasks:
            raise unknown("task", task, description.tasks)
    conventions = Conventions(
        suite=suite,
        cameras=description.cameras,
        gripper=demonstrations.gripper,
        relative=demonstrations.absolute,  # policies learn differences where actions are absolute positions
        image_size=TINY.image_size,
        open_language=demonstrations.open_language,
    )
    requests = [
        Request(
            env_id=f"replan.envs:{description.env_id}",
            conventions=conventions,
            episode=demonstrations.episode,
            task=task,
            index=description.tasks.index(task),
            out=Path(out) / task,
            episodes=share,
            seed=seed,
            horizon=TINY.horizon,
            settings=dict(demonstrations.settings),
            policy=policy,
        )
        for task, share in shared(episodes, requested).items()
    ]
    Path(out).mkdir(parents=True, exist_ok=True)  # what cannot be written is known before anything is recorded
    return {"folders": [str(request.out) for request in requests], "success": collect_all(requests, workers)}


def shared(episodes: int, tasks: list[str]) -> dict[str, int]:
    """Returns the episodes of each task: tasks take turns, so the first ones have one more, and some may have none."""
    each, more = divmod(episodes, len(tasks))
    return {task: each + (place < more) for place, task in enumerate(tasks) if each or place < more}
