"""Benchmarks as Gymnasium environments, their wrappers, and experts that know the simulator's state.

Importing this package registers the environments: ``import replan.envs; gymnasium.make("replan/ConveyorSorting-v0")``.
It also chooses MuJoCo's OpenGL where the user did not (:mod:`.opengl`), so import it before MuJoCo.

Suites of other packages are loaded through the entry-point group ``replan.suites`` (:mod:`.suite`).
"""

from __future__ import annotations

from . import opengl
from .errors import SuiteUnavailable
from .suite import Install, Suite, load

__all__ = ["INSTALLS", "SUITES", "UNAVAILABLE", "Install", "Suite", "SuiteUnavailable"]

opengl.choose()
SUITES, INSTALLS, UNAVAILABLE = load()
"""All suites by name; what each of them needs, by the suite's name; entry points that failed, with the reason."""
