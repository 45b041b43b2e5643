"""MuJoCo, for all suites: imported from here, it fails with one sentence where its OpenGL is missing.

Its warnings, such as that of an unstable simulation, go to Python's log: its own place for them is a file
``MUJOCO_LOG.TXT`` in the current directory.
"""

from __future__ import annotations

import logging

from . import opengl
from .errors import SuiteUnavailable


def _unusable(error: Exception) -> SuiteUnavailable:
    remedy = "run `replan setup` for the suite" if opengl.chosen else "unset MUJOCO_GL, or install what it names"
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return SuiteUnavailable(f"MuJoCo cannot render with {opengl.backend()} ({reason}); {remedy}")


try:
    import mujoco
except Exception as error:  # OSMesa and EGL are loaded here; PyOpenGL raises AttributeError where they are missing
    raise _unusable(error) from error

__all__ = ["Renderers", "mujoco"]

if mujoco.get_mju_user_warning() is None:
    mujoco.set_mju_user_warning(logging.getLogger(__name__).warning)


class _Renderer(mujoco.Renderer):
    """One whose destructor is silent where the constructor failed."""

    _gl_context = _mjr_context = None

    def close(self) -> None:
        """Frees the context. What is freed belongs to whichever is current, and that may be another renderer's."""
        if self._gl_context:
            self._gl_context.make_current()
        super().close()


class Renderers:
    """The renderers of one environment, one per model and size, made when first needed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], mujoco.Renderer] = {}

    def get(self, model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
        """Returns a renderer of images [height, width, 3].

        Raises:
            SuiteUnavailable: The OpenGL that was chosen does not work.
            ForkedGraphics: This process is a fork of one that has rendered.
        """
        opengl.claim()
        key = (id(model), height, width)  # the renderer keeps the model, so that its id stays its own
        if key not in self._kept:
            try:
                self._kept[key] = _Renderer(model, height, width)
            except Exception as error:  # each backend has its own errors
                raise _unusable(error) from error
        return self._kept[key]

    def close(self) -> None:
        """Frees them."""
        for renderer in self._kept.values():
            renderer.close()
        self._kept.clear()
