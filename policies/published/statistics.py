"""Normalisation statistics of published policies, as the mean and the standard deviation that our processors have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..weights import CheckpointError

RANGES = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}
"""Mode -> the statistics that become -1 and 1."""

MODES = ("IDENTITY", "MEAN_STD", *RANGES)


@dataclass(frozen=True)
class Scale:
    """A channel-wise scale: what the policy sees is (x - mean) / std.

    Attributes:
        mean: [channels].
        std: [channels].
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def of_nothing(channels: int) -> Scale:
        """Returns the scale that changes nothing."""
        return Scale((0.0,) * channels, (1.0,) * channels)


def scale(
    what: str, mode: str, statistics: Mapping[str, Sequence[float]], channels: int, *, added: float = 0.0
) -> Scale:
    """Returns the scale of a mode of normalisation.

    Args:
        what: ``state`` or ``action``, for messages.
        mode: One of ``MODES``.
        statistics: Values by name, each at least as long as there are channels; further ones are padding.
        channels: Channels of the environment.
        added: What the published code adds to a standard deviation or to a range so as not to divide by zero.

    Raises:
        CheckpointError: The mode is unknown, a statistic is missing, too short or not finite, or a channel has no
            spread.
    """
    if mode not in MODES:
        raise CheckpointError(f"the {what} is normalised by {mode!r}; known are {', '.join(MODES)}")
    if mode == "IDENTITY":
        return Scale.of_nothing(channels)
    names = RANGES.get(mode, ("mean", "std"))
    first, second = values = [_channels(what, name, statistics, channels) for name in names]
    if mode == "MEAN_STD":
        mean, std = first, second + added
    else:
        std = (second - first + added) / 2
        mean = first + std
    if (std <= 0).any():
        channel = int((std <= 0).argmax())
        raise CheckpointError(
            f"channel {channel} of the {what} has no spread ({' and '.join(names)} are "
            f"{' and '.join(f'{each[channel]:g}' for each in values)}), so that nothing says what it means there; "
            "compute the statistics again from demonstrations in which it moves"
        )
    return Scale(tuple(mean.tolist()), tuple(std.tolist()))


def _channels(what: str, name: str, statistics: Mapping[str, Sequence[float]], channels: int) -> np.ndarray:
    if name not in statistics:
        raise CheckpointError(f"the statistics of the {what} lack {name}; they have {', '.join(sorted(statistics))}")
    try:
        values = np.asarray(statistics[name], np.float64)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} of the {what} must be a list of numbers, got {statistics[name]!r}") from error
    if values.ndim != 1 or len(values) < channels:
        raise CheckpointError(
            f"{name} of the {what} must have {channels} channels or more, got the shape {list(values.shape)}"
        )
    return values[:channels]
