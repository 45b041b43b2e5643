"""Parts that move on a joint: drawers, doors and knobs."""

from __future__ import annotations

import numpy as np

from .motion import servo, turn_to
from .scene import Scene

_UP = np.array([0.0, 0.0, 1.0])


def frame(fingers: np.ndarray, pointing: np.ndarray) -> np.ndarray:
    """The tool's rotation [3, 3] whose fingers move along one direction while the hand points in another."""
    return np.stack((fingers, np.cross(pointing, fingers), pointing), axis=1)


class Drawer:
    """Opens a drawer by its handle, or shuts it.

    Args:
        scene: The scene.
        region: The region in the drawer, such as ``wooden_cabinet_1_top_region``.
        open: True pulls it open, False pushes it shut.
    """

    grasp = None

    def __init__(self, scene: Scene, region: str, open: bool) -> None:
        """See the class."""
        self.scene, self.open = scene, open
        site = scene.problem.object_sites_dict[region]
        model, data = scene.model, scene.data
        joint = model.joint(site.joints[0])
        self._qpos, self._body = int(joint.qposadr[0]), int(model.jnt_bodyid[joint.id])
        opened = scene.problem.get_object(site.parent_name).object_properties["articulation"]["default_open_ranges"]
        self._out = np.sign(np.mean(opened)) * (data.xmat[self._body].reshape(3, 3) @ joint.axis)
        self._out[2] = 0.0
        self._bar = max(
            (geom for geom in scene.geoms(self._body) if model.geom_contype[geom]),
            key=lambda geom: float(data.geom_xpos[geom] @ self._out),
        )

    @property
    def travel(self) -> float:
        """How far it is open, metres."""
        return abs(float(self.scene.data.qpos[self._qpos]))

    def act(self) -> np.ndarray:
        """The next action [7]."""
        return self._pull() if self.open else self._push()

    def _pull(self) -> np.ndarray:
        scene, out = self.scene, self._out
        bar, tool = scene.data.geom_xpos[self._bar].copy(), scene.tool
        hand = frame(-_UP, -out)
        if all(scene.touches_geom(self._bar)) and scene.opening_speed > -0.03:
            if scene.squeeze < 1:
                return servo(scene, tool, hand, 1.0)
            return servo(scene, tool + 0.06 * out, hand, 1.0)
        goal = bar + 0.004 * out
        gap = goal - tool
        short = -float(gap @ out)  # still to go towards the cabinet
        aside = float(np.linalg.norm(gap + short * out))
        turn = float(np.linalg.norm(turn_to(scene, hand)))
        closing = scene.squeeze > -1 and scene.opening_speed < -0.004
        wide = scene.opening > 0.06
        if (wide and aside < 0.008 and abs(short) < 0.008 and turn < 0.15) or (
            closing and aside < 0.02 and abs(short) < 0.02
        ):
            return servo(scene, goal, hand, 1.0)
        error = float(np.clip((aside - 0.008 + 0.1 * max(0.0, turn - 0.1)) / 0.03 + (0 if wide else 1), 0, 1))
        return servo(scene, goal + 0.10 * error * out, hand, -1.0, limit=0.6 if short < 0.1 else 1.0)

    def _push(self) -> np.ndarray:
        scene, out = self.scene, self._out
        bar, tool = scene.data.geom_xpos[self._bar].copy(), scene.tool
        hand = frame(np.cross(-out, _UP), -out)
        gap = bar + 0.02 * out - tool
        short = -float(gap @ out)
        aside = float(np.linalg.norm(gap + short * out))
        turn = float(np.linalg.norm(turn_to(scene, hand)))
        error = float(np.clip((aside - 0.015 + 0.1 * max(0.0, turn - 0.15)) / 0.03, 0, 1))
        goal = bar + (0.02 - 0.06 + 0.12 * error) * out
        return servo(scene, goal, hand, 1.0, limit=0.6 if short < 0.1 else 1.0)
