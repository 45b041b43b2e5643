"""What a published GR00T N1.6 folder says besides its weights: dimensions, statistics of each robot, views, prompt.

``config.json`` and ``processor_config.json``, ``statistics.json`` and ``embodiment_id.json``, as NVIDIA's code saves
them. What is computed there in another way than here is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..groot import GROOT_N1_6, GrootConfig
from ..processing import SMALLEST
from ..siglip2 import FOLD
from ..weights import CheckpointError
from .files import read_json, table
from .groot import EMBEDDING, HEAD, LLM, VISION, recognise
from .names import count_layers
from .reader import Source

_DEFAULTS: Mapping[str, Any] = {
    "action_horizon": 16,
    "num_inference_timesteps": 4,
    "num_timestep_buckets": 1000,
    "use_alternate_vl_dit": True,
    "attend_text_every_n_blocks": 2,
    "use_vlln": True,
    "add_pos_embed": True,
    "diffusion_model_cfg": {"num_attention_heads": 32},
}
"""The public configuration's own values: a saved one may leave them out."""

_FIXED = ("num_timestep_buckets", "use_alternate_vl_dit", "attend_text_every_n_blocks", "use_vlln", "add_pos_embed")
"""What no published checkpoint changes; another value is another architecture."""

_VISION_HEADS = 16  # neither a shape nor a file of the folder tells them


@dataclass(frozen=True)
class Robot:
    """The conventions of one robot.

    Attributes:
        index: Of its encoders and decoder.
        cameras: Names of its views, in the model's order.
        state: Names of its state's groups and their widths, in the model's order.
        action: The same for its actions.
        horizon: Actions of a chunk that it is meant for.
        state_mean: Middle of the bounds of each channel, or the mean where the robot's group is standardised.
        state_std: Half of what is between the bounds, or the standard deviation; the smallest there is where a channel
            is constant.
        state_clip: Whether a channel is kept within its bounds.
        action_mean: As ``state_mean``.
        action_std: As ``state_std``.
        action_clip: As ``state_clip``.
        formal: Whether instructions are read in lower case and without punctuation.
        edge: Side that an image is scaled to before and after the crop.
        crop: Part of each side that the crop keeps.
    """

    index: int
    cameras: tuple[str, ...]
    state: tuple[tuple[str, int], ...]
    action: tuple[tuple[str, int], ...]
    horizon: int
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    state_clip: tuple[bool, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]
    action_clip: tuple[bool, ...]
    formal: bool
    edge: int
    crop: float


def read_config(folder: Path, source: Source, image_token: int) -> GrootConfig:
    """Returns the dimensions of a published folder's model; most are those of its tensors.

    Args:
        folder: Holds ``config.json`` and the processor's files.
        source: Its weights.
        image_token: What the tokenizer makes of ``<IMG_CONTEXT>``.

    Raises:
        CheckpointError: A file or a value is missing or of another type, or the architecture is another one.
    """
    path = folder / "config.json"
    values = {**_DEFAULTS, **read_json(path)}
    for name in _FIXED:
        if values[name] != _DEFAULTS[name]:
            raise CheckpointError(f"{path}: {name} is {values[name]!r}, and only {_DEFAULTS[name]!r} is supported")
    transformer = values["diffusion_model_cfg"]
    if not isinstance(transformer, dict):
        raise CheckpointError(f"{path}: diffusion_model_cfg must be a table, got {transformer!r}")
    heads = {**_DEFAULTS["diffusion_model_cfg"], **transformer}["num_attention_heads"]
    settings = {
        "expert_heads": heads,
        "horizon": values["action_horizon"],
        "steps": values["num_inference_timesteps"],
        "image_size": _image_size(_edge_and_crop(folder)[0]),
        "image_token": image_token,
        "vision_heads": _VISION_HEADS,
    }
    for name, value in settings.items():
        if type(value) is not int:
            raise CheckpointError(f"{path}: {name} must be a whole number, got {value!r}")
    try:
        return GrootConfig(**{**settings, **_dimensions(recognise(source))})
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def files(folder: Path) -> list[Path]:
    """Returns the files that ``read_config`` and ``read_robot`` read, besides the weights."""
    home = _home(folder)
    names = ("processor_config.json", "statistics.json", "embodiment_id.json")
    return [folder / "config.json", *(home / name for name in names)]


def _dimensions(source: Source) -> dict[str, int]:
    """Returns what the shapes of the tensors tell."""
    blocks, layer = f"{HEAD}.model.transformer_blocks", f"{LLM}.layers.0"
    head_dim = source.shape(f"{layer}.self_attn.q_norm.weight")[0]
    vocab, width = source.shape(EMBEDDING)
    vision_width, pixels = source.shape(f"{VISION}.embeddings.patch_embedding.weight")
    robots, state_dim, robot_width = source.shape(f"{HEAD}.state_encoder.layer1.W")
    places, expert_width = source.shape(f"{HEAD}.position_embedding.weight")
    return {
        "patch": math.isqrt(pixels // 3),
        "grid": math.isqrt(source.shape(f"{VISION}.embeddings.position_embedding.weight")[0]),
        "vision_width": vision_width,
        "vision_depth": count_layers(source, f"{VISION}.encoder.layers."),
        "vision_mlp": source.shape(f"{VISION}.encoder.layers.0.mlp.fc1.weight")[0],
        "width": width,
        "vocab": vocab,
        "mlp": source.shape(f"{layer}.mlp.gate_proj.weight")[0],
        "depth": count_layers(source, f"{LLM}.layers."),
        "heads": source.shape(f"{layer}.self_attn.q_proj.weight")[0] // head_dim,
        "kv_heads": source.shape(f"{layer}.self_attn.k_proj.weight")[0] // head_dim,
        "head_dim": head_dim,
        "expert_width": expert_width,
        "expert_mlp": source.shape(f"{blocks}.0.ff.net.0.proj.weight")[0],
        "expert_depth": count_layers(source, f"{blocks}."),
        "robot_width": robot_width,
        "robots": robots,
        "places": places,
        "state_dim": state_dim,
        "action_dim": source.shape(f"{HEAD}.action_encoder.W1.W")[1],
    }


def read_robot(folder: Path, tag: str) -> Robot:
    """Returns the conventions of a robot of a published folder.

    Args:
        folder: Holds the processor's files, or has a folder ``processor`` that does.
        tag: Its name, such as ``libero_panda``.

    Raises:
        CheckpointError: A file, the robot or a value is missing or of another type, or something is computed in a way
            that is not supported here.
    """
    home = _home(folder)
    path, settings = home / "processor_config.json", _settings(home)
    robots, statistics = table(settings, "modality_configs", path), read_json(home / "statistics.json")
    if tag not in robots or tag not in statistics:
        known = ", ".join(sorted(robots.keys() & statistics.keys())) or "none"
        raise CheckpointError(f"{home} has no statistics and views of the robot {tag!r}; it has those of {known}")
    parts = table(robots, tag, path)
    for part in ("video", "state"):
        if (frames := table(parts, part, path).get("delta_indices")) != [0]:
            raise CheckpointError(f"{path}: {tag} sees {part} at the steps {frames}, and only the present one is read")
    edge, crop = _edge_and_crop(folder)
    percentiles, clip = (bool(settings.get(name, default)) for name, default in _BOUNDS)
    state, action = (
        _scales(table(parts, part, path), table(table(statistics, tag, home), part, home), percentiles, part)
        for part in ("state", "action")
    )
    _refuse_encodings(parts, settings, path, tag)
    index = read_json(home / "embodiment_id.json").get(tag)
    if type(index) is not int:
        raise CheckpointError(f"{home / 'embodiment_id.json'} gives the robot {tag!r} no index")
    return Robot(
        index=index,
        cameras=_keys(table(parts, "video", path), f"{path}: {tag} video"),
        state=state.groups,
        action=action.groups,
        horizon=len(table(parts, "action", path).get("delta_indices", [])),
        state_mean=state.mean,
        state_std=state.std,
        state_clip=tuple(bounded and clip for bounded in state.bounded),
        action_mean=action.mean,
        action_std=action.std,
        action_clip=action.bounded,  # what is scaled back is always kept within the bounds
        formal=bool(settings.get("formalize_language", True)),
        edge=edge,
        crop=crop,
    )


_BOUNDS = (("use_percentiles", False), ("clip_outliers", True))


@dataclass(frozen=True)
class _Scales:
    groups: tuple[tuple[str, int], ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bounded: tuple[bool, ...]


def _scales(part: Mapping[str, Any], statistics: Mapping[str, Any], percentiles: bool, name: str) -> _Scales:
    """Returns the scales of all groups of states or actions, one behind the other."""
    standardised = part.get("mean_std_embedding_keys") or ()
    groups, means, stds, bounded = [], [], [], []
    for key in _keys(part, name):
        group = table(statistics, key, f"the statistics of {name}")
        names = ("mean", "std") if key in standardised else ("q01", "q99") if percentiles else ("min", "max")
        low, high = (_numbers(group, each, f"the statistics of {name} {key}") for each in names)
        if low.shape != high.shape:
            raise CheckpointError(
                f"the statistics of {name} {key} have {len(low)} values of {names[0]}, not as many as of {names[1]}"
            )
        if key in standardised:  # a channel without spread is left as it is
            still = high == 0
            mean, std = np.where(still, 0.0, low), np.where(still, 1.0, high)
        else:
            mean, std = (low + high) / 2, np.maximum((high - low) / 2, SMALLEST)
            std = np.where(np.isclose(high, low), SMALLEST, std)
        groups.append((key, len(low)))
        means.extend(mean.tolist())
        stds.extend(std.tolist())
        bounded.extend([key not in standardised] * len(low))
    return _Scales(tuple(groups), tuple(means), tuple(stds), tuple(bounded))


def _refuse_encodings(parts: Mapping[str, Any], settings: Mapping[str, Any], path: Path, tag: str) -> None:
    """Raises CheckpointError where states or actions of a robot are not only scaled."""
    if settings.get("apply_sincos_state_encoding") and parts["state"].get("sin_cos_embedding_keys"):
        raise CheckpointError(f"{path}: {tag} has states as sines and cosines, which are not supported")
    if settings.get("use_relative_action"):
        for config in parts["action"].get("action_configs") or ():
            if isinstance(config, dict) and str(config.get("rep")).upper().endswith("RELATIVE"):
                raise CheckpointError(
                    f"{path}: {tag} has actions that are relative to the state, with statistics per step, which are "
                    "not supported"
                )


def _edge_and_crop(folder: Path) -> tuple[int, float]:
    """Returns the side that images are scaled to, and the part of it that the crop keeps."""
    home = _home(folder)
    path, settings = home / "processor_config.json", _settings(home)
    if not settings.get("use_albumentations", False) or settings.get("letter_box_transform"):
        raise CheckpointError(
            f"{path}: images are prepared in another way than by scaling and cropping (use_albumentations must be on, "
            "letter_box_transform off)"
        )
    target, inner = settings.get("image_target_size"), settings.get("image_crop_size")
    edge = settings.get("shortest_image_edge") or (target or [None])[0]
    crop = settings.get("crop_fraction") or (inner[0] / target[0] if inner and target else None)
    if type(edge) is not int or not 1 <= edge <= 1024 or not isinstance(crop, (int, float)) or not 0 < crop <= 1:
        raise CheckpointError(
            f"{path}: shortest_image_edge must be a number of pixels up to 1024 and crop_fraction in (0, 1], got "
            f"{edge!r} and {crop!r}"
        )
    return edge, float(crop)


def _image_size(edge: int) -> int:
    """Returns the side of an image in whole visual tokens, rounded as the public code does."""
    token = FOLD * GROOT_N1_6.patch
    return max(1, round(edge / token)) * token


def _home(folder: Path) -> Path:
    return folder if (folder / "processor_config.json").is_file() else folder / "processor"


def _settings(home: Path) -> Mapping[str, Any]:
    path = home / "processor_config.json"
    return table(read_json(path), "processor_kwargs", path)


def _keys(part: Mapping[str, Any], where: str) -> tuple[str, ...]:
    keys = part.get("modality_keys")
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(f"{where}: modality_keys must be a list of names, got {keys!r}")
    return tuple(keys)


def _numbers(group: Mapping[str, Any], name: str, where: str) -> np.ndarray:
    """Returns a statistic's values, float64 [n]."""
    try:
        values = np.array(group.get(name), np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise CheckpointError(f"{where} must have finite numbers as {name}, one per channel, got {group.get(name)!r}")
    return values
