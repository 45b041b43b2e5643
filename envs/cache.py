"""The one folder outside its own tree that this package writes to unrequested."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Returns the folder for what is made once per machine, whether it exists or not.

    It is ``$REPLAN_CACHE``, or else ``replan`` in the user's cache folder (``$XDG_CACHE_HOME``, or ``~/.cache``).
    """
    if named := os.environ.get("REPLAN_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replan"
