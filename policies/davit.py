"""DaViT, Florence-2's vision tower: four stages, in which attention among pixels and among channels alternates.

Exact saving: attention works in windows that need not divide the image, and the reference pads the image with zeros
before it projects them. A zero becomes the projection's bias, so here the real pixels are projected and the bias is the
padding: at 224 pixels two thirds of the rows of the last two stages are padding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

_WIDENS = 4  # neurons of an FFN for each channel


def side_after(image: int, stages: int) -> int:
    """Returns the side of the grid that an image's side becomes in some stages."""
    for stage in range(stages):
        image = -(-image // (2 if stage else 4))  # each convolution is padded by half its kernel
    return image


class DaViT(nn.Module):
    """The tower.

    Args:
        widths: Channels of each stage.
        depths: Pairs of blocks of each stage.
        heads: Attention heads of its blocks over pixels.
        groups: Groups of channels of its blocks over channels.
        window: Side of a window of attention over pixels.
    """

    def __init__(
        self, widths: Sequence[int], depths: Sequence[int], heads: Sequence[int], groups: Sequence[int], window: int
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        before = 3
        for width, depth, head, group in zip(widths, depths, heads, groups, strict=True):
            blocks: list[nn.Module] = [Shrink(before, width)]
            for _ in range(depth):
                blocks.append(Block(width, WindowAttention(width, head, window)))
                blocks.append(Block(width, ChannelAttention(width, group)))
            self.stages.append(nn.Sequential(*blocks))
            before = width

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] -> [N, width, s, s]."""
        for stage in self.stages:
            images = stage(images)
        return images


class Shrink(nn.Module):
    """A convolution that begins a stage; pixels are normed after it, and what is no longer pixels before it.

    Args:
        width: Channels that come in; 3 are pixels.
        out: Channels that leave.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first = width == 3
        kernel, stride = (7, 4) if self.first else (3, 2)
        self.conv = nn.Conv2d(width, out, kernel, stride, kernel // 2)
        self.norm = nn.LayerNorm(out if self.first else width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, h, w] -> [N, out, h', w']."""
        return self._normed(self.conv(x)) if self.first else self.conv(self._normed(x))

    def _normed(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """Attention and FFN, each behind a depthwise convolution that tells a pixel where it is.

    Args:
        width: Channels.
        attention: [N, h, w, width] -> the same.
    """

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.attention = nn.LayerNorm(width), attention
        self.ffn_conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.ffn_norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, _WIDENS * width), nn.Linear(_WIDENS * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, h, w] -> the same."""
        y = (x + self.conv(x)).permute(0, 2, 3, 1)
        x = (y + self.attention(self.norm(y))).permute(0, 3, 1, 2)
        y = (x + self.ffn_conv(x)).permute(0, 2, 3, 1)
        return (y + self.down(F.gelu(self.up(self.ffn_norm(y))))).permute(0, 3, 1, 2)


class WindowAttention(nn.Module):
    """Attention among the pixels of a window; windows do not overlap.

    Args:
        width: Channels.
        heads: Heads.
        window: Side of a window.
    """

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, h, w, width] -> the same."""
        batch, height, width, _ = x.shape
        side = self.window
        down, across = -(-height // side), -(-width // side)  # windows
        qkv = self.qkv(x)
        if (down * side, across * side) != (height, width):
            padded = self.qkv.bias.expand(batch, down * side, across * side, -1).clone()
            padded[:, :height, :width] = qkv
            qkv = padded
        qkv = qkv.view(batch, down, side, across, side, 3, self.heads, -1).permute(5, 0, 1, 3, 6, 2, 4, 7)
        q, k, v = qkv.flatten(1, 3).flatten(3, 4)  # [windows, heads, side^2, d]
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.view(batch, down, across, self.heads, side, side, -1).permute(0, 1, 4, 2, 5, 3, 6)
        return self.out(mixed.flatten(5, 6).flatten(3, 4).flatten(1, 2)[:, :height, :width])


class ChannelAttention(nn.Module):
    """Attention among the channels of a group; what a channel is compared by are its pixels.

    Args:
        width: Channels.
        groups: Groups of channels.
    """

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, h, w, width] -> the same."""
        q, k, v = self.qkv(x.flatten(1, 2)).unflatten(-1, (3, self.groups, -1)).permute(2, 0, 3, 4, 1)
        mixed = F.scaled_dot_product_attention(q, k, v)  # [N, groups, width / groups, pixels]
        return self.out(mixed.permute(0, 3, 1, 2).reshape(x.shape))
