"""Digests of the source code that decides an episode.

A measurement is known by what made it, so an edited method, model or suite makes another measurement. The files are
found from import statements, without importing anything. So a change of a comment is a change, and what is imported
from a third package does not count (the run's record has the versions of those that matter). Python may run what it
compiled earlier, so that is compared with the source.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Collection, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader, all_suffixes
from importlib.metadata import Distribution, distributions
from pathlib import Path

from .spec import BadInput

PACKAGE = __name__.partition(".")[0]
ROOT = Path(__file__).parents[1]
CODE = {f".{suffix.rpartition('.')[2]}" for suffix in all_suffixes()}
NO_CODE = {".pyc", ".md"}  # suffixes of files that decide nothing

# Names, such as "replan/envs/world.py", which do not depend on where a package is installed.
File = tuple[str, Path]


def digest(files: Collection[File]) -> str:
    """Returns a digest (16 hex digits) of the names and contents of files.

    Raises:
        BadInput: Python would run other code than that of a file.
    """
    content = hashlib.sha256()
    for name, path in sorted(files):
        if path.suffix == ".py":
            _check_compiled(path, path.stat().st_mtime_ns)
            if name.startswith(f"{PACKAGE}/"):  # of another package every file counts, whichever is run
                _check_alone(path)
        data = path.read_bytes()
        content.update(f"{name}:{len(data)};".encode() + data)
    return content.hexdigest()[:16]


@cache
def _check_compiled(path: Path, mtime_ns: int) -> None:
    """Makes sure, once in a process, that what Python keeps of a file in ``__pycache__`` is that file compiled.

    A kept file counts as fresh where it names the source's time and size, and one that was made to be unchecked counts
    always: neither says what is in it.

    Raises:
        BadInput: It is something else.
    """
    kept = Path(importlib.util.cache_from_source(str(path)))
    if not kept.is_file():
        return
    loader = SourceFileLoader(path.stem, str(path))
    try:
        same = loader.get_code(path.stem) == loader.source_to_code(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):  # a file of another package that it never imports
        return
    if not same:
        raise BadInput(f"Python would run {kept}, which is not {path} compiled; delete it")


def _check_alone(path: Path) -> None:
    """Raises BadInput where a compiled module lies beside a file of this package: Python would prefer it."""
    for suffix in EXTENSION_SUFFIXES:
        if (other := path.with_name(f"{path.stem}{suffix}")).exists():
            raise BadInput(f"Python would run {other} and not {path}; delete it")


def imported(*modules: str) -> frozenset[File]:
    """Returns the files of modules, and of all in this package that they import, directly or not.

    Args:
        modules: Full names. For a module of another author, all files of its distribution are taken.
    """
    files: set[File] = set()
    waiting = [file for module in modules for file in (_own(module) or _foreign(module))]
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += [own for module in _imports(*file) for own in _own(module)]
    return frozenset(files)


def named(*modules: str) -> frozenset[File]:
    """Returns the files of modules of this package, and of nothing that they import."""
    return frozenset(file for module in modules for file in _own(module))


def folder(module: str) -> frozenset[File]:
    """Returns all files, data included, of the folder of a module of this package; nothing for another package's."""
    return frozenset(file for name, path in _own(module) for file in _below(path.parent, name.rpartition("/")[0]))


def _own(module: str) -> list[File]:
    """Returns the file of a module of this package; nothing if there is none of this name."""
    top, *rest = module.split(".")
    stem = ROOT.joinpath(*rest)
    for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
        if top == PACKAGE and rest and path.is_file():
            return [(f"{PACKAGE}/{path.relative_to(ROOT).as_posix()}", path)]
    return []


def _foreign(module: str) -> list[File]:
    """Returns all files of the distributions that a module comes from; of its top-level package where none is known."""
    top = module.partition(".")[0]
    return [file for name in _together(top, tuple(sys.path)) for file in _top_level(name)]


@cache
def _together(top: str, _: tuple[str, ...]) -> list[str]:
    """Returns the top-level names of the distributions that one of them comes from; it takes a second to ask all."""
    shared = [names for each in distributions() if top in (names := _top_levels(each))]
    return sorted({top}.union(*shared))


def _top_levels(distribution: Distribution) -> set[str]:
    """Returns the names that a distribution adds to those which can be imported.

    An editable installation lists no files of its own, so only what it declares is known.
    """
    declared = (distribution.read_text("top_level.txt") or "").split()
    parts = [file.parts for file in distribution.files or () if file.suffix in CODE]
    names = {*declared, *(first.partition(".")[0] for first, *_ in parts)}
    return {name for name in names if name.isidentifier() and not name.startswith("__editable__")}


def _top_level(top: str) -> list[File]:
    """Returns all files of a package or module of another author."""
    found = getattr(sys.modules.get(top), "__file__", None)
    places = getattr(sys.modules.get(top), "__path__", ())
    if found is None and top not in sys.modules and (spec := importlib.util.find_spec(top)):
        found, places = spec.origin, spec.submodule_search_locations or ()
    if found is None:  # a namespace: whatever of it there is, in all places; nothing of a module that was typed in
        return [file for place in places for file in _below(Path(place), top)]
    path = Path(found)
    return _below(path.parent, top) if path.name == "__init__.py" else [(path.name, path)]


def _below(top: Path, name: str) -> list[File]:
    """Returns the files below a folder, also behind links to folders: what is imported through them decides as much."""
    files, seen = [], set()
    for folder, folders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        files += [Path(folder, each) for each in sorted(names) if not each.startswith(".")]
    code = [path for path in files if path.suffix not in NO_CODE and path.is_file()]
    return [(f"{name}/{path.relative_to(top).as_posix()}", path) for path in code]


def _imports(name: str, path: Path) -> Iterator[str]:
    """Yields the modules that a Python file may import: for ``from a import b`` both ``a.b`` and ``a``."""
    if path.suffix != ".py":
        return
    package = name.split("/")[:-1]
    for node in _statements(path, path.stat().st_mtime_ns):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from names
            if not all(map(_own, names)):  # something is defined in the package itself
                yield base


@cache
def _statements(path: Path, mtime_ns: int) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Returns the import statements of a Python file, wherever in it they are."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file of another package that it never imports
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
