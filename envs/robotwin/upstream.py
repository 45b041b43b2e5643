"""Upstream's modules, from its wheel or from a checkout, and what their tasks are set up with.

Like ``world.py``, this file also runs in the user's own interpreter. It imports numpy, upstream, and its siblings.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import planner

WHEEL = "rlinf-robotwin-runtime"
IMAGE = (240, 320, 3)
LAYOUTS = ("env_cfg/task_config", "task_config")  # folders of a checkout, since August 2026 and before
_ABSENT = ("open3d", "mplib", "mplib.planner", "mplib.pymp", "mplib.sapien_utils", "huggingface_hub")


class NoRenderer(RuntimeError):
    """SAPIEN found no device to render with."""


@dataclass(frozen=True)
class Source:
    """Where upstream's code and assets are.

    Attributes:
        root: Folder that has ``assets/objects`` and ``assets/embodiments``.
        checkout: The folder is a RoboTwin checkout whose code is to run; else the installed wheel's code runs.
        robot: Name of the robot's folder in ``assets/embodiments``; None takes what the configuration says.
        config: Name of upstream's task configuration.
        planner: ``cpu`` (``planner.py``) or ``upstream``.
        rasterise: Render without ray tracing and without the shadows of point lights, as always on a processor.
    """

    root: str
    checkout: bool = False
    robot: str | None = None
    config: str = "demo_clean"
    planner: str = "upstream"
    rasterise: bool = False


class Upstream:
    """Upstream's code, imported.

    Args:
        source: Where it and its assets are.

    Raises:
        ImportError: It, or something that it needs, cannot be imported.
        NoRenderer: SAPIEN found no device to render with.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._root = source, Path(source.root)
        if source.checkout:  # its code opens files relative to its folder
            os.environ.pop("ASSETS_PATH", None)  # which the wheel's code would read
            os.chdir(source.root)
            sys.path[:0] = [source.root, str(self._root / "description" / "utils")]
        else:
            os.environ["ASSETS_PATH"] = source.root  # read by the wheel's code wherever it opens a file
        self._package = "envs" if source.checkout else "robotwin.envs"
        self._base = _base(self._package)
        with _stand_ins():
            writer = "generate_episode_instructions" if source.checkout else "robotwin.description"
            self.descriptions: Callable[..., Any] = importlib.import_module(writer).generate_episode_descriptions
        on_processor = _on_processor()
        self._rasterise = source.rasterise or on_processor

    def task(self, name: str) -> type[Any]:
        """Returns the class of a task.

        Raises:
            ImportError: There is none of that name.
        """
        with _stand_ins():
            upstream = getattr(importlib.import_module(f"{self._package}.{name}"), name)
        task = _rendered_on_demand(upstream, self._rasterise)
        return _planned_on_processor(task, self._base) if self._source.planner == "cpu" else task

    def arguments(self, task: str) -> dict[str, Any]:
        """Returns what ``setup_demo`` takes, besides the seed."""
        arguments = self._configuration(self._source.config)
        named = arguments["embodiment"] if self._source.robot is None else [self._source.robot]
        folders = [self._root / "assets" / "embodiments" / name for name in (named[0], named[len(named) // 2])]
        robots = [_yaml(folder / "config.yml") for folder in folders]
        for robot in robots:  # cameras that are not read are not rendered
            views = robot["static_camera_list"]
            robot["static_camera_list"] = [view for view in views if view["name"] == "head_camera"]
        arguments.update(
            task_name=task,
            eval_mode=True,
            need_plan=True,
            render_freq=0,
            save_freq=None,
            save_data=False,
            left_robot_file=f"{folders[0]}/",
            right_robot_file=f"{folders[1]}/",
            left_embodiment_config=robots[0],
            right_embodiment_config=robots[1],
            dual_arm_embodied=len(named) == 1,
            head_camera_h=IMAGE[0],
            head_camera_w=IMAGE[1],
        )
        if len(named) == 3:  # two robots of one arm, and the distance between them
            arguments["embodiment_dis"] = named[2]
        return arguments

    def versions(self) -> dict[str, str]:
        """Returns the versions of what decides how a scene evolves."""
        return versions(self._source)

    def _configuration(self, name: str) -> dict[str, Any]:
        if not self._source.checkout:
            return importlib.import_module("robotwin.config").load_task_config(name)
        return _yaml(next(path for at in LAYOUTS if (path := self._root / at / f"{name}.yml").is_file()))


def versions(source: Source, installed: Callable[[str], str] = importlib.metadata.version) -> dict[str, str]:
    """Returns the versions of what decides how a scene evolves. Nothing is imported for it.

    Args:
        source: Where upstream's code is.
        installed: Returns the version of a package in the interpreter that runs upstream.
    """
    parts = {"sapien": installed("sapien")}
    if source.checkout:  # whatever was edited since its commit
        code, root = hashlib.sha256(), Path(source.root)
        for path in sorted((root / "envs").rglob("*.py")):
            code.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
        parts["code"] = code.hexdigest()
    else:
        parts[WHEEL] = installed(WHEEL)
    parts["planner"] = f"cpu {planner.VERSION}" if source.planner == "cpu" else "upstream"
    return parts


def _rendered_on_demand(upstream: type[Any], rasterise: bool) -> type[Any]:
    """Returns upstream's task class, rendering only on demand and otherwise unchanged."""

    class Scene(upstream):
        rendering = False

        def setup_scene(self, **arguments: Any) -> None:
            if not rasterise:
                super().setup_scene(**arguments)
                return
            import sapien.render

            names = [f"set_ray_tracing_{what}" for what in ("denoiser", "samples_per_pixel", "path_depth")]
            found = {name: getattr(sapien.render, name) for name in names}
            for name in found:  # the denoiser looks for a GPU when it is chosen
                setattr(sapien.render, name, lambda value: None)
            try:
                super().setup_scene(point_lights=[], **arguments)
            finally:
                for name, function in found.items():
                    setattr(sapien.render, name, function)
            sapien.render.set_camera_shader_dir("default")
            for x in (1, -1):  # upstream's point lights, without the shadows that take most of the time
                colour = np.random.rand(3) if self.random_light else np.ones(3)  # noqa: NPY002 - upstream's stream
                self.point_light_lst.append(self.scene.add_point_light([x, 0, 1.8], colour, shadow=False))

        def _update_render(self) -> None:
            if self.rendering or self.crazy_random_light:  # such lights sample from the scene's stream at each tick
                super()._update_render()

        def get_obs(self) -> dict[str, Any]:
            return super().get_obs() if self.rendering else {}

    Scene.__name__ = upstream.__name__
    return Scene


def _planned_on_processor(scene: type[Any], base: Any) -> type[Any]:
    """Returns the task class with the planner of ``planner.py``."""

    class Scene(scene):
        def load_robot(self, **arguments: Any) -> None:
            upstream = base.Robot
            base.Robot = type("Robot", (upstream,), {"set_planner": planner.set_planner})
            try:
                super().load_robot(**arguments)
            finally:
                base.Robot = upstream

    Scene.__name__ = scene.__name__
    return Scene


@functools.cache
def _base(package: str) -> Any:
    """Imports upstream's base class, once, and fixes a few things of it for this process."""
    with _stand_ins():
        base: Any = importlib.import_module(f"{package}._base_task")
        transforms: Any = importlib.import_module(f"{package}.utils.transforms")
    base.torch = types.SimpleNamespace(manual_seed=lambda seed: None)  # its only use is to seed the global generator
    turn = transforms.get_align_matrix
    # In single precision the cosine of nearly equal directions comes out above 1, and their angle is no number.
    transforms.get_align_matrix = lambda start, end: turn(np.array(start, float), np.array(end, float))
    euler: Any = importlib.import_module("transforms3d.euler")
    angles = euler.mat2euler
    # It forbids numpy 2 the copy that single precision (move_can_pot) needs.
    euler.mat2euler = lambda mat, axes="sxyz": angles(np.array(mat, float), axes)
    if package == "robotwin.envs":  # place_fan makes a reward in a way that the wheel's class no longer allows
        reward: Any = importlib.import_module(f"{package}.reward")
        reward.Reward.__init__ = lambda self, **parts: None  # and it is not used
    return base


def _on_processor() -> bool:
    """Returns whether SAPIEN renders on the processor."""
    import sapien

    try:
        return not sapien.render.RenderSystem().device.is_cuda()
    except RuntimeError as error:
        raise NoRenderer(str(error)) from None


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


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))
