"""The RoboTwin suites, described without SAPIEN."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..cache import cache_folder
from ..checks import FIRST_OBSERVATION, OPENCV, Check, reporting
from ..demonstrations import Demonstrations
from ..errors import SuiteUnavailable, SystemPackagesMissing, UnsupportedPython
from ..suite import Install, Suite
from .tasks import CAMERAS, COUNT, TASKS, standin_tasks

PYTHON_BEFORE = (3, 12)  # the first release that upstream's wheel refuses


def _standin_fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    from .source import standin_fingerprint

    return standin_fingerprint(settings)


def _real_fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    from .source import real_fingerprint

    return real_fingerprint(settings)


def _require_python() -> None:
    """Raises UnsupportedPython: this Python cannot install upstream's wheel."""
    if sys.version_info >= PYTHON_BEFORE:
        this = ".".join(map(str, sys.version_info[:3]))
        raise UnsupportedPython(
            f"RoboTwin's task code needs Python 3.10 or 3.11, this is {this}; all else works without it"
        )


def _prepare(say: Callable[[str], None]) -> None:
    """Makes a Vulkan driver available and builds the stand-in assets."""
    from . import vulkan
    from .standin import build

    cache = cache_folder()
    try:
        say(vulkan.setup(cache))
    except SuiteUnavailable as error:
        raise SystemPackagesMissing(str(error), (("mesa-vulkan-drivers", "libvulkan1"),)) from error
    try:
        build.verify(build.tree(cache))
        say(f"the stand-in assets in {build.tree(cache)} are intact")
    except SuiteUnavailable:
        say(f"built the stand-in assets in {build.build(cache)}")


SUITES = tuple(
    Suite(
        name,
        env_id,
        entry_point,
        tasks,
        init_states=COUNT,
        cameras=tuple(CAMERAS),
        settings={"action": str, "instructions": str, **settings},
        demonstrations=Demonstrations(
            "replan.envs.robotwin.demonstrations:episode",
            gripper=(6, 13),
            absolute=True,
            open_language=True,
            settings={"instructions": "seen"},
        ),
        marks=marks,
        policy=policy,
        fingerprint=fingerprint,
    )
    for name, env_id, entry_point, tasks, settings, marks, policy, fingerprint in (
        (
            "robotwin",
            "replan/RoboTwin-v0",
            "replan.envs.robotwin.env:RoboTwin",
            standin_tasks(),
            {},
            ("stand-in assets: RoboTwin's task code with another robot and other objects; compare with no paper",),
            "pi0-tiny-robotwin",
            _standin_fingerprint,
        ),
        (
            "robotwin-real",
            "replan/RoboTwinReal-v0",
            "replan.envs.robotwin.env:RoboTwinReal",
            TASKS,
            {"root": str, "python": str, "planner": str, "config": str},
            (),
            None,
            _real_fingerprint,
        ),
    )
)
_FILES = Check(
    reporting("""
    from replan.envs.cache import cache_folder
    from replan.envs.robotwin.standin import build

    if sys.argv[1] == "robotwin":  # the other suite uses the user's own assets
        build.verify(build.tree(cache_folder()))
"""),
    per_suite=True,
)
INSTALL = Install(
    "robotwin",
    checks=(OPENCV, FIRST_OBSERVATION, _FILES),
    precondition=_require_python,
    lock=Path(__file__).with_name("requirements.lock"),
    prepare=_prepare,
    packages=("rlinf-robotwin-runtime", "sapien", "toppra"),
)
