"""Writes envs/libero/tasks.json and assets.json: LIBERO's 130 tasks and the files they are built from, with digests.

Run it with a package whose files are known to be upstream's: ``python tools/libero_manifest.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from replan.envs.libero import upstream
from replan.envs.libero.package import ASSETS
from replan.envs.libero.tasks import INIT_STATES, SUITES, TABLE, Task, array_digest
from replan.envs.libero.verify import sha256


class _Seen(Exception):
    """The model's XML is there; nothing needs to be simulated."""


def main() -> None:
    """Writes both files."""
    libero = upstream.load()
    from libero.libero.benchmark import task_maps
    from libero.libero.envs.env_wrapper import ControlEnv
    from robosuite.environments.base import MujocoEnv

    files: set[Path] = set()
    sys.addaudithook(lambda event, arguments: _note(files, libero.assets, arguments[0]) if event == "open" else None)

    def keep_what_the_model_names(self, xml_string=None):
        for line in self.model.get_xml().split("<"):
            if 'file="' in line:
                _note(files, libero.assets, line.split('file="')[1].split('"')[0])
        raise _Seen

    MujocoEnv._initialize_sim = keep_what_the_model_names
    table = {}
    for suite in SUITES:
        table[suite] = []
        for name, found in task_maps[suite].items():
            task = Task(suite, name, found.language, "", "")
            states = libero.init_states(task)
            assert len(states) == INIT_STATES
            row = {"name": name, "language": task.language, "bddl": sha256(libero.bddl_file(task))}
            table[suite].append({**row, "init_states": array_digest(states)})
            try:
                ControlEnv(str(libero.bddl_file(task)), has_offscreen_renderer=False, use_camera_obs=False)
            except _Seen:
                pass
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    rows = (
        f"{json.dumps(path.relative_to(libero.assets).as_posix())}: {json.dumps([path.stat().st_size, sha256(path)])}"
        for path in sorted(files)
    )
    ASSETS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def _note(files: set[Path], folder: Path, name: object) -> None:
    if isinstance(name, str) and "/" in name:
        path = Path(name).resolve()
        if path.is_relative_to(folder):
            files.add(path)


if __name__ == "__main__":
    main()
