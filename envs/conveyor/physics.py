"""The conveyor cell in raw MuJoCo: UR5e, two-finger gripper, a moving belt, two bins and the objects on the belt.

The belt is one long box on a slide joint whose velocity is written before every tick, so objects are carried by
friction alone. A mocap belt does not carry them (no velocity in the contact frame), and a velocity actuator starts late
and sags under load (docs/conveyor.md has the measurements).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..rendering import mujoco

TICK_NS = 2_000_000  # MuJoCo's default of 2 ms
CONTROL_TICKS = 25  # 20 Hz
BELT_X, BELT_WIDTH, BELT_TOP = 0.52, 0.28, 0.12  # metres
BINS = {"red": (0.25, 0.46), "blue": (0.25, -0.46)}
BIN_HALF = 0.11  # metres, half the inner side of a bin
OPENING = 0.065  # metres between the open fingers
TOOL_HOME = np.array([0.50, -0.05, 0.36])
TOOL_LOW, TOOL_HIGH = np.array([0.10, -0.60, BELT_TOP + 0.006]), np.array([0.80, 0.60, 0.50])
TRANSLATION, ROTATION = 0.03, 0.20  # metres and radians that an action component of 1 stands for
TOOL_DOWN = np.diag([1.0, -1.0, -1.0])  # tool axis down, fingers along world y

_ARM = tuple(f"j{i}" for i in range(1, 7))
_MESHES = ("base", "shoulder", "upperarm", "forearm", "wrist1", "wrist2", "wrist3")
_HOME_JOINTS = np.array([-0.3, -1.735, 2.2, -2.0, -1.57, -1.87])
_BELT_WRAP = 0.5  # the box is uniform, so contacts do not notice the wrap

# Geoms as (half sizes, position, colour, mass). The belt carries both; "brush" is thin, so it forgives less.
OBJECT_GEOMS = {
    "dog": (
        ((0.036, 0.017, 0.017), (0, 0, 0.037), (0.80, 0.52, 0.20), 0.060),
        ((0.017, 0.015, 0.016), (0.048, 0, 0.060), (0.72, 0.42, 0.15), 0.020),
        ((0.009, 0.008, 0.007), (0.072, 0, 0.055), (0.15, 0.10, 0.08), 0.004),
        ((0.006, 0.006, 0.011), (0.027, 0.011, 0.011), (0.72, 0.42, 0.15), 0.008),
        ((0.006, 0.006, 0.011), (0.027, -0.011, 0.011), (0.72, 0.42, 0.15), 0.008),
        ((0.006, 0.006, 0.011), (-0.027, 0.011, 0.011), (0.72, 0.42, 0.15), 0.008),
        ((0.006, 0.006, 0.011), (-0.027, -0.011, 0.011), (0.72, 0.42, 0.15), 0.008),
        ((0.012, 0.004, 0.004), (-0.044, 0, 0.050), (0.80, 0.52, 0.20), 0.003),
    ),
    "brush": (
        ((0.058, 0.009, 0.007), (-0.052, 0, 0.008), (0.55, 0.10, 0.55), 0.030),
        ((0.038, 0.019, 0.007), (0.040, 0, 0.008), (0.65, 0.15, 0.65), 0.040),
        ((0.032, 0.014, 0.005), (0.040, 0, 0.020), (0.10, 0.10, 0.10), 0.010),
    ),
}


def mesh_folder() -> Path:
    """Returns the folder of the UR5e collision meshes (low-poly, so quick to render) inside the installed robosuite.

    Raises:
        FileNotFoundError: robosuite is not installed, or its wheel lacks the meshes.
    """
    spec = importlib.util.find_spec("robosuite")  # found, not imported: its import takes seconds
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        folder = Path(root) / "models/assets/robots/ur5e/meshes"
        if all((folder / f"{name}.stl").exists() for name in _MESHES):
            return folder
    raise FileNotFoundError(
        f"the UR5e meshes were not found in robosuite ({roots or 'not installed'}): pip install robosuite==1.4.0"
    )


def _arm_xml() -> str:
    light, dark, blue = 'rgba=".82 .82 .82 1"', 'rgba=".35 .38 .42 1"', 'rgba=".45 .62 .75 1"'

    def finger(name: str, side: int) -> str:
        return f"""<body name="{name}" pos="0 0 .075"><joint name="{name}_j" class="finger" axis="0 {side} 0"/>
          <geom class="pad" size=".011 .005 .026" pos="0 {0.005 * side} .026"/></body>"""

    return f"""
    <body name="base" gravcomp="1"><geom class="visual" mesh="base" {dark}/>
    <body name="shoulder" pos="0 0 .163" gravcomp="1">
      <inertial pos="0 0 0" mass="3.7" diaginertia=".0102675 .0102675 .00666"/>
      <joint name="j1" class="arm" axis="0 0 1"/><geom class="visual" mesh="shoulder" {blue}/>
    <body name="upperarm" pos="0 .138 0" quat=".707107 0 .707107 0" gravcomp="1">
      <inertial pos="0 0 .2125" mass="8.393" diaginertia=".133886 .133886 .0151074"/>
      <joint name="j2" class="arm" axis="0 1 0"/><geom class="visual" mesh="upperarm" {light}/>
    <body name="forearm" pos="0 -.131 .425" gravcomp="1">
      <inertial pos="0 0 .196" mass="2.275" diaginertia=".0311796 .0311796 .004095"/>
      <joint name="j3" class="arm" axis="0 1 0"/><geom class="visual" mesh="forearm" {light}/>
    <body name="wrist1" pos="0 0 .392" quat=".707107 0 .707107 0" gravcomp="1">
      <inertial pos="0 .127 0" mass="1.219" diaginertia=".0025599 .0025599 .0021942"/>
      <joint name="j4" class="wrist" axis="0 1 0"/><geom class="visual" mesh="wrist1" {blue}/>
    <body name="wrist2" pos="0 .127 0" gravcomp="1">
      <inertial pos="0 0 .1" mass="1.219" diaginertia=".0025599 .0025599 .0021942"/>
      <joint name="j5" class="wrist" axis="0 0 1"/><geom class="visual" mesh="wrist2" {blue}/>
    <body name="wrist3" pos="0 0 .1" gravcomp="1">
      <inertial pos="0 .077 0" mass=".19" diaginertia=".00013 .0001 .0001"/>
      <joint name="j6" class="wrist" axis="0 1 0"/><geom class="visual" mesh="wrist3" {light}/>
    <body name="hand" pos="0 .098 0" quat=".707107 -.707107 0 0" gravcomp="1">
      <geom class="block" type="cylinder" size=".032 .02" pos="0 0 .02" rgba=".15 .15 .15 1" mass=".3"/>
      <geom class="block" type="box" size=".022 .052 .018" pos="0 0 .057" rgba=".2 .2 .2 1" mass=".3"/>
      <camera name="wrist" pos=".085 0 .01" xyaxes="0 1 0 1 0 .30" fovy="80"/>
      <site name="grip" pos="0 0 .118" size=".004" rgba="1 0 0 0"/>
      {finger("left", 1)}{finger("right", -1)}
    </body></body></body></body></body></body></body></body>"""


def object_xml(name: str, shapes: Sequence[tuple]) -> str:
    """Returns a free body on the belt, made of boxes (half sizes, position, colour, mass)."""
    geoms = "".join(
        f'<geom class="object" size="{" ".join(map(str, size))}" pos="{" ".join(map(str, pos))}" '
        f'rgba="{" ".join(map(str, colour))} 1" mass="{mass}"/>'
        for size, pos, colour, mass in shapes
    )
    return f'<body name="{name}" pos="{BELT_X} -.5 {BELT_TOP + 0.002}"><freejoint name="{name}_free"/>{geoms}</body>'


def _bin_xml(name: str) -> str:
    (x, y), wall, height = BINS[name], 0.004, 0.045
    colour = {"red": ".80 .15 .12 1", "blue": ".12 .25 .80 1"}[name]
    walls = "".join(
        f'<geom class="static" type="box" size="{sx} {sy} {height}" pos="{dx} {dy} {height}" rgba="{colour}"/>'
        for dx, dy, sx, sy in (
            (BIN_HALF, 0, wall, BIN_HALF),
            (-BIN_HALF, 0, wall, BIN_HALF),
            (0, BIN_HALF, BIN_HALF, wall),
            (0, -BIN_HALF, BIN_HALF, wall),
        )
    )
    floor = f'<geom class="static" type="box" size="{BIN_HALF} {BIN_HALF} {wall}" pos="0 0 {wall}" rgba="{colour}"/>'
    return f'<body name="bin_{name}" pos="{x} {y} 0">{floor}{walls}</body>'


def model_xml(objects: tuple[str, ...]) -> str:
    """Returns the cell as MJCF, with the meshes by file name: all that decides how it moves and looks.

    Args:
        objects: Names out of ``OBJECT_GEOMS`` that lie on the belt.
    """
    return scene_xml("".join(map(_bin_xml, BINS)), "".join(object_xml(name, OBJECT_GEOMS[name]) for name in objects))


def scene_xml(fixtures: str, objects: str) -> str:
    """Returns the arm next to the belt as MJCF, with other bodies before and after the arm's."""
    servos = "".join(
        f'<position joint="j{i}" kp="{6000 if i < 4 else 1500}" dampratio="1" '
        f'forcerange="-{300 if i < 4 else 80} {300 if i < 4 else 80}"/>'
        for i in range(1, 7)
    )
    fingers = "".join(
        f'<position joint="{side}_j" kp="600" kv="20" forcerange="-25 25" ctrlrange="-.01 {OPENING / 2}"/>'
        for side in ("left", "right")
    )
    # Shadows and multisampling are off: software rendering pays 5 to 10 times the frame for them.
    return f"""
    <mujoco model="conveyor"><compiler angle="radian" autolimits="true"/>
    <option timestep="{TICK_NS / 1e9}" integrator="implicitfast" cone="elliptic" impratio="10" iterations="20"
      ls_iterations="20"><flag nativeccd="enable"/></option>
    <visual><quality shadowsize="0" offsamples="0"/><map znear=".005"/><global offwidth="640" offheight="480"/>
      <headlight ambient=".45 .45 .45" diffuse=".5 .5 .5" specular="0 0 0"/></visual>
    <default>
      <default class="visual"><geom type="mesh" contype="0" conaffinity="0" group="1"/></default>
      <default class="block"><geom contype="0" conaffinity="0" group="1"/></default>
      <default class="arm"><joint damping="1" armature=".1"/></default>
      <default class="wrist"><joint damping=".5" armature=".05"/></default>
      <default class="finger"><joint type="slide" range="0 {OPENING / 2}" damping="5" armature=".05"/></default>
      <default class="pad"><geom type="box" friction="1.5 .02 .001" condim="4" contype="1" conaffinity="2" mass=".03"
        rgba=".1 .1 .1 1" solref=".008 1"/></default>
      <default class="object"><geom type="box" friction="1 .01 .001" condim="4" contype="2" conaffinity="7"
        solref=".008 1"/></default>
      <default class="static"><geom contype="4" conaffinity="2" friction=".8 .01 .001" condim="4"/></default>
    </default>
    <asset>{"".join(f'<mesh name="{name}" file="{name}.stl"/>' for name in _MESHES)}</asset>
    <worldbody>
      <light name="lamp" pos=".5 0 2" dir="0 0 -1" diffuse=".3 .3 .3" castshadow="false"/>
      <camera name="third" pos="1.10 0 .95" xyaxes="0 1 0 -.80 0 .60" fovy="54"/>
      <geom class="static" type="plane" size="3 3 .1" rgba=".55 .56 .53 1"/>
      <body name="belt" pos="{BELT_X} 0 0"><inertial pos="0 0 0" mass="200" diaginertia="10 10 10"/>
        <joint name="belt" type="slide" axis="0 1 0"/>
        <geom class="static" type="box" size="{BELT_WIDTH / 2} 2 .01" pos="0 0 {BELT_TOP - 0.01}" rgba=".16 .20 .18 1"
          friction="1 .01 .001"/></body>
      <geom class="block" type="box" size="{BELT_WIDTH / 2 + 0.015} 1.5 .04" pos="{BELT_X} 0 .045" rgba=".4 .4 .42 1"/>
      {fixtures}{_arm_xml()}{objects}
    </worldbody>
    <actuator>{servos}{fingers}</actuator></mujoco>"""


@functools.lru_cache(maxsize=8)
def build_model(xml: str) -> mujoco.MjModel:
    """Compiles a scene with the meshes of the installed robosuite. The model is shared: do not change it."""
    meshes = {f"{name}.stl": (mesh_folder() / f"{name}.stl").read_bytes() for name in _MESHES}
    return mujoco.MjModel.from_xml_string(xml, meshes)


def rotation_z(angle: float) -> np.ndarray:
    """Returns the 3x3 rotation by ``angle`` radians about z."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def _rotation_vector(rotation: np.ndarray) -> np.ndarray:
    quaternion, vector = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quaternion, rotation.ravel())
    mujoco.mju_quat2Vel(vector, quaternion, 1.0)
    return vector


def _rotation_matrix(vector: np.ndarray) -> np.ndarray:
    quaternion, rotation, angle = np.zeros(4), np.zeros(9), float(np.linalg.norm(vector))
    mujoco.mju_axisAngle2Quat(quaternion, vector / max(angle, 1e-12), angle)
    mujoco.mju_quat2Mat(rotation, quaternion)
    return rotation.reshape(3, 3)


class ConveyorPhysics:
    """State and motion of the cell: no task, no reward, no cameras.

    The tool is driven by integrating delta poses into a target pose that damped least-squares inverse kinematics turns
    into joint targets for stiff position servos. The tool follows its target about 48 ms late.

    Args:
        objects: Objects on the belt.
        speed: Belt speed in m/s.
        tool: Initial tool position in metres.
        tool_yaw: Initial tool yaw in radians.
        poses: Object name to (x, y, yaw) on the belt.
        xml: Another scene with this arm, belt and these objects, from :func:`scene_xml`.
    """

    def __init__(
        self,
        objects: tuple[str, ...],
        speed: float,
        tool: Sequence[float] | np.ndarray,
        tool_yaw: float,
        poses: dict[str, tuple[float, float, float]],
        xml: str | None = None,
    ) -> None:
        """Places everything, and lets the objects settle for 10 ms."""
        self.model = build_model(xml or model_xml(objects))
        self.data = mujoco.MjData(self.model)
        self._scratch = mujoco.MjData(self.model)  # kinematics for the solver, apart from the simulation
        self.speed = speed
        joint = self.model.joint
        self._arm_q = np.array([joint(name).qposadr[0] for name in _ARM])
        self._arm_v = np.array([joint(name).dofadr[0] for name in _ARM])
        self._finger_q = np.array([joint(f"{side}_j").qposadr[0] for side in ("left", "right")])
        self._belt_q, self._belt_v = joint("belt").qposadr[0], joint("belt").dofadr[0]
        self._grip = self.model.site("grip").id
        self._object_q = {name: joint(f"{name}_free").qposadr[0] for name in objects}
        self._object_v = {name: joint(f"{name}_free").dofadr[0] for name in objects}

        self.target_position = np.asarray(tool, float).copy()
        self.target_rotation = rotation_z(tool_yaw) @ TOOL_DOWN
        self.gripper = -1.0
        self._joints = _HOME_JOINTS.copy()
        self._solve(100)
        data = self.data
        data.qpos[self._arm_q] = self._joints
        data.qpos[self._finger_q] = OPENING / 2
        data.ctrl[:6], data.ctrl[6:] = self._joints, OPENING / 2
        for name, (x, y, yaw) in poses.items():
            start = self._object_q[name]
            data.qpos[start : start + 7] = [x, y, BELT_TOP + 0.002, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]
            data.qvel[self._object_v[name] + 1] = speed  # otherwise it slips when the belt starts
        data.qvel[self._belt_v] = speed
        mujoco.mj_forward(self.model, data)
        self.advance(5)

    def advance(self, ticks: int) -> None:
        """Moves the world by ``ticks`` physics ticks; the arm holds its last target."""
        data = self.data
        for _ in range(ticks):
            data.qvel[self._belt_v] = self.speed
            if data.qpos[self._belt_q] > _BELT_WRAP:
                data.qpos[self._belt_q] -= _BELT_WRAP
            mujoco.mj_step(self.model, data)

    def control(self, action: np.ndarray) -> None:
        """Executes one 50 ms control step.

        Args:
            action: [7] in [-1, 1]: translation, rotation vector (both in the world frame), gripper (-1 open, +1
                closed).
        """
        position = self.target_position + action[:3] * TRANSLATION
        self.target_position = np.clip(position, TOOL_LOW, TOOL_HIGH)
        self.target_rotation = _rotation_matrix(action[3:6] * ROTATION) @ self.target_rotation
        self.gripper = 1.0 if action[6] > 0 else -1.0
        start = self._joints.copy()
        self._solve(2)
        self.data.ctrl[6:] = -0.01 if self.gripper > 0 else OPENING / 2
        segments = 5  # a ramp, so that the stiff servos do not kick
        for segment in range(1, segments + 1):
            self.data.ctrl[:6] = start + (self._joints - start) * segment / segments
            self.advance(CONTROL_TICKS // segments)

    def _solve(self, iterations: int) -> None:
        """Moves the joint targets towards the tool target (damped least squares)."""
        model, data = self.model, self._scratch
        jacobian = np.zeros((6, model.nv))
        for _ in range(iterations):
            data.qpos[self._arm_q] = self._joints
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._grip)
            arm = jacobian[:, self._arm_v]
            rotation = data.site_xmat[self._grip].reshape(3, 3)
            error = np.concatenate(
                [self.target_position - data.site_xpos[self._grip], _rotation_vector(self.target_rotation @ rotation.T)]
            )
            step = arm.T @ np.linalg.solve(arm @ arm.T + 1e-4 * np.eye(6), error)
            self._joints = self._joints + np.clip(step, -0.25, 0.25)

    @property
    def tool_position(self) -> np.ndarray:
        """Tool position [3] in metres, a copy."""
        return self.data.site_xpos[self._grip].copy()

    @property
    def tool_yaw(self) -> float:
        """Yaw of the tool in radians."""
        return _yaw(self.data.site_xmat[self._grip].reshape(3, 3) @ TOOL_DOWN)

    @property
    def target_yaw(self) -> float:
        """Yaw of the tool target in radians."""
        return _yaw(self.target_rotation @ TOOL_DOWN)

    @property
    def width(self) -> float:
        """Distance between the finger pads in metres."""
        return float(self.data.qpos[self._finger_q].sum())

    def object_position(self, name: str) -> np.ndarray:
        """Position [3] of an object in metres, a copy."""
        start = self._object_q[name]
        return self.data.qpos[start : start + 3].copy()

    def object_yaw(self, name: str) -> float:
        """Yaw of an object in radians."""
        start, rotation = self._object_q[name], np.zeros(9)
        mujoco.mju_quat2Mat(rotation, self.data.qpos[start + 3 : start + 7])
        return _yaw(rotation.reshape(3, 3))

    def object_speed(self, name: str) -> float:
        """Speed of an object's origin in m/s."""
        start = self._object_v[name]
        return float(np.linalg.norm(self.data.qvel[start : start + 3]))

    def state(self) -> np.ndarray:
        """Returns the full physics state (float64), from which MuJoCo would continue identically."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, state, kind)
        return state


def _yaw(rotation: np.ndarray) -> float:
    return float(np.arctan2(rotation[1, 0], rotation[0, 0]))
