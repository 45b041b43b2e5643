"""The encoder of Wan 2.2's video autoencoder, for one frame: an image becomes a map of latents.

A policy encodes the first frame of a video only. The convolutions are causal in time, and before the first frame they
see zeros, so of each kernel only the last time slice matters: every convolution here is two-dimensional, a third of the
published weights and exactly the published result.

Architecture: AutoencoderKLWan of diffusers with ``is_residual`` (Wan2.2-TI2V-5B); checked against it in
tests/policies/test_fast_wam_parity.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChannelNorm(nn.Module):
    """Scales each pixel's channels to a mean square of 1, times a gain."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> the same shape."""
        normalised = F.normalize(x.float(), dim=1).to(x.dtype)
        return normalised * (self.gain * len(self.gain) ** 0.5)[:, None, None]


class ResidualBlock(nn.Module):
    """Two norm-SiLU-convolution groups next to a shortcut."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = ChannelNorm(width), ChannelNorm(out)
        self.first, self.second = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> [N, out, H, W]."""
        hidden = self.first(F.silu(self.first_norm(x)))
        return self.second(F.silu(self.second_norm(hidden))) + self.shortcut(x)


class PixelAttention(nn.Module):
    """Self-attention of one head over all pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> the same shape."""
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return x + self.out(mixed.transpose(1, 2).unflatten(2, x.shape[2:]))


class Stage(nn.Module):
    """Residual blocks, next to a shortcut of averages; every stage but the last halves height and width.

    Args:
        width: Channels.
        out: Channels afterwards.
        blocks: Residual blocks.
        halves: Whether height and width are halved.
        frames: 2 where the autoencoder also halves the number of frames. The first frame of a video stays alone there,
            and the averages of the shortcut take in the zeros before it.
    """

    def __init__(self, width: int, out: int, blocks: int, halves: bool, frames: int) -> None:
        super().__init__()
        self.out, self.side, self.frames = out, 2 if halves else 1, frames
        self.blocks = nn.ModuleList(ResidualBlock(width if block == 0 else out, out) for block in range(blocks))
        self.halve = nn.Conv2d(out, out, 3, stride=2) if halves else None

    def forward(self, x: Tensor) -> Tensor:
        """[N, width, H, W] -> [N, out, H / 2, W / 2], or of the same size."""
        hidden = x
        for block in self.blocks:
            hidden = block(hidden)
        if self.halve is not None:
            hidden = self.halve(F.pad(hidden, (0, 1, 0, 1)))
        return hidden + self._averages(x)

    def _averages(self, x: Tensor) -> Tensor:
        """Means over groups of (channel, frame, pixel), in this order."""
        pieces = F.pixel_unshuffle(x, self.side).unflatten(1, (x.shape[1], 1, -1))
        pieces = F.pad(pieces, (0, 0, 0, 0, 0, 0, self.frames - 1, 0))
        return pieces.flatten(1, 3).unflatten(1, (self.out, -1)).mean(2)


class WanEncoder(nn.Module):
    """The encoder, up to the standardised mean of the latents.

    Args:
        widths: Channels of the stem and after each stage.
        blocks: Residual blocks of a stage.
        halves_frames: Whether the autoencoder halves the number of frames in a stage, for all but the last.
        latents: Channels of a latent.
        patch: Side of the squares of pixels that are folded into channels first.
    """

    def __init__(
        self, widths: tuple[int, ...], blocks: int, halves_frames: tuple[bool, ...], latents: int, patch: int
    ) -> None:
        super().__init__()
        self.patch = patch
        self.stem = nn.Conv2d(3 * patch * patch, widths[0], 3, padding=1)
        last = len(widths) - 2
        self.stages = nn.ModuleList(
            Stage(width, out, blocks, number != last, 2 if number != last and halves_frames[number] else 1)
            for number, (width, out) in enumerate(zip(widths[:-1], widths[1:], strict=True))
        )
        end = widths[-1]
        self.middle = nn.Sequential(ResidualBlock(end, end), PixelAttention(end), ResidualBlock(end, end))
        self.norm = ChannelNorm(end)
        self.head, self.quantise = nn.Conv2d(end, 2 * latents, 3, padding=1), nn.Conv2d(2 * latents, 2 * latents, 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(latents))
        self.register_buffer("std", torch.ones(latents))

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, H, W] in [-1, 1] -> standardised latents [N, latents, H / ratio, W / ratio]."""
        # The published order within a square is column before row; pixel_unshuffle has row before column.
        pixels = F.pixel_unshuffle(images, self.patch).unflatten(1, (3, self.patch, self.patch))
        x = self.stem(pixels.transpose(2, 3).flatten(1, 3))
        for stage in self.stages:
            x = stage(x)
        # The other half are log-variances, which no policy reads.
        latents, _ = self.quantise(self.head(F.silu(self.norm(self.middle(x))))).chunk(2, 1)
        return (latents - self.mean[:, None, None]) / self.std[:, None, None]
