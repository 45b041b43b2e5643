"""RoboTwin's task classes behind a handful of calls: reset, act, observe, hold, state, demonstrate.

The file runs in two places: in our process, on the published wheel (stand-in assets), and in the user's own
interpreter (real assets; see ``bridge.py``). It therefore imports numpy, upstream, and its siblings.

Upstream samples from the global generators of numpy and torch and prints as it goes. Here it draws from streams of its
own, which are put in place for each call and taken out again, and nothing that it prints is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .streams import Streams
from .tasks import CAMERAS
from .upstream import IMAGE, Source, Upstream

TICK_NS = 4_000_000

Watch = Callable[[dict[str, np.ndarray], np.ndarray], None]
"""Observation and joint targets float64 [14]."""


class UnstableScene(RuntimeError):
    """The objects of a scene do not come to rest; upstream takes another seed then."""


class World:
    """One scene of one task at a time.

    Args:
        source: Where upstream's code and assets are.

    Raises:
        ImportError: Upstream, or something it needs, cannot be imported.
        NoRenderer: SAPIEN found no device to render with.
    """

    def __init__(self, source: Source) -> None:
        self.ticks = 0  # physics ticks since reset
        self.failure = ""  # why upstream's expert last failed
        self._streams, self._task = Streams(), None
        self._about: dict[str, str] = {}
        self._after_tick: Callable[[], None] | None = None
        with self._streams.in_place():
            self._upstream = Upstream(source)

    def reset(self, task: str, seed: int, about: dict[str, str] | None = None) -> int:
        """Builds the scene that the seed stands for.

        Args:
            task: Task.
            seed: Seed.
            about: Objects and arms that upstream's instructions name. The wheel's tasks return them; a checkout's task
                has to be played first if it is None.

        Returns:
            The largest number of actions of an episode.

        Raises:
            UnstableScene: Its objects do not come to rest.
        """
        self._build(task, seed)
        if hasattr(self._scene, "get_info"):
            try:
                about = self._scene.get_info()
            except AssertionError:  # see below; the expert cannot solve this scene
                about = {}
            if self.ticks:  # stack_blocks_three and blocks_ranking_size play the task to find out
                self._build(task, seed)
        elif about is None:
            self.demonstrate(every=0)
            about = self._scene.info.get("info", {})
            self._build(task, seed)
        self._about = about or {}
        return int(self._scene.step_lim)

    def played_about(self) -> dict[str, str] | None:
        """Returns what the instructions of a played scene name, or None where the scene returns it unplayed."""
        return None if hasattr(self._scene, "get_info") else dict(self._scene.info["info"])

    def versions(self) -> dict[str, str]:
        """Returns the versions of what decides how a scene evolves."""
        return self._upstream.versions()

    def instruction(self, kind: str, choice: int) -> str:
        """Returns one of upstream's instructions for the scene.

        Args:
            kind: ``seen`` or ``unseen``.
            choice: Seed that selects the instruction and the words for its objects.
        """
        with Streams(choice).in_place():
            written = self._upstream.descriptions(self._scene.task_name, [self._about], 1)
        name = self._scene.task_name.replace("_", " ")
        return next(iter(written[0][kind]), name) if written else name

    def act(self, action: np.ndarray, kind: str) -> tuple[bool, bool]:
        """Executes one action, for as long as upstream's timing of it takes.

        Args:
            action: ``[L6, Lgrip, R6, Rgrip]`` if ``kind`` is ``qpos``, two poses and grippers [16] if it is ``ee``.
            kind: ``qpos`` or ``ee``.

        Returns:
            Whether the task was solved after any physics tick so far, and whether both arms found a path: in upstream's
            code an arm that cannot reach its pose waits.
        """
        robot, planned_paths = self._scene.robot, []
        plans = {name: getattr(robot, name) for name in ("left_plan_path", "right_plan_path")}

        def noted(plan: Callable[..., Any]) -> Callable[..., Any]:
            def planned(*arguments: Any, **named: Any) -> Any:
                result = plan(*arguments, **named)
                planned_paths.append(result["status"] == "Success")
                return result

            return planned

        for name, plan in plans.items():
            setattr(robot, name, noted(plan))
        try:
            with self._streams.in_place():
                self._scene.take_action(action, kind)
        finally:
            for name in plans:
                delattr(robot, name)  # of the instance; the class still has it
        return bool(self._scene.eval_success), all(planned_paths)

    def hold(self, ticks: int) -> None:
        """Advances the world while the robot holds its last targets."""
        robot = self._scene.robot
        for _ in range(ticks):
            for entity in {id(e): e for e in (robot.left_entity, robot.right_entity)}.values():
                entity.set_qf(entity.compute_passive_force(gravity=True, coriolis_and_centrifugal=True))
            self._scene.scene.step()

    def solved(self) -> bool:
        """Whether the task is solved as the world stands."""
        with self._streams.in_place():
            return bool(self._scene.check_success())

    def observe(self, render: bool) -> dict[str, np.ndarray]:
        """Returns the joint targets, the poses of the hands, and the images.

        Args:
            render: If not, the images are black.

        Returns:
            ``state`` float32 [14] as ``qpos`` actions give it, ``endpose`` float32 [16] as ``ee`` actions give it, and
            the cameras' uint8 [240, 320, 3].
        """
        robot, images = self._scene.robot, {name: np.zeros(IMAGE, np.uint8) for name in CAMERAS}
        grippers = robot.get_left_gripper_val(), robot.get_right_gripper_val()
        endpose = [*robot.get_left_ee_pose(), grippers[0], *robot.get_right_ee_pose(), grippers[1]]
        if render:
            self._scene.rendering = True
            try:
                with self._streams.in_place():
                    seen = self._scene.get_obs()["observation"]
            finally:
                self._scene.rendering = False
            images = {name: np.ascontiguousarray(seen[key]["rgb"]) for name, key in CAMERAS.items()}
        return {**images, "state": np.array(self._targets(), np.float32), "endpose": np.array(endpose, np.float32)}

    def state(self) -> np.ndarray:
        """Returns poses, velocities, joints and joint targets of everything that moves, as float64."""
        scene, parts = self._scene.scene, []
        for actor in scene.get_all_actors():
            pose = actor.get_pose()
            parts += [pose.p, pose.q]
            for body in actor.components:
                if hasattr(body, "linear_velocity"):
                    parts += [body.linear_velocity, body.angular_velocity]
        for body in scene.get_all_articulations():
            targets = [joint.drive_target.ravel() for joint in body.get_active_joints()]
            parts += [body.root_pose.p, body.root_pose.q, body.qpos, body.qvel, *targets]
        robot = self._scene.robot
        parts.append([robot.get_left_gripper_val(), robot.get_right_gripper_val()])
        return np.concatenate([np.asarray(part, np.float64).ravel() for part in parts])

    def demonstrate(self, every: int, render: bool = False, watch: Watch | None = None) -> bool:
        """Lets upstream's expert solve the task from here.

        Args:
            every: Physics ticks between two observations.
            render: Whether observations have images.
            watch: Called before the expert starts, after every ``every`` ticks, and when it is done, with what is seen
                and held then; None if nothing is to be observed.

        Returns:
            Whether upstream calls it a success: all motions could be planned and the task is solved at the end.
        """
        scene, start, watching = self._scene, self.ticks, False

        def look() -> None:
            nonlocal watching
            if watch is not None:
                watching = True
                watch(self.observe(render), np.array(self._targets(), np.float64))
                watching = False

        def after_tick() -> None:
            if (self.ticks - start) % every == 0:
                with self._streams.aside():
                    look()

        look()
        scene.plan_success, self.failure = True, "a path that the planner did not find"
        self._after_tick = None if watch is None else after_tick
        try:
            with self._streams.in_place():
                scene.play_once()
        except Exception as error:
            # Upstream's experts raise where their planning failed. A missing file is another matter.
            if watching or isinstance(error, (ImportError, OSError)):
                raise
            self.failure = f"{type(error).__name__}: {error}"
            return False
        finally:
            self._after_tick = None
        if watch is not None and (self.ticks - start) % every:
            look()
        return bool(scene.plan_success) and self.solved()

    def close(self) -> None:
        """Frees the scene."""
        if self._task is not None:
            with self._streams.in_place():
                self._task.close_env()
            self._task = None

    def _build(self, task: str, seed: int) -> None:
        self.close()
        self._streams = Streams(seed)
        with self._streams.in_place():
            scene = self._upstream.task(task)()
            try:
                scene.setup_demo(now_ep_num=0, seed=seed, is_test=True, **self._upstream.arguments(task))
            except Exception as error:
                scene.close_env()
                if type(error).__name__ == "UnStableError":
                    raise UnstableScene(f"task {task}, seed {seed}: {error}") from None
                raise
        self._task, self.ticks = scene, 0
        step = scene.scene.step

        def counted() -> None:
            step()
            self.ticks += 1
            if self._after_tick is not None:
                self._after_tick()

        scene.scene.step = counted

    def _targets(self) -> list[float]:
        robot = self._scene.robot
        return [*robot.get_left_arm_jointState(), *robot.get_right_arm_jointState()]

    @property
    def _scene(self) -> Any:
        assert self._task is not None, "reset first"
        return self._task
