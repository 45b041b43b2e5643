"""Florence-2's encoder: DaViT with a projector into visual tokens, and BART's encoder over tokens and text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .davit import DaViT

_OFFSET = 2  # BART's table of positions begins at its third row
_IMAGENET = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))  # mean and standard deviation of red, green and blue


class FlorenceVision(nn.Module):
    """DaViT, where a pixel of its grid lies, and a projector.

    Args:
        tower: The tower.
        width: Its last stage's channels.
        sides: Rows, and columns, that positions exist for.
        out: Width of a visual token.
    """

    def __init__(self, tower: DaViT, width: int, sides: int, out: int) -> None:
        super().__init__()
        self.tower = tower
        self.rows, self.columns = (nn.Parameter(torch.zeros(sides, width // 2)) for _ in range(2))
        self.project, self.norm = nn.Linear(width, out, bias=False), nn.LayerNorm(out)

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] in [-1, 1] -> [N, 1 + s * s, out], the mean of the grid and then the grid, row by row."""
        x = self.tower(imagenet(images)).permute(0, 2, 3, 1)
        height, width = x.shape[1:3]
        columns = self.columns[:width].expand(height, -1, -1)
        rows = self.rows[:height, None].expand(-1, width, -1)
        x = (x + torch.cat([columns, rows], -1)).flatten(1, 2)
        # An image is a video of one frame: its position in time is the sine and the cosine of 0, in turn.
        x = torch.stack([x[..., 0::2], x[..., 1::2] + 1], -1).flatten(-2)
        return self.norm(self.project(torch.cat([x.mean(1, keepdim=True), x], 1)))


def imagenet(images: Tensor) -> Tensor:
    """Returns images [.., 3, S, S] in [-1, 1] standardised by ImageNet's colours."""
    channels = zip(images.unbind(-3), _IMAGENET, strict=True)
    return torch.stack([(each * 0.5 + (0.5 - mean)) / std for each, (mean, std) in channels], -3)


class BartEncoder(nn.Module):
    """BART's encoder over embeddings; nothing is masked, padding included, as Florence-2 is used in X-VLA.

    Args:
        width: Width.
        mlp: Neurons of an FFN.
        depth: Layers.
        heads: Attention heads.
        positions: Longest sequence.
    """

    def __init__(self, width: int, mlp: int, depth: int, heads: int, positions: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(positions + _OFFSET, width))
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BartLayer(width, mlp, heads) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> the same."""
        x = self.norm(x + self.positions[_OFFSET : _OFFSET + x.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x


class BartLayer(nn.Module):
    """A transformer layer that norms sums: after attention and after the FFN.

    Args:
        width: Width.
        mlp: Neurons of the FFN.
        heads: Attention heads.
    """

    def __init__(self, width: int, mlp: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down, self.ffn_norm = nn.Linear(width, mlp), nn.Linear(mlp, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = self.norm(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.ffn_norm(x + self.down(F.gelu(self.up(x))))
