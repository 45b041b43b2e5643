"""A motion planner without CUDA, with the interface that RoboTwin's task code asks its planners for.

Upstream plans with cuRobo, which needs an NVIDIA GPU. This one asks the Pinocchio that comes with SAPIEN for joint
angles that reach the pose, and goes there on the straight way in joint space, as fast as upstream's limits allow. It is
deterministic, and it does not look at obstacles.

The file is also run by the user's own interpreter (see ``world.py``), so it imports nothing of this project.
"""

from __future__ import annotations

from typing import Any

import numpy as np

VERSION = 2  # seeds that the expert can solve are stored for one version; raise it when plans change
STEP = 1 / 250  # seconds between points of a plan: RoboTwin's physics step
SPEED = 1.0  # rad/s of every joint: what upstream's timing uses
ACCELERATION = 1.0  # rad/s^2
GRIPPER_STEPS = 200
_TRIES = 12  # starts of the search for joint angles; the first is where the arm is
_NEAR = 1.2  # radians: an answer that turns no joint further is taken at once


class CpuPlanner:
    """Plans for one arm.

    Args:
        entity: SAPIEN articulation that has the arm.
        joints: Names of the arm's joints, from the base on.
        link: Name of the link whose pose is requested.
    """

    def __init__(self, entity: Any, joints: list[str], link: str) -> None:
        names = [joint.get_name() for joint in entity.get_active_joints()]
        self._arm = np.array([names.index(name) for name in joints])
        self._limits = np.array(entity.get_qlimits())[self._arm]  # [n, 2]
        self._mask = np.zeros(len(names), np.int32)
        self._mask[self._arm] = 1
        self._entity, self._model = entity, entity.create_pinocchio_model()
        self._link = [candidate.get_name() for candidate in entity.get_links()].index(link)

    def plan_path(self, qpos: Any, pose: Any, constraint_pose: Any = None, arms_tag: Any = None) -> dict[str, Any]:
        """Plans from all joints' angles to a pose of the link (a ``sapien.Pose`` in the world)."""
        start = np.asarray(qpos, float)
        goal = self._reach(pose, start)
        if goal is None:
            return {"status": "Fail"}
        try:
            _, position, velocity, _, _ = self.TOPP(np.vstack([start[self._arm], goal]))
        except ValueError:  # there already
            position, velocity = np.repeat(goal[None], 2, 0), np.zeros((2, len(goal)))
        return {"status": "Success", "position": position, "velocity": velocity}

    def plan_batch(self, qpos: Any, poses: Any, constraint_pose: Any = None, arms_tag: Any = None) -> dict[str, Any]:
        """Plans to several poses, most of which are often the same one."""
        plans: dict[bytes, dict[str, Any]] = {}
        results = []
        for pose in poses:
            key = np.round(np.concatenate([pose.p, pose.q]), 6).tobytes()
            if key not in plans:
                plans[key] = self.plan_path(qpos, pose)
            results.append(plans[key])
        return {
            "status": np.array([("Failure", "Success")[plan["status"] == "Success"] for plan in results], dtype=object),
            "position": [plan.get("position") for plan in results],
            "velocity": [plan.get("velocity") for plan in results],
        }

    def plan_grippers(self, now: float, target: float) -> dict[str, Any]:
        """Opens or closes the gripper (0 closed, 1 open) evenly."""
        return {
            "num_step": GRIPPER_STEPS,
            "per_step": (target - now) / GRIPPER_STEPS,
            "result": np.linspace(now, target, GRIPPER_STEPS),
        }

    def TOPP(self, path: Any, step: float = STEP, verbose: bool = False) -> tuple[Any, ...]:
        """Times a straight way through joint space [2, d], from rest to rest, as fast as the limits allow.

        Upstream asks the library toppra, which optimises the timing of any curve. All of its ways are straight, and on
        those the joint that goes farthest decides: it speeds up, goes on at full speed and slows down.

        Returns:
            Times [n], positions [n, d], velocities [n, d], accelerations [n, d] and the duration in seconds.

        Raises:
            ValueError: The way is not two points, or has no length.
        """
        points = np.asarray(path, float)
        if len(points) != 2:
            raise ValueError(f"the way must have two points, got {len(points)}")
        start, turn = points[0], points[1] - points[0]
        far = float(np.abs(turn).max())
        if far < 1e-6:
            raise ValueError("the way has no length")
        peak = min(SPEED, np.sqrt(far * ACCELERATION))
        ramp, duration = peak / ACCELERATION, far / peak + peak / ACCELERATION
        times = np.linspace(0, duration, max(2, int(duration / step)))
        left = duration - times
        rising, falling = times < ramp, left < ramp
        gone = np.where(rising, ACCELERATION * times**2 / 2, peak * (times - ramp / 2))
        gone = np.where(falling, far - ACCELERATION * left**2 / 2, gone)
        pace = np.minimum(np.minimum(times, left) * ACCELERATION, peak)
        push = ACCELERATION * (rising & ~falling) - ACCELERATION * (falling & ~rising)
        share = turn / far
        return times, start + np.outer(gone, share), np.outer(pace, share), np.outer(push, share), float(duration)

    def _reach(self, pose: Any, start: np.ndarray) -> np.ndarray | None:
        """Returns angles of the arm [n] that put the link at the pose, near where it is now, or None."""
        target = self._entity.get_root_pose().inv() * pose
        now = start[self._arm]
        rng = np.random.default_rng(0)  # a fixed stream: the same question has the same answer
        best, best_turn = None, np.inf
        for attempt in range(_TRIES):
            guess = start.copy()
            if attempt:
                wander = rng.normal(0, 0.25 + 0.1 * attempt, len(now))
                guess[self._arm] = np.clip(now + wander, self._limits[:, 0], self._limits[:, 1])
            angles, found, _ = self._model.compute_inverse_kinematics(
                self._link,
                target,
                initial_qpos=guess,
                active_qmask=self._mask,
                eps=1e-4,
                max_iterations=300,
                dt=0.2,
                damp=1e-6,
            )
            arm = self._unwind(np.asarray(angles)[self._arm], now) if found else None
            if arm is None:
                continue
            turn = float(np.abs(arm - now).max())
            if turn < best_turn:
                best, best_turn = arm, turn
            if best_turn < _NEAR:
                break
        return best

    def _unwind(self, angles: np.ndarray, now: np.ndarray) -> np.ndarray | None:
        """Takes whole turns off each angle: the one nearest to ``now`` that the joint's limits allow, or None."""
        turns = angles[:, None] + 2 * np.pi * np.arange(-2, 3)  # [n, 5]
        allowed = (turns >= self._limits[:, :1] - 1e-4) & (turns <= self._limits[:, 1:] + 1e-4)
        if not allowed.any(axis=1).all():
            return None
        nearest = np.where(allowed, np.abs(turns - now[:, None]), np.inf).argmin(axis=1)
        return turns[np.arange(len(angles)), nearest]


def set_planner(robot: Any, scene: Any = None) -> None:
    """Stands in for upstream's ``Robot.set_planner``."""
    robot.communication_flag = False
    robot.left_planner = CpuPlanner(robot.left_entity, robot.left_arm_joints_name, robot.left_move_group)
    robot.right_planner = CpuPlanner(robot.right_entity, robot.right_arm_joints_name, robot.right_move_group)
    robot.left_mplib_planner, robot.right_mplib_planner = robot.left_planner, robot.right_planner
