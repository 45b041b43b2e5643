"""The scene of gym-aloha in plain MuJoCo: two ViperX arms, a table and a cube, driven by joint position targets.

Sixteen joint positions (six joints and two mirrored fingers per arm) are shown and commanded as fourteen numbers, as
upstream does: radians, and each gripper as its opening from 0 (closed) to 1 (open).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..rendering import mujoco
from .assets import SCENE, folder

TICK_NS = 2_000_000
CONTROL_TICKS = 10  # 50 Hz
CLOSED, OPEN = 0.01844, 0.05800  # metres of a finger's joint at gripper 0 and 1: upstream's PUPPET_GRIPPER_POSITION
HOME = np.array([0, -0.96, 1.16, 0, -0.3, 0, 0.02239, -0.02239] * 2)  # upstream's START_ARM_POSE
CUBE = "red_box"
# Upstream counts the contacts of one finger of each hand.
_LEFT_FINGER, _RIGHT_FINGER = "vx300s_left/10_left_gripper_finger", "vx300s_right/10_right_gripper_finger"


@functools.cache
def build_model() -> mujoco.MjModel:
    """Compiles the scene. The model is shared: do not change it.

    Raises:
        SuiteUnavailable: gym-aloha is missing or changed.
    """
    return mujoco.MjModel.from_xml_path(str(folder() / SCENE))


class AlohaPhysics:
    """State and motion of the scene: no task, no cameras.

    Args:
        cube: Initial position of the cube [3] in metres; it is axis-aligned.
    """

    def __init__(self, cube: tuple[float, float, float]) -> None:
        self.model = build_model()
        self.data = mujoco.MjData(self.model)
        # As upstream resets on dm_control, down to the last bit: every solution is where the next one starts.
        with _without_actuation(self.model):
            mujoco.mj_forward(self.model, self.data)
            self.data.qpos[:16], self.data.ctrl[:] = HOME, HOME
            self.data.qpos[16:] = [*cube, 1, 0, 0, 0]
            mujoco.mj_forward(self.model, self.data)
            mujoco.mj_forward(self.model, self.data)

    def control(self, action: np.ndarray) -> None:
        """Executes one 20 ms control step.

        Args:
            action: [14]: left joints (rad), left gripper, right joints, right gripper. MuJoCo clips to the joints'
                control ranges.
        """
        self.data.ctrl[:] = _to_joints(action)
        self.advance(CONTROL_TICKS)

    def advance(self, ticks: int) -> None:
        """Moves the world by ``ticks`` physics ticks; the arms hold their last targets.

        Both halves of a tick are swapped, as dm_control does, so that contacts belong to the positions.
        """
        for _ in range(ticks):
            mujoco.mj_step2(self.model, self.data)
            mujoco.mj_step1(self.model, self.data)

    @property
    def joints(self) -> np.ndarray:
        """Joint positions [14] as upstream shows them: left joints (rad), left gripper, right joints, right gripper."""
        left, right = self.data.qpos[:8], self.data.qpos[8:16]
        return np.array([*left[:6], _opening(left[6]), *right[:6], _opening(right[6])])

    @property
    def cube_position(self) -> np.ndarray:
        """Position of the cube [3] in metres, a copy."""
        return self.data.qpos[16:19].copy()

    def touched(self) -> set[str]:
        """Returns which of ``left``, ``right`` (hands) and ``table`` the cube touches, as upstream counts contacts."""
        names = {_LEFT_FINGER: "left", _RIGHT_FINGER: "right", "table": "table"}
        pairs = {(self.model.geom(a).name, self.model.geom(b).name) for a, b in self.data.contact.geom}
        return {name for geom, name in names.items() if (CUBE, geom) in pairs}

    def state(self) -> np.ndarray:
        """Returns the full physics state (float64), from which MuJoCo would continue identically."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return state


@contextmanager
def _without_actuation(model: mujoco.MjModel) -> Iterator[None]:
    flags = model.opt.disableflags
    model.opt.disableflags = flags | mujoco.mjtDisableBit.mjDSBL_ACTUATION
    try:
        yield
    finally:
        model.opt.disableflags = flags


def _opening(finger: float) -> float:
    return float((finger - CLOSED) / (OPEN - CLOSED))


def _to_joints(action: np.ndarray) -> np.ndarray:
    left, right = CLOSED + action[[6, 13]] * (OPEN - CLOSED)
    return np.array([*action[:6], left, -left, *action[7:13], right, -right])
