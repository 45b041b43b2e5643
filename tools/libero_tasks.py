"""Writes envs/libero/tasks.json: the 130 tasks of LIBERO, with digests of what defines them.

Run it with a package whose files are known to be upstream's: ``python tools/libero_tasks.py``.
"""

from __future__ import annotations

import hashlib
import json

from replan.envs.libero import upstream
from replan.envs.libero.tasks import INIT_STATES, TABLE, Task, array_digest

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


def main() -> None:
    """Writes the table."""
    libero = upstream.load()
    from libero.libero.benchmark import task_maps

    table = {}
    for suite in SUITES:
        table[suite] = []
        for name, found in task_maps[suite].items():
            task = Task(suite, name, found.language, "", "")
            states = libero.init_states(task)
            assert len(states) == INIT_STATES
            bddl = hashlib.sha256(libero.bddl_file(task).read_bytes()).hexdigest()
            table[suite].append(
                {"name": name, "language": task.language, "bddl": bddl, "init_states": array_digest(states)}
            )
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
