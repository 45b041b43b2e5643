"""The shelf suite, described without its simulator."""

from replan.envs.checks import FIRST_OBSERVATION
from replan.envs.demonstrations import Demonstrations
from replan.envs.suite import Install, Suite

TASKS = ("low", "high")
CAMERAS = ("third", "wrist")

SUITES = (
    Suite(
        "shelf",
        "shelf/Shelf-v0",
        "replan_shelf.env:Shelf",
        TASKS,
        init_states=20,
        cameras=CAMERAS,
        settings={"spread": float},
        demonstrations=Demonstrations("replan_shelf.env:episode"),
        marks=("toy: a point instead of a robot",),
    ),
)
INSTALL = Install("shelf", checks=(FIRST_OBSERVATION,), packages=("replan-shelf",))
