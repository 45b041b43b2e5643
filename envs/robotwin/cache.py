"""The one folder that this project writes outside its own tree."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns the folder for what is built once a machine: ``$REPLAN_CACHE``, or ``~/.cache/replan``."""
    named = os.environ.get("REPLAN_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "replan"
