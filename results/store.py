"""One SQLite file per run directory: what was measured, and what measured it.

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

from .schema import EpisodeRow, Mark, RoundRow, Run, RunIdentity
from .upgrades import UPGRADES

FILE = "episodes.db"
APPLICATION_ID = 0x7265_706C  # "repl": marks the file as ours (PRAGMA application_id)
VERSION = 4

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
    success_at_end INTEGER CHECK (success_at_end IS NULL OR status = 'done'),
    failure TEXT CHECK (failure IS NULL OR status = 'done'),
    dtype TEXT NOT NULL,
    device TEXT NOT NULL,
    machine TEXT NOT NULL,
    code TEXT NOT NULL,           -- JSON
    weights TEXT NOT NULL
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
    drafted INTEGER,
    warmup INTEGER NOT NULL,
    action_error REAL,
    extra TEXT NOT NULL,          -- JSON
    PRIMARY KEY (episode, "index")
) STRICT, WITHOUT ROWID;
"""

EPISODE_COLUMNS = [f.name for f in fields(EpisodeRow) if f.name != "rounds"]
ROUND_COLUMNS = [f.name for f in fields(RoundRow)]
JSON_COLUMNS = {"code", "settings", "manifest", "counters", "stages_ns", "extra"}
BOOLEANS = {"success", "success_at_end", "warmup"}  # which SQLite keeps as 0 and 1
COMPARED = ("spec", "identity", "activity_counters")  # fields of a Run that a resumed one must equal
REFUSALS = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, TypeError, ValueError)


class StoreError(Exception):
    """A run directory cannot be used as requested; the message says what to do."""


class StoreMissing(StoreError):
    """There is no store in the directory."""


class StoreUnreadable(StoreError):
    """The file is damaged, or is not one of ours."""


class StoreVersion(StoreError):
    """The file was written by another version of the schema."""


class SpecMismatch(StoreError):
    """A run directory holds another run than the one that should be resumed.

    Attributes:
        fields: Dotted names of the fields that differ, such as ``spec.episodes`` or ``identity.latency``.
    """

    def __init__(self, directory: Path, differences: dict[str, tuple[Any, Any]]):
        self.fields = tuple(differences)
        lines = [f"  {name}: stored {old!r}, requested {new!r}" for name, (old, new) in differences.items()]
        super().__init__(
            f"{directory} holds another run; it differs in\n"
            + "\n".join(lines)
            + "\nGive the stored values to resume it, or another --out to start a new run."
        )


class DuplicateEpisode(StoreError):
    """The store already holds the measurement."""


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
            self.runs: tuple[Run, ...] = tuple(
                _run(text) for (text,) in connection.execute("SELECT run FROM runs ORDER BY id")
            )
        except (KeyError, TypeError, ValueError, sqlite3.DatabaseError) as why:
            raise StoreUnreadable(f"{path} does not say what produced it ({why!r}); give another directory") from why
        if not self.runs:
            raise StoreUnreadable(f"{path} does not say what produced it; give another directory")

    @classmethod
    def start(cls, directory: str | Path, run: Run) -> Store:
        """Begins the run, or resumes it where the directory already holds it.

        The fields in ``COMPARED`` must equal the stored ones. A resumed run may have another command, commit or
        machine: it is recorded in :attr:`runs`, and the leaderboard marks what that makes doubtful.

        Raises:
            SpecMismatch: The directory holds episodes of another specification, identity or other weights.
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
        given = _run(_dump(asdict(run)))  # through JSON, so that a tuple equals the list that was stored
        with cls.open(directory) as stored:  # a refused file is left as it is, its schema version included
            stored._check_resumable(given)
        store = cls(path, _connect(path, writable=True), writable=True)
        try:
            store._record(given)
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
            raise StoreMissing(f"{directory}: no {FILE} in it; give the directory that `replan eval --out` wrote")
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
            DuplicateEpisode: The store holds a measured episode with this key.
            InvalidEpisode: The row holds a value that cannot be kept.
        """
        with _readable(self.path), _transaction(self._connection):
            status = self._connection.execute("SELECT status FROM episodes WHERE key = ?", (row.key,)).fetchone()
            if status == ("done",):
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
                by_episode.setdefault(key, []).append(RoundRow(**_plain(ROUND_COLUMNS, values)))
            rows = []
            for values in self._connection.execute(
                f"SELECT {_names(EPISODE_COLUMNS)} FROM episodes"
                " ORDER BY suite, task, init_state, seed, settings, policy, clock, latency, method, key"
            ):
                plain = _plain(EPISODE_COLUMNS, values)
                rows.append(EpisodeRow(**plain, rounds=tuple(by_episode.get(plain["key"], ()))))
        return rows

    def close(self) -> None:
        """Closes the file; a written one becomes a single plain file, unless another process is reading it."""
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

    def _check_resumable(self, run: Run) -> None:
        """Raises :class:`SpecMismatch` where the file holds episodes of another run."""
        if not self._holds_episodes():
            return
        stored, requested = asdict(self.run), asdict(run)
        differences: dict[str, tuple[Any, Any]] = {}
        for name in COMPARED:
            differences |= _differences(name, stored[name], requested[name])
        if differences:
            raise SpecMismatch(self.path.parent, differences)

    def _record(self, run: Run) -> None:
        """Adds a run that resumes this one, or takes its place where it measured nothing."""
        with _readable(self.path), _transaction(self._connection):
            if not self._holds_episodes():  # a start that was refused left this
                self._connection.execute("DELETE FROM runs")
                self.runs = ()
            self._connection.execute("INSERT INTO runs (run) VALUES (?)", (_dump(asdict(run)),))
        self.runs = (*self.runs, run)

    def _holds_episodes(self) -> bool:
        with _readable(self.path):
            return self._connection.execute("SELECT 1 FROM episodes").fetchone() is not None


def _create(path: Path, run: Run) -> None:
    """Writes an empty store under another name and moves it into place, so that no half-made one is ever seen."""
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
    """Opens a file of any schema version after making sure that it is whole and ours, and upgrades it."""
    # In a directory that we may not write, SQLite reads a finished file only as one that will not change.
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
            if version < VERSION and not writable:
                file, connection = connection, sqlite3.connect(":memory:", isolation_level=None)
                file.backup(connection)
                file.close()
            if writable:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _upgrade(connection, path)
            connection.execute(f"PRAGMA query_only = {int(not writable)}")  # the copy in memory too
    except BaseException:
        connection.close()
        raise
    return connection


def _upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Brings what an older replan wrote to this version of the schema."""
    if connection.execute("PRAGMA user_version").fetchone() == (VERSION,):
        return
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # again: another writer may have been first
        try:
            for older in range(version, VERSION):
                UPGRADES[older](connection)
        except (AttributeError, KeyError, TypeError, ValueError) as why:
            raise StoreUnreadable(f"{path} does not say what produced it ({why!r}); give another directory") from why
        connection.execute(f"PRAGMA user_version = {VERSION}")


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
    plain = json.loads(text)
    typed = {
        "identity": RunIdentity(**plain["identity"]),
        "activity_counters": {method: tuple(names) for method, names in plain["activity_counters"].items()},
        "marks": tuple(Mark(**mark) for mark in plain["marks"]),
        "suite_marks": {suite: tuple(Mark(**mark) for mark in marks) for suite, marks in plain["suite_marks"].items()},
    }
    return Run(**{**plain, **typed})


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
    plain = dict(zip(columns, values, strict=True))
    for name in JSON_COLUMNS & plain.keys():
        plain[name] = json.loads(plain[name])
    for name in BOOLEANS & plain.keys():
        plain[name] = None if plain[name] is None else bool(plain[name])
    return plain


def _differences(name: str, old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Leaves that differ between two trees of mappings, by dotted name; an absent one reads as None."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        leaves = {}
        for key in sorted(old.keys() | new.keys()):
            leaves.update(_differences(f"{name}.{key}", old.get(key), new.get(key)))
        return leaves
    return {} if old == new else {name: (old, new)}
