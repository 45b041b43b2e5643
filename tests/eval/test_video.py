"""Stored episodes shown again: as a video, and as a page of cells that flipped."""

from __future__ import annotations

import json
import re
import sqlite3

import numpy as np
import pytest
import replan.eval.video as replan_video
from fake import FakeRegistry
from play import play
from replan.eval.cli import main
from replan.eval.footage import PERIOD_NS, NoActions, NotTheSame, follow, frames
from replan.eval.registry import Registry
from replan.eval.spec import BadInput
from replan.eval.stored import find_cell, of_method
from replan.eval.video import parting, route_colours
from replan.results.flips import flips
from replan.results.store import FILE, Store

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="pip install 'replan[video]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    play(directory, method="dense,draft", suite="belt,jerky", clock="realtime", latency="fixed:61ms")
    return directory


@pytest.fixture
def replan(monkeypatch, capsys):
    """Runs a command on the fake suites; returns its exit code, what --json prints, and stderr."""
    monkeypatch.setattr("replan.eval.registry.Registry", FakeRegistry)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        return end.value.code, json.loads(out.splitlines()[-1]), err

    return call


def rows_of(directory):
    with Store.open(directory) as store:
        return store.episodes()


def courses(directory, registry, rows):
    with Store.open(directory) as store:
        return [follow(row, store, registry) for row in rows]


def changed(run, tmp_path, statement):
    """A copy of a run in which something else is stored."""
    (tmp_path / FILE).write_bytes((run / FILE).read_bytes())
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(statement)
    connection.close()
    return tmp_path


def size_of(video):
    """Width, height and number of images of a video."""
    reader = imageio_ffmpeg.read_frames(str(video))
    about = next(reader)
    return (*about["source_size"], sum(1 for _ in reader))


def test_every_episode_comes_out_bit_for_bit_though_the_world_did_not_wait(run):
    rows = rows_of(run)
    assert {(row.suite, row.outcome) for row in rows} == {("belt", "time"), ("jerky", "time"), ("jerky", "success")}
    for course in courses(run, FakeRegistry(), rows):
        assert course.bit_equal and len(course.actions) == course.row.steps and course.end_ns == course.row.sim_ns
        gaps = np.subtract(course.acted_ns, course.looked_ns)
        starts = {each.control_step for each in course.row.rounds}
        assert [gap == 62_000_000 for gap in gaps] == [step in starts for step in range(len(gaps))]


def test_an_episode_that_its_policy_broke_off_is_shown_as_far_as_it_went(tmp_path):
    rows = play(tmp_path, method="nan,raise", suite="jerky", episodes=1).values()
    for row, course in zip(rows, courses(tmp_path, FakeRegistry(), rows), strict=True):
        assert row.outcome in ("invalid action", "raised")
        assert course.bit_equal and len(course.actions) == row.steps and course.end_ns == row.sim_ns


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE episodes SET observation_hash = 'x'", "begins otherwise here"),
        ("UPDATE episodes SET manifest = '{}'", "begins otherwise here"),
        ("UPDATE episodes SET trajectory_hash = 'x', outcome = 'missed', success = 0", "comes out here as success"),
        ("UPDATE actions SET actions = substr(actions, 1, length(actions) - 4)", "actions that are not float32"),
        ("UPDATE actions SET actions = zeroblob(length(actions))", "comes out here as no end"),
    ],
)
def test_an_episode_that_comes_out_otherwise_is_refused(run, tmp_path, statement, reason):
    solved = next(row.key for row in rows_of(run) if row.success)
    (row,) = [row for row in rows_of(changed(run, tmp_path, statement)) if row.key == solved]
    with pytest.raises(NotTheSame, match=reason):
        courses(tmp_path, FakeRegistry(), [row])


def test_other_rounding_with_the_same_outcome_is_shown_and_said(run, tmp_path):
    rows = rows_of(changed(run, tmp_path, "UPDATE episodes SET trajectory_hash = 'x'"))
    assert not any(course.bit_equal for course in courses(tmp_path, FakeRegistry(), rows))


def test_actions_that_were_not_kept_are_missed_with_the_option_that_keeps_them(replan, tmp_path):
    arguments = ("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path / "run")
    assert replan(*arguments, "--no-keep-actions")[0] == 0
    code, told, _ = replan("video", tmp_path / "run", "left:0", "--out", tmp_path / "a.mp4")
    assert code == 2 and "--keep-actions" in told["error"] and not (tmp_path / "a.mp4").exists()
    assert replan(*arguments)[0] == 0  # the option is none of the run's
    (row,) = rows_of(tmp_path / "run")
    with pytest.raises(NoActions):
        courses(tmp_path / "run", FakeRegistry(), [row])


def test_images_come_at_a_fixed_rate_of_simulated_time_from_cameras_where_nothing_renders(run):
    row = next(row for row in rows_of(run) if row.suite == "jerky" and row.steps > 3)  # whose steps differ in time
    (course,) = courses(run, FakeRegistry(), [row])
    images = list(frames(course, FakeRegistry()))
    assert len(images) == course.end_ns // PERIOD_NS + 1
    assert all(image.shape == (2, 2, 3) and (image == 100).all() for image in images)


def test_the_first_step_at_which_actions_part_is_found(run):
    rows = rows_of(run)
    one = next(row for row in rows if row.method == "dense" and row.steps > 9)
    other = next(row for row in rows if row.method == "draft" and row.cell == one.cell)
    dense, draft = courses(run, FakeRegistry(), [one, other])
    assert parting(dense, dense) is None
    step = parting(dense, draft)
    assert step is not None
    assert (dense.actions[:step] == draft.actions[:step]).all() and (dense.actions[step] != draft.actions[step]).any()


def test_a_video_shows_methods_side_by_side_until_the_longer_one_is_over(replan, run, tmp_path):
    film = tmp_path / "both.mp4"
    cell = next(row.cell for row in rows_of(run) if row.suite == "belt")
    code, told, _ = replan("video", run, cell[:10], "--method", "dense,draft", "--out", film)
    assert code == 0 and told["video"] == str(film)
    assert [each["method"] for each in told["episodes"]] == ["dense", "draft"]
    width, height, images = size_of(film)
    assert width == 2 * 480 + 8 and height > 480
    longest = max(each["seconds"] for each in told["episodes"])
    assert abs(images - (20 * longest + 20)) <= 2
    assert list(tmp_path.iterdir()) == [film]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("left:99",), "unknown cell 'left:99'"),
        (("left:0",), "names 2 cells"),  # in belt and in jerky
        (("belt:left:0", "--method", "dens"), "did you mean 'dense'"),
        (("belt:left:0", "--method", "dense,draft,dense,draft,dense"), "1 to 4"),
    ],
)
def test_what_cannot_be_shown_is_named(replan, run, tmp_path, arguments, message):
    code, told, _ = replan("video", run, *arguments, "--out", tmp_path / "a.mp4")
    assert code == 2 and message in told["error"]


def test_no_other_file_is_replaced_by_a_video(replan, run, tmp_path):
    (tmp_path / "a.mp4").write_text("precious")
    code, told, _ = replan("video", run, "belt:left:0", "--out", tmp_path / "a.mp4")
    assert code == 2 and "is no video" in told["error"] and (tmp_path / "a.mp4").read_text() == "precious"


def test_without_the_encoder_the_extra_is_named(replan, run, monkeypatch, tmp_path):
    monkeypatch.setattr(replan_video.importlib.util, "find_spec", lambda name: None)
    code, told, _ = replan("video", run, "belt:left:0", "--out", tmp_path / "a.mp4")
    assert code == 2 and "pip install 'replan[video]'" in told["error"]


def test_cells_are_named_by_address_or_by_task_and_state(run):
    rows = rows_of(run)
    cell = of_method(find_cell(rows, "belt:right:1"), "draft")
    assert (cell.suite, cell.task, cell.init_state, cell.method) == ("belt", "right", 1, "draft")
    assert {row.cell for row in find_cell(rows, cell.cell[:12])} == {cell.cell}
    with pytest.raises(BadInput, match="unknown cell ''"):
        find_cell(rows, "")


def test_every_flip_gets_a_video_and_the_page_says_where_they_are(replan, run, tmp_path):
    code, told, _ = replan("flips", run, "--method", "draft", "--out", tmp_path / "out", "--limit", 2)
    with Store.open(run) as store:
        found = flips(store, "draft", "dense")
    lost = [each for each in found.flipped if each.lost]
    assert code == 0 and len(lost) >= 2 and found.sentence in told["sentence"]
    page = (tmp_path / "out" / "index.html").read_text()
    assert found.sentence in page and "//" not in page.replace("<!doctype", "")  # nothing is loaded from elsewhere
    assert [each["cell"] for each in told["cells"]] == [each.row.cell for each in found.flipped]
    videos = [each["video"] for each in told["cells"] if each["video"]]
    assert re.findall(r'src="(.*?)"', page) == videos and len(videos) == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*videos, "index.html"])
    assert all(size_of(tmp_path / "out" / video)[2] > 20 for video in videos)


def test_the_pattern_counts_every_cell_once(run):
    rows = {(row.cell, row.method): row for row in rows_of(run)}
    with Store.open(run) as store:
        found = flips(store, "draft", "dense")
    for each in found.patterns:
        cells = {c for (c, _), row in rows.items() if (row.suite, row.task) == (each.suite, each.task)}
        pairs = [(rows[c, "dense"].success, rows[c, "draft"].success) for c in cells]
        counts = [pairs.count(pair) for pair in ((True, False), (False, True), (True, True), (False, False))]
        assert [each.lost, each.gained, each.both, each.neither] == counts and each.cells == len(cells)
    assert sum(each.cells for each in found.patterns) == 12
    assert [each.lost for each in found.flipped] == sorted((each.lost for each in found.flipped), reverse=True)


def test_a_flip_that_does_not_come_out_again_is_shown_without_a_video(replan, run, tmp_path):
    copy = changed(run, tmp_path, "UPDATE episodes SET observation_hash = 'x'")
    code, told, _ = replan("flips", copy, "--method", "draft", "--out", tmp_path / "out", "--limit", 1)
    assert code == 1 and "begins otherwise here" in told["error"] and told["cells"][0]["video"] is None
    assert "begins otherwise here" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--method", "flesh"), "unknown method of this run 'flesh'"), (("--method", "dense"), "name two methods")],
)
def test_flips_need_two_methods_of_the_run(replan, run, tmp_path, arguments, message):
    code, told, _ = replan("flips", run, *arguments, "--out", tmp_path / "out")
    assert code == 2 and message in told["error"] and not (tmp_path / "out").exists()


def test_a_route_has_one_colour_whoever_takes_it():
    colours = route_colours(["full", "flash", "fallback"])
    assert colours == route_colours(["fallback", "flash"]) and len(set(colours.values())) == 3


def test_the_real_conveyor_is_rendered_as_it_was_while_the_belt_moved(tmp_path):
    fields = {"suite": "conveyor", "task": "dog-red", "episodes": 1, "clock": "realtime", "latency": "fixed:100ms"}
    play(tmp_path, registry=Registry(), **fields)
    rows = rows_of(tmp_path)
    (course,) = courses(tmp_path, Registry(), rows)
    assert course.bit_equal  # although the time in which a round was computed passed in pieces
    images = frames(course, Registry())
    first, *middle = (next(images) for _ in range(4))
    assert first.shape == (480, 640, 3) and first.std() > 10
    assert all((image != first).any() for image in middle)  # the belt moved before the first action
    images.close()
