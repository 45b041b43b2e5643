"""What scripts rely on: exit codes, the last line of --json, messages that name the value."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake import FakeRegistry
from replan.eval.cli import main
from replan.results.schema import Mark
from replan.results.store import Store, StoreUnavailable


@pytest.fixture
def replan(monkeypatch, capsys):
    """Runs a command in this process on the fake suite; returns its exit code, stdout and stderr."""
    monkeypatch.setattr("replan.eval.registry.Registry", FakeRegistry)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return call


def children(pid):
    """Processes that a process has started and that still run, theirs included."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *children(int(child))]
    return found


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def last_line(out):
    return json.loads(out.splitlines()[-1])


def test_eval_prints_the_table_then_one_line_of_json(replan, tmp_path):
    code, out, err = replan(
        "eval", "--suite", "belt", "--method", "dense,draft", "--episodes", 3, "--out", tmp_path, "--json"
    )
    told = last_line(out)
    assert code == 0
    assert (told["episodes"], told["errors"], told["out"]) == (6, 0, str(tmp_path))
    assert [row["method"] for row in told["board"]] == ["dense", "draft"]
    assert "draft" in "\n".join(out.splitlines()[:-1])
    assert "6/6 episodes" in err and "\r" not in err  # a log gets lines, and no bar
    with Store.open(tmp_path) as store:
        assert store.run.command.startswith("replan eval --suite belt")
        assert store.run.activity_counters == {"dense": (), "draft": ("calls",)}
        assert store.run.suite_marks == {"belt": (Mark("a fake", "a fake"),)}
        assert (store.run.spec["dtype"], store.run.spec["device"] != "auto") == ("float32", True)

    code, out, _ = replan("board", tmp_path, "--json", "--rows")
    assert (code, last_line(out)["board"]) == (0, told["board"]) and "rows" not in told
    rows = last_line(out)["rows"]
    assert sorted((row["run"], row["method"], row["outcome"]) for row in rows) == [
        (str(tmp_path), method, "success") for method in ("dense", "draft") for _ in range(3)
    ]
    assert rows[0]["steps"] > 0 and "rounds" not in rows[0]
    code, out, _ = replan("board", tmp_path, "--markdown")
    assert code == 0
    assert "| method" in out


def test_a_quiet_evaluation_says_faults_only(replan, tmp_path):
    arguments = ["eval", "--suite", "belt", "--method", "dense,raise", "--episodes", 1, "--out", tmp_path, "--quiet"]
    code, out, err = replan(*arguments)
    assert code == 0 and "dense" in out and err == "raised, raise on left 0: RuntimeError: the policy tripped\n"
    assert replan(*arguments)[::2] == (0, "")  # neither that it reuses them


def test_a_worker_that_takes_long_to_build_is_said_to_be_at_work(replan, tmp_path, monkeypatch):
    monkeypatch.setattr("replan.eval.progress.SILENT_S", 0.05)
    _, _, err = replan("eval", "--suite", "belt", "--method", "slow", "--episodes", 1, "--out", tmp_path)
    assert "setting up suite 'belt' and its policy" in err or "tiny makes its first rounds with method 'slow'" in err


def test_several_suites_run_side_by_side_and_share_a_page_with_other_runs(replan, tmp_path):
    assert replan("eval", "--suite", "belt,shelf", "--episodes", 2, "--out", tmp_path / "two")[0] == 0
    assert replan("eval", "--suite", "jerky", "--episodes", 1, "--out", tmp_path / "one")[0] == 0
    page = tmp_path / "page.html"
    code, out, _ = replan("board", tmp_path / "two", tmp_path / "one", "--html", page, "--json")
    assert code == 0
    rows = {row["suite"]: row for row in last_line(out)["board"]}
    assert {suite: row["policy"] for suite, row in rows.items()} == {
        "belt": "tiny",
        "jerky": "tiny",
        "shelf": "tiny-shelf",
    }
    badges = {suite: {mark["badge"] for mark in row["marks"]} for suite, row in rows.items()}
    assert "stand-in" in badges["shelf"] and not any("stand-in" in badges[suite] for suite in ("belt", "jerky"))
    assert ["a fake" in badges[suite] for suite in ("belt", "jerky", "shelf")] == [True, True, False]
    sections = page.read_text().split("<h2>")[1:4]
    assert [section.partition("<")[0] for section in sections] == ["belt", "jerky", "shelf"]
    assert ["a belt in place of a shelf" in section for section in sections] == [False, False, True]
    assert ["a fake (dense)" in section for section in sections] == [True, True, False]


def test_board_writes_a_page(replan, tmp_path):
    replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path)
    code, out, _ = replan("board", tmp_path, "--html", tmp_path / "page.html", "--json")
    assert (code, last_line(out)["html"]) == (0, str(tmp_path / "page.html"))
    assert "a loss of 10 points" in last_line(out)["rank_rule"]
    assert "a loss of 10 points" in last_line(out)["rank_rule"]
    assert "<html" in (tmp_path / "page.html").read_text()


def test_compare_shows_what_changed_and_ends_with_json(replan, tmp_path):
    for name, method in (("one", "dense"), ("two", "dense,draft")):
        replan("eval", "--suite", "belt", "--episodes", 2, "--method", method, "--out", tmp_path / name)
    code, out, _ = replan("compare", tmp_path / "one", tmp_path / "two", "--allow-mixed", "--json")
    (found,) = last_line(out)["compare"]
    assert (code, found["across"], found["old"]["value"], found["paired"]["n"]) == (0, "run", str(tmp_path / "one"), 2)
    assert "after minus before" in out
    code, out, _ = replan("compare", tmp_path / "two", "--across", "method", "--json")
    assert (code, last_line(out)["compare"][0]["new"]["method"]) == (0, "draft")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "compare takes OLD and NEW, or one directory with --across"),
        (("--across", "sped"), "'sped' is neither a setting of these runs nor a part; --across takes suite, policy"),
    ],
)
def test_compare_refuses_what_it_cannot_compare(replan, tmp_path, arguments, message):
    replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path)
    code, out, _ = replan("compare", tmp_path, *arguments, "--json")
    assert code == 2 and message in last_line(out)["error"]


def test_flags_win_over_the_file(replan, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('suite = "belt"\nepisodes = 1\nmethod = "dense,draft"\n[set]\nspeed = 0.3\nstill = false\n')
    code, _, _ = replan("eval", "--spec", file, "--method", "draft", "--set", "speed=0.1", "--out", tmp_path / "run")
    assert code == 0
    with Store.open(tmp_path / "run") as store:
        assert [(row.method, row.settings) for row in store.episodes()] == [("draft", {"speed": 0.1, "still": False})]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite", "bellt"], "unknown suite 'bellt'; did you mean 'belt'"),
        (["--suite", "belt", "--task", "lefft"], "unknown task 'lefft'; did you mean 'left'"),
        (["--suite", "belt", "--set", "speed"], "--set 'speed' has no value"),
        (["--suite", "belt", "--set", "speed=-3"], "speed must not be negative, got -3.0"),
        (["--suite", "belt", "--method", "unbuildable"], "no such method: 'unbuildable'"),
        (["--suite", "absent"], "the suite 'absent' lacks its assets; run: replan setup absent"),
        (["--suite", "orphan"], "suite 'orphan' has no policy of its own; name one with --policy"),
        (
            ["--suite", "belt", "--policy", "wide"],
            "policy 'wide' does not fit suite 'belt': its state is (2,), not (3,)",
        ),
        (["--suite", "belt", "--clock", "realtime", "--latency", "fixed:58"], "duration '58' has no unit"),
        (
            ["--suite", "belt", "--method", "dense,draft", "--clock", "realtime", "--latency", "profile:torch-4090d"],
            "latency profile 'torch-4090d' has no latency for the route flash of method 'draft', only for full",
        ),
        (["--suite", "belt", "--episodes", "many"], "'many' is not a valid integer"),
        (["--suite", "belt", "--dtype", "float16"], "unknown dtype 'float16'; did you mean 'bfloat16' or 'float32'"),
        (["--suite", "belt", "--device", "gpu"], "unknown device 'gpu'; did you mean 'cpu'"),
        (["--suite", "belt", "--method", "learn", "--workers", "2"], "write --workers 1, not 2"),
        (["--suite", "belt", "--epsiodes", "3"], "--epsiodes"),
    ],
)
def test_bad_input_exits_with_2_and_names_the_value_also_in_json(replan, tmp_path, arguments, message):
    code, out, err = replan("eval", *arguments, "--out", tmp_path / "run", "--json")
    assert code == 2
    assert message in last_line(out)["error"]
    assert message in err
    assert "Traceback" not in err


def test_settings_of_the_file_that_are_no_table_are_refused_also_with_a_flag(replan, tmp_path):
    (tmp_path / "run.toml").write_text('suite = "belt"\nset = 5\n')
    code, _, err = replan("eval", "--spec", tmp_path / "run.toml", "--set", "speed=1", "--out", tmp_path / "run")
    assert (code, err) == (2, "error: set must be a table such as {speed = [6, 10]}, not 5\n")


@pytest.mark.parametrize("path", ["n" * 300, "n" * 3000, "d/" * 3000, "", "a\0b", "x\udcff", "/dev/null/x"])
@pytest.mark.parametrize("command", [["eval", "--suite", "belt", "--out"], ["board"], ["collect", "--suite", "conveyor",
    "--episodes", "1", "--out"], ["eval", "--out", "run", "--spec"], ["eval", "--out", "run", "--clock", "realtime",
    "--suite", "belt", "--latency"]])  # fmt: skip
def test_a_path_that_cannot_be_one_is_bad_input(replan, tmp_path, monkeypatch, command, path):
    monkeypatch.chdir(tmp_path)
    code, out, err = replan(*command[:-1], command[-1], f"trace:{path}" if "--latency" in command else path, "--json")
    assert (code, err.lower().count("error: ")) == (2, 1), err
    assert len(err) < 1000 and "Traceback" not in err
    assert last_line(out)["error"] in err.replace("\\\\", "\\")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_that_leads_nowhere_is_called_that(replan, tmp_path, target):
    (tmp_path / "link").symlink_to(target)  # to nothing, or to itself
    code, _, err = replan("eval", "--suite", "belt", "--out", tmp_path / "link")
    reason = f"it is a link to {target!r}, where nothing is"
    assert (code, err) == (2, f"error: cannot write a run to {str(tmp_path / 'link')!r}: {reason}\n")
    assert os.listdir(tmp_path) == ["link"]


def test_a_page_without_a_name_and_a_run_that_is_given_twice_are_refused(replan, tmp_path):
    replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path / "run")
    (tmp_path / "same").symlink_to("run")
    assert replan("board", tmp_path / "run", "--html", "")[::2] == (
        2,
        "error: --html '' names no file; write --html FILE\n",
    )
    code, _, err = replan("board", tmp_path / "run", tmp_path / "same")
    assert (code, err) == (2, f"error: {tmp_path / 'same'} is given twice; give it once\n")


def test_a_time_limit_in_which_nothing_can_be_set_up_is_named(replan, tmp_path):
    code, _, err = replan("eval", "--suite", "belt", "--timeout", "1e-9", "--out", tmp_path / "run")
    reason = "suite 'belt' was not set up within 2 times the time limit of an episode, 1e-09 s; give a longer --timeout"
    assert code == 1 and reason in err


def test_a_page_that_cannot_be_written_leaves_the_old_one(replan, tmp_path, monkeypatch):
    replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path)
    page = tmp_path / "page.html"
    page.write_text("<html>old")
    assert replan("board", tmp_path, "--html", page, "--title", "x\udcff")[0] == 2

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refuse)
        code, out, err = replan("board", tmp_path, "--html", page, "--json")
    assert (code, last_line(out)["error"]) == (4, f"{str(page)!r}: No space left on device")
    assert page.read_text() == "<html>old" and sorted(os.listdir(tmp_path)) == ["episodes.db", "page.html"]
    assert replan("board", tmp_path, "--html", tmp_path / "none" / "page.html")[0] == 2


def test_a_page_replaces_nothing_but_a_page(replan, tmp_path):
    replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path)
    database = (tmp_path / "episodes.db").read_bytes()
    code, _, err = replan("board", tmp_path, "--html", tmp_path / "episodes.db")
    assert code == 2 and "exists and is no page" in err
    assert (tmp_path / "episodes.db").read_bytes() == database


MEASURED = ["eval", "--suite", "belt", "--method", "draft", "--episodes", 2, "--clock", "realtime", "--json", "--out"]


def test_a_disk_that_is_full_for_the_trace_too_is_called_that(replan, tmp_path, monkeypatch):
    def refuse(*_):
        raise StoreUnavailable("episodes.db: database or disk is full")

    monkeypatch.setattr(Store, "add", refuse)
    monkeypatch.setattr("replan.eval.runner.write_trace", lambda *_: open("/dev/full", "wb", 0).write(b"x"))
    code, out, err = replan(*MEASURED, tmp_path)
    assert (code, last_line(out)["error"]) == (4, "episodes.db: database or disk is full")
    assert "Traceback" not in err


def test_a_folder_in_the_place_of_the_trace_is_refused_before_anything_is_measured(replan, tmp_path):
    (tmp_path / "trace.jsonl").mkdir()
    code, out, _ = replan(*MEASURED, tmp_path)
    assert code == 2 and "trace.jsonl' is a folder" in last_line(out)["error"]
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_a_run_directory_that_is_deleted_ends_the_run_with_the_reason(replan, tmp_path, monkeypatch):
    add = Store.add

    def delete_first(store, row):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        add(store, row)

    monkeypatch.setattr(Store, "add", delete_first)
    code, out, err = replan("eval", "--suite", "belt", "--episodes", 3, "--out", tmp_path / "run", "--json")
    assert code == 4 and "was moved or deleted while it was written" in last_line(out)["error"]
    assert "Traceback" not in err


def fake(*arguments, **options):
    """Runs the fake command line in a process of its own; returns exit code, stdout and stderr."""
    command = [sys.executable, str(Path(__file__).with_name("fake_cli.py")), *map(str, arguments)]
    done = subprocess.run(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
    return done.returncode, done.stdout or b"", done.stderr or b""


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii", "utf-8"])
def test_a_terminal_without_the_tables_characters_gets_others(tmp_path, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    arguments = ["eval", "--suite", "belt", "--method", "dense,draft", "--episodes", 1, "--out", tmp_path / "rün"]
    code, out, err = fake(*arguments, "--json", env=environment)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1].decode("ascii"))["out"] == str(tmp_path / "rün")
    assert b"draft" in out and b"Traceback" not in err


@pytest.mark.parametrize("arguments", [["envs"], ["envs", "--json"], ["board", "RUN"]])
@pytest.mark.parametrize("stdout", ["full", "closed", "broken pipe"])
def test_stdout_that_takes_nothing_is_one_sentence(replan, tmp_path, arguments, stdout):
    if "RUN" in arguments:
        replan("eval", "--suite", "belt", "--episodes", 1, "--out", tmp_path)
        arguments = ["board", tmp_path]
    with ExitStack() as stack:
        if stdout == "full":
            options = {"stdout": stack.enter_context(open("/dev/full", "wb"))}
        elif stdout == "closed":
            options = {"stdout": None, "preexec_fn": lambda: os.close(1)}
        else:
            reading, writing = os.pipe()
            os.close(reading)
            stack.callback(os.close, writing)
            options = {"stdout": writing}
        code, _, err = fake(*arguments, **options)
    assert code == 4 and err.count(b"\n") in (1, 2) and b"stdout" in err, err


HOSTILE = "a\x1b[31m\nb|<script>[x](javascript:1)`*"


def test_names_neither_drive_a_terminal_nor_leave_their_place_on_a_page(replan, tmp_path):
    run = tmp_path / "run"
    assert replan("eval", "--suite", "belt", "--episodes", 1, "--policy", HOSTILE, "--out", run)[0] == 0
    _, text, _ = replan("board", run)
    assert "\x1b" not in text and "a\\x1b[31m\\nb|<script>" in text.replace("\n  ", "")
    _, markdown, _ = replan("board", run, "--markdown")
    assert "\x1b" not in markdown and "<script>" not in markdown and "x](javascript" not in markdown
    assert "a\\\\x1b" in markdown and "b\\|&lt;script&gt;" in markdown
    assert replan("board", run, "--html", tmp_path / "page.html", "--title", HOSTILE)[0] == 0
    assert "<script>[x]" not in (tmp_path / "page.html").read_text()
    for wrong in (["board", f"{HOSTILE}/none"], ["eval", f"--{HOSTILE}"], ["eval", "--suite", HOSTILE, "--out", "x"]):
        code, _, err = replan(*wrong)
        assert code == 2 and "\x1b" not in err


def test_errors_of_a_run_that_measured_nothing_are_shown(replan, tmp_path):
    replan("eval", "--suite", "crash", "--task", "abort", "--episodes", 1, "--out", tmp_path)
    code, _, err = replan("board", tmp_path)
    assert code == 0 and "1 x the worker was killed by SIGABRT" in err


def test_version_is_said(replan):
    code, out, _ = replan("--version")
    assert (code, out.split()[0]) == (0, "replan")


def test_directory_without_a_run_is_bad_input(replan, tmp_path):
    code, out, _ = replan("board", tmp_path, "--json")
    assert (code, last_line(out)["kind"]) == (2, "StoreMissing")


def test_directory_with_another_run_is_bad_input(replan, tmp_path):
    arguments = ["eval", "--suite", "belt", "--out", tmp_path, "--json", "--episodes"]
    assert replan(*arguments, 1)[0] == 0
    code, out, _ = replan(*arguments, 2)
    assert (code, last_line(out)["kind"]) == (2, "SpecMismatch")


def test_run_without_any_measured_episode_exits_with_1(replan, tmp_path):
    code, out, err = replan("eval", "--suite", "crash", "--task", "abort", "--episodes", 1, "--out", tmp_path, "--json")
    assert code == 1
    assert "no episode could be measured:\n  1 x the worker was killed by SIGABRT" in last_line(out)["error"]
    assert "killed by SIGABRT" in err


def test_unexpected_error_exits_with_1_and_shows_its_traceback(replan, monkeypatch):
    monkeypatch.setattr(FakeRegistry, "suites", lambda self: 1 / 0)
    code, out, err = replan("envs", "--json")
    assert (code, last_line(out)["kind"]) == (1, "ZeroDivisionError")
    assert "Traceback" in err


def test_envs_lists_what_can_be_asked_for(replan):
    code, out, _ = replan("envs", "--json")
    assert code == 0
    assert last_line(out)["suites"][1] == {
        "suite": "shelf",
        "env_id": "fake/Belt-v0",
        "tasks": ["up", "down"],
        "init_states": 2,
        "settings": {"speed": "float", "log": "str"},
        "policy": "tiny-shelf",
        "demonstrations": False,
        "marks": ["stand-in: a belt in place of a shelf"],
    }
    assert "shelf, stand-in: a belt in place of a shelf" in out
    assert "middle" not in out.replace(out.splitlines()[-1], "")


def test_envs_lists_the_tasks_of_the_suites_that_are_named(replan):
    code, out, _ = replan("envs", "belt")
    assert (code, out.splitlines()[-4:]) == (0, ["Tasks of belt:", "left", "right", "middle"])
    code, out, _ = replan("envs", "bellt", "--json")
    assert (code, last_line(out)["error"]) == (2, "unknown suite 'bellt'; did you mean 'belt'?")


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_interrupted_run_says_so_and_the_same_command_resumes(tmp_path, number, code, word):
    run = [sys.executable, str(Path(__file__).with_name("fake_cli.py")), "eval", "--suite", "belt", "--method", "slow"]
    run += ["--episodes", "8", "--out", str(tmp_path / "run"), "--json"]
    # A shell's background jobs, and so their children, ignore Ctrl-C: a terminal's do not.
    process = subprocess.Popen(
        run,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while True:
        assert process.poll() is None, "it ended before it could be interrupted"
        if (tmp_path / "run" / "episodes.db").exists():
            with Store.open(tmp_path / "run") as store:
                if len(done := store.done_keys()) >= 2:
                    break
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    workers = children(process.pid)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert last_line(out)["error"] == word
    assert f"{word}; the same command resumes" in err and "Traceback" not in err
    assert workers
    for _ in range(200):  # Python's own resource tracker ends a moment after the process that it serves
        if not any(map(runs, workers)):
            break
        select.select([], [], [], 0.05)
    assert not any(map(runs, workers))
    resumed = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    assert last_line(resumed.stdout)["episodes"] == 8
    with Store.open(tmp_path / "run") as store:
        assert done < store.done_keys()
        assert len(store.runs) == 2


@pytest.mark.parametrize("command", [[], ["eval"], ["board"], ["envs"]])
def test_help_imports_nothing_slow(command):
    code = (
        "import sys\nfrom replan.eval.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as end: code = end.code\n"
        "slow = {'torch', 'mujoco', 'gymnasium', 'numpy', 'scipy', 'matplotlib'} & sys.modules.keys()\n"
        "sys.exit(code or str(slow) if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: replan" in done.stdout


def test_threads_are_one_unless_the_user_says_otherwise(replan, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    replan("envs")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    replan("envs")
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_a_file_that_ends_too_early_is_no_interrupt(monkeypatch, capsys):
    def ends(*_, **__):
        raise EOFError("No data left in file")

    monkeypatch.setattr("replan.policies.policy.open_policy", ends)
    with pytest.raises(SystemExit) as left:
        main(["policy", "inspect", "pi0-tiny"])
    assert left.value.code == 1
    assert "EOFError: No data left in file" in capsys.readouterr().err
