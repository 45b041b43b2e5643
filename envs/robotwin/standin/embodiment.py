"""Two ViperX-300s arms as a RoboTwin embodiment, made from the model in the gym-aloha package (Apache-2.0).

RoboTwin reads a URDF with both arms in it and a ``config.yml`` that names joints, frames and cameras. The published
model is MuJoCo's XML with meshes in millimetres. The arms stand where RoboTwin's own two-arm robot has its arms.
"""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np

from ... import SuiteUnavailable

NAME = "aloha-viperx"
ARM = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
FINGER_RANGE = (0.021, 0.057)  # metres of a finger from the middle, closed and open
_BASES = {"left": (0.25, 0.30, 0.75), "right": (0.25, -0.30, 0.75)}  # metres; x forward, y left, z up from the floor
_HOME = [0.0, -0.96, 1.16, 0.0, -0.3, 0.0]
_COLOURS = {"black": "0.12 0.12 0.13 1", "grey": "0.30 0.30 0.32 1", "finger": "0.55 0.56 0.60 1"}
# The arm's links whose meshes collide. The base does not (it stands in the table), fingers do as boxes.
_SOLID = {"upper_arm_link", "upper_forearm_link", "lower_forearm_link", "wrist_link", "gripper_link"}
# Boxes of a finger, from its root to its tip: start, end along the finger, thickness, width (metres).
_FINGER = ((0.0, 0.025, 0.022, 0.05), (0.025, 0.055, 0.016, 0.034), (0.055, 0.085, 0.008, 0.02))
_PAD = 0.0224  # metres from a finger's origin to the surface it grips with
_PALM = ((0.0, 0.0, 0.0), (0.05, 0.07, 0.06))
_CAMERA = ("0.02 0 0.075", "0 0.55 0")  # on the gripper: looks down the fingers


def build_embodiment(folder: Path) -> None:
    """Writes URDF, SRDF, meshes and configuration into ``folder``, which must not exist.

    Raises:
        SuiteUnavailable: gym-aloha is not installed.
    """
    import trimesh
    import yaml

    source = _gym_aloha()
    (folder / "meshes").mkdir(parents=True)
    meshes = {
        str(mesh.get("name")): str(mesh.get("file"))
        for mesh in ET.parse(source / "vx300s_dependencies.xml").iter("mesh")
    }
    for file in meshes.values():  # in metres, because planners refuse meshes with a scale
        mesh: Any = trimesh.load(source / file, force="mesh")
        mesh.apply_scale(0.001)
        mesh.export(folder / "meshes" / file)
    robot = ET.Element("robot", name="aloha_viperx")
    for name, rgba in _COLOURS.items():
        ET.SubElement(ET.SubElement(robot, "material", name=name), "color", rgba=rgba)
    ET.SubElement(robot, "link", name="footprint")
    for side in _BASES:
        arm = ET.parse(source / f"vx300s_{side}.xml").getroot().find("body")
        assert arm is not None
        _Arm(robot, side, meshes).add(arm, "footprint")
        ET.SubElement(robot, "link", name=f"{side}_camera")
        _joint(robot, f"{side}_camera_fixed", "fixed", f"{side}_gripper_link", f"{side}_camera", *_CAMERA)
    _write(robot, folder / f"{robot.get('name')}.urdf")
    _write(_ignored_contacts(), folder / f"{robot.get('name')}.srdf")
    (folder / "config.yml").write_text(yaml.safe_dump(_configuration(), sort_keys=False), encoding="utf-8")
    for side in _BASES:  # upstream reads the file of its GPU planner even where another one plans
        (folder / f"curobo_{side}_tmp.yml").write_text("robot_cfg: {}\nplanner: {frame_bias: [0, 0, 0]}\n")


class _Arm:
    """Turns one arm's bodies, which are nested in MuJoCo's XML, into a row of links and joints."""

    def __init__(self, robot: ET.Element, side: str, meshes: dict[str, str]) -> None:
        self._robot, self._side, self._meshes = robot, side, meshes

    def add(self, body: ET.Element, parent: str) -> None:
        short = str(body.get("name")).removeprefix(f"vx300s_{self._side}").removeprefix("/") or "base"
        if short == "camera_focus":
            return
        name = f"{self._side}_{short}"
        link = ET.SubElement(self._robot, "link", name=name)
        _inertia(link, body.find("inertial"))
        for geom in body.findall("geom"):
            self._mesh(link, geom, short)
        if "finger" in short:
            inwards = 1 if short.startswith("left") else -1
            for start, end, thickness, width in _FINGER:
                middle = inwards * (thickness / 2 - _PAD)
                _box(link, ((start + end) / 2, middle, 0), (end - start, thickness, width))
        if short == "gripper_link":
            _box(link, *_PALM)
        at = _text(_BASES[self._side]) if short == "base" else body.get("pos", "0 0 0")
        joint = body.find("joint")
        if joint is None:
            _joint(self._robot, f"{name}_fixed", "fixed", parent, name, at)
        else:
            moved = str(joint.get("name")).rpartition("/")[2]
            slides = joint.get("type") == "slide"
            made = _joint(self._robot, f"{self._side}_{moved}", "prismatic" if slides else "revolute", parent, name, at)
            ET.SubElement(made, "axis", xyz=str(joint.get("axis")))
            lower, upper = str(joint.get("range")).split()
            ET.SubElement(made, "limit", lower=lower, upper=upper, effort="300", velocity="1" if slides else "3.14")
        for child in body.findall("body"):
            self.add(child, name)

    def _mesh(self, link: ET.Element, geom: ET.Element, short: str) -> None:
        colour = "finger" if "finger" in short else "grey" if "gripper" in short else "black"
        mesh = str(geom.get("mesh"))
        # The gripper has a second mesh, the bar its fingers run on: seen, but never touched.
        solid = short in _SOLID and not mesh.endswith("gripper_bar")
        for kind in ("visual", "collision") if solid else ("visual",):
            shape = ET.SubElement(link, kind)
            ET.SubElement(shape, "origin", xyz=geom.get("pos", "0 0 0"), rpy=_rpy(_rotation(geom)))
            ET.SubElement(ET.SubElement(shape, "geometry"), "mesh", filename=f"meshes/{self._meshes[mesh]}")
            if kind == "visual":
                ET.SubElement(shape, "material", name=colour)


def _configuration() -> dict[str, Any]:
    """Returns what RoboTwin's ``Robot`` and ``Camera`` read."""
    return {
        "urdf_path": "./aloha_viperx.urdf",
        "srdf_path": "./aloha_viperx.srdf",
        "joint_stiffness": 1000,
        "joint_damping": 200,
        "gripper_stiffness": 1000,
        "gripper_damping": 200,
        "move_group": ["left_gripper_link", "right_gripper_link"],
        "ee_joints": ["left_wrist_rotate", "right_wrist_rotate"],
        "arm_joints_name": [[f"{side}_{joint}" for joint in ARM] for side in _BASES],
        "gripper_name": [
            {"base": f"{side}_left_finger", "mimic": [[f"{side}_right_finger", -1.0, 0.0]]} for side in _BASES
        ],
        "gripper_bias": 0.125,  # metres from the last joint to between the fingertips
        "gripper_scale": list(FINGER_RANGE),
        "homestate": [_HOME, _HOME],
        "delta_matrix": np.eye(3).tolist(),
        # SAPIEN's joint frames are turned half around x against the link's.
        "global_trans_matrix": [[1, 0, 0], [0, -1, 0], [0, 0, -1]],
        "robot_pose": [[0, -0.65, 0, 0.70710678, 0, 0, 0.70710678]],  # of RoboTwin's own two-arm robot
        "planner": "mplib_RRT",
        "dual_arm": True,
        "rotate_lim": [0, 0],
        "grasp_perfect_direction": ["front_right", "front_left"],
        "static_camera_list": [
            {
                "name": "head_camera",
                "type": "D435",
                "position": [-0.032, -0.45, 1.35],
                "forward": [0, 0.6, -0.8],
                "left": [-1, 0, 0],
            }
        ],
    }


def _ignored_contacts() -> ET.Element:
    """Returns the pairs of an arm's links that always touch: neighbours, and everything from the wrist on."""
    links = ["base", "shoulder_link", "upper_arm_link", "upper_forearm_link", "lower_forearm_link", "wrist_link"]
    links += ["gripper_link", "gripper_prop_link", "left_finger_link", "right_finger_link"]
    wrist = links.index("wrist_link")
    contacts = ET.Element("robot", name="aloha_viperx")
    for side in _BASES:
        for first, link in enumerate(links):
            for second in range(first + 1, len(links)):
                if second - first <= 2 or first >= wrist:
                    pair = {"link1": f"{side}_{link}", "link2": f"{side}_{links[second]}"}
                    ET.SubElement(contacts, "disable_collisions", {**pair, "reason": "Adjacent"})
    return contacts


def _gym_aloha() -> Path:
    spec = importlib.util.find_spec("gym_aloha")  # found, not imported: importing it wants another simulator
    if spec is None or spec.origin is None:
        raise SuiteUnavailable("gym-aloha is not installed; run `pip install --no-deps gym-aloha==0.1.5`")
    return Path(spec.origin).parent / "assets"


def _joint(
    robot: ET.Element, name: str, kind: str, parent: str, child: str, xyz: str, rpy: str = "0 0 0"
) -> ET.Element:
    joint = ET.SubElement(robot, "joint", name=name, type=kind)
    ET.SubElement(joint, "origin", xyz=xyz, rpy=rpy)
    ET.SubElement(joint, "parent", link=parent)
    ET.SubElement(joint, "child", link=child)
    return joint


def _box(link: ET.Element, middle: tuple[float, ...], size: tuple[float, ...]) -> None:
    shape = ET.SubElement(link, "collision")
    ET.SubElement(shape, "origin", xyz=_text(middle), rpy="0 0 0")
    ET.SubElement(ET.SubElement(shape, "geometry"), "box", size=_text(size))


def _inertia(link: ET.Element, inertial: ET.Element | None) -> None:
    made = ET.SubElement(link, "inertial")
    if inertial is None:  # the base, which does not move
        position, mass, tensor = "0 0 0", "1", np.eye(3) * 0.01
    else:
        rotation = _rotation(inertial)
        tensor = rotation @ np.diag(_vector(inertial.get("diaginertia"))) @ rotation.T
        position, mass = inertial.get("pos", "0 0 0"), str(inertial.get("mass"))
    ET.SubElement(made, "origin", xyz=position, rpy="0 0 0")
    ET.SubElement(made, "mass", value=mass)
    entries = {f"i{'xyz'[row]}{'xyz'[column]}": (row, column) for row in range(3) for column in range(row, 3)}
    ET.SubElement(made, "inertia", {name: f"{tensor[at]:.6g}" for name, at in entries.items()})


def _rotation(element: ET.Element) -> np.ndarray:
    """Returns the rotation [3, 3] of a body or geom; MuJoCo's Euler angles turn about the moving axes x, y, z."""
    from transforms3d import euler, quaternions

    if element.get("quat"):
        return quaternions.quat2mat(_vector(element.get("quat")))
    if element.get("euler"):
        return euler.euler2mat(*_vector(element.get("euler")), axes="rxyz")
    return np.eye(3)


def _rpy(rotation: np.ndarray) -> str:
    from transforms3d import euler

    return _text(euler.mat2euler(rotation, "sxyz"))


def _vector(text: str | None) -> np.ndarray:
    assert text is not None
    return np.array([float(part) for part in text.split()])


def _text(values: Any) -> str:
    return " ".join(f"{round(float(value), 6) + 0.0:g}" for value in values)


def _write(root: ET.Element, path: Path) -> None:
    ET.indent(root)
    ET.ElementTree(root).write(path)
