"""SigLIP 2's vision tower as Eagle uses it: patches by a matrix, positions of any grid, four patches to a token."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .siglip import SigLIPLayer

FOLD = 2
"""Patches per visual token, along each side."""


class SigLIP2(nn.Module):
    """The tower, and the connector that turns squares of patches into tokens of the LLM.

    Args:
        patch: Side of a patch in pixels.
        grid: Side of the table of positions, in patches; other grids interpolate it.
        width: Width of the tower.
        depth: Layers.
        heads: Attention heads.
        mlp: Neurons of an FFN.
        out: Width of a token.
    """

    def __init__(self, patch: int, grid: int, width: int, depth: int, heads: int, mlp: int, out: int) -> None:
        super().__init__()
        self.patch = patch
        self.patch_in = nn.Linear(3 * patch**2, width)
        self.positions = nn.Parameter(torch.zeros(grid**2, width))
        self.layers = nn.ModuleList(SigLIPLayer(width, heads, mlp) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.connector_norm = nn.LayerNorm(FOLD**2 * width)  # PyTorch's epsilon, unlike the tower's
        self.connector_in, self.connector_out = nn.Linear(FOLD**2 * width, out), nn.Linear(out, out)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] in [-1, 1] -> [N, (S / patch / 2)^2, out]."""
        side = images.shape[-1] // self.patch
        x = self.patch_in(self.patches(images)) + self.placed(side)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x).transpose(1, 2).unflatten(2, (side, side))
        x = F.pixel_unshuffle(x, FOLD).flatten(2).transpose(1, 2)
        # The connector's GELU is the exact one; the tower's is the approximation by tanh.
        return self.connector_out(F.gelu(self.connector_in(self.connector_norm(x))))

    def patches(self, images: Tensor) -> Tensor:
        """Returns [N, patches, pixels], row by row; the colour channel varies fastest, unlike in a convolution."""
        squares = images.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))  # [N, 3, rows, p, columns, p]
        return squares.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)

    def placed(self, side: int) -> Tensor:
        """Returns the positions of a grid of side x side patches, [side * side, width]."""
        grid = math.isqrt(len(self.positions))
        if grid == side:
            return self.positions
        table = self.positions.float().T.unflatten(1, (grid, grid))[None]
        placed = F.interpolate(table, (side, side), mode="bilinear", align_corners=False, antialias=True)
        return placed[0].flatten(1).T.to(self.positions.dtype)
