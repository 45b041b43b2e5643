"""Suites: their description, what their installation needs, and the list of folders and packages they come from.

A suite's folder has a module ``suite.py``, which imports no simulator and exports ``SUITES``, a tuple of
:class:`Suite`, and ``INSTALL``, an :class:`Install`. Other packages name such a module in the
entry-point group ``replan.suites``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from .checks import Check
from .demonstrations import Demonstrations

BUILT_IN = (  # one line per suite folder
    "aloha",
    "conveyor",
    "libero",
    "packing",
    "robotwin",
)
ENTRY_POINTS = "replan.suites"


@dataclass(frozen=True)
class Suite:
    """A benchmark, described without its simulator.

    Attributes:
        name: What users write in ``--suite``.
        env_id: Gymnasium id, which is registered from ``entry_point`` and ``kwargs``.
        entry_point: Class of the environment, ``module:class``.
        tasks: Task names, as ``reset(options={"task": ...})`` takes them.
        kwargs: Arguments that make the environment this suite.
        init_states: Number of initial states per task, or None where they are sampled without end.
        cameras: Observation keys of the images.
        settings: Environment arguments that a user may fix with ``--set``, and their types.
        demonstrations: How the expert is recorded; None where there is no expert.
        marks: What a reader of results must know: a badge of a word or two, a colon, one sentence.
        policy: Bundled policy used where the user names none; None where there is none.
        block: Initial states of a task that one worker runs in a row: more than 1 where another task means building
            another simulator.
        fingerprint: Returns versions and digests, by name, of everything besides this package that the suite is made
            of, on this machine and with the given settings. Runs with different fingerprints are different runs. It
            builds nothing and needs no simulator; what is missing raises
            :class:`~replan.envs.errors.SuiteUnavailable`. None where this package is everything.
    """

    name: str
    env_id: str
    entry_point: str
    tasks: tuple[str, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init_states: int | None = None
    cameras: tuple[str, ...] = ()
    settings: Mapping[str, type] = field(default_factory=dict)
    demonstrations: Demonstrations | None = None
    marks: tuple[str, ...] = ()
    policy: str | None = None
    block: int = 1
    fingerprint: Callable[[Mapping[str, Any]], dict[str, str]] | None = None


def _nothing(say: Callable[[str], None]) -> None:
    pass


@dataclass(frozen=True)
class Install:
    """What the suites of one folder need besides this package. ``replan setup NAME`` does the steps in this order.

    Attributes:
        name: What users write in ``replan setup``.
        checks: What has to work afterwards; ``replan doctor`` runs them too.
        precondition: Raises :class:`~replan.envs.errors.SuiteUnavailable` where an installation cannot succeed, before
            anything is changed.
        lock: Requirements file with hashes that pip installs; None where no package is needed.
        prepare: Makes everything else that is missing, and reports each step to its argument. It may be repeated. It
            raises :class:`~replan.envs.errors.SystemPackagesMissing` for what the operating system has to provide;
            setup then installs that and calls it again.
        packages: Distributions whose versions can change a result, for a run's provenance.
    """

    name: str
    checks: tuple[Check, ...] = ()
    precondition: Callable[[], None] | None = None
    lock: Path | None = None
    prepare: Callable[[Callable[[str], None]], None] = _nothing
    packages: tuple[str, ...] = ()


class SuiteError(TypeError):
    """A suite module does not export what it has to."""


class Catalogue(NamedTuple):
    """All suites that are installed.

    Attributes:
        suites: By name.
        installs: What each suite needs, by the suite's name.
        unavailable: Entry points that could not be loaded, by name, with the reason.
    """

    suites: dict[str, Suite]
    installs: dict[str, Install]
    unavailable: dict[str, str]


def load() -> Catalogue:
    """Imports all suite modules and registers their environments with Gymnasium.

    An entry point that fails makes only its own suites unavailable.
    """
    catalogue = Catalogue({}, {}, {})
    for folder in BUILT_IN:
        _add(catalogue, importlib.import_module(f"{__package__}.{folder}.suite"))
    for entry_point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        try:
            _add(catalogue, entry_point.load())
        except (Exception, SystemExit) as error:  # another package's code: whatever it raises, ours goes on
            reason = str(error) if isinstance(error, SuiteError) else f"{type(error).__name__}: {error}"
            catalogue.unavailable[entry_point.name] = f"{entry_point.value} cannot be loaded ({reason})"
    return catalogue


def _add(catalogue: Catalogue, module: Any) -> None:
    """Adds the suites of a module: all of them, or none.

    Raises:
        SuiteError: It exports something else, or a name that is taken.
    """
    suites, install = getattr(module, "SUITES", None), getattr(module, "INSTALL", None)
    if not isinstance(suites, tuple) or not suites or not all(isinstance(suite, Suite) for suite in suites):
        raise SuiteError(f"SUITES must be a tuple of Suite, got {suites!r}; import replan.envs before the module")
    if not isinstance(install, Install):
        raise SuiteError(f"INSTALL must be an Install, got {install!r}")
    names = [suite.name for suite in suites]
    for name in names:
        if name in catalogue.suites or names.count(name) > 1:
            raise SuiteError(f"the suite name {name!r} is taken; choose another")
    for suite in suites:
        if suite.env_id in gymnasium.registry or [each.env_id for each in suites].count(suite.env_id) > 1:
            raise SuiteError(f"the Gymnasium id {suite.env_id!r} is taken; choose another")
    if install.name in {each.name for each in catalogue.installs.values()}:
        raise SuiteError(f"the name {install.name!r} for `replan setup` is taken; choose another")
    for suite in suites:
        gymnasium.register(suite.env_id, suite.entry_point, kwargs=dict(suite.kwargs))
        catalogue.suites[suite.name], catalogue.installs[suite.name] = suite, install
