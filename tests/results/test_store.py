from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from replan.results import EpisodeRow, Mark, RunIdentity, Store, StoreError
from replan.results.addresses import address, files_digest, in_chain, measurement
from replan.results.store import (
    FILE,
    VERSION,
    DuplicateEpisode,
    InvalidEpisode,
    SpecMismatch,
    StoreMissing,
    StoreUnavailable,
    StoreUnreadable,
    StoreVersion,
)

OLDER = Path(__file__).with_name("older")


def test_an_episode_comes_back_as_it_was_written(written, make):
    rounds = (
        make.round(0, route="full", warmup=True, stages_ns={"encode": 1, "prefill": 2}),
        make.round(
            1, route="flash", accepted=7, drafted=8, action_error=0.25, extra={"similarity": 0.5}, latency_ns=58_000_000
        ),
    )
    row = make.episode(
        "flash", 3, False, rounds=rounds, settings={"speed": 10.0}, counters={"drafts": 2.0}, retries=1, seed=5
    )

    (read,) = written(row).episodes()

    assert read == row
    assert read.success is False and read.rounds[0].warmup is True


def test_every_field_of_the_schema_is_kept(written, make):
    """A field that gets a default and no column would otherwise be lost in silence."""
    values = dict(settings={"a": 1}, counters={"b": 2.0}, manifest={"c": "d"}, retries=4, steps=20, sim_ns=6)
    row = make.episode("flash", 7, False, seed=8, clock="realtime", latency="fixed:9ms", outcome="time", **values)
    where = dict(dtype="bfloat16", device="H200", machine="m", session=1)
    row = dataclasses.replace(row, success_at_end=True, failure="no action", code={"suite": "5"}, weights="w", **where)
    kept = [field for field in dataclasses.fields(EpisodeRow) if field.name != "actions"]  # which are read one by one
    assert all(getattr(row, field.name) != field.default for field in kept if field.name != "error")
    error = make.error("flash", 8, error="hung", retries=1, session=1)

    read = written(row, error).episodes()

    for field in kept:
        assert [getattr(each, field.name) for each in read] == [getattr(each, field.name) for each in (row, error)]


def test_actions_are_kept_beside_the_rows_and_leave_with_them(tmp_path, make):
    row, error = make.episode(actions=b"\0\1\2\3"), make.error("flash", actions=b"\4")
    with Store.start(tmp_path, make.run()) as store:
        for each in (row, error, make.episode(cell=1)):
            store.add(each)
        store.add(make.episode("flash", actions=b"\5"))  # takes the error's place
    with Store.open(tmp_path) as reader:
        kept = {(each.method, each.init_state): reader.actions(each.key) for each in reader.episodes()}
        assert kept == {("dense", 0): b"\0\1\2\3", ("dense", 1): b"", ("flash", 0): b"\5"}
        assert all(each.actions == b"" for each in reader.episodes())


def test_an_older_run_kept_no_actions_and_goes_on_to_keep_them(tmp_path, make):
    begin(tmp_path, make, make.run())
    with sqlite3.connect(tmp_path / FILE) as connection:  # as version 5 wrote it
        connection.execute("DROP TABLE actions")
        connection.execute("PRAGMA user_version = 5")
    connection.close()
    with Store.open(tmp_path) as reader:
        (row,) = reader.episodes()
        assert reader.actions(row.key) == b""
    new = make.episode("flash", actions=b"\1")
    with Store.start(tmp_path, make.run()) as store:
        store.add(new)
        assert store.actions(new.key) == b"\1"


def test_the_run_comes_back_as_it_was_written(written, make):
    run = make.run(
        marks=(Mark("tiny model", "trained here"), Mark("CPU", "CPU")),
        suite_marks={"conveyor": (Mark("a", "b"),)},
        activity_counters={"flash": ("drafts", "rounds")},
        identity=RunIdentity({"profile": {"full": 1}}, {"conveyor": {"assets": "1"}}),
        spec={"methods": ["dense"], "settings": {"speed": 10.0}},
    )
    assert written(run=run).run == run


def test_the_order_of_episodes_does_not_depend_on_the_order_of_writing(written, make):
    rows = [make.episode(method, cell) for method in ("dense", "flash") for cell in range(3)]
    assert written(*rows).episodes() == written(*reversed(rows)).episodes()


def test_resume_skips_measured_episodes_and_not_those_the_harness_lost(tmp_path, make):
    done, lost = make.episode(cell=0), make.error(cell=1)
    with Store.start(tmp_path, make.run()) as store:
        store.add(done)
        store.add(lost)
    with Store.start(tmp_path, make.run()) as store:
        assert store.done_keys() == {done.key}


def test_a_lost_episode_is_replaced_by_its_measurement(written, make):
    measured = make.episode(cell=1, rounds=(make.round(0), make.round(1), make.round(2)))
    assert written(make.error(cell=1), measured).episodes() == [measured]


def test_a_lost_episode_with_rounds_leaves_none_of_them_behind(written, make):
    lost = make.error(cell=1, rounds=tuple(make.round(i) for i in range(5)))
    measured = make.episode(cell=1, rounds=(make.round(0),))
    assert written(lost, measured).episodes() == [measured]


@pytest.mark.parametrize("again", ["episode", "error"])
def test_a_measured_episode_is_never_overwritten(tmp_path, make, again):
    first = make.episode(cell=1, success=True)
    second = make.episode(cell=1, success=False) if again == "episode" else make.error(cell=1)
    with Store.start(tmp_path, make.run()) as store:
        store.add(first)
        with pytest.raises(DuplicateEpisode, match=first.key):
            store.add(second)
        assert store.episodes() == [first]


def test_a_refused_episode_leaves_nothing_behind(tmp_path, make):
    bad = make.episode(cell=1, rounds=(make.round(0), make.round(1, action_error=float("nan"))))
    with Store.start(tmp_path, make.run()) as store:
        with pytest.raises(InvalidEpisode, match="action_error is nan"):
            store.add(bad)
        assert store.episodes() == []
        store.add(make.episode(cell=1))
        assert len(store.episodes()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"counters": {"drafts": float("inf")}},
        {"steps": np.int64(3)},
        {"settings": {"speed": np.float32(3)}},
        {"status": "crashed"},
        {"success": None},
    ],
)
def test_values_that_the_store_would_distort_are_refused(tmp_path, make, changes):
    with Store.start(tmp_path, make.run()) as store:
        with pytest.raises(InvalidEpisode):
            store.add(dataclasses.replace(make.episode(), **changes))
        assert store.episodes() == []


def test_an_error_cannot_carry_a_success(tmp_path, make):
    with Store.start(tmp_path, make.run()) as store, pytest.raises(InvalidEpisode):
        store.add(make.error(success=False))


def begin(directory, make, run):
    """A run directory with one episode in it."""
    with Store.start(directory, run) as store:
        store.add(make.episode())


def test_a_run_with_another_specification_is_refused_and_names_the_fields(tmp_path, make):
    begin(tmp_path, make, make.run())
    spec = {**make.run().spec, "episodes": 100, "settings": {"speed": 15.0}}

    with pytest.raises(SpecMismatch, match=r"spec\.episodes: stored 45, requested 100") as caught:
        Store.start(tmp_path, make.run(spec=spec))

    assert caught.value.fields == ("spec.episodes", "spec.settings.speed")


def test_a_directory_without_an_episode_belongs_to_nobody(tmp_path, make):
    Store.start(tmp_path, make.run()).close()  # what a start leaves whose policy could not be built
    other = make.run(spec={"episodes": 3})
    begin(tmp_path, make, other)
    with Store.open(tmp_path) as store:
        assert store.runs == (other,)


@pytest.mark.parametrize("below", [".", "deeper"])
def test_a_directory_that_cannot_be_made_is_named(tmp_path, make, below):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write a run to .*file"):
        Store.start(tmp_path / "file" / below, make.run())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def refuse_after(change, folder):
    """Changes a store behind its back, and asserts that it is no longer opened."""
    connection = sqlite3.connect(folder / FILE)
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnreadable, match="what produced it"):
        Store.open(folder)


@pytest.mark.parametrize("change", ["DELETE FROM runs", "UPDATE runs SET run = '{}'", "UPDATE runs SET run = 'x'"])
def test_a_store_that_does_not_say_what_produced_it_is_refused(tmp_path, make, change):
    begin(tmp_path, make, make.run())
    refuse_after(change, tmp_path)


def test_a_run_with_a_new_field_is_refused(tmp_path, make):
    begin(tmp_path, make, make.run())
    with pytest.raises(SpecMismatch) as caught:
        Store.start(tmp_path, make.run(spec={**make.run().spec, "clock": "sync"}))
    assert caught.value.fields == ("spec.clock",)


def test_a_run_with_other_weights_is_refused(tmp_path, make):
    begin(tmp_path, make, make.run())
    with pytest.raises(SpecMismatch) as caught:
        identity = dataclasses.replace(make.run().identity, files={"conveyor": {"dense": "beef"}})
        Store.start(tmp_path, make.run(identity=identity))
    assert caught.value.fields == ("identity.files.conveyor",)
    Store.start(tmp_path, make.run(checkpoints={"copy/of/pi0-tiny": "f00d"})).close()


def test_a_tuple_in_the_specification_equals_the_list_that_was_stored(tmp_path, make):
    Store.start(tmp_path, make.run(spec={"methods": ("dense", "flash")})).close()
    Store.start(tmp_path, make.run(spec={"methods": ("dense", "flash")})).close()


def test_a_resumption_on_another_machine_is_noted(tmp_path, make):
    first, second = (
        make.run(),
        make.run(machines={"another": {"processor": "two cores"}}, commit="def5678", command="again"),
    )
    begin(tmp_path, make, first)
    Store.start(tmp_path, second).close()
    with Store.open(tmp_path) as store:
        assert store.run == first
        assert store.runs == (first, second)


def test_a_reader_sees_what_is_committed_while_the_run_goes_on(tmp_path, make):
    with Store.start(tmp_path, make.run()) as writer:
        writer.add(make.episode(cell=0))
        with Store.open(tmp_path) as reader:
            assert len(reader.episodes()) == 1
            writer.add(make.episode(cell=1))
            assert len(reader.episodes()) == 2


def test_a_reader_cannot_write(written, make):
    store = written()
    with pytest.raises(StoreError, match="readonly"):
        store.add(make.episode())


def test_a_finished_run_is_one_file_and_stays_one_when_read(written, make):
    store = written(make.episode())
    store.episodes()
    store.close()
    assert os.listdir(store.path.parent) == [FILE]


def test_a_finished_run_can_be_read_where_nothing_can_be_written(written, make, monkeypatch):
    store = written(make.episode())
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with Store.open(store.path.parent) as again:
        assert len(again.episodes()) == 1


@pytest.fixture
def addressed(tmp_path, make):
    """A store whose run says what its latency and its files were, with keys as the harness makes them."""
    run = make.run(
        identity=RunIdentity(
            latency={"fixed": 0},
            files={"conveyor": {"dense": files_digest("f00d", []), "flash": files_digest("f00d", ["d1", "d2"])}},
        ),
        checkpoints={"pi0-tiny": "f00d", "draft": "d2", "table": "d1", "of another method": "e0"},
    )

    def key(method, row, *, previous="no chain"):
        files = ("d1", "d2") if method == "flash" else ()
        what = (row.method, row.code, row.clock, {"fixed": 0}, row.dtype, "cpu")
        content = measurement(row.cell, row.weights, files, *what)
        return address(content if previous == "no chain" else in_chain(content, previous))

    rows = [make.episode(method, cell) for method in ("dense", "flash") for cell in range(2)]
    with Store.start(tmp_path, run) as store:
        for row in rows:
            store.add(dataclasses.replace(row, key=key(row.method, row)))
    return SimpleNamespace(folder=tmp_path, key=key, run=run)


def changed(folder, statement):
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        assert connection.execute(statement).rowcount
    with Store.open(folder) as store:
        return store.episodes()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("method = 'fast' WHERE method = 'dense'", "(fast on conveyor, dog-red 0) is of a method that is none of"),
        ("method = 'dense' WHERE method = 'flash'", "(dense on conveyor, dog-red 0) has another method, policy, code"),
        ("method = 'flash' WHERE method = 'dense'", "(flash on conveyor, dog-red 0) has another method, policy, code"),
        ("dtype = 'bfloat16'", "has another method, policy, code, clock, latency or precision than its key"),
        ("code = replace(code, '999', '998')", "has another method, policy, code"),
        ("seed = 99", "has another suite, task, initial state, seed or settings than its cell"),
        ("settings = '{\"speed\": 15}' WHERE method = 'flash'", "(flash on conveyor, dog-red 0) has another suite"),
        ("cell = 'zz' WHERE init_state = 1", "dog-red 1) has another suite, task"),
        ("success = 7 WHERE method = 'dense'", "success is 7 in the row of '"),
        ("failure = 'boom' WHERE method = 'dense'", "is a success and 'success', 'boom'"),
        ("outcome = 'raised' WHERE method = 'dense'", "is a success and 'raised', None"),
        ("session = 77", "was measured at start 77 of 1 of the run"),
    ],
)  # fmt: skip
def test_a_row_that_was_made_to_say_something_else_is_refused_and_named(addressed, statement, reason):
    with Store.open(addressed.folder) as store:
        assert len(store.episodes()) == 4
    with pytest.raises(StoreUnreadable, match=re.escape(reason)):
        changed(addressed.folder, f"UPDATE episodes SET {statement}")


def test_rounds_that_do_not_follow_each_other_are_refused(addressed):
    with pytest.raises(StoreUnreadable, match="the rounds of the episode .* do not follow each other to its last step"):
        changed(addressed.folder, 'UPDATE rounds SET executed = executed - 3 WHERE "index" = 0')


def test_of_a_chain_the_first_key_is_computed_again(addressed, make):
    first = make.episode("dense", 5, code=make.code("learning"))
    second = make.episode("dense", 6, code=make.code("learning"))
    first = dataclasses.replace(first, key=addressed.key("dense", first, previous=None))
    second = dataclasses.replace(second, key=addressed.key("dense", second, previous=first.key))
    with Store.start(addressed.folder, addressed.run) as store:
        store.add(first)
        store.add(second)
        assert len(store.episodes()) == 6
    with pytest.raises(StoreUnreadable, match="has another method"):
        changed(addressed.folder, "UPDATE episodes SET clock = 'realtime' WHERE init_state > 4")


def test_rows_of_which_nobody_knows_the_code_are_left_alone(addressed):
    assert len(changed(addressed.folder, "UPDATE episodes SET code = '{}', seed = 99")) == 4


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_run_directory(tmp_path, make, monkeypatch, name):
    begin(tmp_path, make, make.run())
    monkeypatch.chdir(tmp_path)  # which an empty path would be
    with pytest.raises(StoreMissing, match=f"'{name}' is no run directory"):
        Store.open(name)


def test_a_folder_of_runs_says_how_to_give_them(tmp_path, make):
    for name in ("a", "b", "c", "d"):
        begin(tmp_path / name, make, make.run())
    with pytest.raises(StoreMissing, match=rf"its folders a, b, c \.\.\. hold runs: give {tmp_path}/\*/"):
        Store.open(tmp_path)
    with pytest.raises(StoreMissing, match="that `replan eval --out` wrote"):
        Store.open(tmp_path / "nowhere")


def test_a_directory_without_a_store_is_named(tmp_path):
    with pytest.raises(StoreMissing, match=str(tmp_path)):
        Store.open(tmp_path)
    with pytest.raises(StoreMissing, match="nowhere"):
        Store.open(tmp_path / "nowhere")


@pytest.mark.parametrize("use", [Store.open, "start"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, make, use):
    (tmp_path / FILE).write_bytes(b"hello, I am a text file\n" * 100)
    with pytest.raises(StoreUnreadable, match=FILE):
        Store.start(tmp_path, make.run()) if use == "start" else Store.open(tmp_path)
    assert (tmp_path / FILE).read_bytes().startswith(b"hello")


def test_a_database_of_something_else_is_refused(tmp_path, make):
    with sqlite3.connect(tmp_path / FILE) as foreign:
        foreign.execute("CREATE TABLE episodes (key TEXT)")
    foreign.close()
    with pytest.raises(StoreUnreadable, match="not written by replan"):
        Store.open(tmp_path)
    with pytest.raises(StoreUnreadable, match="not written by replan"):
        Store.start(tmp_path, make.run())


def test_a_newer_schema_is_refused(written):
    store = written()
    store.close()
    with sqlite3.connect(store.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreVersion, match="99"):
        Store.open(store.path.parent)


@pytest.mark.parametrize(("version", "directory"), [(1, "belt_speed/flash"), (2, "suites/robotwin")])
def test_a_run_of_an_older_schema_is_read_as_it_is_and_goes_on(tmp_path, make, version, directory):
    shutil.copy(OLDER / directory / FILE, tmp_path)
    before = (tmp_path / FILE).read_bytes()
    with Store.open(tmp_path) as reader:
        run, rows = reader.run, reader.episodes()
        with pytest.raises(StoreError, match="readonly"):
            reader.add(make.episode())
    with pytest.raises(SpecMismatch, match=r"spec\.episodes: stored \d+, requested 7"):
        Store.start(tmp_path, dataclasses.replace(run, spec={**run.spec, "episodes": 7}))
    assert (tmp_path / FILE).read_bytes() == before and stored_version(tmp_path) == version

    assert (run.spec["dtype"], run.spec["device"]) == ("float32", "cpu")
    assert not {"harness", "latency_identity", "world", "must_move", "policy", "latency"} & run.spec.keys()
    assert run.activity_counters["flash"] == ("flash_rounds",) and Mark("CPU", "CPU") in run.marks
    (machine,) = run.machines
    assert {(row.machine, row.device, row.dtype, row.failure) for row in rows} == {(machine, "cpu", "float32", None)}
    assert {row.session for row in rows} == {1}
    assert {(row.weights, str(row.code)) for row in rows} == {(run.checkpoints[rows[0].policy], "{}")}
    drafts = [(each.accepted is None, each.drafted) for row in rows for each in row.rounds]
    assert set(drafts) == {(True, None), (False, 10)}

    new = make.episode(success=False, success_at_end=False, outcome="invalid action", failure="not finite", session=2)
    with Store.start(tmp_path, run) as store:
        store.add(new)
        for impossible in ({"success_at_end": True}, {"failure": "not finite"}):
            with pytest.raises(InvalidEpisode):
                store.add(make.error(cell=2, **impossible))
    assert stored_version(tmp_path) == VERSION
    with Store.open(tmp_path) as reader:
        assert [row for row in reader.episodes() if row.key != new.key] == rows
        assert new in reader.episodes()


def test_an_episode_says_which_start_of_its_run_measured_it(tmp_path, make):
    for cell in range(3):
        with Store.start(tmp_path, make.run()) as store:
            store.add(make.episode(cell=cell))
            store.add(make.error("flash"))
    with Store.open(tmp_path) as reader:
        assert [(row.init_state, row.session) for row in reader.episodes()] == [(0, 1), (0, 3), (1, 2), (2, 3)]


def test_which_start_measured_an_older_episode_is_known_where_there_was_one(tmp_path, make):
    for starts, session in ((1, 1), (2, 0)):
        begin(tmp_path / str(starts), make, make.run())
        with sqlite3.connect(tmp_path / str(starts) / FILE) as connection:  # as version 4 wrote it
            connection.execute("DROP TABLE actions")
            connection.execute("ALTER TABLE episodes DROP COLUMN session")
            connection.executemany("INSERT INTO runs (run) SELECT run FROM runs WHERE id = ?", [(1,)] * (starts - 1))
            connection.execute("PRAGMA user_version = 4")
        connection.close()
        with Store.open(tmp_path / str(starts)) as reader:
            assert [row.session for row in reader.episodes()] == [session]


def stored_version(directory):
    connection = sqlite3.connect(directory / FILE)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return version


def test_what_was_wrong_with_an_action_was_called_an_error_once(tmp_path, make):
    begin(tmp_path, make, make.run())
    with sqlite3.connect(tmp_path / FILE) as connection:  # as version 2 wrote it
        for column in ("failure", "dtype", "device", "machine", "code", "weights", "session"):
            connection.execute(f"ALTER TABLE episodes DROP COLUMN {column}")
        connection.execute("ALTER TABLE rounds DROP COLUMN drafted")
        connection.execute("DROP TABLE actions")
        connection.execute("UPDATE episodes SET success = 0, error = 'not finite', outcome = 'invalid action'")
        hardware = {"accelerator": "H200"}
        old = {"spec": {"seed": 0, "must_move": {"a": ["b"]}}, "hardware": hardware, "marks": ["x: y"], "command": "c"}
        old |= {"started": "", "commit": "", "packages": {}, "checkpoints": {}}
        connection.execute("UPDATE runs SET run = ?", (json.dumps(old),))
        connection.execute(
            "INSERT INTO runs (run) VALUES (?)", (json.dumps(old | {"hardware": {"accelerator": "CPU"}}),)
        )
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with Store.open(tmp_path) as store:
        (row,) = store.episodes()
        assert (row.status, row.success, row.failure, row.error) == ("done", False, "not finite", None)
        # Resumed on another machine: which one, and which start, measured it is unknown.
        assert (row.device, row.machine, row.session) == ("H200", "", 0)
        assert store.run.spec == {"seed": 0, "dtype": "float32", "device": "cuda"}
        assert store.run.marks == (Mark("x", "y"),) and len(store.runs) == 2


@pytest.mark.parametrize("change", ["UPDATE runs SET run = '{}'", "UPDATE runs SET run = 'x'"])
def test_an_old_store_that_does_not_say_what_produced_it_is_refused(tmp_path, change):
    shutil.copy(OLDER / "suites/robotwin" / FILE, tmp_path)
    refuse_after(change, tmp_path)


def test_a_run_with_another_identity_is_refused_and_names_the_fields(tmp_path, make):
    begin(tmp_path, make, make.run(identity=RunIdentity({"fixed": 0}, {"conveyor": {"belt": "1"}})))
    other = RunIdentity({"fixed": 5}, {"conveyor": {"belt": "2"}})
    with pytest.raises(SpecMismatch) as caught:
        Store.start(tmp_path, make.run(identity=other, activity_counters={"flash": ("drafts",)}))
    assert set(caught.value.fields) == {
        "identity.latency.fixed",
        "identity.fingerprints.conveyor.belt",
        "activity_counters.flash",
    }


def test_a_damaged_database_is_refused(tmp_path, written, make):
    store = written(*(make.episode(cell=cell) for cell in range(40)))
    store.close()
    content = bytearray(store.path.read_bytes())
    assert len(content) > 8 * 4096
    content[2 * 4096 : 7 * 4096] = os.urandom(5 * 4096)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / FILE).write_bytes(content)
    with pytest.raises(StoreUnreadable):
        Store.open(damaged)


def test_a_truncated_database_is_refused(tmp_path, written, make):
    store = written(*(make.episode(cell=cell) for cell in range(40)))
    store.close()
    truncated = tmp_path / "truncated"
    truncated.mkdir()
    (truncated / FILE).write_bytes(store.path.read_bytes()[: 3 * 4096])
    with pytest.raises(StoreUnreadable):
        Store.open(truncated)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE episodes SET manifest = '{'",
        "UPDATE episodes SET manifest = 'null'",
        "UPDATE episodes SET manifest = CAST(x'7bff7d' AS TEXT)",
        "UPDATE episodes SET counters = '[1]'",
        """UPDATE episodes SET counters = '{"drafts": "many"}'""",
        """UPDATE episodes SET counters = '{"drafts": NaN}'""",
        """UPDATE episodes SET code = '{"suite": 1}'""",
        f"UPDATE episodes SET settings = '{200_000 * '['}'",
        """UPDATE rounds SET stages_ns = '{"encode": 1.5}'""",
        "UPDATE rounds SET host_ns = -5",
        "UPDATE rounds SET accepted = 50, drafted = 10",
        'DELETE FROM rounds WHERE "index" = 0',
        'DELETE FROM rounds WHERE "index" = 1',
        "UPDATE episodes SET key = 'another'",
        "ALTER TABLE episodes DROP COLUMN weights",
        "ALTER TABLE rounds ADD COLUMN accepted_twice INTEGER",
        "DROP TABLE rounds",
        "PRAGMA user_version = 1",
        "PRAGMA user_version = 2",
        "PRAGMA user_version = 3",
        "UPDATE runs SET run = '[]'",
        "UPDATE runs SET run = json_set(run, '$.spec', NULL)",
        "UPDATE runs SET run = json_set(run, '$.marks', json('[1]'))",
        f"UPDATE runs SET run = '{200_000 * '['}'",
    ],
)
def test_damaged_content_is_refused_with_the_name_of_the_file(tmp_path, make, change):
    begin(tmp_path, make, make.run())
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnreadable) as error:
        with Store.open(tmp_path) as store:
            store.episodes()
    assert str(tmp_path / FILE) in str(error.value)
    assert len(str(error.value)) < 600 and "\n" not in str(error.value)


def test_a_full_disk_is_called_that_and_is_no_damage(tmp_path, make):
    with Store.start(tmp_path, make.run()) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match=r"episodes\.db: database or disk is full"):
            for cell in range(100):
                store.add(make.episode(cell=cell))
        kept = store.episodes()
    with Store.start(tmp_path, make.run()) as store:
        assert store.episodes() == kept
        store.add(make.episode(cell=200))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_refuses_is_told_from_a_wrong_directory(tmp_path, make, monkeypatch, number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(StoreUnavailable, match=os.strerror(number)):
        Store.start(tmp_path / "run", make.run())
    monkeypatch.undo()
    with pytest.raises(StoreError) as error:
        Store.start(tmp_path / ("n" * 300), make.run())
    assert not isinstance(error.value, StoreUnavailable)


@pytest.fixture
def holds(tmp_path, monkeypatch):
    """Returns a function that takes a lock of the store as another process does, and gives it back 0.3 s later."""
    monkeypatch.setattr("replan.results.store.PATIENCE", 0.05)

    def hold(*statements):
        other = sqlite3.connect(tmp_path / FILE, isolation_level=None, check_same_thread=False)
        for statement in statements:
            other.execute(statement).fetchall()
        threading.Timer(0.3, other.close).start()

    return hold


WRITES, READS = ("BEGIN IMMEDIATE",), ("BEGIN", "SELECT * FROM episodes")


@pytest.mark.parametrize("lock", [WRITES, READS, ("BEGIN EXCLUSIVE",)])
def test_a_start_waits_for_another_process_and_says_so(tmp_path, make, holds, capsys, lock):
    begin(tmp_path, make, make.run())
    holds(*lock)
    with Store.start(tmp_path, make.run()) as store:
        store.add(make.episode(cell=1))
    assert f"waiting for another process that holds {tmp_path / FILE}" in capsys.readouterr().err


def test_an_episode_waits_for_another_writer_and_is_not_lost(tmp_path, make, holds, capsys):
    with Store.start(tmp_path, make.run()) as store:
        holds(*WRITES)
        store.add(make.episode(cell=1))
        assert len(store.episodes()) == 1
    assert "waiting for another process" in capsys.readouterr().err


def test_a_reader_keeps_no_run_from_writing_or_ending(tmp_path, make, holds, capsys):
    with Store.start(tmp_path, make.run()) as store:
        store.add(make.episode(cell=1))
        holds(*READS)
        store.add(make.episode(cell=2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("change", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_a_run_whose_directory_goes_away_ends_at_the_next_episode(tmp_path, make, change):
    with Store.start(tmp_path / "run", make.run()) as store:
        store.add(make.episode(cell=1))
        change(tmp_path / "run")
        with pytest.raises(StoreUnavailable, match="moved or deleted"):
            store.add(make.episode(cell=2))
    if (tmp_path / "moved").exists():
        with Store.start(tmp_path / "moved", make.run()) as store:
            assert len(store.episodes()) == 1


def test_a_killed_run_in_a_folder_that_may_not_be_written_says_what_to_copy(tmp_path, make, monkeypatch):
    begin(tmp_path, make, make.run())
    (tmp_path / f"{FILE}-wal").touch()

    def refuse(*_, **__):
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("replan.results.store.sqlite3.connect", refuse)
    with pytest.raises(StoreUnavailable, match=r"a run that was killed.* copy the folder, with episodes\.db-wal"):
        Store.open(tmp_path)


# The child writes two episodes, begins a third and stops in the middle of its rounds, inside the transaction.
WRITER = """
import sys, time
sys.path.insert(0, {tests!r})
from conftest import build_episode, build_round, build_run
from replan.results import Store

class Stuck:
    def __iter__(self):
        yield build_round(0)
        yield build_round(1)
        print("in the middle", flush=True)
        time.sleep(600)

store = Store.start({directory!r}, build_run())
store.add(build_episode(cell=0))
store.add(build_episode(cell=1))
store.add(build_episode(cell=2, rounds=Stuck()))
"""


def test_a_writer_killed_in_the_middle_loses_only_the_episode_it_was_writing(tmp_path, make):
    directory = tmp_path / "run"
    script = WRITER.format(tests=os.path.dirname(__file__), directory=str(directory))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the middle\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL

    expected = [make.episode(cell=cell) for cell in (0, 1)]
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    with Store.open(copy) as reader:
        assert reader.episodes() == expected
    with Store.start(directory, make.run()) as resumed:
        assert resumed.done_keys() == {row.key for row in expected}
        resumed.add(make.episode(cell=2))
    with Store.open(directory) as reader:
        assert reader.episodes() == [*expected, make.episode(cell=2, session=2)]


def test_a_run_killed_before_its_store_was_complete_starts_again(tmp_path, make, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            Store.start(tmp_path, make.run())
    with Store.start(tmp_path, make.run()) as store:
        store.add(make.episode())
        assert len(store.episodes()) == 1
