"""Upgrades of a run directory's file from each older schema version to the next one.

A file opened for writing is upgraded in place; one opened for reading is left as it is, and a copy in memory is
upgraded instead. So everything above the store sees the present schema only.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from typing import Any

from .schema import Mark, machine_digest

# In a table of its own: boards read thousands of episodes, and the actions of none.
ACTIONS = """
CREATE TABLE actions (            -- of runs with `--keep-actions`
    episode TEXT PRIMARY KEY REFERENCES episodes (key) ON DELETE CASCADE,
    actions BLOB NOT NULL         -- in the type of the environment's action space, one after another
) STRICT;
"""


def _add_success_at_end(connection: sqlite3.Connection) -> None:
    """1 to 2."""
    connection.execute(
        "ALTER TABLE episodes ADD COLUMN success_at_end INTEGER CHECK (success_at_end IS NULL OR status = 'done')"
    )


def _add_identity_and_device(connection: sqlite3.Connection) -> None:
    """2 to 3: typed identity and marks of a run; machine, device, precision, refusals and drafted positions of rows."""
    runs = {number: json.loads(run) for number, run in connection.execute("SELECT id, run FROM runs")}
    for number, run in runs.items():
        connection.execute("UPDATE runs SET run = ? WHERE id = ?", (json.dumps(_typed(run), sort_keys=True), number))
    hardware = {json.dumps(run["hardware"], sort_keys=True): run["hardware"] for run in runs.values()}
    # Which of several machines measured an episode was not written down.
    machine = machine_digest(next(iter(hardware.values()))) if len(hardware) == 1 else ""
    device = _device(next(iter(runs.values()))) if runs else "cpu"
    for table, column in (
        ("episodes", "refused TEXT CHECK (refused IS NULL OR status = 'done')"),
        ("episodes", "dtype TEXT NOT NULL DEFAULT 'float32'"),
        ("episodes", "device TEXT NOT NULL DEFAULT 'cpu'"),
        ("episodes", "machine TEXT NOT NULL DEFAULT ''"),
        ("rounds", "drafted INTEGER"),
    ):
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    connection.execute("UPDATE episodes SET refused = error, error = NULL WHERE status = 'done'")
    connection.execute("UPDATE episodes SET device = ?, machine = ?", (device, machine))
    # Older runs wrote 0 accepted also for drafts that were discarded unverified; these were never judged.
    connection.execute(
        "UPDATE rounds SET accepted = NULL WHERE accepted = 0 AND json_extract(stages_ns, '$.verify') IS NULL"
    )
    connection.execute("UPDATE rounds SET drafted = window WHERE accepted IS NOT NULL")


def _typed(run: dict[str, Any]) -> dict[str, Any]:
    """Takes what was stored as entries of the specification, and as texts, into fields of their own."""
    spec, hardware = dict(run["spec"]), run["hardware"]
    identity = {
        "harness": spec.pop("harness", 0),
        "latency": spec.pop("latency_identity", None),
        "fingerprints": spec.pop("world", {}),
    }
    counters = spec.pop("must_move", {})
    spec |= {"dtype": "float32", "device": "cpu" if _device(run) == "cpu" else "cuda"}
    return {
        **{name: value for name, value in run.items() if name != "hardware"},
        "spec": spec,
        "identity": identity,
        "activity_counters": counters,
        "machines": {machine_digest(hardware): hardware},
        "marks": [asdict(Mark.parse(text)) for text in run["marks"]],
        "suite_marks": {
            suite: [asdict(Mark.parse(text)) for text in texts] for suite, texts in run.get("suite_marks", {}).items()
        },
    }


def _device(run: dict[str, Any]) -> str:
    accelerator = run["hardware"].get("accelerator", "CPU")
    return "cpu" if accelerator == "CPU" else accelerator


def _add_code_and_weights(connection: sqlite3.Connection) -> None:
    """3 to 4: code and weights of rows; an exception or a time-out of the policy is a failure like a refused action."""
    runs = {number: json.loads(run) for number, run in connection.execute("SELECT id, run FROM runs ORDER BY id")}
    for number, run in runs.items():
        spec = {name: value for name, value in run["spec"].items() if name not in ("policy", "latency")}
        identity = {name: value for name, value in run["identity"].items() if name != "harness"}
        plain = run | {"spec": spec, "identity": identity}
        connection.execute("UPDATE runs SET run = ? WHERE id = ?", (json.dumps(plain, sort_keys=True), number))
    connection.execute("ALTER TABLE episodes RENAME COLUMN refused TO failure")
    # Which code measured an older episode is known as a commit at best, and not for a tree with changes: left empty.
    connection.execute("ALTER TABLE episodes ADD COLUMN code TEXT NOT NULL DEFAULT '{}'")
    connection.execute("ALTER TABLE episodes ADD COLUMN weights TEXT NOT NULL DEFAULT ''")
    # A run was resumed only with equal files, so those of the first start are those of every row.
    for policy, digest in next(iter(runs.values()), {}).get("checkpoints", {}).items():
        connection.execute("UPDATE episodes SET weights = ? WHERE policy = ?", (digest, policy))


def _add_session(connection: sqlite3.Connection) -> None:
    """4 to 5: the start of the run that measured a row."""
    connection.execute("ALTER TABLE episodes ADD COLUMN session INTEGER NOT NULL DEFAULT 0")
    # Which start measured an episode of a resumed run was not written down.
    connection.execute("UPDATE episodes SET session = 1 WHERE (SELECT COUNT(*) FROM runs) = 1")


def _add_actions(connection: sqlite3.Connection) -> None:
    """5 to 6: the executed actions, which no older run kept."""
    connection.execute(ACTIONS)


UPGRADES = {
    1: _add_success_at_end,
    2: _add_identity_and_device,
    3: _add_code_and_weights,
    4: _add_session,
    5: _add_actions,
}
