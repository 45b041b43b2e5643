"""``replan setup`` and ``replan doctor``: install what the suites need besides this package, and check it."""

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
from . import CommandFailed, NotForThisPython, json_option, show

STDERR = 2  # where the output of other programs goes: stdout belongs to scripts


@click.command()
@click.argument("name", metavar="NAME")
@json_option
def setup(name: str) -> dict[str, Any]:
    """Install what the suites of a benchmark need, and check them.

    NAME is that of a benchmark, such as libero, robotwin or aloha. Packages go into the Python that runs this, pinned
    by hash; system packages are installed as root on Debian and Ubuntu, elsewhere the command is printed. Without root
    nothing of the system changes. May be repeated.
    """
    from ...envs import INSTALLS
    from ...envs.errors import SystemPackagesMissing, UnsupportedPython
    from ..probes import run_check

    suites = {install.name: suite for suite, install in reversed(INSTALLS.items())}  # the first suite of each
    if name not in suites:
        raise unknown("benchmark", name, suites)
    install, done = INSTALLS[suites[name]], []

    def say(text: str) -> None:
        done.append(text)
        click.echo(f"setup {name}: {text}", err=True)

    try:
        if install.precondition is not None:
            install.precondition()
        if install.lock is not None:
            install_packages(install.lock, say)
        try:
            install.prepare(say)
        except SystemPackagesMissing as error:
            system_packages(str(error), error.alternatives, say)
            install.prepare(say)
    except UnsupportedPython as error:
        raise NotForThisPython(str(error)) from error
    except OSError as error:
        raise BadInput(f"{error}; if the cache folder cannot be written, name another in REPLAN_CACHE") from error
    for check in install.checks:
        problem = run_check(check, suites[name])
        if problem is not None and check.packages:
            system_packages(problem, check.packages, say)
            problem = run_check(check, suites[name])
        if problem is not None:
            raise CommandFailed(f"{name} does not work yet: {problem}", {"setup": name, "done": done})
    say("everything needed is installed; the checks passed")
    return {"setup": name, "done": done}


@click.command()
@click.argument("names", nargs=-1, metavar="[SUITE]...")
@json_option
def doctor(names: tuple[str, ...]) -> dict[str, Any]:
    """Check suites, all by default, and print what fixes them.

    Exit code 1 means that a suite is broken, or that one that is named is not set up.
    """
    from ...envs import INSTALLS, UNAVAILABLE
    from ..probes import NotSetUp, run_check

    suites = [*INSTALLS, *UNAVAILABLE]
    for name in names:
        if name not in suites:
            raise unknown("suite", name, suites)
    run_once = functools.cache(run_check)
    problems: dict[str, str | None] = {}
    unusable: list[str] = []
    for name in names or suites:
        problems[name] = UNAVAILABLE.get(name)
        for check in INSTALLS[name].checks if name in INSTALLS else ():
            problem = run_once(check, name if check.per_suite else "")
            if problem is not None:
                known = not check.packages or "`replan setup" in problem  # it may say so itself
                problems[name] = problem if known else f"{problem}; run `replan setup {INSTALLS[name].name}`"
                break
        else:
            problem = problems[name]
        if problem is not None and (names or not isinstance(problem, NotSetUp)):
            unusable.append(name)
        show(f"{name:{max(map(len, suites))}}  {problems[name] or 'ok'}")
    result = {"suites": {name: {"ok": problem is None, "problem": problem} for name, problem in problems.items()}}
    if unusable:
        raise CommandFailed(f"not usable here: {', '.join(unusable)}", result)
    return result


def install_packages(lock: Path, say: Callable[[str], None]) -> None:
    """Installs the packages of a lock without their dependencies; those that are installed stay as they are.

    Raises:
        BadInput: This Python has no pip.
        CommandFailed: pip failed.
    """
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


def system_packages(why: str, alternatives: tuple[tuple[str, ...], ...], say: Callable[[str], None]) -> None:
    """Installs the first set of packages that the distribution has, as root on Debian and Ubuntu.

    Raises:
        CommandFailed: This user cannot install them, or apt failed; the message has the command.
    """
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        command = shlex.join([*install, *alternatives[0]])
        raise CommandFailed(f"{why}. A system package is missing; on Debian or Ubuntu, as root: {command}")
    subprocess.run(["apt-get", "update", "-qq"], stdout=subprocess.DEVNULL)
    known = [p for p in alternatives if not subprocess.run(["apt-cache", "show", *p], capture_output=True).returncode]
    packages = (known or alternatives)[0]
    say(f"{why}; installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run([*install, *packages], env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise CommandFailed(f"{shlex.join([*install, *packages])} failed: {(done.stderr or done.stdout).strip()}")
