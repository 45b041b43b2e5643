"""Lets tests, and the worker processes that they start, import `fake` by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # worker processes inherit sys.path
