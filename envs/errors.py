"""Errors of the suites: what is missing on this machine, and what the user can do about it."""

from __future__ import annotations


class SuiteUnavailable(ImportError):
    """A suite cannot be used on this machine: a package or file is missing or does not fit. The message has the fix."""


class UnsupportedPython(SuiteUnavailable):
    """A suite exists for other versions of Python only, so nothing that is installed here can fix it."""


class SystemPackagesMissing(SuiteUnavailable):
    """A suite lacks something that the operating system has to provide.

    Attributes:
        alternatives: Sets of Debian and Ubuntu packages, each of which is enough. The names differ between releases.
    """

    def __init__(self, message: str, alternatives: tuple[tuple[str, ...], ...]) -> None:
        super().__init__(message)
        self.alternatives = alternatives
