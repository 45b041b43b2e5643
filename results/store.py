"""One SQLite file a run directory: what was measured, and what measured it.

An episode and its rounds are written in one transaction, so a killed run holds whole episodes and nothing else. While a
run is written the file is in WAL mode (others may read it); when it is closed it becomes one plain file that can be
committed, copied and read from a read-only disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .schema import EpisodeRow, RoundRow, Run

FILE = "episodes.db"
APPLICATION_ID = 0x7265_706C  # "repl": marks the file as ours (PRAGMA application_id)
VERSION = 2

# STRICT, because SQLite would otherwise keep a NumPy integer as a blob without a word.
SCHEMA = """
CREATE TABLE runs (               -- the first row started the directory, later rows resumed it
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL             -- JSON, see schema.Run
) STRICT;
CREATE TABLE episodes (           -- see schema.EpisodeRow
    key TEXT PRIMARY KEY,
    cell TEXT NOT NULL,
    suite TEXT NOT NULL,
    task TEXT NOT NULL,
    init_state INTEGER NOT NULL,
    seed INTEGER NOT NULL,
    settings TEXT NOT NULL,       -- JSON
    policy TEXT NOT NULL,
    method TEXT NOT NULL,
    clock TEXT NOT NULL,
    latency TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('done', 'error')),
    success INTEGER CHECK ((success IS NULL) = (status = 'error')),
    steps INTEGER NOT NULL,
    sim_ns INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    manifest TEXT NOT NULL,       -- JSON
    observation_hash TEXT NOT NULL,
    trajectory_hash TEXT NOT NULL,
    counters TEXT NOT NULL,       -- JSON
    retries INTEGER NOT NULL,
    error TEXT,
    success_at_end INTEGER CHECK (success_at_end IS NULL OR status = 'done')
) STRICT;
CREATE TABLE rounds (             -- see schema.RoundRow
    episode TEXT NOT NULL REFERENCES episodes (key) ON DELETE CASCADE,
    "index" INTEGER NOT NULL,
    control_step INTEGER NOT NULL,
    route TEXT NOT NULL,
    host_ns INTEGER NOT NULL,
    cpu_ns INTEGER NOT NULL,
    latency_ns INTEGER NOT NULL,
    stages_ns TEXT NOT NULL,      -- JSON
    executed INTEGER NOT NULL,
    window INTEGER NOT NULL,
    accepted INTEGER,
    warmup INTEGER NOT NULL,
    action_error REAL,
    extra TEXT NOT NULL,          -- JSON
    PRIMARY KEY (episode, "index")
) STRICT, WITHOUT ROWID;
"""

# What makes a file of the next version of one; done before an older file is written to. It is read as it is.
UPGRADES = {
    1: "ALTER TABLE episodes ADD COLUMN success_at_end INTEGER CHECK (success_at_end IS NULL OR status = 'done')"
}

EPISODE_COLUMNS = [f.name for f in fields(EpisodeRow) if f.name != "rounds"]
ROUND_COLUMNS = [f.name for f in fields(RoundRow)]
JSON_COLUMNS = {"settings", "manifest", "counters", "stages_ns", "extra"}
TRUTHS = {"success", "success_at_end"}  # which SQLite keeps as 0 and 1
REFUSALS = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, TypeError, ValueError)


class StoreError(Exception):
    """A run directory cannot be used as asked; the message says what to do."""


class StoreMissing(StoreError):
    """There is no store in the directory."""


class StoreUnreadable(StoreError):
    """The file is damaged, or is not one of ours."""


class StoreVersion(StoreError):
    """The file was written by another version of the schema."""


class SpecMismatch(StoreError):
    """A run directory holds another run than the one that should be resumed.

    Attributes:
        fields: Dotted names of the fields that differ, such as ``spec.episodes``.
    """

    def __init__(self, directory: Path, differences: dict[str, tuple[Any, Any]]):
        self.fields = tuple(differences)
        lines = [f"  {name}: stored {old!r}, asked for {new!r}" for name, (old, new) in differences.items()]
        super().__init__(
            f"{directory} holds another run; it differs in\n"
            + "\n".join(lines)
            + "\nGive the stored values to resume it, or another --out to start a new run."
        )


class DuplicateEpisode(StoreError):
    """The measurement is already there."""


class InvalidEpisode(StoreError):
    """The row holds a value that the store cannot keep: not finite, not plain, or in contradiction to its status."""


class Store:
    """The episodes of one run directory.

    Use :meth:`start` to write and :meth:`open` to read. A store belongs to the thread that opened it.

    Attributes:
        path: The SQLite file.
        runs: What started the directory, then what resumed it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, writable: bool):
        self.path = path
        self._connection = connection
        self._writable = writable
        try:
            self.runs = tuple(_run(text) for (text,) in connection.execute("SELECT run FROM runs ORDER BY id"))
        except (KeyError, TypeError, ValueError, sqlite3.DatabaseError) as why:
            raise StoreUnreadable(f"{path} does not say what produced it ({why!r}); give another directory") from why
        if not self.runs:
            raise StoreUnreadable(f"{path} does not say what produced it; give another directory")

    @classmethod
    def start(cls, directory: str | Path, run: Run) -> Store:
        """Begins the run, or resumes it where the directory already holds it.

        ``run.spec`` and ``run.checkpoints`` must equal the stored ones. A resumed run may have another command, commit
        or machine: it is noted in :attr:`runs`, and the leaderboard marks what that makes doubtful.

        Raises:
            SpecMismatch: The directory holds episodes of another specification or other weights.
            StoreError: The directory cannot be written.
            StoreUnreadable: The directory holds a file that is not ours, or a damaged one.
            StoreVersion: The file was written by another version of the schema.
        """
        path = Path(directory) / FILE
        if not path.exists():
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                _create(path, run)
            except (OSError, sqlite3.OperationalError) as why:
                raise StoreError(f"cannot write a run to {str(directory)!r}: {why}") from why
            return cls(path, _connect(path, writable=True), writable=True)
        store = cls(path, _connect(path, writable=True), writable=True)
        try:
            store._resume(run)
            store._upgrade()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, directory: str | Path) -> Store:
        """Opens a run directory (or its file) for reading.

        Raises:
            StoreMissing: There is no store.
            StoreUnreadable: The file is not ours, or damaged.
            StoreVersion: The file was written by another version of the schema.
        """
        path = Path(directory)
        path = path / FILE if path.is_dir() else path
        if not path.exists():
            raise StoreMissing(f"{directory}: no {FILE} there; give the directory that `replan eval --out` wrote")
        return cls(path, _connect(path, writable=False), writable=False)

    @property
    def run(self) -> Run:
        """What started the directory."""
        return self.runs[0]

    def done_keys(self) -> set[str]:
        """Keys of the episodes that a resumed run skips: measured ones, not those that ended in a harness error."""
        with _readable(self.path):
            return {key for (key,) in self._connection.execute("SELECT key FROM episodes WHERE status = 'done'")}

    def add(self, row: EpisodeRow) -> None:
        """Writes one episode with its rounds, all or nothing. A row of status ``error`` with the same key is replaced.

        Raises:
            DuplicateEpisode: The key is already there as a measured episode.
            InvalidEpisode: The row holds a value that cannot be kept.
        """
        with _readable(self.path), _transaction(self._connection):
            held = self._connection.execute("SELECT status FROM episodes WHERE key = ?", (row.key,)).fetchone()
            if held == ("done",):
                raise DuplicateEpisode(f"{row.method} on cell {row.cell} ({row.key}) is already in {self.path}")
            try:
                self._connection.execute("DELETE FROM episodes WHERE key = ?", (row.key,))
                self._connection.execute(_insert("episodes", EPISODE_COLUMNS), _values(row, EPISODE_COLUMNS))
                self._connection.executemany(
                    _insert("rounds", ["episode", *ROUND_COLUMNS]),
                    ((row.key, *_values(each, ROUND_COLUMNS)) for each in row.rounds),
                )
            except REFUSALS as why:
                message = f"{row.method} on cell {row.cell}: {why}; give plain, finite Python values"
                raise InvalidEpisode(message) from why

    def episodes(self) -> list[EpisodeRow]:
        """All episodes with their rounds, in an order that does not depend on who measured them when."""
        by_episode: dict[str, list[RoundRow]] = {}
        with _readable(self.path):
            for key, *values in self._connection.execute(
                f'SELECT episode, {_names(ROUND_COLUMNS)} FROM rounds ORDER BY episode, "index"'
            ):
                known = _plain(ROUND_COLUMNS, values)
                known["warmup"] = bool(known["warmup"])
                by_episode.setdefault(key, []).append(RoundRow(**known))
            rows = []
            there = {name for (name,) in self._connection.execute("SELECT name FROM pragma_table_info('episodes')")}
            columns = [name for name in EPISODE_COLUMNS if name in there]  # an older file lacks what was added since
            for values in self._connection.execute(
                f"SELECT {_names(columns)} FROM episodes"
                " ORDER BY suite, task, init_state, seed, settings, policy, clock, latency, method, key"
            ):
                known = _plain(columns, values)
                for name in TRUTHS & known.keys():
                    known[name] = None if known[name] is None else bool(known[name])
                rows.append(EpisodeRow(**known, rounds=tuple(by_episode.get(known["key"], ()))))
        return rows

    def close(self) -> None:
        """Closes the file; a written one becomes a single plain file, unless somebody is reading it just now."""
        if self._writable:
            try:
                self._connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.OperationalError:  # a reader holds it: it stays in WAL mode, which is as safe
                pass
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resume(self, run: Run) -> None:
        """Compares the run with the stored one and notes it if anything about it is new."""
        given = _run(_dump(asdict(run)))  # through JSON, so that a tuple equals the list that was stored
        with _readable(self.path), _transaction(self._connection):
            if not self._connection.execute("SELECT 1 FROM episodes").fetchone():  # a start that was refused left this
                self._connection.execute("DELETE FROM runs")
                self._connection.execute("INSERT INTO runs (run) VALUES (?)", (_dump(asdict(run)),))
                self.runs = (given,)
                return
        differences = {
            **_differences("spec", self.run.spec, given.spec),
            **_differences("checkpoints", self.run.checkpoints, given.checkpoints),
        }
        if differences:
            raise SpecMismatch(self.path.parent, differences)
        with _readable(self.path), _transaction(self._connection):
            self._connection.execute("INSERT INTO runs (run) VALUES (?)", (_dump(asdict(run)),))
        self.runs = (*self.runs, given)

    def _upgrade(self) -> None:
        """Brings a file that an older replan wrote to this version."""
        with _readable(self.path), _transaction(self._connection):
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            for older in range(version, VERSION):
                self._connection.execute(UPGRADES[older])
            self._connection.execute(f"PRAGMA user_version = {VERSION}")


def _create(path: Path, run: Run) -> None:
    """Writes an empty store beside its place and moves it there, so that no half-made one is ever seen."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.new")
    unfinished.unlink(missing_ok=True)
    try:
        connection = sqlite3.connect(unfinished, isolation_level=None)
        connection.executescript(SCHEMA)
        connection.execute("INSERT INTO runs (run) VALUES (?)", (_dump(asdict(run)),))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.close()
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    """Opens a file after making sure that it is whole and ours."""
    # In a directory that we may not write, SQLite reads a finished file only when told that it will not change.
    still = not writable and not os.access(path.parent, os.W_OK) and not path.with_name(FILE + "-wal").exists()
    mode = "rw" if writable else "ro&immutable=1" if still else "ro"
    with _readable(path):
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    try:
        with _readable(path):
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                raise StoreUnreadable(f"{path} was not written by replan; give another directory")
            if version not in (*UPGRADES, VERSION):
                raise StoreVersion(
                    f"{path} has schema version {version}, this replan reads {VERSION}; "
                    + ("update replan" if version > VERSION else "read it with the commit that it names")
                )
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise StoreUnreadable(f"{path} is damaged ({verdict}); restore it or give another directory")
            connection.execute("PRAGMA foreign_keys = ON")
            if writable:
                connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as why:  # locked, no permission, disk full: the file itself may be fine
        raise StoreError(f"{path}: {why}") from why
    except sqlite3.DatabaseError as why:
        message = f"{path} is damaged or not a SQLite file ({why}); restore it or give another directory"
        raise StoreUnreadable(message) from why


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself where the disk was full
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _run(text: str) -> Run:
    known = json.loads(text)
    return Run(**{**known, "marks": tuple(known["marks"])})


def _names(columns: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


def _insert(table: str, columns: list[str]) -> str:
    return f"INSERT INTO {table} ({_names(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _values(row: EpisodeRow | RoundRow, columns: list[str]) -> list[Any]:
    values = []
    for name in columns:
        value = getattr(row, name)
        if isinstance(value, float) and value - value != 0:  # SQLite would keep NaN as NULL, "not measured"
            raise ValueError(f"{name} is {value}")
        values.append(_dump(value) if name in JSON_COLUMNS else value)
    return values


def _plain(columns: list[str], values: Iterable[Any]) -> dict[str, Any]:
    pairs = zip(columns, values, strict=True)
    return {name: json.loads(value) if name in JSON_COLUMNS else value for name, value in pairs}


def _differences(name: str, old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Leaves that differ between two trees of mappings, by dotted name; an absent one reads as None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = {}
        for key in sorted(old.keys() | new.keys()):
            found.update(_differences(f"{name}.{key}", old.get(key), new.get(key)))
        return found
    return {} if old == new else {name: (old, new)}
