"""``replan methods``: the acceleration methods, what each replaces, and the families that each runs on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..spec import unknown
from . import json_option, show


@click.command()
@click.argument("names", nargs=-1, metavar="[METHOD]...")
@json_option
def methods(names: tuple[str, ...]) -> dict[str, Any]:
    """List methods, their options, and the families they run on."""
    from ..registry import Registry

    entries, unavailable = Registry().methods()
    for name in names:
        if name not in unavailable and name not in [each.name for each in entries]:
            raise unknown("method", name, [*(each.name for each in entries), *unavailable])
    entries = [each for each in entries if each.name in names or not names]
    unavailable = {name: reason for name, reason in unavailable.items() if name in names or not names}
    for each in entries:
        options = [key if value is None else f"{key}={value}" for key, value in each.options.items()]
        lines = {
            "options": ", ".join(options) or "none",
            "replaces": ", ".join(each.seams) or "nothing",
            "dense at": each.limit,
            "families": ", ".join(each.families) or "none",
            "papers": ", ".join(f"arXiv {paper}" for paper in each.papers),
        }
        if names:
            lines |= {f"not {family}": reason for family, reason in each.refused.items()}
        width = max(map(len, lines))
        show("\n".join([f"{each.name}: {each.summary}", *(f"  {k:{width}}  {v}" for k, v in lines.items() if v)]))
    for name, reason in unavailable.items():
        show(f"{name}, unavailable: {reason}")
    return {"methods": [asdict(each) for each in entries], "unavailable": unavailable}
