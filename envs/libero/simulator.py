"""One LIBERO task in MuJoCo: built once, reset often, advanced a physics tick at a time.

The step loop of robosuite is not used: it computes two dozen observations per step, renders at moments that depend
on earlier calls, and cannot let time pass between two actions. What happens in a tick is the same, to the bit.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..rendering import Renderers, mujoco
from .tasks import CAMERAS, Task
from .upstream import Upstream

TICK_NS = 2_000_000
CONTROL_TICKS = 25  # 20 Hz
_MUTABLE = ("body_pos", "body_quat", "site_rgba")  # what resets and predicates change in the model
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class Simulator:
    """A built task.

    Args:
        upstream: The installed LIBERO.
        task: The task.

    Attributes:
        problem: LIBERO's own environment object, for predicates and experts.
    """

    def __init__(self, upstream: Upstream, task: Task) -> None:
        from libero.libero.envs import env_wrapper

        with _global_generator(0), contextlib.redirect_stdout(io.StringIO()):
            control: Any = env_wrapper.ControlEnv(
                str(upstream.bddl_file(task)),
                use_camera_obs=False,
                has_offscreen_renderer=False,
                hard_reset=False,
                ignore_done=True,
            )
        self.task = task
        self.problem: Any = control.env
        self.model: mujoco.MjModel = self.problem.sim.model._model
        self.data: mujoco.MjData = self.problem.sim.data._data
        robot = self.robot
        self._arm, self._torque_limits = robot._ref_joint_actuator_indexes, robot.torque_limits
        self._fingers = robot._ref_joint_gripper_actuator_indexes
        low, high = self.model.actuator_ctrlrange[self._fingers].T
        self._finger_middle, self._finger_range = 0.5 * (high + low), 0.5 * (high - low)
        self._done_stage = mujoco.mjtStage.mjSTAGE_NONE
        self.problem.sim.forward = self._forward
        self._pristine = {name: getattr(self.model, name).copy() for name in _MUTABLE}
        self._action = np.zeros(7)
        self._renderers = Renderers()
        # Collision geometry (group 0) is not rendered.
        self._visible = mujoco.MjvOption()
        self._visible.geomgroup[0] = 0

    @property
    def robot(self) -> Any:
        """The arm and its gripper: robosuite's object."""
        return self.problem.robots[0]

    def reset(self, init_state: np.ndarray | None, scene_seed: int) -> None:
        """Puts everything in the place that follows from the two arguments, whatever happened before.

        Args:
            init_state: One of the standard states, float64 [1 + nq + nv]: time, positions, velocities. None keeps what
                LIBERO samples from the seed.
            scene_seed: Seed of the fixtures' places, which the standard states don't hold.
        """
        for name, values in self._pristine.items():  # a stove that was on glows until here
            getattr(self.model, name)[:] = values
        with _global_generator(scene_seed):
            self._place()
        # robosuite's gripper keeps the last command of the previous episode, MuJoCo the last accelerations.
        self.robot.gripper.current_action = np.zeros(self.robot.gripper.dof)
        if init_state is not None:
            nq = self.model.nq
            self.data.time = init_state[0]
            self.data.qpos[:], self.data.qvel[:] = init_state[1 : 1 + nq], init_state[1 + nq :]
        self.data.qacc_warmstart[:] = 0
        mujoco.mj_forward(self.model, self.data)
        self.succeeded()

    def _place(self) -> None:
        """Lets LIBERO sample the scene, again where objects do not find room, as LIBERO does."""
        from robosuite.utils.errors import RandomizationError

        while True:
            try:
                self.problem.reset()
                return
            except RandomizationError:
                continue

    def advance(self, ticks: int, action: np.ndarray | None = None, *, absolute: bool = False) -> None:
        """Lets physics ticks pass.

        Args:
            ticks: Number of ticks.
            action: A new action [7] that the controller takes on at the first of them; None holds the last.
            absolute: Whether the action is a pose instead of a difference.
        """
        robot, data = self.robot, self.data
        for tick in range(ticks):
            mujoco.mj_forward(self.model, data)
            self._done_stage = mujoco.mjtStage.mjSTAGE_VEL
            if action is not None and tick == 0:
                self._action = np.array(action, np.float64)
                robot.controller.use_delta = not absolute
                robot.controller.set_goal(self._action[:6])
            data.ctrl[self._arm] = np.clip(robot.controller.run_controller(), *self._torque_limits)
            fingers = robot.gripper.format_action(self._action[6:])  # on their way to open or closed
            data.ctrl[self._fingers] = self._finger_middle + self._finger_range * fingers
            self._done_stage = mujoco.mjtStage.mjSTAGE_NONE
            mujoco.mj_step2(self.model, data)

    def refresh(self) -> None:
        """Makes poses and contacts those of the present; MuJoCo leaves them a tick behind the joints.

        Upstream's sensors, cameras and predicates see them a tick late. After a refresh they are those of the present,
        which positions and velocities alone can restore.
        """
        warmstart = self.data.qacc_warmstart.copy()  # where the solver starts: a refresh must change nothing
        mujoco.mj_forward(self.model, self.data)
        self.data.qacc_warmstart[:] = warmstart

    def succeeded(self) -> bool:
        """Whether all goal predicates hold; also lights a stove that is on, or puts it out."""
        success = self.holds()
        self.problem._post_process()
        return success

    def holds(self) -> bool:
        """Whether all goal predicates hold."""
        return bool(self.problem._check_success())

    def action_scale(self) -> str:
        """Returns what actions from -1 to 1 stand for where they are differences, by the controller's configuration."""
        low, high = self.robot.controller.output_min, self.robot.controller.output_max
        return f"from {np.asarray(low).tolist()} to {np.asarray(high).tolist()} (m, rad)"

    def proprioception(self) -> np.ndarray:
        """Returns float64 [8]: gripper position, orientation as a rotation vector, both finger positions."""
        robot, data = self.robot, self.data
        hand = self.data.body(robot.robot_model.eef_name).xquat[[1, 2, 3, 0]]
        fingers = data.qpos[robot._ref_gripper_joint_pos_indexes]
        return np.concatenate([data.site_xpos[robot.eef_site_id], _rotation_vector(hand), fingers])

    def render(self, camera: str, size: int) -> np.ndarray:
        """Returns an upright image uint8 [size, size, 3] of a camera."""
        renderer = self._renderers.get(self.model, size, size)
        renderer.update_scene(self.data, CAMERAS[camera], self._visible)
        return renderer.render()

    def state(self) -> np.ndarray:
        """Returns everything that the future depends on, float64 [n]."""
        controller, gripper = self.robot.controller, self.robot.gripper
        return np.concatenate(
            [self._physics(), controller.goal_pos, controller.goal_ori.ravel(), gripper.current_action, self._action]
        )

    def fixtures(self) -> tuple[np.ndarray, ...]:
        """Returns what the standard states don't hold: poses of bodies in their parents, colours of sites."""
        return tuple(getattr(self.model, name).copy() for name in _MUTABLE)

    @contextlib.contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Undoes, on leaving, whatever was simulated inside, to the last bit."""
        robot, physics, model = self.robot, self._physics(), self.fixtures()
        # The controller replaces its arrays and does not write into them, so keeping them is a copy.
        controller, gripper, action = dict(vars(robot.controller)), robot.gripper.current_action, self._action
        try:
            yield
        finally:
            mujoco.mj_setState(self.model, self.data, physics, _STATE)
            for name, values in zip(_MUTABLE, model, strict=True):
                getattr(self.model, name)[:] = values
            self.refresh()
            vars(robot.controller).update(controller)
            robot.gripper.current_action, self._action = gripper, action

    def close(self) -> None:
        """Frees the graphics context and the simulator."""
        self._renderers.close()
        self.problem.close()

    def _forward(self) -> None:
        """Stands in for the ``forward`` of robosuite's simulation, which its controller calls in every tick.

        The tick has computed positions, contacts and velocities already. It cannot be left out: each run of the
        solver starts from the result of the one before.
        """
        mujoco.mj_forwardSkip(self.model, self.data, self._done_stage, 0)

    def _physics(self) -> np.ndarray:
        physics = np.empty(mujoco.mj_stateSize(self.model, _STATE))
        mujoco.mj_getState(self.model, self.data, physics, _STATE)
        return physics


@contextlib.contextmanager
def _global_generator(seed: int) -> Iterator[None]:
    """Seeds numpy's global generator, which LIBERO samples from, and restores it afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed if seed < 2**32 else [seed % 2**32, seed // 2**32])  # noqa: NPY002 - takes 32 bits, or several
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


def _rotation_vector(xyzw: np.ndarray) -> np.ndarray:
    """Converts a quaternion [4] as OpenVLA and openpi do, with angles in [0, 2 pi)."""
    w = float(np.clip(xyzw[3], -1.0, 1.0))
    sine = np.sqrt(1.0 - w * w)
    return np.zeros(3) if np.isclose(sine, 0.0) else xyzw[:3] * 2.0 * np.arccos(w) / sine
