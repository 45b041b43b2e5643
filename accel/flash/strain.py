"""How demanding a moment is: what an adaptive verifier tightens its threshold by.

FLASH (section 7 and its appendix on future work) asks for thresholds that are tight where the robot adjusts finely, the
observation changes fast or the motion bends, and loose in smooth motion, without a formula. This one is ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...policies.round import Call

MOST = 2.0
"""Largest factor by which a threshold is tightened or relaxed: the paper's own range is 0.05 to 0.30 around 0.15."""
_STILL = 0.01  # change of an action, normalised, below which a chunk does not move: keeps noise from counting as bends
_LEAST = 1e-6  # keeps two measures of zero comparable


class Strain:
    """Compares moments with those of the episode so far, which have no unit and so no constants to tune.

    Args:
        power: How much a threshold follows; 1 halves it where the strain has doubled.

    Raises:
        ValueError: The power is negative or not finite.
    """

    def __init__(self, power: float) -> None:
        if not 0 <= power < float("inf"):
            raise ValueError(f"adapt must be a finite number of at least 0, got {power}")
        self.power = power
        self.begin()

    def begin(self) -> None:
        """Forgets the last episode."""
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._count = 0

    def relief(self, call: Call, images: Tensor, motion: Tensor) -> float:
        """Returns the factor for the threshold of this moment, and remembers the moment; 1 is what is usual so far.

        Args:
            call: The round.
            images: [1, V, 3, S, S] those of the kept context.
            motion: [T, A] the draft over the window, continuous channels.
        """
        measures = (_change(call.inputs.images, images), _bend(motion))
        now = torch.stack([each.double().cpu() for each in measures]) + _LEAST
        self._sums, self._count = self._sums + now, self._count + 1
        usual = self._sums / self._count
        return float((usual / now).prod().sqrt().pow(self.power).clamp(1 / MOST, MOST))


def _change(images: Tensor, before: Tensor) -> Tensor:
    """Mean absolute change of the pixels of the view that has changed most."""
    if images.shape != before.shape:  # another set of cameras: as much as can be
        return images.new_tensor(2.0)
    return (images - before)[0].abs().flatten(1).mean(1).max()


def _bend(motion: Tensor) -> Tensor:
    """How much the change from action to action changes, relative to its size; 0 for fewer than three actions."""
    if len(motion) < 3:
        return motion.new_zeros(())
    step = motion.diff(dim=0)
    return step.diff(dim=0).square().mean().sqrt() / (step.square().mean().sqrt() + _STILL)
