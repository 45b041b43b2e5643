"""Objects that packages of other authors offer by entry point."""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib.metadata import entry_points
from typing import Any


def load(
    group: str, built_in: Collection[str], what: str, fault: Callable[[str, Any], str | None]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Loads all entry points of a group. One that cannot be used costs only itself.

    Args:
        group: The group.
        built_in: Names that are taken: a built-in object is never replaced.
        what: The kind of object, for messages.
        fault: Returns what is wrong with an object under its name, as the end of a sentence; None if nothing is.

    Returns:
        The objects, and the reasons why the others cannot be used, both by name.
    """
    objects: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for entry in entry_points(group=group):
        if entry.name in built_in:
            continue
        if entry.name in objects or entry.name in reasons:
            objects.pop(entry.name, None)
            reasons[entry.name] = f"several installed packages have a {what} of this name"
            continue
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # another package's code: whatever it raises, ours goes on
            reasons[entry.name] = f"{entry.value} raises {type(error).__name__}: {error}"
            continue
        if wrong := fault(entry.name, loaded):
            reasons[entry.name] = f"{entry.value} {wrong}"
        else:
            objects[entry.name] = loaded
    return objects, reasons
