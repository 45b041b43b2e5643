"""Which tile a kernel takes on a GPU, without one: launches are noted, and times are made up.

Run by test_kernels.py in processes of its own; the second one finds the choice of the first on disk.
"""

from __future__ import annotations

import os

import pytest
import torch
from replan.kernels import geglu, launch
from triton.backends.compiler import GPUTarget
from triton.runtime import Autotuner, JITFunction, driver

TIMES = {(32, 4): 3.0, (16, 4): 1.0, (32, 8): 2.0}
"""Per columns and warps of a tile."""


class Hopper:
    """What Triton asks a driver for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


@pytest.fixture
def launched(monkeypatch):
    """Tiles of launches, and of timings before them."""
    noted: list[tuple[str, int, int]] = []

    def bench(self, *arguments, config, **others):
        noted.append(("timed", config.kwargs["N"], config.num_warps))
        return [TIMES[config.kwargs["N"], config.num_warps]] * 3

    def run(self, *arguments, N, num_warps, **others):
        noted.append(("launched", N, num_warps))

    driver.set_active(Hopper())
    monkeypatch.setattr(Autotuner, "_bench", bench)
    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(launch, "runs_on", lambda device: True)
    return noted


def test_the_fastest_tile_is_chosen_once_per_size_and_kept(launched):
    def step(width: int, length: int) -> list[tuple[str, int, int]]:
        launched.clear()
        geglu.geglu(torch.zeros(1, length, width), torch.zeros(64, width))
        return list(launched)

    timed = [("timed", tile.n, tile.warps) for tile in geglu.STEP]
    first = step(32, 5)
    assert first == [*([] if os.environ["REPLAN_TUNED"] == "1" else timed), ("launched", 16, 4)]
    assert step(32, 5) == step(32, 7) == [("launched", 16, 4)]  # numbers of rows are no reason to time again
    assert step(48, 5)[-1] == ("launched", 16, 4)
