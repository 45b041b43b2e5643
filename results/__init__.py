"""What a measured episode is, where it is kept and how it is read.

Light to import (standard library only); the modules that need NumPy, SciPy or Matplotlib are imported by name:

* here: ``EpisodeRow``, ``RoundRow``, ``Run`` (:mod:`.schema`), ``Store`` and ``StoreError`` (:mod:`.store`).
  ``with Store.start(directory, run) as store`` begins or resumes a run; ``store.done_keys()`` says what to skip;
  ``store.add(row)`` keeps one episode. ``Store.open(directory)`` reads, also while another process writes.
* :mod:`.stats`: the statistics, as pure functions on arrays.
* :mod:`.groups`: ``groups(stores)`` merges runs, refuses those that must not be compared (``ManifestMismatch``,
  ``CheckpointMismatch``, ``MeasurementMismatch``; all are ``ValueError``) and gathers episodes by measurement.
* :mod:`.leaderboard`: ``board(stores) -> list[Row]``, and ``to_json(rows)`` for plain values.
* :mod:`.tables`: ``text(rows)`` for a terminal, ``markdown(rows)``.
* :mod:`.report`: ``render(stores, title=...) -> str``, one self-contained HTML page.

A run whose methods must prove that they did something puts ``{"must_move": {method: [counter, ...]}}`` into
``Run.spec``, under the method's name as the user wrote it; a method whose counters stayed at zero is ``NOT ACTIVE``.
"""

from __future__ import annotations

from .schema import EpisodeRow, RoundRow, Run
from .store import Store, StoreError

__all__ = ["EpisodeRow", "RoundRow", "Run", "Store", "StoreError"]
