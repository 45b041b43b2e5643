"""One SQLite file per run directory: what was measured, and what measured it.

An episode and its rounds are written in one transaction, so a killed run holds whole episodes and nothing else. While a
run is written the file is in WAL mode (others may read it); when it is closed it becomes one plain file that can be
committed, copied and read from a read-only disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from ..files import is_wrong_path
from .schema import EpisodeRow, Mark, RoundRow, Run, RunIdentity
from .upgrades import ACTIONS, UPGRADES

if TYPE_CHECKING:
    from .rounds import RoundTable

FILE = "episodes.db"
APPLICATION_ID = 0x7265_706C  # "repl": marks the file as ours (PRAGMA application_id)
VERSION = 6

# STRICT, because SQLite would otherwise keep a NumPy integer as a blob without a word.
SCHEMA = (
    """
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
    weights TEXT NOT NULL,
    session INTEGER NOT NULL      -- id of a row of runs; 0 where it is not known
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
    + ACTIONS
)

EPISODE_COLUMNS = [f.name for f in fields(EpisodeRow) if f.name not in ("rounds", "actions")]
ROUND_COLUMNS = [f.name for f in fields(RoundRow)]
JSON_COLUMNS = {name: hint for name, hint in get_type_hints(EpisodeRow).items() if get_origin(hint) is dict}
BOOLEANS = ("success", "success_at_end")  # which SQLite keeps as 0 and 1
OWN = {"key", "trajectory_hash", "error", "failure", *JSON_COLUMNS}  # columns whose text is seldom on several rows
SHARED = [name not in OWN for name in EPISODE_COLUMNS]
COMPARED = ("spec", "identity", "activity_counters")  # fields of a Run that a resumed one must equal
SAYS_NOTHING = "it does not say what produced it"
AT_ONCE = 10_000  # rounds that are read at once
PATIENCE = 5  # seconds that SQLite waits for another process before we say that we wait
TROUBLE = ("locked", "disk", "readonly", "unable to open")  # words of SQLite about the disk, and not about the content
REFUSALS = (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError, TypeError, ValueError)


class StoreError(Exception):
    """A run directory cannot be used as requested; the message says what to do."""


class StoreMissing(StoreError):
    """There is no store in the directory."""


class StoreUnreadable(StoreError):
    """The file is damaged, or is not one of ours."""


class StoreUnavailable(StoreError):
    """The disk does not take or give the file, which may be fine: it is full, read-only, gone, or not ours to write."""


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
        self._inode = _inode(path)
        try:
            with _readable(path):
                self.runs: tuple[Run, ...] = tuple(
                    _run(text) for (text,) in connection.execute("SELECT run FROM runs ORDER BY id")
                )
                if not self.runs:
                    raise ValueError(SAYS_NOTHING)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def start(cls, directory: str | Path, run: Run) -> Store:
        """Begins the run, or resumes it where the directory already holds it.

        The fields in ``COMPARED`` must equal the stored ones. A resumed run may have another command, commit or
        machine: it is recorded in :attr:`runs`, and the leaderboard marks what that makes doubtful.

        Raises:
            SpecMismatch: The directory holds episodes of another specification, identity or other weights.
            StoreError: There cannot be such a directory.
            StoreUnavailable: The directory cannot be written.
            StoreUnreadable: The directory holds a file that is not ours, or a damaged one.
            StoreVersion: The file was written by another version of the schema.
        """
        path = Path(directory) / FILE
        try:
            new = not path.exists()
            if new:
                path.parent.mkdir(parents=True, exist_ok=True)
                _create(path, run)
        except (OSError, sqlite3.OperationalError) as why:
            kind = StoreError if isinstance(why, OSError) and is_wrong_path(why) else StoreUnavailable
            reason = (why.strerror if isinstance(why, OSError) else None) or why
            if os.path.islink(directory) and not os.path.exists(directory):
                reason = f"it is a link to {os.readlink(directory)!r}, where nothing is"
            raise kind(f"cannot write a run to {str(directory)[:200]!r}: {reason}") from why
        if new:
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
            StoreUnavailable: The disk does not give it.
            StoreUnreadable: The file is not ours, or damaged.
            StoreVersion: The file was written by another version of the schema.
        """
        if not str(directory).strip():
            raise StoreMissing(f"{str(directory)!r} is no run directory; give the one that `replan eval --out` wrote")
        path = Path(directory)
        path = path / FILE if path.is_dir() else path
        if not path.exists():
            runs = sorted(each.parent.name for each in Path(directory).glob(f"*/{FILE}"))
            hint = "give the directory that `replan eval --out` wrote"
            if runs:
                hint = f"its folders {', '.join(runs[:3])}{' ...' * (len(runs) > 3)} hold runs: give {directory}/*/"
            raise StoreMissing(f"{directory}: no {FILE} in it; {hint}")
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
        """Writes one episode with its rounds, as of this start of the run, all or nothing.

        A row of status ``error`` with the same key is replaced.

        Raises:
            DuplicateEpisode: The store holds a measured episode with this key.
            InvalidEpisode: The row holds a value that cannot be kept.
            StoreUnavailable: The disk is full, or the file is no longer where it was.
        """
        if _inode(self.path) != self._inode:  # SQLite would go on writing to a file that has no name any more
            raise StoreUnavailable(
                f"{self.path} was moved or deleted while it was written; what was moved can be resumed where it is now"
            )
        row = replace(row, session=len(self.runs))  # ids of runs count from 1
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
                if row.actions:
                    self._connection.execute(_insert("actions", ["episode", "actions"]), (row.key, row.actions))
            except REFUSALS as why:
                message = f"{row.method} on cell {row.cell}: {why}; give plain, finite Python values"
                raise InvalidEpisode(message) from why

    def actions(self, key: str) -> bytes:
        """Returns the executed actions of an episode; empty where they were not kept.

        They are in the type of the environment's action space, one after another.

        Args:
            key: Content address of the episode.
        """
        with _readable(self.path):
            found = self._connection.execute("SELECT actions FROM actions WHERE episode = ?", (key,)).fetchone()
        return found[0] if found else b""

    def episodes(self) -> list[EpisodeRow]:
        """All episodes with their rounds, in an order that does not depend on who measured them when.

        Raises:
            StoreUnreadable: An episode is damaged.
        """
        from .checks import check_addresses, check_result, check_rounds
        from .rounds import Rounds

        with _readable(self.path), self._one_state():
            by_key, table = self._rounds()
            cursor = self._connection.execute(
                f"SELECT {_names(EPISODE_COLUMNS)}, rowid FROM episodes"
                " ORDER BY suite, task, init_state, seed, settings, policy, clock, latency, method, key"
            )
            rows, seen = [], dict[str, str]()
            for *values, rowid in cursor:
                rounds = Rounds(table, by_key[rowid])
                row = EpisodeRow(**_plain(EPISODE_COLUMNS, _shared(values, seen)), rounds=rounds)
                check_result(row, len(self.runs))
                rows.append(row)
            if rows:
                check_rounds(sorted(rows, key=lambda row: row.key), table)
            check_addresses(rows, self.run)
        return rows

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        """Lets several statements see the same episodes although another process may be writing more."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _rounds(self) -> tuple[dict[int, int], RoundTable]:
        """Returns the rounds of all episodes by key, and the place of each episode's among them by its rowid."""
        from .rounds import Builder

        places = {
            rowid: place
            for place, (rowid,) in enumerate(self._connection.execute("SELECT rowid FROM episodes ORDER BY key"))
        }
        counts, builder = [0] * len(places), Builder()
        cursor = self._connection.execute(
            f"SELECT episodes.rowid, {_names(ROUND_COLUMNS)} FROM rounds CROSS JOIN episodes ON key = episode"
            ' ORDER BY episode, "index"'
        )
        while rows := cursor.fetchmany(AT_ONCE):
            for rowid, *_ in rows:
                counts[places[rowid]] += 1
            builder.add([row[1:] for row in rows])
        (lost,) = self._connection.execute(
            "SELECT COUNT(DISTINCT episode) FROM rounds WHERE episode NOT IN (SELECT key FROM episodes)"
        ).fetchone()
        if lost:
            raise ValueError(f"rounds of {lost} episodes that are not in it")
        return places, builder.table(counts)

    def close(self) -> None:
        """Closes the file; a written one becomes a single plain file, unless another process is reading it."""
        if self._writable:
            try:
                sqlite3.Connection.execute(self._connection, "PRAGMA journal_mode = DELETE")  # waits for nobody
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
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.executescript(SCHEMA)
            connection.execute("INSERT INTO runs (run) VALUES (?)", (_dump(asdict(run)),))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
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
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=PATIENCE, factory=_Patient)
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
            _upgrade(connection)
            _check_columns(connection)
            connection.execute(f"PRAGMA query_only = {int(not writable)}")  # the copy in memory too
    except BaseException:
        connection.close()
        raise
    return connection


def _upgrade(connection: sqlite3.Connection) -> None:
    """Brings what an older replan wrote to this version of the schema."""
    if connection.execute("PRAGMA user_version").fetchone() == (VERSION,):
        return
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # again: another writer may have been first
        try:
            for older in range(version, VERSION):
                UPGRADES[older](connection)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as why:
            raise ValueError(SAYS_NOTHING) from why
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _check_columns(connection: sqlite3.Connection) -> None:
    """Raises ValueError unless the tables have the columns of this version: SQLite reads a missing one as its name."""
    for table, columns in (
        ("episodes", EPISODE_COLUMNS),
        ("rounds", ["episode", *ROUND_COLUMNS]),
        ("actions", ["episode", "actions"]),
    ):
        found = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        if found != set(columns):
            wrong = ", ".join(sorted(found ^ set(columns)))
            raise ValueError(f"its table {table} is not that of schema version {VERSION}: {wrong}")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Patient(sqlite3.Connection):
    """Waits for other processes, however long they take, and says so once per statement."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        said = False
        while True:
            try:
                return super().execute(*arguments)
            except sqlite3.OperationalError as why:
                if "locked" not in str(why):
                    raise
                if not said:
                    (_, _, path), *_ = sqlite3.Connection.execute(self, "PRAGMA database_list")
                    print(f"\nwaiting for another process that holds {path}; Ctrl-C ends this one", file=sys.stderr)
                    said = True


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Says of what the file or the disk does which of the two it was, and names the file."""
    try:
        yield
    except sqlite3.OperationalError as why:
        if not any(word in str(why) for word in TROUBLE):  # a column that is not there, for example
            raise StoreUnreadable(f"{path} is damaged ({why}); restore it or give another directory") from why
        if "unable to open" in str(why) and path.with_name(f"{path.name}-wal").exists():
            raise StoreUnavailable(
                f"{path} is of a run that was killed: to read it, SQLite must write next to it; copy the folder, with "
                f"{path.name}-wal, to where you may write"
            ) from why
        raise StoreUnavailable(f"{path}: {why}") from why
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as why:
        message = f"{path} is damaged or not a store of replan ({_short(why)}); restore it or give another directory"
        raise StoreUnreadable(message) from why


def _short(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if isinstance(error, (KeyError, AttributeError)) else str(error)
    return text if len(text) <= 200 else f"{text[:200]}..."


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


def _load(text: str) -> Any:
    """Reads what :func:`_dump` wrote; NaN and infinity, which it never writes, raise ValueError too."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number")

    return json.loads(text, parse_constant=refuse)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is what a field of the schema is annotated as."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())
    if origin is tuple:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return (
            isinstance(value, dict)
            and value.keys() <= hints.keys()
            and value.keys() >= {f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING}
            and all(_fits(each, hints[name]) for name, each in value.items())
        )
    if hint is Any:
        return True
    return isinstance(value, (int, float) if hint is float else hint) and not isinstance(value, bool)


def _run(text: str) -> Run:
    try:
        plain = _load(text)
    except (ValueError, RecursionError) as why:
        raise ValueError(SAYS_NOTHING) from why
    if not _fits(plain, Run):
        raise ValueError(SAYS_NOTHING)
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
        values.append(_dump(value) if name in JSON_COLUMNS or isinstance(value, dict) else value)
    return values


def _shared(values: Sequence[Any], seen: dict[str, str]) -> list[Any]:
    """Returns the values of an episode, with the texts of earlier ones in place of equal ones."""
    return [
        seen.setdefault(each, each) if shared and type(each) is str else each
        for each, shared in zip(values, SHARED, strict=True)
    ]


@lru_cache(1024)  # methods of one cell follow each other, and have the same manifest
def _object(name: str, text: str) -> Any:
    value = _load(text)
    if not _fits(value, JSON_COLUMNS[name]):
        raise ValueError(f"{name} is {value!r}")
    return value


def _plain(columns: list[str], values: Iterable[Any]) -> dict[str, Any]:
    plain = dict(zip(columns, values, strict=True))
    for name in JSON_COLUMNS:
        plain[name] = _object(name, plain[name])
    for name in BOOLEANS:
        if plain[name] not in (None, 0, 1):
            raise ValueError(f"{name} is {plain[name]!r} in the row of {plain[columns[0]]!r}")
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
