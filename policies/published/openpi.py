"""What lies beside the weights in a checkpoint of openpi: the statistics, in ``assets/*/norm_stats.json``.

Everything else about the policy stands in the training configuration, which a checkpoint does not contain, and so in
our convention.
"""

from __future__ import annotations

from pathlib import Path

from ..weights import CheckpointError
from .convention import Openpi
from .files import read_json
from .statistics import Scale, scale

EPSILON = 1e-6
"""What openpi adds to standard deviations and ranges (openpi/transforms.py)."""

MODES = {"pi0": "MEAN_STD", "pi0.5": "QUANTILES"}
"""How each family is normalised, in openpi's words ``use_quantile_norm = model_type != PI0``."""


def statistics_file(folder: Path, facts: Openpi) -> Path:
    """Returns the file of the statistics.

    Raises:
        CheckpointError: There is none, or there are several and the convention does not say which.
    """
    found = sorted(folder.glob("assets/**/norm_stats.json"))
    chosen = [path for path in found if facts.asset in ("", path.parent.relative_to(folder / "assets").as_posix())]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(path.parent.relative_to(folder / "assets").as_posix() for path in found)
    if not found:
        raise CheckpointError(f"{folder} has no assets/*/norm_stats.json: copy the assets folder of the checkpoint too")
    raise CheckpointError(f"{folder} has statistics of {names}: name one as asset in the convention")


def scales(file: Path, family: str, state: int, action: int) -> tuple[Scale, Scale]:
    """Returns how states and actions are scaled.

    Args:
        file: ``norm_stats.json``.
        family: ``pi0`` or ``pi0.5``.
        state: Channels of the environment's state.
        action: Channels of its action.

    Raises:
        CheckpointError: It holds something else, or a channel has no spread.
    """
    plain = read_json(file)
    tables = plain.get("norm_stats", plain)
    for key in ("state", "actions"):
        if not isinstance(tables.get(key), dict):
            raise CheckpointError(f"{file} lacks the statistics of {key!r}")
    mode = MODES[family]
    return (
        scale("state", mode, tables["state"], state, added=EPSILON),
        scale("action", mode, tables["actions"], action, added=EPSILON),
    )
