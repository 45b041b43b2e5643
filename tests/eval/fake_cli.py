"""The command line on the fake suite; a script of its own, so that a test can interrupt it."""

from __future__ import annotations

from fake import FakeRegistry
from replan.eval import registry
from replan.eval.cli import main

registry.Registry = FakeRegistry  # type: ignore[misc]

if __name__ == "__main__":
    main()
