"""``replan replay``: a run again, under the latencies of another device."""

from __future__ import annotations

from typing import Any

import click

from ..spec import DEVICES
from . import json_option, named


@click.command()
@click.argument("directory", metavar="RUN")
@click.option(
    "--latency",
    required=True,
    metavar="SOURCE",
    help="fixed:58ms, profile:NAME or resample:RUN, with :scale=, :jitter=, :network= or :seed= behind it.",
)
@click.option("--method", "methods", metavar="METHOD,...", help="Methods of the run.  [all]")
@click.option(
    "--device", metavar="|".join(DEVICES), default="auto", show_default=True, help="Where the policy runs here."
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@click.option("--out", required=True, metavar="DIR", callback=named, help="Run directory of the new episodes.")
@json_option
@click.pass_obj
def replay(
    arguments: list[str], directory: str, latency: str, methods: str | None, device: str, workers: int, out: str
) -> dict[str, Any]:
    """Play a run's cells again under other latencies.

    The policy acts anew, in a world that moves while a round takes as long as it did on another device. The new
    episodes are a run of their own, and are never paired with those of the first one.
    """
    from ...results.store import Store
    from ..registry import Registry
    from ..replay import replay_spec
    from .evaluate import run_and_show

    registry = Registry()
    names = [name.strip() for name in methods.split(",")] if methods else []
    with Store.open(directory) as store:
        spec = replay_spec(store, registry, latency=latency, out=out, methods=names, device=device, workers=workers)
    return run_and_show(spec, registry, arguments)
