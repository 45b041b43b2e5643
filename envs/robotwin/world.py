"""RoboTwin's task classes behind six calls: reset, act, observe, hold, state, demonstrate.

The file runs in two places: in our process, on the published wheel (stand-in assets), and in the user's own
interpreter (real assets; see ``bridge.py``). It therefore imports numpy, upstream, and nothing of this project.

Upstream draws from the global generators of numpy and torch and prints as it goes. Here it draws from streams of its
own, which are put in place for each call and taken out again, and nothing that it prints is shown.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import random  # noqa: TID251 - upstream draws from the global stream, which is put back as it was found
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TICK_NS = 4_000_000
IMAGE = (240, 320, 3)
CAMERAS = {"head": "head_camera", "left_wrist": "left_camera", "right_wrist": "right_camera"}  # ours: upstream's
_ABSENT = ("open3d", "mplib", "mplib.planner", "mplib.pymp", "mplib.sapien_utils", "huggingface_hub")


class UnstableScene(RuntimeError):
    """The objects of a scene do not come to rest; upstream takes another seed then."""


class NoRenderer(RuntimeError):
    """SAPIEN found nothing to draw with."""


@dataclass(frozen=True)
class Source:
    """Where upstream's code and assets are.

    Attributes:
        assets: Folder that has ``assets/objects`` and ``assets/embodiments``.
        embodiment: Name of the robot's folder in ``assets/embodiments``.
        checkout: Folder of a RoboTwin checkout whose code runs; None runs the installed wheel's.
        config: Name of upstream's task configuration.
        planner: ``cpu`` (``planner.py``) or ``upstream``.
        rasterise: Draw without ray tracing and without the shadows of point lights.
    """

    assets: str
    embodiment: str
    checkout: str | None = None
    config: str = "demo_clean"
    planner: str = "upstream"
    rasterise: bool = False


class World:
    """One scene of one task at a time.

    Args:
        source: Where upstream's code and assets are.

    Raises:
        ImportError: Upstream, or something it needs, cannot be imported.
        NoRenderer: SAPIEN found nothing to draw with.
    """

    def __init__(self, source: Source) -> None:
        """See the class."""
        os.environ["ASSETS_PATH"] = source.assets  # read by upstream wherever it opens a file
        self._source, self._streams, self._task = source, _Streams(), None
        self.ticks = 0  # physics ticks since reset
        with self._streams.in_place(), _quiet():
            self._upstream = _Upstream(source)

    def reset(self, task: str, seed: int) -> int:
        """Builds the scene that the seed stands for.

        Returns:
            The most actions that an episode may have.

        Raises:
            UnstableScene: Its objects do not come to rest.
        """
        self.close()
        self._streams = _Streams(seed)
        with self._streams.in_place(), _quiet():
            scene = self._upstream.task(task)()
            try:
                scene.setup_demo(now_ep_num=0, seed=seed, is_test=True, **self._upstream.arguments(task))
            except Exception as error:
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

        self._after_tick: Callable[[], None] | None = None
        scene.scene.step = counted
        return int(scene.step_lim)

    def instruction(self, kind: str, draw: int) -> str:
        """Returns one of upstream's sentences for the scene.

        Args:
            kind: ``seen`` or ``unseen``.
            draw: Says which, with the words for its objects.
        """
        with _Streams(draw).in_place(), _quiet():
            written = self._upstream.descriptions(self._scene.task_name, [self._scene.get_info()], 1)
        name = self._scene.task_name.replace("_", " ")
        return next(iter(written[0][kind]), name) if written else name

    def act(self, action: np.ndarray, kind: str) -> bool:
        """Executes one action, however long upstream's timing of it takes.

        Args:
            action: ``[L6, Lgrip, R6, Rgrip]`` if ``kind`` is ``qpos``, two poses and grippers [16] if it is ``ee``.
            kind: ``qpos`` or ``ee``.

        Returns:
            Whether the task was solved after any physics tick so far.
        """
        with self._streams.in_place(), _quiet():
            self._scene.take_action(action, kind)
        return bool(self._scene.eval_success)

    def hold(self, ticks: int) -> None:
        """Lets the world move while the robot holds its last targets."""
        robot = self._scene.robot
        for _ in range(ticks):
            for entity in {id(e): e for e in (robot.left_entity, robot.right_entity)}.values():
                entity.set_qf(entity.compute_passive_force(gravity=True, coriolis_and_centrifugal=True))
            self._scene.scene.step()

    def solved(self) -> bool:
        """Whether the task is solved as the world stands."""
        with self._streams.in_place(), _quiet():
            return bool(self._scene.check_success())

    def observe(self, draw: bool) -> dict[str, np.ndarray]:
        """Returns ``state`` float32 [14] (the joint targets) and the three pictures, black if ``draw`` is false."""
        robot = self._scene.robot
        state = np.array([*robot.get_left_arm_jointState(), *robot.get_right_arm_jointState()], np.float32)
        if not draw:
            return {**{name: np.zeros(IMAGE, np.uint8) for name in CAMERAS}, "state": state}
        with self._streams.in_place(), _quiet():
            self._scene.drawing = True
            try:
                seen = self._scene.get_obs()["observation"]
            finally:
                self._scene.drawing = False
        return {**{name: np.ascontiguousarray(seen[key]["rgb"]) for name, key in CAMERAS.items()}, "state": state}

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

    def demonstrate(self, every: int, draw: bool, watch: Callable[[dict[str, np.ndarray], np.ndarray], None]) -> bool:
        """Lets upstream's expert solve the task from here.

        Args:
            every: Physics ticks between two looks.
            draw: Whether observations have pictures.
            watch: Called before the expert starts, after every ``every`` ticks and when it is done, with the
                observation and the joint targets float64 [14] that the robot holds then.

        Returns:
            Whether upstream calls it a success: all motions could be planned and the task is solved at the end.
        """
        scene, start = self._scene, self.ticks

        interrupted = False

        def look() -> None:
            nonlocal interrupted
            interrupted = True
            watch(self.observe(draw), np.array(self._targets(), np.float64))
            interrupted = False

        def after_tick() -> None:
            if (self.ticks - start) % every == 0:
                look()

        look()
        scene.plan_success = True
        self._after_tick = after_tick
        try:
            with self._streams.in_place(), _quiet():
                scene.play_once()
        except Exception:
            if interrupted:  # by the watcher, whose error it is
                raise
            return False  # upstream's experts have no other way to say that they cannot go on
        finally:
            self._after_tick = None
        if (self.ticks - start) % every:
            look()
        return bool(scene.plan_success) and self.solved()

    def close(self) -> None:
        """Frees the scene."""
        if self._task is not None:
            with self._streams.in_place(), _quiet():
                self._task.close_env()
            self._task = None

    def _targets(self) -> list[float]:
        robot = self._scene.robot
        return [*robot.get_left_arm_jointState(), *robot.get_right_arm_jointState()]

    @property
    def _scene(self) -> Any:
        assert self._task is not None, "reset first"
        return self._task


class _Upstream:
    """Upstream's modules, from the wheel or from a checkout, and the arguments that its tasks are set up with."""

    def __init__(self, source: Source) -> None:
        self._source = source
        with _stand_ins():
            self._envs = "robotwin.envs"
            base: Any = importlib.import_module(f"{self._envs}._base_task")
            self._load = importlib.import_module("robotwin.config").load_task_config
            self.descriptions = importlib.import_module("robotwin.description").generate_episode_descriptions
            if source.planner == "cpu":
                base.Robot = type("Robot", (base.Robot,), {"set_planner": _cpu_planner()})
            _steady(importlib.import_module(f"{self._envs}.utils.transforms"))
            # Of torch, upstream's tasks only seed the global generators.
            base.torch = types.SimpleNamespace(manual_seed=lambda seed: None)
        sapien = importlib.import_module("sapien")
        try:
            sapien.SapienRenderer()
        except RuntimeError as error:
            raise NoRenderer(str(error)) from None

    def task(self, name: str) -> type[Any]:
        with _stand_ins():
            upstream = getattr(importlib.import_module(f"{self._envs}.{name}"), name)
        return _drawn_on_demand(upstream, self._source.rasterise)

    def arguments(self, task: str) -> dict[str, Any]:
        import yaml

        source = self._source
        folder = Path(source.assets) / "assets" / "embodiments" / source.embodiment
        robot = yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))
        # Cameras that nobody reads are not drawn.
        robot["static_camera_list"] = [view for view in robot["static_camera_list"] if view["name"] == "head_camera"]
        arguments = self._load(source.config)
        arguments.update(
            task_name=task,
            eval_mode=True,
            need_plan=True,
            render_freq=0,
            save_freq=None,
            save_data=False,
            left_robot_file=f"{folder}/",
            right_robot_file=f"{folder}/",
            left_embodiment_config=robot,
            right_embodiment_config=robot,
            dual_arm_embodied=True,
            head_camera_h=IMAGE[0],
            head_camera_w=IMAGE[1],
        )
        return arguments


def _drawn_on_demand(upstream: type[Any], rasterise: bool) -> type[Any]:
    """Returns upstream's task class with its drawing, and nothing else, in our hands."""

    class Scene(upstream):
        drawing = False

        def setup_scene(self, **arguments: Any) -> None:
            if not rasterise:
                super().setup_scene(**arguments)
                return
            import sapien.render

            ray_tracing = ("denoiser", "samples_per_pixel", "path_depth")
            found = {
                f"set_ray_tracing_{what}": getattr(sapien.render, f"set_ray_tracing_{what}") for what in ray_tracing
            }
            for name in found:  # the denoiser looks for a GPU when it is chosen
                setattr(sapien.render, name, lambda value: None)
            try:
                super().setup_scene(point_lights=[], **arguments)
            finally:
                for name, function in found.items():
                    setattr(sapien.render, name, function)
            sapien.render.set_camera_shader_dir("default")
            for x in (1, -1):  # upstream's point lights, without the shadows that take most of the time
                self.point_light_lst.append(self.scene.add_point_light([x, 0, 1.8], [1, 1, 1], shadow=False))

        def _update_render(self) -> None:
            if self.drawing or self.crazy_random_light:  # such lights draw from the scene's stream at each tick
                super()._update_render()

        def get_obs(self) -> dict[str, Any]:
            return super().get_obs() if self.drawing else {}

    Scene.__name__ = upstream.__name__
    return Scene


def _steady(transforms: Any) -> None:
    """Has upstream turn one direction into another in double precision.

    In single precision the cosine of nearly equal directions comes out above 1, and the angle is no number.
    """
    turn = transforms.get_align_matrix
    transforms.get_align_matrix = lambda start, end: turn(np.array(start, float), np.array(end, float))


def _cpu_planner() -> Callable[..., None]:
    """Returns ``set_planner`` of the file beside this one, which may run where our package is unknown."""
    spec = importlib.util.spec_from_file_location("replan_robotwin_planner", Path(__file__).with_name("planner.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.set_planner


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Lets upstream import what it never calls here, where that is not installed, and leaves no trace of it."""
    missing = [name for name in _ABSENT if name not in sys.modules and not _installed(name)]
    for name in missing:
        module = types.ModuleType(name)
        module.__dict__.update(snapshot_download=None, SapienPlanner=object, SapienPlanningWorld=object)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name.partition(".")[0]) is not None


class _Streams:
    """Upstream's states of the global generators of Python and numpy.

    torch has no part in it: its only use upstream is to be seeded, and that is taken out.
    """

    def __init__(self, seed: int = 0) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        callers = random.getstate(), np.random.get_state()  # noqa: NPY002
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        try:
            yield
        finally:
            self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(callers[0])
            np.random.set_state(callers[1])  # noqa: NPY002


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
