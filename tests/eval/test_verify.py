from __future__ import annotations

import sqlite3

import pytest
from fake import FakeRegistry
from play import play
from replan.eval.spec import BadInput
from replan.eval.verify import verify
from replan.results.store import FILE


def again(directory, cells=3):
    return {each.method: each for each in verify(str(directory), FakeRegistry(), cells=cells, progress=False)}


def change(directory, statement):
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(statement)
    connection.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    play(directory, method="dense,draft,learn", suite="belt")
    return directory


def test_a_run_of_this_machine_and_code_comes_out_bit_equal(run):
    replays = again(run)
    assert replays.keys() == {"dense", "draft"}  # one episode of a method that learns says nothing alone
    for replay in replays.values():
        assert (replay.played, replay.bit_equal, replay.same_code, replay.same_machine) == (3, 3, 3, 3)
        assert (replay.level, replay.broken, replay.failed) == ("bit-equal", 0, 0)


@pytest.mark.parametrize(
    ("statement", "level", "broken"),
    [
        ("UPDATE episodes SET trajectory_hash = 'x'", "same outcome", True),
        ("UPDATE episodes SET trajectory_hash = 'x', machine = 'another'", "same outcome", False),
        ("UPDATE episodes SET trajectory_hash = 'x', outcome = 'x', machine = 'another'", "same cell", False),
        ("UPDATE episodes SET trajectory_hash = 'x', outcome = 'x', observation_hash = 'x'", "differs", True),
        ("UPDATE episodes SET trajectory_hash = 'x', code = '{}'", "same outcome", False),
        ("UPDATE rounds SET route = 'x' WHERE \"index\" = 1", "same outcome", True),
        ("UPDATE episodes SET trajectory_hash = 'x', machine = 'another', manifest = '{}'", "differs", True),
    ],
)
def test_what_does_not_come_out_again_is_told_and_broken_only_where_it_was_claimed(
    run, tmp_path, statement, level, broken
):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    change(tmp_path, statement)
    replay = again(tmp_path, cells=1)["dense"]
    assert (replay.level, bool(replay.broken)) == (level, broken)


@pytest.mark.parametrize("excuse", ["machine = 'another'", "code = '{}'"])
def test_one_episode_of_another_machine_or_code_excuses_no_other(run, tmp_path, excuse):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    change(tmp_path, "UPDATE episodes SET trajectory_hash = 'x' WHERE method = 'dense'")
    change(tmp_path, f"UPDATE episodes SET {excuse} WHERE method = 'dense' AND cell = (SELECT min(cell) FROM episodes)")
    replay = again(tmp_path, cells=50)["dense"]
    assert (replay.bit_equal, replay.broken) == (0, replay.played - 1)


def test_an_episode_that_comes_out_with_fewer_rounds_is_broken(run, tmp_path):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    columns = "route, host_ns, cpu_ns, latency_ns, stages_ns, 0, window, accepted, drafted, warmup, action_error, extra"
    last = 'SELECT max("index") FROM rounds WHERE episode = r.episode'
    change(
        tmp_path,
        f'INSERT INTO rounds SELECT episode, "index" + 1, control_step + executed, {columns} '
        f'FROM rounds AS r WHERE "index" = ({last})',
    )
    replay = again(tmp_path, cells=1)["dense"]
    assert (replay.bit_equal, replay.same_outcome, replay.broken) == (0, 1, 1)


def test_durations_that_were_swapped_behind_their_name_are_refused(run, tmp_path):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    change(tmp_path, "UPDATE runs SET run = json_set(run, '$.identity.latency', 'others')")
    change(tmp_path, "UPDATE episodes SET code = '{}'")  # their keys would give it away
    with pytest.raises(BadInput, match="latency 'zero' stands for other durations here than in the run"):
        again(tmp_path)


def test_other_weights_and_runs_that_cannot_be_repeated_are_refused(run, tmp_path):
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    change(tmp_path, "UPDATE episodes SET weights = 'f00d'")
    with pytest.raises(BadInput, match="policy 'tiny' has weights .* here and had f00d in the run"):
        again(tmp_path)
    change(tmp_path, "UPDATE episodes SET latency = 'measured'")
    with pytest.raises(BadInput, match="no episode that can be played again"):
        again(tmp_path)
