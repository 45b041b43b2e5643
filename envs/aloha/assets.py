"""The scene files inside the installed gym-aloha. Its code, which needs dm_control, is not imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

from ..errors import SuiteUnavailable

SCENE = "bimanual_viperx_transfer_cube.xml"
_INCLUDED = ("scene.xml", "vx300s_dependencies.xml", "vx300s_left.xml", "vx300s_right.xml")
# Of release 0.1.5. Another scene would be another benchmark.
DIGEST = "6071a6dd29099cec"
FIX = "run `replan setup aloha`"


def folder() -> Path:
    """Returns the folder of the scene files.

    Raises:
        SuiteUnavailable: gym-aloha is not installed, or its files are not those of release 0.1.5.
    """
    spec = importlib.util.find_spec("gym_aloha")
    if spec is None or not spec.origin:
        raise SuiteUnavailable(f"gym-aloha is not installed; {FIX}")
    path = Path(spec.origin).parent / "assets"
    actual = digest(path)
    if actual != DIGEST:
        raise SuiteUnavailable(
            f"the scene in {path} has the digest {actual}, and that of gym-aloha 0.1.5 is {DIGEST}; "
            f"uninstall gym-aloha, then {FIX}"
        )
    return path


def digest(path: Path) -> str:
    """Returns a digest of the names and contents of the scene's files; "incomplete" where one is missing."""
    files = [path / name for name in (SCENE, *_INCLUDED)] + sorted(path.glob("*.stl"))
    if not all(file.is_file() for file in files):
        return "incomplete"
    contents = hashlib.sha256()
    for file in files:
        contents.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return contents.hexdigest()[:16]


def fingerprint() -> dict[str, str]:
    """Returns versions and digests, by name, of what decides how the scene looks and evolves.

    Raises:
        SuiteUnavailable: gym-aloha is missing or changed.
    """
    folder()
    return {
        "gym-aloha": importlib.metadata.version("gym-aloha"),
        "assets": DIGEST,
        "mujoco": importlib.metadata.version("mujoco"),
    }
