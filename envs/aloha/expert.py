"""A scripted expert: waypoints of both hands as in ACT's scripted policy, brought to joints by inverse kinematics.

The right hand goes above the cube, down, closes, and lifts it to the meeting point; the left hand comes from the side,
turned by a quarter, so that its fingers close on the faces that the right hand leaves free.
"""

from __future__ import annotations

import numpy as np

from ..rendering import mujoco
from .physics import AlohaPhysics

STEPS = 390  # the whole plan; an evaluation allows 400
REACH = 0.128  # metres from the gripper link to where the fingers hold the cube; the tips are at 0.142
RESTING_Z = 0.02  # half a cube
MEET = np.array([0.0, 0.5, 0.25])
ABOVE, ASIDE = np.array([0, 0, 0.08]), np.array([-0.10, 0, 0])

# Axes of a hand as columns: where it points, where its fingers open along, and the third.
_DOWN = np.column_stack([[-0.5, 0, -np.sqrt(0.75)], [0, -1, 0], [-np.sqrt(0.75), 0, 0.5]])  # 60 degrees below level
_LEVEL = np.column_stack([[1, 0, 0], [0, 0, 1], [0, -1, 0]])


def plan(physics: AlohaPhysics) -> np.ndarray:
    """Returns the actions [STEPS, 14] from the present joints to the end of the task.

    The cube is taken from where it is, or will have fallen to.
    """
    cube = np.array([*physics.cube_position[:2], RESTING_Z])
    left, right = physics.joints[:7], physics.joints[7:]
    solve = _Solver(physics.model)
    above = solve("right", right[:6], cube + ABOVE, _DOWN)
    grasp = solve("right", above, cube, _DOWN)
    meet = solve("right", above, MEET, _DOWN)
    aside = solve("left", left[:6], MEET + ASIDE, _LEVEL)
    take = solve("left", aside, MEET, _LEVEL)
    rights = [(0, right[:6], 1), (70, above, 1), (110, grasp, 1), (125, grasp, 1), (145, grasp, 0), (155, grasp, 0)]
    rights += [(175, above, 0), (235, meet, 0), (STEPS, meet, 0)]
    lefts = [(0, left[:6], 1), (150, aside, 1), (255, aside, 1), (295, take, 1), (325, take, 1), (345, take, 0)]
    lefts += [(STEPS, take, 0)]
    return np.concatenate([_interpolate(lefts), _interpolate(rights)], axis=1)


def _interpolate(waypoints: list[tuple[int, np.ndarray, int]]) -> np.ndarray:
    """Returns joints and gripper [STEPS, 7] that pass (step, joints, gripper) waypoints, at rest in each."""
    times = [step for step, _, _ in waypoints]
    values = np.array([[*joints, gripper] for _, joints, gripper in waypoints])
    steps = np.arange(1, STEPS + 1)
    segment = np.clip(np.searchsorted(times, steps) - 1, 0, len(times) - 2)
    start, end = np.take(times, segment), np.take(times, segment + 1)
    share = ((steps - start) / (end - start))[:, None]
    return values[segment] + share**2 * (3 - 2 * share) * (values[segment + 1] - values[segment])


class _Solver:
    """Damped least-squares inverse kinematics of both arms, apart from the simulation."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.model, self.data = model, mujoco.MjData(model)

    def __call__(self, side: str, start: np.ndarray, point: np.ndarray, axes: np.ndarray) -> np.ndarray:
        """Returns joints [6] that bring the point between the fingers to ``point`` and the hand's axes to ``axes``."""
        model, data, joints = self.model, self.data, start.copy()
        first = model.joint(f"vx300s_{side}/waist").qposadr[0]
        columns = slice(first, first + 6)  # all joints before the cube's have one position and one velocity each
        hand = model.body(f"vx300s_{side}/gripper_link").id
        low, high = model.jnt_range[columns].T
        jacobian = np.zeros((6, model.nv))
        for _ in range(200):
            data.qpos[columns] = joints
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            rotation = data.xmat[hand].reshape(3, 3)
            place = data.xpos[hand] + REACH * rotation[:, 0]
            mujoco.mj_jac(model, data, jacobian[:3], jacobian[3:], place, hand)
            error = np.concatenate([point - place, _rotation_vector(axes @ rotation.T)])
            arm = jacobian[:, columns]
            step = arm.T @ np.linalg.solve(arm @ arm.T + 1e-4 * np.eye(6), error)
            joints = np.clip(joints + np.clip(step, -0.2, 0.2), low, high)
        return joints


def _rotation_vector(rotation: np.ndarray) -> np.ndarray:
    quaternion, vector = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quaternion, rotation.ravel())
    mujoco.mju_quat2Vel(vector, quaternion, 1.0)
    return vector
