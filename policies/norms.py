"""The root-mean-square norm that Gemma, Qwen3 and Wan share, without their weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-6  # of all three


def rms_norm(x: Tensor) -> Tensor:
    """Divides the last dimension by its root mean square; float32, whatever x is."""
    x = x.float()
    if x.device.type != "cpu":
        return F.rms_norm(x, (x.shape[-1],), None, EPSILON)
    # Without a kernel of its own, PyTorch composes the norm of operations on all of x. These are on one number per row.
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * size.square().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
