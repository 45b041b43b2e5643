"""FLASH's decision in one kernel: endpoints, distances, the accepted prefix and gripper switches.

In torch this is a dozen small kernels and three waits for the device, in a round of a millisecond. Here the host reads
three numbers once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .decision import Channels, Decision
from .launch import PLAIN, KernelError, require, run


def accept(
    x: Tensor,
    velocity: Tensor,
    remaining: Tensor,
    draft: Tensor,
    channels: Channels,
    command: Tensor,
    window: int,
    delta: float,
) -> Decision:
    """Verifies a draft without waiting for the device.

    Arguments and result are those of :func:`~replan.kernels.decision.decide`. Tensors are float32, channels bool.

    Raises:
        KernelError: A tensor does not fit, or the window does not lie in the chunk.
    """
    branches, horizon, width = x.shape
    for name, tensor, shape in (
        ("x", x, (branches, horizon, width)),
        ("velocity", velocity, (branches, horizon, width)),
        ("remaining", remaining, (branches,)),
        ("draft", draft, (1, horizon, width)),
        ("command", command, (width,)),
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
        command,
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
