"""Writes docs/robotwin_tasks.md: how often upstream's expert solves each task on the stand-in assets.

Usage: python tools/robotwin_table.py > docs/robotwin_tasks.md
It counts the solved scenes in envs/robotwin/seeds.json, which replan.envs.robotwin.find_scenes writes.
"""

import importlib.resources
import json
import re
from textwrap import shorten

import yaml
from replan.envs.robotwin.find_scenes import FIRST, MOST
from replan.envs.robotwin.tasks import COUNT, STORED, TASKS

FRESH = 20  # scenes that the rate is counted over
HEAD = f"""# RoboTwin's tasks on the stand-in assets

Written by `tools/robotwin_table.py` from the stored scenes, `envs/robotwin/seeds.json`; see [RoboTwin](robotwin.md).

*Solved* counts upstream's own expert (`play_once`, unmodified) by upstream's own rule (`check_success`) over the scenes
{FIRST} to {FIRST + FRESH - 1}; no scene from {FIRST} on was looked at while the objects were made. A scene whose
objects do not come to rest counts as not solved. *Tried* is how many scenes it took to find the {COUNT} that are
evaluated. A task whose expert does not solve {COUNT} of the first {MOST} is left out of the suite. {FRESH} of {FRESH}
still allows a true rate of 86 % (95 %, one-sided).

| task | upstream says | solved of {FRESH} | tried for {COUNT} | actions at most |
|---|---|---|---|---|"""


def main() -> None:
    """Prints the page."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    package = importlib.resources.files("robotwin")
    limits = yaml.safe_load((package / "configs" / "task" / "_eval_step_limit.yml").read_text(encoding="utf-8"))
    print(HEAD)
    for task in TASKS:
        text = (package / "description" / "task_instruction" / f"{task}.json").read_text(encoding="utf-8")
        says = shorten(re.sub("[<>|]", "", json.loads(text)["full_description"]), 90, placeholder=" …")
        scenes = [entry if isinstance(entry, int) else entry[0] for entry in stored["tasks"][task]]
        solved, tried = sum(scene < FIRST + FRESH for scene in scenes), scenes[-1] - FIRST + 1
        print(f"| `{task}` | {says} | {solved} | {tried} | {limits[task]} |")
    fingerprint = ", ".join(f"{name} {value[:12]}" for name, value in stored["fingerprint"].items())
    print(f"\nMeasured with: {fingerprint}.")


if __name__ == "__main__":
    main()
