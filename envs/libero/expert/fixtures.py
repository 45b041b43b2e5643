"""Parts that move on a joint: drawers, doors and knobs."""

from __future__ import annotations

import numpy as np

from .grasp import hand_rotation
from .motion import approach, over_the_top, path_top, servo, turn_to, yaw_of
from .scene import Scene

_UP = np.array([0.0, 0.0, 1.0])


def frame(fingers: np.ndarray, pointing: np.ndarray) -> np.ndarray:
    """The tool's rotation [3, 3] whose fingers move along one direction while the hand points in another."""
    return np.stack((fingers, np.cross(pointing, fingers), pointing), axis=1)


def _round_to(scene: Scene, start: np.ndarray, over: float) -> tuple[np.ndarray, bool]:
    """The next waypoint [3] to where a push starts, above everything and the height ``over``, metres.

    Also whether the tool has to go up before it may go across.
    """
    tool = scene.tool
    away = float(np.linalg.norm((start - tool)[:2]))
    floor = max(path_top(scene.obstacles(), tool, start, 0.05), over) + 0.06
    waypoint = over_the_top(tool, start, floor, (away - 0.02) / 0.03)
    return waypoint, bool(away > 0.03 and tool[2] < floor - 0.03)


class Drawer:
    """Opens a drawer by its handle, or shuts it.

    Args:
        scene: The scene.
        region: The region in the drawer, such as ``wooden_cabinet_1_top_region``.
        open: True pulls it open, False pushes it shut.
    """

    def __init__(self, scene: Scene, region: str, open: bool) -> None:
        self.scene, self.open = scene, open
        site = scene.problem.object_sites_dict[region]
        model, data = scene.model, scene.data
        joint = model.joint(site.joints[0])
        self._qpos, self._body = int(joint.qposadr[0]), int(model.jnt_bodyid[joint.id])
        opened = scene.problem.get_object(site.parent_name).object_properties["articulation"]["default_open_ranges"]
        self.out = np.sign(np.mean(opened)) * (data.xmat[self._body].reshape(3, 3) @ joint.axis)
        self.out[2] = 0.0
        self._bar = max(
            (geom for geom in scene.geoms(self._body) if model.geom_contype[geom]),
            key=lambda geom: float(data.geom_xpos[geom] @ self.out),
        )

    @property
    def travel(self) -> float:
        """How far it is open, metres."""
        return abs(float(self.scene.data.qpos[self._qpos]))

    @property
    def wanted(self) -> bool:
        """Whether it isn't open wide enough yet to put something in; once begun, pulling goes on to the end."""
        return self.travel < (0.145 if all(self.scene.touches_body(self._body)) else 0.11)

    def leave(self) -> np.ndarray | None:
        """Lets go of the handle and backs off, before something else is done; None if the hand is elsewhere."""
        scene = self.scene
        pointing, tool = scene.tool_rotation[:, 2], scene.tool
        away = tool - scene.data.geom_xpos[self._bar]
        if float(pointing @ self.out) > -0.7 or float(np.linalg.norm(away)) > 0.12 or float(away @ self.out) > 0.09:
            return None
        hand = frame(-_UP, -self.out)
        back = 0.0 if self.open and scene.opening < 0.05 else 0.12
        return servo(scene, tool + back * self.out, hand, -1.0)

    def act(self) -> np.ndarray:
        """The next action [7]."""
        return self._pull() if self.open else self._push()

    def _pull(self) -> np.ndarray:
        scene, out = self.scene, self.out
        bar, tool = scene.data.geom_xpos[self._bar].copy(), scene.tool
        hand = frame(-_UP, -out)
        if all(scene.touches_body(self._body)) and scene.opening_speed > -0.03:
            if scene.squeeze < 1:
                return servo(scene, tool, hand, 1.0)
            return servo(scene, tool + 0.06 * out, hand, 1.0)
        goal = bar + 0.004 * out
        step = approach(scene, goal, hand, 0.02, -out)
        if step.close:
            return servo(scene, goal, hand, 1.0)
        near = float((tool - goal) @ out) < 0.1
        return servo(scene, goal + 0.10 * step.error * out, hand, -1.0, limit=0.6 if near else 1.0)

    def _push(self) -> np.ndarray:
        """Pushes with the closed hand, which leans back so that its back stays clear of the handles above."""
        scene, out = self.scene, self.out
        bar, tool = scene.data.geom_xpos[self._bar].copy(), scene.tool
        hand = frame(np.cross(-out, _UP), -0.5 * out - 0.87 * _UP)
        gap = tool - bar
        ahead = float(gap @ out)
        aside = float(np.linalg.norm(gap - ahead * out))
        turn = float(np.linalg.norm(turn_to(scene, hand)))
        if ahead > -0.005 and aside < 0.02 and turn < 0.3:
            return servo(scene, bar - 0.06 * out, hand, 1.0, limit=0.6)
        waypoint, low = _round_to(scene, bar + 0.08 * out, bar[2])
        if low:
            hand = hand_rotation(yaw_of(scene))  # it may be in the drawer still
        return servo(scene, waypoint, hand, 1.0)


class Door:
    """Shuts a door on a vertical hinge: the closed hand pushes it along its arc.

    Args:
        scene: The scene.
        name: The fixture it belongs to.
    """

    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        fixture = scene.problem.get_object(name)
        self._joint = int(scene.model.joint(fixture.joints[0]).id)
        self._body = int(scene.model.jnt_bodyid[self._joint])
        shut = float(np.mean(fixture.object_properties["articulation"]["default_close_ranges"]))
        at = float(scene.data.qpos[scene.model.jnt_qposadr[self._joint]])
        self._way = float(np.sign(shut - at)) or 1.0

    def leave(self) -> np.ndarray | None:
        """Nothing to do: the hand holds nothing."""
        return None

    def act(self) -> np.ndarray:
        """The next action [7]."""
        scene, tool = self.scene, self.scene.tool
        hinge, axis = scene.data.xanchor[self._joint], scene.data.xaxis[self._joint]
        door = scene.local_cloud(self._body) @ scene.data.xmat[self._body].reshape(3, 3).T + scene.data.xpos[self._body]
        arms = (door - hinge)[:, :2]
        edge = arms[np.argmax(np.linalg.norm(arms, axis=1))]
        along = np.array([*(edge / np.linalg.norm(edge)), 0.0])
        way = self._way * np.cross(axis, along)
        face = float(((door - hinge) @ way).min())
        point = hinge + 0.7 * float(np.linalg.norm(edge)) * along + (face - 0.02) * way
        point[2] = door[:, 2].max() - 0.04
        gap = tool - point
        behind = -float(gap @ way)
        aside = float(np.linalg.norm(gap + behind * way))
        hand = hand_rotation(0.0)
        if -0.07 < behind < 0.12 and aside < 0.03:  # the handle stands out, and the door is some way behind it
            return servo(scene, point + (0.06 - behind) * way, hand, 1.0, limit=0.6)
        waypoint, _ = _round_to(scene, point - 0.07 * way, point[2])
        return servo(scene, waypoint, hand, 1.0)


class Knob:
    """Turns a knob by the ridge across its top.

    Args:
        scene: The scene.
        name: The fixture it belongs to.
        on: True turns it up, False down.
    """

    def __init__(self, scene: Scene, name: str, on: bool) -> None:
        self.scene = scene
        model, data = scene.model, scene.data
        joint = model.joint(scene.problem.get_object(name).joints[0])
        self._body = int(model.jnt_bodyid[joint.id])
        self._way = (1.0 if on else -1.0) * float(np.sign((data.xmat[self._body].reshape(3, 3) @ joint.axis)[2]))
        cloud = scene.local_cloud(self._body)
        self._top = cloud[:, 2].max()
        ridge = cloud[cloud[:, 2] > self._top - 0.012]
        centre = (ridge.max(axis=0) + ridge.min(axis=0)) / 2
        self._along = np.linalg.svd(ridge[:, :2] - centre[:2], full_matrices=False)[2][0]
        self._width = float(np.ptp((ridge[:, :2] - centre[:2]) @ np.array([-self._along[1], self._along[0]])))
        self._grip = np.array([centre[0], centre[1], self._top - 0.010])

    def leave(self) -> np.ndarray | None:
        """Nothing to do: the hand goes up from a knob without further ado."""
        return None

    def act(self) -> np.ndarray:
        """The next action [7]."""
        scene = self.scene
        rotation, tool = scene.data.xmat[self._body].reshape(3, 3), scene.tool
        goal = scene.data.xpos[self._body] + rotation @ self._grip
        along = rotation[:2, :2] @ self._along
        yaw = float(np.arctan2(along[1], along[0]))
        yaw = (yaw + np.pi / 2) % np.pi - np.pi / 2
        hand = hand_rotation(yaw)
        held = np.linalg.norm(goal - tool) < 0.02 and scene.squeeze > 0 and scene.opening_speed > -0.03
        if held and scene.opening > self._width - 0.01:
            turned = hand_rotation(yaw_of(scene) + 0.3 * self._way * float(scene.squeeze >= 1))
            return servo(scene, goal, turned, 1.0)
        step = approach(scene, goal, hand, self._width)
        if step.close:
            return servo(scene, goal, hand, 1.0)
        floor = max(goal[2] + 0.08, path_top(scene.obstacles(), tool, goal, 0.05) + 0.04)
        waypoint = over_the_top(tool, goal, floor, step.error)
        return servo(scene, waypoint, hand, -1.0, limit=1.0 if tool[2] - goal[2] > 0.05 else 0.6)
