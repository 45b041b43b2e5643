from __future__ import annotations

import math

import pytest
from replan.results.escaping import counted
from replan.results.leaderboard import board
from replan.results.schema import Mark
from replan.results.tables import markdown, milliseconds, percent, tables, text


def cell(table, row, column):
    return table.cells[row][table.columns.index(column)]


@pytest.fixture
def rows(written, make):
    run = make.run(activity_counters={"flash": ("drafts",)})
    dense = [make.episode("dense", i, rounds=tuple(make.round(k, ms=40) for k in range(5))) for i in range(10)]
    flash = [
        make.episode("flash", i, i > 0, rounds=tuple(make.round(k, ms=10, route="flash") for k in range(2)))
        for i in range(10)
    ]
    return board([written(*dense, *flash, make.error("flash", 10), run=run)])


def test_the_table_holds_what_was_measured(rows):
    ((_, _, table, rounds, *_),) = tables(rows)
    assert table.title == "conveyor, policy pi0-tiny, clock sync, latency zero, precision float32, device cpu"
    assert [cell(table, i, "method") for i in range(2)] == ["dense", "flash"]
    assert cell(table, 0, "success") == "100.0 %\n[72.2, 100.0]"
    assert cell(table, 1, "success") == "90.0 %\n[59.6, 98.2]\n81.8 % worst"
    assert cell(table, 1, "vs dense") == "-10.0 (p 1)\n[-36.2, +19.6]"  # dense did not run the cell that was lost
    assert [cell(table, i, "rank") for i in range(2)] == ["–", "–"]
    assert cell(table, 1, "n") == "10\n+1 err."
    assert cell(table, 1, "rounds") == "2.0\n2.0 succ."
    assert cell(table, 1, "round ms") == "p50 10.0\np90 –"
    assert cell(table, 0, "round ms") == "p50 40.0\np90 40.0"
    assert cell(table, 1, "ms per\naction") == "1.00"
    assert cell(table, 1, "speed-up") == "4.00× action\n[4.00, 4.00]\n4.00× round\n[4.00, 4.00]"
    assert cell(table, 1, "marks").split("\n")[0] == "NOT ACTIVE"
    assert [rounds.cells[1][rounds.columns.index(name)] for name in ("method", "route", "share", "rounds")] == [
        "flash",
        "flash",
        "100 %",
        "20",
    ]


def test_success_at_the_end_is_shown_where_it_is_another(written, make):
    def shown(*at_end):
        episodes = [make.episode("dense", i, i < 2, success_at_end=value) for i, value in enumerate(at_end)]
        ((_, _, table, *_),) = tables(board([written(*episodes)]))
        return cell(table, 0, "success").split("\n")[2:]

    assert shown(True, False, False, False) == ["25.0 % at end"]
    assert shown(True, True, False, False) == shown(None, None, None, None) == []


def test_the_baseline_is_compared_with_nothing(rows):
    ((_, _, table, *_),) = tables(rows)
    assert cell(table, 0, "vs dense") == "baseline" and cell(table, 0, "speed-up") == "1"


def test_marks_are_explained_below_and_those_of_the_run_come_first(rows):
    ((_, _, table, *_),) = tables(rows)
    best, verdicts, kept, run, *_ = table.notes
    assert best == "Fastest that loses at most 2 points: none that these cells prove"
    assert verdicts == "Verdicts (95 %, together): flash cannot tell, n too small (n = 130 would)"
    assert kept == "Of the cells that dense solves, kept: flash 90.0 % (at least 60.6 %)"
    assert run == "tiny model trained here"
    assert "NOT ACTIVE: drafts moved in 0 % of the episodes, and has to in 50 % (flash)" in table.notes
    assert sum(note.startswith("small n") for note in table.notes) == 1
    assert any(note.startswith("small n") and note.endswith("(all rows)") for note in table.notes)


def test_an_unmeasured_method_has_dashes(written, make):
    ((_, _, table, *_),) = tables(board([written(make.error("flash"))]))
    line = dict(zip(table.columns, table.cells[0], strict=True))
    assert line["success"] == "–\n0.0 % worst"
    assert line["vs dense"] == line["speed-up"] == line["ms per\naction"] == "–"


def test_what_varies_is_a_column_and_what_does_not_is_in_the_title(written, make):
    episodes = [make.episode("dense", settings={"speed": speed}) for speed in (15.0, 6.0)]
    ((_, _, table, *_),) = tables(board([written(*episodes)]))
    assert "speed" not in table.title
    assert table.columns[:2] == ["speed", "method"]
    assert [line[0] for line in table.cells] == ["6", "15"]
    ((_, _, table, *_),) = tables(board([written(episodes[0])]))
    assert ", speed 15," in table.title and table.columns[0] == "method"


def test_a_table_for_each_suite(written, make):
    found = tables(board([written(make.episode("dense"), make.episode("dense", suite="conveyor-hard"))]))
    assert [each.suite for each in found] == ["conveyor", "conveyor-hard"]


def test_latency_and_acceptance_are_shown_where_there_are_any(written, make):
    (plain,) = tables(board([written(make.episode("dense"))]))
    assert not {"accepted", "latency\nms"} & set(plain.methods.columns) and plain.acceptance is None
    rounds = (make.round(0, route="flash", accepted=5, latency_ns=58_000_000),)
    (shown,) = tables(board([written(make.episode("flash", rounds=rounds))]))
    assert cell(shown.methods, 0, "accepted") == "50 %\nmean 5.0" and cell(shown.methods, 0, "latency\nms") == "58.0"
    assert shown.acceptance.cells == [["flash", "1", "50.0 %", "5.00", "50.0 %", *["100 %"] * 5, *["0 %"] * 5]]


def test_the_worst_case_stands_below_where_cells_could_not_be_measured(written, make):
    dense = [make.episode("dense", cell) for cell in range(10)]
    flash = [make.episode("flash", cell) for cell in range(9)]
    ((_, _, table, *_),) = tables(board([written(*dense, *flash, make.error("flash", 9))]))
    assert cell(table, 1, "vs dense").split("\n")[::2] == ["+0.0 (p 1)", "-10.0 worst"]
    assert cell(table, 1, "success").split("\n")[2] == "90.0 % worst"
    assert cell(table, 0, "success").count("\n") == 1


def test_the_rank_is_shown_and_an_idle_method_has_none(written, make):
    run = make.run(activity_counters={"idle": ("used",)})
    times = {"dense": 40, "slow": 30, "idle": 1, "fast": 10}
    rows = [make.episode(name, cell, rounds=(make.round(ms=ms),)) for name, ms in times.items() for cell in range(44)]
    found = board([written(*rows, run=run)])
    ((_, _, table, *_),) = tables(found)
    ranks = [(cell(table, i, "method"), cell(table, i, "rank")) for i in range(4)]
    assert ranks == [("dense", "–"), ("fast", "1"), ("slow", "2"), ("idle", "–")]
    order = [line.split()[0] for line in text(found).splitlines() if line.startswith(tuple(times))]
    assert order[:4] == ["dense", "fast", "slow", "idle"]
    assert table.notes[-1].startswith("Rank: by speed-up per action") and "a loss of 10 points" in table.notes[-1]


def test_a_comparison_that_was_not_timed_together_has_no_speed_up(written, make):
    stores = [written(make.episode("dense")), written(make.episode("flash"))]
    ((_, _, table, *_),) = tables(board(stores))
    assert cell(table, 1, "speed-up") == "n/a"


def test_success_by_task_is_a_table_of_its_own_and_a_note_names_the_worst(written, make):
    def episodes(method, lost):
        return [make.episode(method, i, (task, i) not in lost, task=task) for task in ("lift", "stack") for i in (0, 1)]

    found = board([written(*episodes("dense", {("lift", 0)}), *episodes("flash", {("stack", 0), ("stack", 1)}))])
    ((*_, tasks, _, _),) = tables(found)
    assert tasks.columns == ["task", "dense", "flash"]
    assert tasks.cells == [["lift", "50.0 %\nn 2", "100.0 %\nn 2"], ["stack", "100.0 %\nn 2", "0.0 %\nn 2"]]
    assert "Worst task: dense lift (50.0 % of 2), flash stack (0.0 % of 2)" in " ".join(text(found).split())
    assert "Success by task" in markdown(found)
    ((*_, tasks, _, _),) = tables(board([written(make.episode("dense"))]))
    assert tasks is None


def test_percentiles_have_their_bounds_beside_them(written, make):
    rounds = tuple(make.round(k, ms=k + 1) for k in range(44))
    found = board([written(make.episode("dense", rounds=rounds))])
    ((_, _, _, table, *_),) = tables(found)
    assert table.cells[0][-3:] == ["22.5\n≤ 31.0", "39.7\n≤ 44.0", "–"]
    assert "≤" not in text(found)


def test_precision_and_device_are_columns_where_they_differ(written, make):
    rows = board([written(make.episode("dense"), make.episode("dense", dtype="bfloat16", device="H200", key="1"))])
    ((_, condition, table, *_),) = tables(rows)
    assert "precision" not in condition and "device" not in condition
    assert [(cell(table, i, "precision"), cell(table, i, "device")) for i in range(2)] == [
        ("bfloat16", "H200"),
        ("float32", "cpu"),
    ]


def test_text_and_markdown_hold_the_same_figures(rows):
    plain, marked = text(rows), markdown(rows)
    for part in ("dense", "flash", "90.0 %", "[59.6, 98.2]", "4.00×", "NOT ACTIVE", "tiny model trained here"):
        assert part in plain and part in marked
    header = next(line for line in marked.splitlines() if line.startswith("| method"))
    body = next(line for line in marked.splitlines() if line.startswith("| flash"))
    assert header.count("|") == body.count("|")


def test_text_fits_a_terminal_of_80_columns(written, make):
    note = "core shared: " + "wall time is 1.80 × processor time " * 5
    run = make.run(marks=(Mark.parse(note),), activity_counters={"flash": ("drafts",)})
    rounds = tuple(make.round(k, ms=123.4, route="fallback", accepted=7) for k in range(10))
    episodes = [make.episode(name, i, rounds=rounds) for name in ("dense", "few_step", "flash") for i in range(200)]
    plain = text(board([written(*episodes, run=run)]))
    assert max(map(len, plain.splitlines())) <= 80
    assert "mean per draft): dense 70.0 % (7.00), few_step 70.0 % (7.00), flash 70.0 % (7.00)" in " ".join(
        plain.split()
    )
    assert "\nNOT ACTIVE" in plain


LONG = "flash:delta=0.15:refresh=4:max_age=60:gripper=false:blind=0.25:reject=next+few_step:steps=2"


@pytest.mark.parametrize("methods", [("dense", "flash"), ("dense", "flash+dp_cache", "flash:delta=0.1"), (LONG,)])
@pytest.mark.parametrize("latencies", [("zero",), ("profile:flash-triton-4090d", "trace:runs/measured/trace.jsonl")])
@pytest.mark.parametrize("speeds", [(10.0,), (6.0, 15.0)])
def test_text_fits_80_columns_whatever_was_compared(written, make, methods, latencies, speeds):
    rounds = tuple(make.round(k, ms=1234.5, latency_ns=58_000_000) for k in range(10))
    episodes = [
        make.episode(method, i, i % 3 > 0, rounds=rounds, latency=latency, settings={"speed": speed}, clock="realtime")
        for method in methods
        for latency in latencies
        for speed in speeds
        for i in range(20)
    ]
    plain = text(board([written(*episodes, make.error(methods[-1], 20, clock="realtime"))]))
    assert max(len(line) for line in plain.splitlines() if LONG not in line) <= 80
    for part in (*methods, *latencies, "65.0 %", "+1 err.", "58.0"):
        assert part in plain


def test_conditions_without_room_are_headings_of_their_rows(written, make):
    rounds = tuple(make.round(k, latency_ns=58_000_000) for k in range(10))
    latencies = ("profile:flash-triton-4090d", "trace:runs/measured/trace.jsonl")
    episodes = [
        make.episode(method, rounds=rounds, latency=latency, clock="realtime")
        for method in ("dense", "flash")
        for latency in latencies
    ]
    lines = text(board([written(*episodes)])).splitlines()
    for latency in latencies:
        first = lines.index(f"latency {latency}")
        assert [line.split()[0] for line in lines[first + 1 : first + 5 : 2]] == ["dense", "flash"]


def test_a_pipe_in_a_name_does_not_break_markdown(written, make):
    marked = markdown(board([written(make.episode("a|b"))]))
    assert "a\\|b" in marked


def test_an_empty_board_is_empty():
    assert text([]) == "" and markdown([]).strip() == ""


@pytest.mark.parametrize(("ns", "shown"), [(58.04e6, "58.0"), (7.8e6, "7.80"), (123.4e6, "123"), (math.nan, "–")])
def test_milliseconds_keep_about_three_digits(ns, shown):
    assert milliseconds(ns) == shown


def test_percent_of_nothing_is_a_dash():
    assert percent(math.nan) == "–" and percent(0.125) == "12.5 %"


def test_long_paths_are_cut_to_the_file_where_the_names_stay_different(written, make):
    far = "/home/somebody/with/a/long/name/libraries"
    names = [
        f"rmuscle:library={far}/one.library:width=2",
        f"nirvana:library={far}/a",
        f"nirvana:library={far}/b/a",
    ]
    numbers = "flash:tau=0.80/0.85/0.90/0.925/0.95/0.99"
    rows = [make.episode(method, cell) for method in ("dense", *names, numbers) for cell in range(9)]
    shown = {line[0] for line in tables(board([written(*rows)]))[0].methods.cells}
    assert shown == {"dense", "rmuscle:library=.../one.library:width=2", *names[1:], numbers}


def test_one_is_no_plural():
    assert [counted(number, "round") for number in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]


def test_an_action_error_says_of_how_many_rounds_it_is(written, make):
    rounds = (make.round(0, action_error=0.03), make.round(1))
    flash = [make.episode("flash", number, rounds=rounds) for number in range(9)]
    found = board([written(*(make.episode("dense", number) for number in range(9)), *flash)])
    (suite,) = tables(found)
    errors = {line[0]: line[suite.methods.columns.index("action\nerror")] for line in suite.methods.cells}
    assert errors == {"dense": "–", "flash": "0.03\nn 9"} and "Action error: from n rounds" in " ".join(
        text(found).split()
    )
