"""Initial weights, of a policy that is trained here or whose speed alone is measured."""

from __future__ import annotations

import math

import torch

from .model import FlowModel


@torch.no_grad()
def initialise(model: FlowModel, generator: torch.Generator) -> None:
    """Samples the weights of any family: fan-in scaled, with small outputs of residual branches.

    What scales or shifts a norm stays as the model was made.

    Args:
        model: On the generator's device.
        generator: Samples the weights.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name.endswith("weight"):
            # A weight per robot is [robots, in, out]; all others have their inputs behind the first dimension.
            fan_in = parameter.shape[1] if parameter.ndim == 3 else parameter[0].numel()
            small = name.endswith(("out.weight", "down.weight"))
            parameter.normal_(0, 0.02 if small else 1 / math.sqrt(fan_in), generator=generator)
        elif parameter.ndim >= 2:  # a table, of positions for example
            parameter.normal_(0, 0.1, generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()
