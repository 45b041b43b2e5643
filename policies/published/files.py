"""Small files beside published weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..weights import CheckpointError

_MOST = 1 << 24  # bytes: the largest are tables of statistics


def read_json(path: Path) -> dict[str, Any]:
    """Returns the table in a JSON file.

    Raises:
        CheckpointError: There is no such file, or it holds something else.
    """
    try:
        if path.stat().st_size > _MOST:
            raise CheckpointError(f"{path} is longer than {_MOST} bytes; fetch it again")
        plain = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}: copy all files of the published folder") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror})") from error
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read since it is damaged ({error}); fetch it again") from error
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path} must hold a table, got {type(plain).__name__}")
    return plain


def table(values: Mapping[str, Any], name: str, where: object) -> dict[str, Any]:
    """Returns a table within another.

    Args:
        values: The other.
        name: Its name there.
        where: What the other is, for messages.

    Raises:
        CheckpointError: It is missing or something else.
    """
    if not isinstance(values.get(name), dict):
        raise CheckpointError(f"{where}: {name} must be a table, got {values.get(name)!r}")
    return values[name]
