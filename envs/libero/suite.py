"""The LIBERO suites, described without LIBERO."""

from __future__ import annotations

from pathlib import Path

from ..checks import FIRST_OBSERVATION, MUJOCO_RENDERING, OPENCV, Check, reporting
from ..demonstrations import Demonstrations
from ..suite import Install, Suite
from .package import DISTRIBUTIONS, SIMULATORS, fingerprint, require_no_other
from .tasks import CAMERAS, INIT_STATES, tasks_of

SUITES = tuple(
    Suite(
        name,
        env_id,
        "replan.envs.libero.env:Libero",
        tuple(tasks_of(name)),
        kwargs={"suite": name},
        init_states=INIT_STATES,
        cameras=tuple(CAMERAS),
        settings={"controller": str, "protocol": str, "image_size": int},
        instructions={task.name: task.language for task in tasks_of(name).values()},
        demonstrations=Demonstrations("replan.envs.libero.demonstrations:episode"),
        policy=policy,
        block=5,  # building another task's simulator takes 4 s, as long as a few episodes
        fingerprint=fingerprint,
    )
    for name, env_id, policy in (
        ("libero_spatial", "replan/LiberoSpatial-v0", "pi0-tiny-libero-spatial"),
        ("libero_object", "replan/LiberoObject-v0", "pi0-tiny-libero-object"),
        ("libero_goal", "replan/LiberoGoal-v0", None),
        ("libero_10", "replan/Libero10-v0", None),
        ("libero_90", "replan/Libero90-v0", None),
    )
)
_FILES = Check(
    reporting("""
    from replan.envs.libero import upstream, verify

    problems = verify.verify(upstream.load())
    if problems:
        sys.exit(f"{problems[0]} ({len(problems)} such files); uninstall LIBERO, then run `replan setup libero`")
""")
)
INSTALL = Install(
    "libero",
    checks=(OPENCV, MUJOCO_RENDERING, FIRST_OBSERVATION, _FILES),
    precondition=require_no_other,
    lock=Path(__file__).with_name("requirements.lock"),
    packages=(*DISTRIBUTIONS, *SIMULATORS),
)
