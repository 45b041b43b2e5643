"""How FLASH judges a draft: the endpoints that verification leads to, how far off they are, and what may be executed.

:func:`decide` is what :func:`replan.kernels.accept.accept` computes in one kernel; it needs no Triton.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Channels(NamedTuple):
    """What the channels of an action are.

    Attributes:
        continuous: [A] bool, those whose distance counts.
        gripper: [A] bool, those that are open or closed: above 0 is closed.
    """

    continuous: Tensor
    gripper: Tensor


class Decision(NamedTuple):
    """The result of a verification.

    Attributes:
        endpoints: [K, H, A] actions that the branches lead to.
        distance: [K, H] of the draft to them, RMS over the continuous channels.
        numbers: [3] float32: the leading actions of the window that every branch accepts; 1 where a gripper of the
            draft or of an endpoint changes inside the window, else 0; the largest distance inside the window.
    """

    endpoints: Tensor
    distance: Tensor
    numbers: Tensor


def decide(
    x: Tensor,
    velocity: Tensor,
    remaining: Tensor,
    draft: Tensor,
    channels: Channels,
    command: Tensor,
    window: int,
    delta: float,
) -> Decision:
    """Verifies a draft in the precision of x.

    Args:
        x: [K, H, A] points on the way from the noise to the draft.
        velocity: [K, H, A] predictions there.
        remaining: [K] flow time that is left at each, with its sign.
        draft: [1, H, A].
        channels: What the channels are; at least one is continuous.
        command: [A] the last command; only its gripper channels are read.
        window: Leading actions that may be executed, 1 to H.
        delta: Largest distance of an accepted action.
    """
    endpoints = x + remaining.to(x.dtype)[:, None, None] * velocity
    distance = (endpoints - draft)[..., channels.continuous].square().mean(-1).sqrt()
    return Decision(endpoints, distance, numbers(endpoints, distance, draft, channels, command, window, delta))


def numbers(
    endpoints: Tensor, distance: Tensor, draft: Tensor, channels: Channels, command: Tensor, window: int, delta: float
) -> Tensor:
    """Returns the numbers of a :class:`Decision`; arguments are those of :func:`decide`."""
    inside = distance[:, :window]
    accepted = (inside <= delta).all(0).long().cumprod(0).sum()
    switched = switches(torch.cat([draft, endpoints]), channels, command, window)
    return torch.stack([each.float() for each in (accepted, switched, inside.max())])


def switches(chunks: Tensor, channels: Channels, command: Tensor, window: int) -> Tensor:
    """Returns [] bool: whether a gripper of any chunk [K, H, A] differs from the last command inside the window."""
    return (((chunks[:, :window] > 0) != (command > 0)) & channels.gripper).any()
