"""What the experts see and touch: the simulator's state read without changing it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...rendering import mujoco

OPEN = 0.078  # metres between the pads of the open gripper
_VOXEL = 0.006  # metres; point clouds are thinned to this grid
_COARSE = 0.012  # and those of obstacles to this one
_ROUNDED = 5e-4  # metres, and of rotation matrices; poses for point clouds are rounded so
_VIRTUAL = frozenset(("main_table", "floor", "kitchen_table", "living_room_table", "study_table", "coffee_table"))
_MESH, _BOX, _CYLINDER = (
    int(kind) for kind in (mujoco.mjtGeom.mjGEOM_MESH, mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CYLINDER)
)


class Scene:
    """Poses, point clouds and contacts of a LIBERO problem.

    Nothing here writes to the simulator. Point clouds are kept in the frames of their bodies, so a reading costs one
    matrix product.

    Args:
        problem: LIBERO's environment (``ControlEnv(...).env``).
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.model, self.data = problem.sim.model._model, problem.sim.data._data
        self.robot = problem.robots[0]
        self._site = self.robot.eef_site_id
        names = [self.model.body(body).name for body in range(self.model.nbody)]
        left, right = names.index("gripper0_leftfinger"), names.index("gripper0_rightfinger")
        self._fingers = tuple(
            frozenset(int(geom) for body in self.subtree(finger) for geom in self.geoms(body))
            for finger in (left, right)
        )
        self._finger_qpos = [int(self.model.joint(f"gripper0_finger_joint{i}").qposadr[0]) for i in (1, 2)]
        self._finger_qvel = [int(self.model.joint(f"gripper0_finger_joint{i}").dofadr[0]) for i in (1, 2)]
        elbow = self.model.joint("robot0_joint4")
        self._elbow, self._elbow_range = int(elbow.qposadr[0]), elbow.range.copy()
        self.base = self.data.xpos[names.index("robot0_base")][:2].copy()
        self.things = tuple(name for name in problem.obj_body_id if name not in _VIRTUAL)
        self._bodies = {name: self.subtree(problem.obj_body_id[name]) for name in self.things}
        self._object_geoms = {
            name: frozenset(int(geom) for body in bodies for geom in self.geoms(body))
            for name, bodies in self._bodies.items()
        }
        self._local = {body: self._body_cloud(body) for bodies in self._bodies.values() for body in bodies}
        self._coarse = {body: _thinned(cloud, _COARSE) for body, cloud in self._local.items()}
        self._clouds: dict[tuple[str, bool], tuple[bytes, np.ndarray]] = {}

    # The robot.

    @property
    def tool(self) -> np.ndarray:
        """Position of the point between the pads [3], metres."""
        return self.data.site_xpos[self._site].copy()

    @property
    def tool_rotation(self) -> np.ndarray:
        """Rotation of the tool [3, 3]: the fingers move along its first axis, its third one points out of the hand."""
        return self.data.site_xmat[self._site].reshape(3, 3).copy()

    @property
    def tool_velocity(self) -> np.ndarray:
        """Velocity of the tool [3], m/s."""
        velocity = np.zeros(6)
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_SITE, self._site, velocity, 0)
        return velocity[3:]

    @property
    def locked(self) -> bool:
        """Whether the elbow is at one of its limits: stretched, or folded up. The controller is stuck there."""
        low, high = self._elbow_range
        return not low + 0.01 < self.data.qpos[self._elbow] < high - 0.01

    @property
    def opening(self) -> float:
        """Distance of the pads, metres."""
        left, right = self.data.qpos[self._finger_qpos]
        return float(left - right)

    @property
    def opening_speed(self) -> float:
        """Its rate of change, m/s: negative while the gripper closes."""
        left, right = self.data.qvel[self._finger_qvel]
        return float(left - right)

    @property
    def squeeze(self) -> float:
        """The ramp behind the gripper's command: -1 is fully open, 1 is full force."""
        return float(self.robot.gripper.current_action[1])

    # The things.

    def position(self, name: str) -> np.ndarray:
        """Position of an object or fixture [3], metres."""
        return self.data.xpos[self.problem.obj_body_id[name]].copy()

    def rotation(self, name: str) -> np.ndarray:
        """Rotation of an object or fixture [3, 3]."""
        return self.data.xmat[self.problem.obj_body_id[name]].reshape(3, 3).copy()

    def speed(self, name: str) -> float:
        """Speed of an object, m/s."""
        velocity = np.zeros(6)
        body = self.problem.obj_body_id[name]
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_BODY, body, velocity, 0)
        return float(np.linalg.norm(velocity[3:]))

    def site(self, name: str) -> np.ndarray:
        """Position of a region's centre [3], metres."""
        return self.data.site_xpos[self.problem.sim.model.site_name2id(name)].copy()

    def cloud(self, name: str) -> np.ndarray:
        """Points on the collision shape of an object or fixture [n, 3] in the world, metres; at least one."""
        points = self._cloud(name, coarse=False)
        return points if len(points) else self.position(name)[None]

    def obstacles(self, *excluded: str) -> np.ndarray:
        """Fewer points, of everything but the excluded things [n, 3]."""
        clouds = [self._cloud(name, coarse=True) for name in self.things if name not in excluded]
        return np.concatenate([np.zeros((0, 3)), *clouds])

    def _cloud(self, name: str, coarse: bool) -> np.ndarray:
        bodies, local = self._bodies[name], self._coarse if coarse else self._local
        # Of a rounded pose, so that bodies at rest are computed once, and earlier calls make no difference.
        turns, places = (np.round(x[bodies] / _ROUNDED) * _ROUNDED for x in (self.data.xmat, self.data.xpos))
        pose = turns.tobytes() + places.tobytes()
        kept = self._clouds.get((name, coarse))
        if kept is not None and kept[0] == pose:
            return kept[1]
        poses = zip(bodies, turns.reshape(-1, 3, 3), places, strict=True)
        parts = [local[body] @ turn.T + place for body, turn, place in poses]
        self._clouds[name, coarse] = pose, np.concatenate(parts)
        return self._clouds[name, coarse][1]

    def touches(self, name: str) -> tuple[bool, bool]:
        """Whether each of the two fingers touches the object."""
        return self._touched(self._object_geoms[name])

    def touches_body(self, body: int) -> tuple[bool, bool]:
        """Whether each of the two fingers touches this body, such as a drawer."""
        return self._touched(frozenset(self.geoms(body)))

    def local_cloud(self, body: int) -> np.ndarray:
        """Points on a body's collision shape [n, 3] in its own frame, metres."""
        return self._local[body]

    def _touched(self, geoms: frozenset[int]) -> tuple[bool, bool]:
        pairs = self.data.contact.geom.tolist()
        left, right = (
            any((one in finger and other in geoms) or (other in finger and one in geoms) for one, other in pairs)
            for finger in self._fingers
        )
        return left, right

    def satisfied(self, goal: list[str]) -> bool:
        """LIBERO's own verdict on one line of the goal, such as ``["on", "bowl_1", "plate_1"]``."""
        return bool(self.problem._eval_predicate(goal))

    # Building blocks.

    def subtree(self, body: int) -> list[int]:
        """A body and everything attached to it."""
        found = [body]
        for child in range(body + 1, self.model.nbody):
            if self.model.body_parentid[child] in found:
                found.append(child)
        return found

    def geoms(self, body: int) -> range:
        """The geoms of one body."""
        start = int(self.model.body_geomadr[body])
        return range(start, start + int(self.model.body_geomnum[body])) if start >= 0 else range(0)

    def _body_cloud(self, body: int) -> np.ndarray:
        """Points of one body's collision geoms [n, 3] in its own frame."""
        clouds = [np.zeros((0, 3))]
        for geom in self.geoms(body):
            if self.model.geom_contype[geom] == 0 and self.model.geom_conaffinity[geom] == 0:
                continue
            rotation = np.zeros(9)
            mujoco.mju_quat2Mat(rotation, self.model.geom_quat[geom])
            clouds.append(self._geom_cloud(geom) @ rotation.reshape(3, 3).T + self.model.geom_pos[geom])
        return _thinned(np.concatenate(clouds), _VOXEL)

    def _geom_cloud(self, geom: int) -> np.ndarray:
        kind, size = int(self.model.geom_type[geom]), self.model.geom_size[geom]
        if kind == _MESH:
            mesh = self.model.geom_dataid[geom]
            start = self.model.mesh_vertadr[mesh]
            return self.model.mesh_vert[start : start + self.model.mesh_vertnum[mesh]].astype(np.float64)
        if kind == _BOX:
            axes = [np.linspace(-half, half, int(np.clip(2 * half / 0.012, 2, 25)) + 1) for half in size]
            grid = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, 3)
            return grid[(np.abs(grid) > size - 1e-9).any(axis=1)]
        if kind == _CYLINDER:
            angle, height = np.meshgrid(np.linspace(0, 2 * np.pi, 24), np.linspace(-size[1], size[1], 7))
            return np.stack((np.cos(angle) * size[0], np.sin(angle) * size[0], height), axis=-1).reshape(-1, 3)
        corner = np.array([-size[0], 0.0, size[0]])
        return np.stack(np.meshgrid(corner, corner, corner), axis=-1).reshape(-1, 3)


def _thinned(points: np.ndarray, grid: float) -> np.ndarray:
    """One point [m, 3] a cell of a grid."""
    _, first = np.unique(np.round(points / grid), axis=0, return_index=True)
    return points[np.sort(first)]
