"""Addresses: what a cell and a measurement are known by, made of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def address(value: Any) -> str:
    """Returns the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def cell_address(suite: str, task: str, init_state: int, seed: int, settings: Mapping[str, Any]) -> str:
    """Returns the address of a cell, see :class:`.schema.EpisodeRow`."""
    cell = {"suite": suite, "task": task, "init_state": init_state, "seed": seed, "settings": dict(settings)}
    return address(cell)


def measurement(
    cell: str,
    weights: str,
    files: Sequence[str],
    method: str,
    code: Mapping[str, str],
    clock: str,
    latency: Any,
    dtype: str,
    device: str,
) -> list[Any]:
    """Returns the content of a measurement, whose address is its key. Names of files are not a part of it.

    Args:
        cell: Address of the cell.
        weights: Digest of the policy's files.
        files: Digests of the method's own files, in a fixed order.
        method: Method as the user wrote it.
        code: Digests of the source code.
        clock: ``sync`` or ``realtime``.
        latency: What identifies the latency source, as JSON values.
        dtype: Precision of the policy.
        device: ``cpu`` or ``cuda``.
    """
    return [cell, weights, list(files), method, dict(code), clock, latency, dtype, device]


def in_chain(content: list[Any], previous: str | None) -> list[Any]:
    """Returns the content of a measurement of a method that learns: what it does depends on its episodes so far.

    Args:
        content: What :func:`measurement` returns.
        previous: Key of the episode before it; None for the first one.
    """
    return [*content, {"after": previous}]


def files_digest(weights: str, files: Iterable[str]) -> str:
    """Returns a digest (16 hex digits) of the files of a policy and a method, which the run's identity has."""
    return address([weights, sorted(files)])[:16]
