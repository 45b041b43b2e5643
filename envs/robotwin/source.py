"""Opening a world: on the stand-in assets in this process, or on the user's own assets in another."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import opengl
from ..cache import cache_folder
from ..errors import SuiteUnavailable
from . import seeds, vulkan
from .bridge import RemoteWorld, SimulatorError
from .standin import build
from .standin.embodiment import NAME
from .tasks import TASKS, standin_tasks
from .upstream import LAYOUTS, NoRenderer, Source, versions
from .world import World

ROOT, PYTHON = "REPLAN_ROBOTWIN_ROOT", "REPLAN_ROBOTWIN_PYTHON"  # environment variables
PLANNERS = ("upstream", "cpu")
_ASSETS = ("objects", "embodiments")


@dataclass(frozen=True)
class Opened:
    """A world, with what its manifests contain.

    Attributes:
        world: The world.
        tasks: Tasks that it has.
        fingerprint: What decides how a scene evolves and whether the expert solves it.
        assets: Description of the assets and their rendering, for the manifest.
        cache: Folder in which scenes may be stored that were found on this machine.
    """

    world: World | RemoteWorld
    tasks: tuple[str, ...]
    fingerprint: dict[str, str]
    assets: str
    cache: Path

    def scene(self, task: str, index: int) -> tuple[int, dict[str, str] | None]:
        """Returns the seed of a stored scene, and what its instructions name where only upstream's expert knows it.

        Raises:
            SuiteUnavailable: None are stored for these assets and versions.
        """
        return seeds.load(self.fingerprint, self.cache, task)[index]


def open_standin() -> Opened:
    """Opens upstream's code from its wheel on the asset tree that ``replan setup robotwin`` builds.

    Raises:
        SuiteUnavailable: A package, the tree or a Vulkan device is missing, or a file of the tree was changed.
    """
    cache = cache_folder()
    place = build.tree(cache)
    digest = build.verify(place)
    vulkan.activate(cache)
    opengl.claim()
    try:
        world = World(_standin(place))
    except ImportError as error:
        raise SuiteUnavailable(f"RoboTwin's task code cannot be imported ({error}); {build.MEND}") from error
    except NoRenderer as error:
        raise SuiteUnavailable(f"SAPIEN finds no Vulkan device ({error}); {vulkan.fix()}") from None
    assets = f"stand-in {digest[:12]}, rasterised, point lights without shadows"
    return Opened(world, standin_tasks(), {"assets": digest, **world.versions()}, assets, cache)


def open_real(root: str | None, python: str | None, planner: str, config: str) -> Opened:
    """Opens the user's RoboTwin in its own interpreter.

    Args:
        root: A checkout with its assets, or a folder with assets for the wheel's code; None takes it from the
            environment variable ``REPLAN_ROBOTWIN_ROOT``.
        python: Interpreter with upstream's packages; None takes it from ``REPLAN_ROBOTWIN_PYTHON``, or else this one.
        planner: ``upstream`` or, where there is no CUDA, ``cpu``.
        config: Upstream's task configuration.

    Raises:
        SuiteUnavailable: The folder, the interpreter, a package or a Vulkan device is missing.
        ValueError: The planner or the configuration is unknown.
    """
    source, interpreter = _real(root, python, planner, config)
    cache = cache_folder()
    vulkan.activate(cache)
    try:
        world = RemoteWorld(source, interpreter)
    except (ImportError, SimulatorError) as error:
        raise _unusable(interpreter, error) from None
    except NoRenderer as error:
        raise SuiteUnavailable(f"SAPIEN finds no Vulkan device ({error}); install the GPU's driver") from None
    digest = _listing(source)
    fingerprint = {"assets": digest, "config": config, **world.versions()}
    return Opened(world, TASKS, fingerprint, f"real {digest[:12]}, {config}", cache)


def standin_fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fingerprint of what :func:`open_standin` opens, without opening it, whatever the settings.

    Raises:
        SuiteUnavailable: A package or the tree is missing.
    """
    place = build.tree(cache_folder())
    try:
        return {"assets": build.digest(place), **versions(_standin(place))}
    except importlib.metadata.PackageNotFoundError as error:
        raise SuiteUnavailable(f"{error.name} is not installed; {build.MEND}") from None


def real_fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the fingerprint of what :func:`open_real` opens, without opening it.

    Args:
        settings: The environment's ``root``, ``python``, ``planner`` and ``config``, as far as they are fixed.

    Raises:
        SuiteUnavailable: The folder, the interpreter or a package is missing.
        ValueError: The planner or the configuration is unknown.
    """
    planner, config = settings.get("planner", Source.planner), settings.get("config", Source.config)
    source, interpreter = _real(settings.get("root"), settings.get("python"), planner, config)

    def installed(name: str) -> str:
        command = [interpreter, "-c", f"import importlib.metadata; print(importlib.metadata.version({name!r}))"]
        try:
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip().splitlines() or [f"exit status {error.returncode}"])[-1]
            raise _unusable(interpreter, last) from None
        except OSError as error:
            raise _unusable(interpreter, error) from None

    return {"assets": _listing(source), "config": config, **versions(source, installed)}


def _standin(place: Path) -> Source:
    return Source(str(place), robot=NAME, planner="cpu", rasterise=True)


def _real(root: str | None, python: str | None, planner: str, config: str) -> tuple[Source, str]:
    """Returns where the user's RoboTwin is, and the interpreter that runs it; see :func:`open_real`."""
    if planner not in PLANNERS:
        raise ValueError(f"planner must be one of {', '.join(PLANNERS)}, got {planner!r}")
    named = root or os.environ.get(ROOT)
    if not named:
        raise SuiteUnavailable(f"name the folder of your RoboTwin: `--set root=...`, or the variable {ROOT}")
    place = Path(named).expanduser().resolve()
    checkout = (place / "envs" / "_base_task.py").is_file()
    missing = [name for name in _ASSETS if not (place / "assets" / name).is_dir()]
    if missing:
        raise SuiteUnavailable(
            f"{place / 'assets'} has no folder {missing[0]}; download RoboTwin's assets into it as upstream documents"
        )
    if checkout and not any((place / layout / f"{config}.yml").is_file() for layout in LAYOUTS):
        raise ValueError(f"{place} has no task configuration {config!r} (looked in {', '.join(LAYOUTS)})")
    interpreter = python or os.environ.get(PYTHON) or sys.executable
    return Source(str(place), checkout, config=config, planner=planner), interpreter


def _unusable(interpreter: str, why: object) -> SuiteUnavailable:
    return SuiteUnavailable(
        f"{interpreter} cannot run RoboTwin ({why}); name the interpreter that can: `--set python=...`, or the "
        f"variable {PYTHON}"
    )


def _listing(source: Source) -> str:
    """Returns a digest of names and sizes: the files are too many gigabytes to read for each evaluation."""
    total, assets = hashlib.sha256(), Path(source.root) / "assets"
    for folder in _ASSETS:
        for path in sorted(path for path in (assets / folder).rglob("*") if path.is_file()):
            total.update(f"{path.relative_to(assets).as_posix()} {path.stat().st_size}\n".encode())
    return total.hexdigest()
