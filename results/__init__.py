"""Measured episodes: their schema, their store, and how they are read.

Light to import (standard library only); the modules that need NumPy, SciPy or Matplotlib are imported by name:

* here: ``EpisodeRow``, ``RoundRow``, ``Run``, ``RunIdentity``, ``Mark`` (:mod:`.schema`), ``Store`` and
  ``StoreError`` (:mod:`.store`). ``with Store.start(directory, run) as store`` begins or resumes a run;
  ``store.done_keys()`` says what to skip; ``store.add(row)`` writes one episode. ``Store.open(directory)`` reads, also
  while another process writes.
* :mod:`.stats`: the statistics, as pure functions on arrays.
* :mod:`.groups`: ``groups(stores)`` merges runs, refuses those that must not be compared (``ManifestMismatch``,
  ``MeasurementMismatch``) and gathers episodes by measurement.
* :mod:`.pairs`: which baseline a group is compared with; refuses one that other code played (``CodeMismatch``). All
  refusals are ``ValueError``.
* :mod:`.leaderboard`: ``board(stores) -> list[Row]``, and ``to_json(rows)`` for plain values. :mod:`.marks`: its marks.
* :mod:`.compare`: ``compare_runs(old, new)`` and ``compare_across(stores, "speed")``.
* :mod:`.tables`: ``text(rows)`` for a terminal, ``markdown(rows)``, ``comparison_text(found)``.
* :mod:`.report`: ``render(stores, title=...) -> str``, one self-contained HTML page.
"""

from __future__ import annotations

from .schema import EpisodeRow, Mark, RoundRow, Run, RunIdentity
from .store import Store, StoreError

__all__ = ["EpisodeRow", "Mark", "RoundRow", "Run", "RunIdentity", "Store", "StoreError"]
