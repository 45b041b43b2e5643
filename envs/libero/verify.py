"""Whether the installed LIBERO is the one that published results come from, file by file."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path

from ..errors import SuiteUnavailable
from .package import ASSETS, FIX
from .tasks import SUITES, Task, array_digest, tasks_of
from .upstream import Upstream, load


@functools.cache
def usable() -> Upstream:
    """Imports the installed LIBERO and makes sure that its asset tree is complete, by sizes.

    Raises:
        SuiteUnavailable: It is not installed, does not fit, or files are missing.
    """
    upstream = load()
    problems = missing_assets(upstream)
    if problems:
        raise SuiteUnavailable(f"{problems[0]} ({len(problems)} files of LIBERO in all); {FIX}")
    return upstream


def verify(upstream: Upstream | None = None) -> list[str]:
    """Compares everything that the 130 tasks are built from with committed digests; takes some seconds.

    Args:
        upstream: Where to look; None takes the installed package.

    Returns:
        The problems, one line each.
    """
    if upstream is None:
        try:
            upstream = load()
        except SuiteUnavailable as error:
            return [str(error)]
    problems = missing_assets(upstream)
    for name, (size, digest) in _assets().items():
        path = upstream.assets / name
        if path.is_file() and path.stat().st_size == size and sha256(path) != digest:
            problems.append(f"{path} differs from upstream's")
    for suite in SUITES:
        for task in tasks_of(suite).values():
            problems += task_problems(upstream, task)
    return problems


def missing_assets(upstream: Upstream) -> list[str]:
    """Returns a line for each mesh, texture or scene that is missing or has another size; takes some milliseconds."""
    problems = []
    for name, (size, _) in _assets().items():
        path = upstream.assets / name
        actual = path.stat().st_size if path.is_file() else None
        if actual != size:
            problems.append(f"{path} is missing" if actual is None else f"{path} has {actual} bytes instead of {size}")
    return problems


def task_problems(upstream: Upstream, task: Task) -> list[str]:
    """Returns the problems of the definition and the initial states of a task."""
    problems, path = [], upstream.bddl_file(task)
    if not path.is_file() or sha256(path) != task.bddl:
        problems.append(f"{path} is missing or differs from upstream's")
    try:
        if array_digest(upstream.init_states(task)) != task.init_states:
            problems.append(f"the initial states of {task.name} differ from upstream's")
    except SuiteUnavailable as error:
        problems.append(str(error))
    return problems


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _assets() -> dict[str, tuple[int, str]]:
    return json.loads(ASSETS.read_text(encoding="utf-8"))
