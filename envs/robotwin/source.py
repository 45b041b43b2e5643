"""Opening a world: on the stand-in assets in this process."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from .. import SuiteUnavailable
from . import seeds, vulkan
from .cache import cache_folder
from .standin import build
from .standin.embodiment import NAME
from .tasks import standin_tasks
from .world import NoRenderer, Source, World

RUNTIME = "rlinf-robotwin-runtime"
INSTALL = "pip install --no-deps rlinf-robotwin-runtime==0.1.3 gym-aloha==0.1.5"


@dataclass(frozen=True)
class Opened:
    """A world with what a manifest says of it.

    Attributes:
        world: The world.
        tasks: Tasks that it has.
        fingerprint: What decides how a scene looks and whether the expert solves it.
        assets: What a reader has to know about the assets and how they are drawn.
        cache: Folder in which scenes may be stored that were found on this machine.
    """

    world: World
    tasks: tuple[str, ...]
    fingerprint: dict[str, str]
    assets: str
    cache: Path

    def scenes(self, task: str) -> list[int]:
        """Returns the stored scenes of a task.

        Raises:
            SuiteUnavailable: They belong to other assets or versions.
        """
        return seeds.load(self.fingerprint, self.cache)[task]


def open_standin() -> Opened:
    """Opens upstream's code from its wheel on the asset tree that `replan setup robotwin` builds.

    Raises:
        SuiteUnavailable: A package, the tree or a Vulkan device is missing.
    """
    cache = cache_folder()
    place = build.tree(cache)
    digest = build.digest(place)
    vulkan.activate(cache)
    try:
        fingerprint = seeds.fingerprint(digest)
        world = World(Source(str(place), NAME, planner="cpu", rasterise=True))
    except importlib.metadata.PackageNotFoundError as error:
        raise SuiteUnavailable(
            f"{error.name} is not installed; run `{INSTALL}` and `pip install 'replan[robotwin]'`"
        ) from None
    except ImportError as error:
        raise SuiteUnavailable(
            f"RoboTwin cannot be imported ({error}); run `pip install 'replan[robotwin]'`"
        ) from error
    except NoRenderer as error:
        raise SuiteUnavailable(f"SAPIEN finds no Vulkan device ({error}); {vulkan.MEND}") from None
    assets = f"stand-in {digest[:12]}, rasterised, point lights without shadows"
    return Opened(world, standin_tasks(), fingerprint, assets, cache)
