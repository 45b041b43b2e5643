"""The command line on the fake suite; a script of its own, so that a test can interrupt it."""

from __future__ import annotations

from fake import FakeBench
from replan.eval import bench
from replan.eval.cli import main

bench.Bench = FakeBench  # type: ignore[misc]

if __name__ == "__main__":
    main()
