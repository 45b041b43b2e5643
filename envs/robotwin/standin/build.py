"""Builds the stand-in asset tree once a machine, and tells later whether it is still what was built.

A tree that is there is complete: it is built in a temporary folder beside its place and renamed. Its manifest has one
digest a file (what may have been damaged since) and one of what the files mean (what stored seeds depend on).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ... import SuiteUnavailable
from .embodiment import NAME, build_embodiment

MEND = "run `replan setup robotwin`"
_MANIFEST = "manifest.json"
_MESHES = (".glb", ".stl")
_RESOLUTION = 1e-5  # metres


def tree(cache: Path) -> Path:
    """Returns the folder of the tree, whether it is there or not: what RoboTwin calls its assets' root."""
    return cache / "robotwin" / "standin"


def build(cache: Path) -> Path:
    """Builds the tree in place of any that is there.

    Returns:
        The folder of the tree.

    Raises:
        SuiteUnavailable: A package that it is made from is missing.
    """
    try:
        from .objects import build_objects  # only who builds needs the shapes
    except ModuleNotFoundError as error:
        raise SuiteUnavailable(f"{error.name} is not installed; {MEND}") from error

    place = tree(cache)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="standin-") as scratch:
        root = Path(scratch) / "tree"
        assets = root / "assets"
        build_embodiment(assets / "embodiments" / NAME)
        build_objects(assets / "objects")
        (assets / "background_texture").mkdir()  # upstream looks for the folder; its plain setting reads nothing in it
        files = {path.relative_to(root).as_posix(): _hash(path) for path in _files(root)}
        manifest = {"recipe": _recipe(), "digest": meaning(root), "files": files}
        (root / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        old = Path(scratch) / "old"
        if place.exists():
            place.rename(old)
        try:
            root.rename(place)
        except OSError:
            if (place / _MANIFEST).is_file():  # another process was as fast
                return place
            if old.exists():
                old.rename(place)
            raise
    return place


def verify(place: Path) -> str:
    """Checks every file against the manifest.

    Returns:
        The digest of what the files mean.

    Raises:
        SuiteUnavailable: There is no tree, another version built it, or it was changed since.
    """
    manifest = _manifest(place)
    if manifest.get("recipe") != _recipe():
        raise SuiteUnavailable(f"the stand-in asset tree in {place} was built by another version; {MEND}")
    for name, expected in manifest["files"].items():
        if not (place / name).is_file() or _hash(place / name) != expected:
            raise SuiteUnavailable(f"{place / name} is not what was built; {MEND} to build the tree again")
    return str(manifest["digest"])


def digest(place: Path) -> str:
    """Returns the tree's digest without reading its files.

    Raises:
        SuiteUnavailable: There is no tree.
    """
    return str(_manifest(place)["digest"])


def meaning(root: Path) -> str:
    """Returns a digest of the tree that is the same on every processor.

    Meshes count with their colours, with vertices rounded, and without the exporter's remarks: the last bits of a
    cosine, and the headers that a library writes, differ between machines and versions.
    """
    total = hashlib.sha256()
    for path in _files(root):
        total.update(path.relative_to(root).as_posix().encode() + b"\0")
        total.update(_geometry(path) if path.suffix in _MESHES else path.read_bytes())
    return total.hexdigest()


def _geometry(path: Path) -> bytes:
    import trimesh

    loaded: Any = trimesh.load(path, force="scene", process=False)
    parts = []
    for name in sorted(loaded.graph.nodes_geometry):
        transform, geometry = loaded.graph[name]
        mesh = loaded.geometry[geometry].copy().apply_transform(transform)
        # The odd offset keeps sizes that people choose away from where rounding turns.
        corners = np.floor(mesh.vertices / _RESOLUTION + 0.3719).astype(np.int32)[mesh.faces]
        material = getattr(mesh.visual, "material", None)
        colour = getattr(material, "baseColorFactor", ())
        parts.append(corners.tobytes() + bytes(int(channel) for channel in colour))
    return b"".join(parts)


def _manifest(place: Path) -> dict[str, Any]:
    try:
        return json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SuiteUnavailable(f"there is no stand-in asset tree in {place}; {MEND}") from None


def _recipe() -> str:
    """Returns a digest of the code that builds the tree."""
    total = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != _MANIFEST)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
