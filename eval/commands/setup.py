"""``replan setup`` and ``replan doctor``: what the suites need besides this package, and whether it is there."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..spec import BadInput, unknown
from . import CommandFailed, NotForThisPython, json_option

STDERR = 2  # where other programs' output goes: stdout is for what scripts read
ROBOTWIN_BEFORE = (3, 12)  # the Python that upstream's wheel refuses


@click.command()
@click.argument("name", metavar="conveyor|libero|robotwin")
@json_option
def setup(name: str) -> dict[str, Any]:
    """Install what a benchmark's suites need, and try them out.

    Packages go into the Python that runs this, pinned by hash; system packages are installed as root on Debian and
    Ubuntu, elsewhere the command is printed. Without root nothing of the system changes. May be repeated.
    """
    from ...envs import SUITES
    from ..probes import TRIALS, attempt, family

    if name not in TRIALS:
        raise unknown("benchmark", name, TRIALS)
    did = []

    def say(text: str) -> None:
        did.append(text)
        click.echo(f"setup {name}: {text}", err=True)

    try:
        PREPARE[name](say)
    except OSError as error:
        raise BadInput(f"{error}; if the cache folder cannot be written, name another in REPLAN_CACHE") from error
    suite = next(suite.name for suite in SUITES.values() if family(suite) == name)
    for trial in TRIALS[name]:
        problem = attempt(trial, suite)
        if problem is not None and trial.packages:
            system_packages(problem, trial.packages, say)
            problem = attempt(trial, suite)
        if problem is not None:
            raise CommandFailed(f"{name} does not work yet: {problem}", {"setup": name, "did": did})
    say("everything needed is there; one scene was loaded and drawn")
    return {"setup": name, "did": did}


@click.command()
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@json_option
def doctor(names: tuple[str, ...]) -> dict[str, Any]:
    """Try suites out, all of them if none is named, and say what is missing and what mends it."""
    from ...envs import SUITES
    from ..probes import TRIALS, attempt, family

    for name in names:
        if name not in SUITES:
            raise unknown("suite", name, SUITES)
    try_once = functools.cache(attempt)
    found: dict[str, str | None] = {}
    for name in names or SUITES:
        kind = family(SUITES[name])
        found[name] = None
        for trial in TRIALS[kind]:
            problem = try_once(trial, name if trial.per_suite else "")
            if problem is not None:
                found[name] = f"{problem}; run `replan setup {kind}`" if trial.packages else problem
                break
        click.echo(f"{name:{max(map(len, SUITES))}}  {found[name] or 'ok'}")
    result = {"suites": {name: {"ok": problem is None, "problem": problem} for name, problem in found.items()}}
    ill = [name for name, problem in found.items() if problem is not None]
    if ill:
        raise CommandFailed(f"not usable here: {', '.join(ill)}", result)
    return result


def prepare_conveyor(say: Callable[[str], None]) -> None:
    """Needs no package that this one does not depend on."""


def prepare_libero(say: Callable[[str], None]) -> None:
    """Installs LIBERO.

    Raises:
        BadInput: Another LIBERO is installed.
    """
    from ...envs.libero.package import DISTRIBUTIONS

    complete, *others = DISTRIBUTIONS
    for name in others:
        if _version(name):
            raise BadInput(
                f"{name} {_version(name)} is installed, and {complete} has the same import name; the suites can use "
                f"{name} where its assets are complete (`replan doctor` tells). For the other one: pip uninstall {name}"
            )
    _install("libero", say)


def prepare_robotwin(say: Callable[[str], None]) -> None:
    """Installs SAPIEN and RoboTwin's task code, makes a Vulkan driver available and builds the stand-in assets.

    Raises:
        NotForThisPython: This Python cannot install upstream's wheel.
        SuiteUnavailable: No Vulkan driver can be made available.
    """
    if sys.version_info >= ROBOTWIN_BEFORE:
        this = ".".join(map(str, sys.version_info[:3]))
        raise NotForThisPython(
            f"RoboTwin's task code needs Python 3.10 or 3.11, this is {this}; all else works without it"
        )
    _install("robotwin", say)
    from ...envs import SuiteUnavailable
    from ...envs.cache import cache_folder
    from ...envs.robotwin import vulkan
    from ...envs.robotwin.standin import build

    cache = cache_folder()
    try:
        say(vulkan.setup(cache))
    except SuiteUnavailable as error:
        system_packages(str(error), (("mesa-vulkan-drivers", "libvulkan1"),), say)
        say(vulkan.setup(cache))
    try:
        build.verify(build.tree(cache))
        say(f"the stand-in assets in {build.tree(cache)} are whole")
    except SuiteUnavailable:
        say(f"built the stand-in assets in {build.build(cache)}")


PREPARE = {"conveyor": prepare_conveyor, "libero": prepare_libero, "robotwin": prepare_robotwin}


def _install(name: str, say: Callable[[str], None]) -> None:
    """Installs the packages of a lock; those that are there already stay untouched."""
    from ... import envs

    lock = Path(envs.__file__).parent / name / "requirements.lock"
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        raise BadInput(f"{sys.executable} has no pip; install with your tool: --no-deps --require-hashes -r {lock}")
    command = [*pip, "install", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", str(lock)]
    before = _installed()
    if subprocess.run(command, stdout=STDERR).returncode:
        raise CommandFailed(
            f"pip could not install the packages; its message is above. The command: {shlex.join(command)}"
        )
    importlib.invalidate_caches()
    new = sorted(f"{name} {version}" for name, version in (_installed() - before))
    say(f"installed {', '.join(new)}" if new else f"the packages of {lock} are installed")


def _installed() -> set[tuple[str, str]]:
    return {(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def system_packages(why: str, alternatives: tuple[tuple[str, ...], ...], say: Callable[[str], None]) -> None:
    """Installs the first set of packages that the distribution has, as root on Debian and Ubuntu.

    Raises:
        CommandFailed: Somebody else has to do it; the message holds the command.
    """
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        command = shlex.join([*install, *alternatives[0]])
        raise CommandFailed(f"{why}. Something of the system is missing; on Debian or Ubuntu, as root: {command}")
    subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
    known = [p for p in alternatives if not subprocess.run(["apt-cache", "show", *p], capture_output=True).returncode]
    packages = (known or alternatives)[0]
    say(f"{why}; installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*install, *packages], env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CommandFailed(f"{shlex.join([*install, *packages])} failed: {(done.stderr or done.stdout).strip()}")
