"""FLASH's decision in one kernel: endpoints, distances, the accepted prefix and gripper switches.

In torch this is a dozen small kernels and three waits for the device, in a round of a millisecond. Here the host reads
three numbers once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import PLAIN, KernelError, require, run


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


def reference(
    x: Tensor,
    velocity: Tensor,
    remaining: Tensor,
    draft: Tensor,
    channels: Channels,
    gripper: Tensor,
    window: int,
    delta: float,
) -> Decision:
    """What :func:`accept` computes, in torch and in the precision of x."""
    endpoints = x + remaining.to(x.dtype)[:, None, None] * velocity
    squares = (endpoints - draft).square() * channels.continuous
    distance = (squares.sum(-1) / channels.continuous.sum()).sqrt()
    inside = distance[:, :window]
    accepted = (inside <= delta).all(0).long().cumprod(0).sum()
    closed = torch.cat([draft, endpoints])[:, :window] > 0
    switches = ((closed != (gripper > 0)) & channels.gripper).any()
    numbers = torch.stack([each.float() for each in (accepted, switches, inside.max())])
    return Decision(endpoints, distance, numbers)


def accept(
    x: Tensor,
    velocity: Tensor,
    remaining: Tensor,
    draft: Tensor,
    channels: Channels,
    gripper: Tensor,
    window: int,
    delta: float,
) -> Decision:
    """Verifies a draft without waiting for the device.

    Args:
        x: [K, H, A] float32 points on the way from the noise to the draft.
        velocity: [K, H, A] float32 predictions there.
        remaining: [K] float32 flow time that is left at each, with its sign.
        draft: [1, H, A] float32.
        channels: What the channels are; at least one is continuous.
        gripper: [A] float32 the last command; only its gripper channels are read.
        window: Leading actions that may be executed, 1 to H.
        delta: Largest distance of an accepted action.

    Raises:
        KernelError: A tensor does not fit, or the window does not lie in the chunk.
    """
    branches, horizon, width = x.shape
    for name, tensor, shape in (
        ("x", x, (branches, horizon, width)),
        ("velocity", velocity, (branches, horizon, width)),
        ("remaining", remaining, (branches,)),
        ("draft", draft, (1, horizon, width)),
        ("gripper", gripper, (width,)),
    ):
        require(name, tensor, shape, x, (torch.float32,))
    for name, flags in channels._asdict().items():
        require(f"channels.{name}", flags, (width,), x, (torch.bool,))
    if not 1 <= window <= horizon:
        raise KernelError(f"window must lie in the chunk of {horizon} actions, got {window}")
    decision = Decision(torch.empty_like(x), x.new_empty(branches, horizon), x.new_empty(3))
    run(
        _accept,
        lambda at: (1, 1, 1),
        PLAIN,
        x,
        velocity,
        remaining,
        draft,
        *channels,
        gripper,
        *decision,
        branches,
        horizon,
        width,
        window,
        delta,
        H=triton.next_power_of_2(horizon),
        A=triton.next_power_of_2(width),
    )
    return decision


@triton.jit
def _switched(action, closed, gripper, window_in):
    """Whether a gripper channel of a tile [H, A] differs from the last command inside the window; 1 or 0."""
    differs = ((action > 0) != closed[None, :]) & gripper[None, :] & window_in[:, None]
    return tl.max(tl.max(differs.to(tl.int32), 1), 0)


@triton.jit
def _accept(
    x,
    velocity,
    remaining,
    draft,
    continuous,
    gripper,
    command,
    endpoints,
    distance,
    numbers,
    branches,
    horizon,
    width,
    window,
    delta,
    H: tl.constexpr,
    A: tl.constexpr,
):
    h, a = tl.arange(0, H), tl.arange(0, A)
    h_in, a_in = h < horizon, a < width
    window_in = h < window
    inside = h_in[:, None] & a_in[None, :]
    at = h[:, None] * width + a[None, :]
    counts = (tl.load(continuous + a, mask=a_in, other=0) != 0).to(tl.float32)
    grips = tl.load(gripper + a, mask=a_in, other=0) != 0
    closed = tl.load(command + a, mask=a_in, other=0.0) > 0
    drafted = tl.load(draft + at, mask=inside, other=0.0)
    switches = _switched(drafted, closed, grips, window_in)
    good = tl.full((H,), 1, tl.int32)
    largest = tl.zeros((H,), tl.float32)
    for branch in range(branches):
        point = branch * horizon * width + at
        left = tl.load(remaining + branch)
        end = tl.load(x + point, mask=inside, other=0.0) + left * tl.load(velocity + point, mask=inside, other=0.0)
        tl.store(endpoints + point, end, mask=inside)
        away = (end - drafted) * counts[None, :]
        far = tl.sqrt(tl.sum(away * away, 1) / tl.sum(counts, 0))
        tl.store(distance + branch * horizon + h, far, mask=h_in)
        good = tl.where(far <= delta, good, 0)
        largest = tl.maximum(largest, far, propagate_nan=tl.PropagateNan.ALL)
        switches = tl.maximum(switches, _switched(end, closed, grips, window_in))
    rejected = tl.where(window_in & (good == 0), h, window)
    tl.store(numbers, tl.min(rejected, 0).to(tl.float32))
    tl.store(numbers + 1, switches.to(tl.float32))
    largest = tl.where(window_in, largest, 0.0)
    unknown = tl.max((largest != largest).to(tl.int32), 0)  # the maximum of a block leaves NaN out
    tl.store(numbers + 2, tl.where(unknown > 0, float("nan"), tl.max(largest, 0)))
