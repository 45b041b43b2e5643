"""What the arm can do. A skill decides from the present state alone, so it takes over from anywhere."""

from __future__ import annotations

import numpy as np

from .fixtures import Drawer
from .grasp import Grasp, hand_rotation, plan_grasp
from .motion import approach, hand_floor, over_the_top, path_top, servo, turn_to, yaw_of
from .scene import Scene

_FRONT = 0.02  # metres from the middle of a drawer


class PickPlace:
    """Takes an object and puts it down on, or drops it into, something else.

    Args:
        thing: The object.
        target: The object, fixture or region that it belongs on or in.
        aside: Where on it [3], metres from its middle: zeros, unless others belong there too.
    """

    def __init__(self, scene: Scene, thing: str, target: str, aside: np.ndarray) -> None:
        self.scene, self.thing, self.target = scene, thing, target
        self._aside = aside
        sites = scene.problem.object_sites_dict
        parent = sites[target].parent_name if target in sites else target
        self._holder = parent if parent in scene.things else None
        self._walled = "contain_region" in target  # the object is dropped in from above the wall
        inside = target in sites and bool(sites[target].joints) and "contain" not in target
        self._drawer = Drawer(scene, target, open=True) if inside else None
        self.grasp: Grasp | None = None

    @property
    def holding(self) -> bool:
        """Whether the fingers have the object between them and no longer close."""
        return all(self.scene.touches(self.thing)) and self.scene.opening_speed > -0.03

    def act(self) -> np.ndarray:
        """The next action [7]."""
        if self._drawer and not self.holding:
            action = self._drawer.act() if self._drawer.wanted else self._drawer.leave()
            if action is not None:
                return action
        return self._carry() if self.holding else self._pick()

    def leave(self) -> np.ndarray | None:
        """Lets go of the object before something else is done; None if nothing is held."""
        if any(self.scene.touches(self.thing)) and self.scene.opening < 0.06:
            return servo(self.scene, self.scene.tool, hand_rotation(yaw_of(self.scene)), -1.0)
        return None

    def _pick(self) -> np.ndarray:
        scene = self.scene
        tool, position, rotation = scene.tool, scene.position(self.thing), scene.rotation(self.thing)
        if scene.speed(self.thing) > 0.15:  # it falls or rolls: wait and see
            return servo(scene, tool, hand_rotation(yaw_of(scene)), -1.0)
        if self.grasp is None or not self.grasp.fits(position, rotation):
            self.grasp = plan_grasp(scene, self.thing, self._spot())
        goal, hand = position + self.grasp.offset, self.grasp.hand
        step = approach(scene, goal, hand, self.grasp.width, hand[:, 2])
        if step.close:
            return servo(scene, goal, hand, 1.0)
        obstacles = scene.obstacles(self.thing)
        top = max(scene.cloud(self.thing)[:, 2].max(), path_top(obstacles, tool, goal, 0.05))
        floor = max(top + 0.04, hand_floor(obstacles, tool, goal, hand[:, 0]))
        waypoint = over_the_top(tool, goal, floor, step.error, hand[:, 2])
        return servo(scene, waypoint, hand, -1.0, limit=1.0 if tool[2] - goal[2] > 0.05 else 0.6)

    def _carry(self) -> np.ndarray:
        scene = self.scene
        tool, hand = scene.tool, self._hand()
        hang = tool - scene.position(self.thing)
        below = tool[2] - scene.cloud(self.thing)[:, 2].min()
        spot = self._spot()
        goal = spot + np.array([hang[0], hang[1], below])
        gap = goal - tool
        aside = float(np.linalg.norm(gap[:2] - gap[2] / hand[2, 2] * hand[:2, 2]))
        still = float(np.linalg.norm(scene.tool_velocity)) < 0.005
        loosening = scene.squeeze < 1 and aside < 0.03 and gap[2] > -0.05  # once begun, it is not taken back
        if loosening or (aside < 0.02 and gap[2] > -0.012) or (still and aside < 0.028 and gap[2] > -0.04):
            return servo(scene, tool, hand, -1.0)
        if scene.squeeze < 1:
            return servo(scene, tool, hand, 1.0)
        obstacles = scene.obstacles(self.thing)
        way = self._way_out(obstacles)
        if way is not None:
            return servo(scene, tool + 0.05 * way, hand, 1.0, limit=0.7)
        top = path_top(obstacles, tool - hang, spot, 0.06)
        floor = max(top + below + 0.03, hand_floor(obstacles, tool, goal, hand[:, 0]), goal[2] + 0.06)
        return servo(scene, over_the_top(tool, goal, floor, (aside - 0.015) / 0.03, hand[:, 2]), hand, 1.0)

    def _hand(self) -> np.ndarray:
        """The rotation [3, 3] to carry with: that of the grasp, if this is the grasp that was planned."""
        if self.grasp is not None and np.linalg.norm(turn_to(self.scene, self.grasp.hand)) < 0.5:
            return self.grasp.hand
        return hand_rotation(yaw_of(self.scene))

    def _way_out(self, obstacles: np.ndarray) -> np.ndarray | None:
        """Direction [3] out from under something, such as an open drawer; None if the object can go straight up."""
        cloud = self.scene.cloud(self.thing)
        centre = (cloud[:, :2].max(axis=0) + cloud[:, :2].min(axis=0)) / 2
        reach = float(np.linalg.norm(cloud[:, :2] - centre, axis=1).max())
        offset, height = obstacles[:, :2] - centre, obstacles[:, 2]
        distance = np.linalg.norm(offset, axis=1)
        above = offset[(height > cloud[:, 2].max() + 0.005) & (distance < reach + 0.01)]
        if not len(above):
            return None
        way = -above.mean(axis=0)
        way = way / max(float(np.linalg.norm(way)), 1e-6)
        beside = (height > cloud[:, 2].min() + 0.01) & (height < cloud[:, 2].max()) & (distance < reach + 0.07)
        walled = bool((offset[beside] @ way > 0.5 * reach).any())
        return None if walled else np.array([*way, 0.0])

    def _spot(self) -> np.ndarray:
        """Where the object's bottom centre goes [3]."""
        scene = self.scene
        if self._holder is None:
            return scene.site(self.target) + self._aside
        spot = scene.position(self._holder) if self.target == self._holder else scene.site(self.target)
        if self._walled:
            spot[2] = scene.cloud(self._holder)[:, 2].max() - 0.02
        elif self.target == self._holder:
            spot[2] = scene.cloud(self._holder)[:, 2].max() - 0.006
        else:
            spot[2] += 0.004
        if self._drawer:  # in its front part, where the hand does not knock against the cabinet
            spot += _FRONT * self._drawer.out
        return spot + self._aside
