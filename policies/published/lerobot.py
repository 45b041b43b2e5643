"""What lies beside the weights in a checkpoint of lerobot: ``config.json`` and the files of its two processors.

The processors are lists of steps, each with a registered name, options, and for the statistics a safetensors file. Only
steps that are known here are accepted: one that is not would silently be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..weights import CheckpointError, open_safetensors
from .files import read_json
from .statistics import Scale, scale

CONFIG = "config.json"
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")

_COMMON = frozenset(
    {
        "rename_observations_processor",
        "to_batch_processor",
        "tokenizer_processor",
        "device_processor",
        "normalizer_processor",
        "unnormalizer_processor",
        "relative_actions_processor",
        "absolute_actions_processor",
    }
)
_EPSILON = 1e-8
"""What lerobot adds to the standard deviation of a state, and not to that of an action."""


@dataclass(frozen=True)
class Processors:
    """What the two processors of a folder say.

    Attributes:
        files: All files that were read.
        state: How states are scaled.
        action: How actions are scaled.
        names: Dataset's name of each observation that is renamed -> name that the policy has for it, the other way.
        absolute: Action channels that are not relative to the state; None where none is relative.
        options: Options of each step, by its name.
    """

    files: tuple[Path, ...]
    state: Scale
    action: Scale
    names: dict[str, str]
    absolute: tuple[int, ...] | None
    options: dict[str, dict[str, Any]]

    @property
    def max_tokens(self) -> int:
        """Tokens that a prompt is padded to.

        Raises:
            CheckpointError: No step makes tokens of a prompt.
        """
        return whole(self.options.get("tokenizer_processor", {}), "max_length")


def read_config(folder: Path, family: str) -> dict[str, Any]:
    """Returns ``config.json``.

    Raises:
        CheckpointError: There is none, or it is of another family than the weights.
    """
    config = read_json(folder / CONFIG)
    if config.get("type") != family:
        raise CheckpointError(f"{folder / CONFIG} is of type {config.get('type')!r}, and its weights are a {family!r}")
    return config


def whole(config: Mapping[str, Any], key: str) -> int:
    """Returns a whole number of ``config.json``, or of the options of a step.

    Raises:
        CheckpointError: It is missing or something else.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"{key} must be a whole number, got {value!r}")
    return value


def views(config: dict[str, Any]) -> list[str]:
    """Returns the names of the policy's views, in its order; empty cameras, which are masked, are left out.

    Raises:
        CheckpointError: There is none.
    """
    features = config.get("input_features")
    features = features if isinstance(features, dict) else {}
    names = [
        name
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("type") == "VISUAL" and ".empty_camera_" not in name
    ]
    if not names:
        raise CheckpointError(f"{CONFIG} names no image in input_features")
    return names


def read_processors(folder: Path, state: int, action: int, steps: Collection[str] = ()) -> Processors:
    """Reads the processors' files.

    Args:
        folder: The checkpoint.
        state: Channels of the environment's state.
        action: Channels of its action.
        steps: Names of steps that the family has besides the common ones, and that its processor here does.

    Raises:
        CheckpointError: A file is missing or damaged, a step is unknown, or a channel has no spread.
    """
    before, after = (_steps(folder / name, _COMMON | set(steps)) for name in PROCESSORS)
    normaliser, unnormaliser = before.get("normalizer_processor"), after.get("unnormalizer_processor")
    if normaliser is None or unnormaliser is None:
        raise CheckpointError(f"{folder} has no step that scales states and actions")
    state_scale = _scale(folder, normaliser, "state", "observation.state", state, _EPSILON)
    action_scale = _scale(folder, unnormaliser, "action", "action", action, 0.0)
    renamed = _config(before, "rename_observations_processor").get("rename_map") or {}
    relative = _config(before, "relative_actions_processor")
    return Processors(
        files=(
            *(folder / name for name in PROCESSORS),
            *(_state_file(folder, step) for step in (normaliser, unnormaliser) if step.get("state_file")),
        ),
        state=state_scale,
        action=action_scale,
        names={new: old for old, new in renamed.items()},
        absolute=_kept(relative) if relative.get("enabled") else None,
        options={name: _config(steps, name) for steps in (before, after) for name in steps},
    )


def _kept(step: dict[str, Any]) -> tuple[int, ...]:
    """Returns the action channels that a relative step leaves alone: those whose name contains an excluded one."""
    names, excluded = step.get("action_names") or (), step.get("exclude_joints") or ()
    return tuple(
        channel
        for channel, name in enumerate(names)
        if any(str(each).lower() in str(name).lower() for each in excluded)
    )


def _steps(file: Path, known: Collection[str]) -> dict[str, dict[str, Any]]:
    steps = read_json(file).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise CheckpointError(f"{file} must have a list of steps, got {steps!r}")
    named = {str(step.get("registry_name")): step for step in steps}
    if unknown := sorted(named.keys() - known):
        raise CheckpointError(
            f"{file} has the step {unknown[0]!r}, which replan does not know and would leave out; known are "
            f"{', '.join(sorted(known))}"
        )
    return named


def _config(steps: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    config = steps.get(name, {}).get("config")
    return config if isinstance(config, dict) else {}


def _scale(folder: Path, step: dict[str, Any], what: str, key: str, channels: int, added: float) -> Scale:
    config = step.get("config")
    modes = config.get("norm_map") if isinstance(config, dict) else None
    mode = modes.get(what.upper(), "IDENTITY") if isinstance(modes, dict) else "IDENTITY"
    statistics: dict[str, list[float]] = {}
    if mode != "IDENTITY":
        file = _state_file(folder, step)
        with open_safetensors(file) as opened:
            names = {name.rpartition(".")[2]: name for name in opened.keys() if name.rpartition(".")[0] == key}
            statistics = {short: opened.get_tensor(name).double().tolist() for short, name in names.items()}
        if not statistics:  # lerobot itself leaves such a feature as it is, without a word
            raise CheckpointError(f"{file} has no statistics of {key!r}, which the policy scales by {mode}")
    return scale(what, mode, statistics, channels, added=added if mode == "MEAN_STD" else 0.0)


def _state_file(folder: Path, step: dict[str, Any]) -> Path:
    name = step.get("state_file")
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(f"a step of {folder} scales without a file of statistics beside it, got {name!r}")
    return folder / name
