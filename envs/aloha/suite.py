"""The ALOHA suite, described without MuJoCo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checks import FIRST_OBSERVATION, MUJOCO_RENDERING
from ..demonstrations import Demonstrations
from ..suite import Install, Suite

TASKS = ("transfer-cube",)
CAMERAS = ("top", "left_wrist", "right_wrist")
INSTRUCTION = "hand the red cube from the right arm to the left arm"


def _fingerprint(settings: Mapping[str, Any]) -> dict[str, str]:
    from .assets import fingerprint

    return fingerprint()


SUITES = (
    Suite(
        "aloha",
        "replan/AlohaTransferCube-v0",
        "replan.envs.aloha.env:AlohaTransferCube",
        TASKS,
        cameras=CAMERAS,
        settings={"image_size": int},
        instructions=dict.fromkeys(TASKS, INSTRUCTION),
        demonstrations=Demonstrations("replan.envs.aloha.demonstrations:episode", gripper=(6, 13), absolute=True),
        fingerprint=_fingerprint,
    ),
)
INSTALL = Install(
    "aloha",
    checks=(MUJOCO_RENDERING, FIRST_OBSERVATION),
    lock=Path(__file__).with_name("requirements.lock"),
    packages=("gym-aloha", "mujoco"),
)
