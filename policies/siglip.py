"""SigLIP's vision tower with PaliGemma's linear projector."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Stem = tuple[tuple[int, int, int], ...]
"""Convolutions (width, kernel, stride) that turn an image into patch embeddings."""


def tokens_per_image(size: int, stem: Stem) -> int:
    """Returns the number of visual tokens that an image of ``size`` pixels becomes."""
    for _, kernel, stride in stem:
        size = (size - kernel) // stride + 1 if kernel == stride else math.ceil(size / stride)
    return size * size


class SigLIP(nn.Module):
    """The tower and the projector.

    Args:
        size: Side of an image in pixels.
        stem: The convolutions; SigLIP has one, without overlap. Those that overlap are padded and keep their border.
        width: Width of the tower.
        depth: Layers.
        heads: Attention heads.
        mlp: Neurons of an FFN.
        out: Width that the projector leads to.
    """

    def __init__(self, size: int, stem: Stem, width: int, depth: int, heads: int, mlp: int, out: int) -> None:
        super().__init__()
        channels, convolutions = 3, []
        for wide, kernel, stride in stem:
            convolutions.append(nn.Conv2d(channels, wide, kernel, stride, 0 if kernel == stride else kernel // 2))
            channels = wide
        self.stem = nn.ModuleList(convolutions)
        self.positions = nn.Parameter(torch.zeros(tokens_per_image(size, stem), width))
        self.layers = nn.ModuleList(SigLIPLayer(width, heads, mlp) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)  # SigLIP's epsilon, ten times smaller than PyTorch's default
        self.project = nn.Linear(width, out)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] in [-1, 1] -> [N, tokens, out]."""
        return self.both(images)[0]

    def both(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what ``forward`` does, and [N, tokens, width] the features after 15 of 27 layers, or as deep."""
        x = images
        for number, convolution in enumerate(self.stem):
            x = convolution(x if number == 0 else F.gelu(x, approximate="tanh"))
        x = x.flatten(2).transpose(1, 2) + self.positions
        features = x
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number + 1 == max(1, round(len(self.layers) * 15 / 27)):
                features = x
        return self.project(self.norm(x)), features


class SigLIPLayer(nn.Module):
    """A pre-norm transformer layer with biases and a plain GELU FFN."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, mlp), nn.Linear(mlp, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, T, width] -> [N, T, width]."""
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x)), approximate="tanh"))
