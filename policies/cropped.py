"""Images as GR00T N1.6 sees them: scaled, the border cut off, scaled back, and then to whole visual tokens.

The public code does this with OpenCV (by area) and Pillow (bicubic), each rounding to whole levels; tests compare with
both. Enlarging by area is OpenCV's own rule: it blends a pixel in only where the target's lies across two.
"""

from __future__ import annotations

import numpy as np
from PIL import Image


def cropped(image: np.ndarray, size: int, edge: int, fraction: float) -> np.ndarray:
    """Returns a square image as the policy sees it.

    Args:
        image: uint8 [S, S, 3].
        size: Side of the result.
        edge: Side that it is scaled to first, and back to after the crop.
        fraction: Part of each side that the crop keeps, around the centre.

    Returns:
        uint8 [size, size, 3].
    """
    image, kept = by_area(image, edge), max(1, int(edge * fraction))
    first = (edge - kept) // 2
    image = by_area(image[first : first + kept, first : first + kept], edge)
    if edge == size:
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC))


def by_area(image: np.ndarray, side: int) -> np.ndarray:
    """Scales a square image uint8 [S, S, 3] to [side, side, 3] as OpenCV's INTER_AREA does, within a level."""
    if len(image) == side:
        return image
    weights = _weights(len(image), side)
    scaled = np.einsum("yi,ijc,xj->yxc", weights, image.astype(np.float32), weights, optimize=True)
    return np.floor(scaled + 0.5).clip(0, 255).astype(np.uint8)


def _weights(before: int, after: int) -> np.ndarray:
    """Returns how much of each pixel before, [after, before], is in each pixel after, float32."""
    if after < before:  # the part of each pixel that a target covers
        edges = np.linspace(0, before, after + 1)
        pixels = np.arange(before)
        covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        return (covered.clip(0) * after / before).astype(np.float32)
    target = np.arange(after)
    left = target * before // after
    blend = target + 1 - (left + 1) * (after / before)
    blend = np.where(blend > 0, blend - np.floor(blend), 0)
    weights = np.zeros((after, before), np.float32)
    weights[target, left] += 1 - blend
    weights[target, np.minimum(left + 1, before - 1)] += blend
    return weights
