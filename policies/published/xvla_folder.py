"""What published X-VLA folders say besides their weights: dimensions, spaces of actions, and how images are scaled.

Most dimensions are shapes. ``config.json`` has the rest, under names that the authors' and lerobot's files share but
for a few; the numbers of heads in ``florence_config`` have the same names in transformers' format and in the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..weights import CheckpointError
from ..xvla import XVLAConfig
from .files import read_json, table
from .lerobot import CONFIG, whole
from .names import count_layers
from .reader import Source
from .xvla import EMBEDDING, ENCODER, PROJECTOR, TOWER

GRIPPERS: Mapping[str, tuple[int, ...]] = {
    "ee6d": (9, 19),
    "joint": (6, 13),
    "so101_bimanual": (5, 11),
    "agibot_ee6d": (),
    "franka_joint7": (),
    "auto": (),
}
"""Action mode -> channels that are logits, and that are read neither from actions nor from the state."""

STEPS, VIEWS = 10, 3
"""The authors' denoising steps and views, which their evaluation and their processor have as constants."""

_FEATURES = ["spatial_avg_pool", "temporal_avg_pool"]
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_BILINEAR, _BICUBIC = 2, 3  # Pillow's numbers
_OFFSET = 2  # rows of BART's table of positions that no token has


class Images(NamedTuple):
    """How a view is brought to the side that the model sees.

    Attributes:
        size: The side in pixels.
        scaling: ``lerobot`` keeps proportions and interpolates neighbours only; ``bilinear`` and ``bicubic`` are
            Pillow's, and stretch.
    """

    size: int
    scaling: str


def read_config(values: Mapping[str, Any], source: Source, lerobot: bool, image_size: int) -> XVLAConfig:
    """Returns the dimensions of a published folder's model.

    Args:
        values: Of its ``config.json``.
        source: Its weights, from ``recognise``.
        lerobot: Whether it is lerobot's; the authors' otherwise.
        image_size: Side of a view in pixels.

    Raises:
        CheckpointError: A value or a tensor is missing or of another type, or the architecture is another one.
    """
    if values.get("use_proprio", True) is not True:
        raise CheckpointError(f"{source.path} does not read the state (use_proprio is off), which is not supported")
    florence = table(values, "florence_config", CONFIG)
    vision, text = table(florence, "vision_config", CONFIG), table(florence, "text_config", CONFIG)
    if vision.get("image_feature_source", _FEATURES) != _FEATURES:
        raise CheckpointError(
            f"image_feature_source in {CONFIG} is {vision['image_feature_source']}, and only {_FEATURES} is supported"
        )
    width = source.shape("transformer.pos_emb")[2]
    time_width, action_dim = whole(values, "dim_time"), source.shape("transformer.action_decoder.bias.weight")[1]
    stages = count_layers(source, f"{TOWER}.convs.")
    prompts = source.shape("transformer.soft_prompt_hub.weight")
    try:
        return XVLAConfig(
            image_size=image_size,
            vision_widths=tuple(source.shape(f"{TOWER}.convs.{stage}.conv.weight")[0] for stage in range(stages)),
            vision_depths=tuple(count_layers(source, f"{TOWER}.blocks.{stage}.") for stage in range(stages)),
            vision_heads=_wholes(vision, "num_heads"),
            vision_groups=_wholes(vision, "num_groups"),
            window=whole(vision, "window_size"),
            vision_positions=source.shape(f"{PROJECTOR}.image_position_embed.row_embeddings.weight")[0],
            vlm_width=source.shape(EMBEDDING)[1],
            vlm_mlp=source.shape(f"{ENCODER}.layers.0.fc1.weight")[0],
            vlm_depth=count_layers(source, f"{ENCODER}.layers."),
            vlm_heads=whole(text, "encoder_attention_heads"),
            vlm_positions=source.shape(f"{ENCODER}.embed_positions.weight")[0] - _OFFSET,
            vocab=source.shape(EMBEDDING)[0],
            width=width,
            mlp=source.shape("transformer.blocks.0.mlp.fc1.weight")[0],
            depth=count_layers(source, "transformer.blocks."),
            heads=whole(values, "num_heads"),
            time_width=time_width,
            positions=source.shape("transformer.pos_emb")[1],
            domains=prompts[0],
            prompts=prompts[1] // width,
            views=_views(values) if lerobot else VIEWS,
            state_dim=source.shape("transformer.action_encoder.fc.weight")[1] // width - action_dim - time_width,
            action_dim=action_dim,
            grippers=GRIPPERS[action_mode(values)],
            horizon=whole(values, "chunk_size" if lerobot else "num_actions"),
            steps=whole(values, "num_denoising_steps") if lerobot else STEPS,
        )
    except ValueError as error:
        raise CheckpointError(
            f"the shapes of {source.path} and its {CONFIG} are not those of an X-VLA: {error}"
        ) from error


def action_mode(values: Mapping[str, Any]) -> str:
    """Returns what the channels of an action are, a key of ``GRIPPERS``.

    Raises:
        CheckpointError: It is missing or unknown.
    """
    mode = str(values.get("action_mode")).lower()
    if mode not in GRIPPERS:
        raise CheckpointError(
            f"action_mode in {CONFIG} is {values.get('action_mode')!r}; known are {', '.join(GRIPPERS)}"
        )
    return mode


def lerobot_images(values: Mapping[str, Any]) -> Images:
    """Returns how lerobot's X-VLA scales views, from its ``config.json``.

    Raises:
        CheckpointError: The result is not square, or nothing says how large it is.
    """
    sizes: Any = [values.get("resize_imgs_with_padding")]
    if sizes == [None]:
        sizes = [each["shape"][1:] for each in _visual(values).values() if isinstance(each.get("shape"), list)]
    sides = {_side(size) for size in sizes}
    side = sides.pop() if len(sides) == 1 else None
    if side is None:
        raise CheckpointError(f"resize_imgs_with_padding in {CONFIG} must name a square, and views are of {sizes}")
    return Images(side, "lerobot")


def authors_images(path: Path) -> Images:
    """Returns how the authors' X-VLA scales views, from its ``preprocessor_config.json``.

    Raises:
        CheckpointError: There is no such file, or it prepares images in another way.
    """
    values = read_json(path)
    size, how = values.get("size"), values.get("resample")
    side = _side([size.get("height"), size.get("width")]) if isinstance(size, dict) else None
    colours = all(values.get(name) == numbers for name, numbers in _IMAGENET.items())
    if side is None or how not in (_BILINEAR, _BICUBIC) or not colours or values.get("do_center_crop"):
        raise CheckpointError(
            f"{path} prepares images in another way than by scaling them to a square (size, resample 2 or 3, no "
            "do_center_crop) in ImageNet's colours"
        )
    return Images(side, "bicubic" if how == _BICUBIC else "bilinear")


def _views(values: Mapping[str, Any]) -> int:
    """Returns the number of views: that of training, which lerobot writes down, or as many as it would then write."""
    named, empty = _visual(values), whole({"empty_cameras": 0, **values}, "empty_cameras")
    if any(".empty_camera_" in name for name in named):
        empty = 0  # they are among the named ones
    if values.get("num_image_views") is not None:
        return max(whole(values, "num_image_views"), len(named))
    return len(named) + empty


def _visual(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    features = values.get("input_features")
    features = features if isinstance(features, dict) else {}
    return {name: each for name, each in features.items() if isinstance(each, dict) and each.get("type") == "VISUAL"}


def _side(sides: Any) -> int | None:
    """Returns the side of a square; None where it is none."""
    square = isinstance(sides, list) and len(sides) == 2 and sides[0] == sides[1] and type(sides[0]) is int
    return sides[0] if square else None


def _wholes(values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    found = values.get(name)
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        raise CheckpointError(f"{name} in {CONFIG} must be a list of whole numbers, got {found!r}")
    return tuple(found)
