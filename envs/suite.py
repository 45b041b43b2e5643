"""Suites: their description, what their installation needs, and the list of folders and packages they come from.

A suite's folder has a module ``suite.py``, which imports no simulator and exports ``SUITES``, a tuple of
:class:`Suite`, and ``INSTALL``, an :class:`Install`. Other packages name such a module in the
entry-point group ``replan.suites``.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from .checks import Check
from .demonstrations import Demonstrations
from .errors import SuiteUnavailable


class SuiteError(TypeError):
    """A suite is described wrongly, or its module does not export what it has to."""


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
        instructions: Instructions by task, of tasks that have the same one in every episode: a policy that cannot read
            one is refused before anything is built.
        demonstrations: How the expert is recorded; None where there is no expert.
        marks: What a reader of results must know: a badge of a word or two, a colon, one sentence.
        policy: Bundled policy used where the user names none; None where there is none.
        block: Initial states of a task that one worker runs in a row: more than 1 where another task means building
            another simulator.
        fingerprint: Returns versions and digests, by name, of everything besides this package that the suite is made
            of, on this machine and with the given settings. Runs with different fingerprints are different runs. It
            builds nothing and needs no simulator; what is missing raises
            :class:`~replan.envs.errors.SuiteUnavailable`, as does whatever else it raises but a ``ValueError``, which
            refuses a setting. None where this package is everything.

    Raises:
        SuiteError: An attribute is of another type or out of range.
    """

    name: str
    env_id: str
    entry_point: str
    tasks: tuple[str, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init_states: int | None = None
    cameras: tuple[str, ...] = ()
    settings: Mapping[str, type] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
    demonstrations: Demonstrations | None = None
    marks: tuple[str, ...] = ()
    policy: str | None = None
    block: int = 1
    fingerprint: Callable[[Mapping[str, Any]], dict[str, str]] | None = None

    def __post_init__(self) -> None:
        """Checks every attribute: packages of others write them."""
        if not _fits(_NAME, self.name):
            raise SuiteError(f"a suite's name must be letters, digits, '_', '.' and '-', got {self.name!r}")
        for attribute, fits, wanted in (
            ("env_id", _fits(_ENV_ID, self.env_id), "a Gymnasium id such as 'shelf/Shelf-v0'"),
            ("entry_point", _fits(_ENTRY_POINT, self.entry_point), "'module:class'"),
            ("tasks", _words(self.tasks, _NAME) and self.tasks, "a tuple of different names, and at least one"),
            ("kwargs", _named(self.kwargs), "arguments by name"),
            ("init_states", self.init_states is None or _positive(self.init_states), "at least 1, or None"),
            ("cameras", _words(self.cameras, _NAME), "a tuple of different names"),
            ("settings", _named(self.settings) and _KINDS.issuperset(self.settings.values()), _SETTINGS),
            ("instructions", _instructions(self.instructions, self.tasks), "lines of text by task"),
            ("demonstrations", isinstance(self.demonstrations, Demonstrations | None), "Demonstrations, or None"),
            ("marks", _words(self.marks, _LINE), "a tuple of different lines of text"),
            ("policy", self.policy is None or _fits(_LINE, self.policy), "a name, or None"),
            ("block", _positive(self.block), "at least 1"),
            ("fingerprint", self.fingerprint is None or callable(self.fingerprint), "a function, or None"),
        ):
            if not fits:
                raise SuiteError(f"suite {self.name!r}: {attribute} must be {wanted}, got {getattr(self, attribute)!r}")
        if self.fingerprint is not None:
            object.__setattr__(self, "fingerprint", _guarded(self.name, self.fingerprint))


_NAME, _LINE = re.compile(r"[A-Za-z0-9][\w.\-]*", re.ASCII), re.compile(r"[^\W_].*")
_ENV_ID = re.compile(r"([\w\-]+/)?[\w\-]+-v\d+", re.ASCII)
_ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_KINDS = frozenset({bool, int, float, str})
_SETTINGS = "bool, int, float or str by the name of the argument"


def _fits(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and pattern.fullmatch(value) is not None


def _words(values: Any, pattern: re.Pattern[str]) -> bool:
    return (
        isinstance(values, tuple) and all(_fits(pattern, each) for each in values) and len(set(values)) == len(values)
    )


def _named(values: Any) -> bool:
    return isinstance(values, Mapping) and all(isinstance(name, str) and name.isidentifier() for name in values)


def _instructions(values: Any, tasks: tuple[str, ...]) -> bool:
    return isinstance(values, Mapping) and all(task in tasks and _fits(_LINE, text) for task, text in values.items())


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _guarded(
    name: str, fingerprint: Callable[[Mapping[str, Any]], dict[str, str]]
) -> Callable[[Mapping[str, Any]], dict[str, str]]:
    """Returns a suite's fingerprint function that names the suite in whatever goes wrong."""

    @functools.wraps(fingerprint)
    def guarded(settings: Mapping[str, Any]) -> dict[str, str]:
        try:
            parts = fingerprint(settings)
        except (SuiteUnavailable, ValueError):
            raise
        except Exception as error:
            raise SuiteUnavailable(f"suite {name!r} has no fingerprint ({type(error).__name__}: {error})") from error
        if not isinstance(parts, dict) or not all(isinstance(each, str) for item in parts.items() for each in item):
            raise SuiteUnavailable(f"suite {name!r} has a fingerprint that is no text by name: {parts!r}")
        return parts

    return guarded


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

    Raises:
        SuiteError: An attribute is of another type.
    """

    name: str
    checks: tuple[Check, ...] = ()
    precondition: Callable[[], None] | None = None
    lock: Path | None = None
    prepare: Callable[[Callable[[str], None]], None] = _nothing
    packages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks every attribute: packages of others write them."""
        if not _fits(_NAME, self.name):
            raise SuiteError(f"a name for `replan setup` must be letters, digits, '_', '.' and '-', got {self.name!r}")
        checks = isinstance(self.checks, tuple) and all(isinstance(check, Check) for check in self.checks)
        for attribute, fits, wanted in (
            ("checks", checks, "a tuple of Check"),
            ("precondition", self.precondition is None or callable(self.precondition), "a function, or None"),
            ("lock", isinstance(self.lock, Path | None), "a Path, or None"),
            ("prepare", callable(self.prepare), "a function"),
            ("packages", _words(self.packages, _NAME), "a tuple of different names"),
        ):
            if not fits:
                raise SuiteError(f"setup {self.name!r}: {attribute} must be {wanted}, got {getattr(self, attribute)!r}")


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
    registered: list[str] = []
    try:
        for suite in suites:
            gymnasium.register(suite.env_id, suite.entry_point, kwargs=dict(suite.kwargs))
            registered.append(suite.env_id)
    except Exception as error:
        for env_id in registered:
            del gymnasium.registry[env_id]
        raise SuiteError(f"Gymnasium does not register {suites[len(registered)].env_id!r}: {error}") from error
    for suite in suites:
        catalogue.suites[suite.name], catalogue.installs[suite.name] = suite, install
