"""Hostile input through the real entry point: command lines, specifications, checkpoints, traces, databases.

Every case has to end with exit code 0, 2 or 4 and, unless it is 0, with a sentence and no traceback. Nothing is played:
what passes every check before the first episode, its environment and agents built, counts as accepted. A case is made
of the seed and its number alone, so ``--case N`` repeats one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sqlite3
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from pebble import ProcessPool

ROOT = Path(__file__).parent.parent
CHECKPOINT = ROOT / "policies" / "checkpoints" / "pi0-tiny.safetensors"
DATABASES = sorted((ROOT / "results" / "reference").rglob("episodes.db"))
LIMIT_S, LIMIT_BYTES, LIMIT_LINES = 60, 6 << 30, 8
HOSTILE = (
    "", " ", ",", "-1", "0", "1e309", "nan", "9" * 50, "x" * 5000, "d/" * 3000, "a\x00b", "a\udcffb", "\x1b[31mred",
    "ü\n'", "../..", ".", "/dev/null", "/dev/full/x", "<b>|`*", "%s{0}$x$", "true", "None", "[[", "=", ":", "+",
    "a=b", "a:b=c",
)  # fmt: skip
VALUES: dict[str, tuple[str, ...]] = {
    "--suite": ("conveyor", "conveyor,conveyor", "conveyr", "packing"),
    "--task": ("dog-red", "dog"),
    "--policy": ("pi0-tiny", "pi0"),
    "--method": (
        "dense",
        "few_step:steps=2",
        "few_step:steps=2,3",
        "few_step:steps=1e9",
        "flash+dp_cache",
        "flash+flash",
    ),
    "--episodes": ("1", "2", "1000000000", "200001", "1.5"),
    "--seed": ("0", "9007199254740993"),
    "--set": ("speed=10", "speed=10,10", "speed=-5", "speed=nan", "speed", "sped=1", "=1", "distractor=maybe"),
    "--clock": ("sync", "realtime"),
    "--latency": ("zero", "measured", "fixed:58", "fixed:1e9999ms", "profile:torch-4090d", "profile:x#y", "trace:x"),
    "--dtype": ("float32", "float16"),
    "--device": ("cpu", "cuda", "gpu"),
    "--workers": ("1", "1025"),
    "--timeout": ("1", "1e300"),
    "--out": ("run", "run/run"),
}


class Case(NamedTuple):
    """What one case gave to replan, and what came out.

    Attributes:
        number: Number of the case.
        kind: What was hostile.
        arguments: The command line.
        fault: What was wrong with how it ended; None if nothing was.
        code: Exit code.
        stderr: What was printed there.
    """

    number: int
    kind: str
    arguments: list[str]
    fault: str | None
    code: Any
    stderr: str


def command_line(rng: np.random.Generator) -> list[str]:
    """Options of ``eval`` with good, wrong and hostile values, or another command with hostile arguments."""
    if rng.random() < 0.25:
        others = ("board", "envs", "setup", "collect", "train", "train-draft", "verify", "doctor", "x")
        flags = ("--html", "--title", "--out", "--suite", "--episodes", "--steps", "--policy", "--markdown", "--nosuch")
        picked = [_any(rng, flags if rng.random() < 0.4 else HOSTILE) for _ in range(rng.integers(1, 5))]
        return [_any(rng, others), *picked]
    return ["eval", *_options(rng, VALUES), "--episodes", "1", "--out", "run"][: None if rng.random() < 0.8 else -1]


def _options(rng: np.random.Generator, values: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for option in rng.choice(list(values), rng.integers(1, 5), replace=False):
        yield str(option)
        yield _any(rng, HOSTILE if rng.random() < 0.4 else values[str(option)])


def specification(rng: np.random.Generator) -> list[str]:
    """A TOML file: fields of wrong types and values, damaged or nested too deeply."""
    fields = {
        "suite": '"conveyor"', "method": '["dense"]', "episodes": "1", "seed": "0", "clock": '"sync"', "out": '"run"',
        "set": "{ speed = 10 }", "workers": "1", "timeout": "300", "policy": '"pi0-tiny"', "task": "[]",
        "device": '"cpu"',
    }  # fmt: skip
    wrong = (
        "5", "-1", "1e400", "nan", "true", '""', '"a\\u0000b"', "[]", "[[]]", "{}", "[1, 'a']", "{ x = { y = [1] } }",
        "1979-05-27", "0x" + "f" * 5000, "1" * 5000, '"' + "x" * 5000 + '"', "[" * 50_000, '"\\u001b[31m"',
        "{ speed = {} }",
    )  # fmt: skip
    for _ in range(rng.integers(1, 4)):
        name = _any(rng, [*fields, "nosuch", "a" + ".a" * 20_000])
        fields[name] = _any(rng, wrong)
    content = "".join(f"{name} = {value}\n" for name, value in fields.items()).encode()
    if rng.random() < 0.3:
        content = _flipped(rng, content)
    Path("spec.toml").write_bytes(content)
    flags = ["--set", _any(rng, VALUES["--set"])] if rng.random() < 0.4 else []
    return ["eval", "--spec", _any(rng, ("spec.toml",) * 20 + (".", "/dev/zero", "nosuch.toml")), *flags]


def checkpoint(rng: np.random.Generator) -> list[str]:
    """The bundled policy with another header, configuration, number type, or damaged bytes."""
    data = CHECKPOINT.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, weights = json.loads(data[8 : 8 + length]), data[8 + length :]
    way = rng.integers(6)
    if way == 0:
        data = _flipped(rng, data[: 8 + length]) + weights
    elif way == 1:
        data = data[: rng.integers(len(data))]
    elif way == 2:
        data = rng.bytes(int(rng.integers(200)))
    elif way == 3:  # a value of our own header
        ours = json.loads(header["__metadata__"]["replan"])
        part = ours[_any(rng, [name for name, value in ours.items() if isinstance(value, dict)])]
        wrong = (None, -1, 0, 2.5, 1e9, 10**30, "x", [], [1], {}, True, float("nan"), "\x1b[31m", ["a"] * 5000)
        part[_any(rng, [*part, "nosuch"])] = wrong[rng.integers(len(wrong))]
        header["__metadata__"]["replan"] = json.dumps(ours)
    elif way == 4:  # a tensor's entry
        entry = header[_any(rng, [name for name in header if name != "__metadata__"])]
        entry.update(_any(rng, ({"dtype": "I8"}, {"dtype": "F8_E4M3"}, {"dtype": "C64"}, {"shape": [-1]},
                                {"shape": []}, {"data_offsets": [5, 1]}, {"data_offsets": [0, 1 << 60]},
                                {"shape": [1 << 40]})))  # fmt: skip
    else:  # values that are not finite
        start = int(rng.integers(len(weights) // 2)) * 2
        weights = weights[:start] + b"\x00\x7c" * 4 + weights[start + 8 :]
    if way in (3, 4, 5):
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + weights
    Path("policy.safetensors").write_bytes(data)
    return ["eval", "--policy", "policy.safetensors", "--method", "dense", "--episodes", "1", "--out", "run"]


def trace(rng: np.random.Generator) -> list[str]:
    """A trace with wrong lines, wrong values or damaged bytes."""
    lines = [json.dumps({"cell": f"{i}", "method": "dense", "rounds": [["full", 58_000_000]] * 3}) for i in range(3)]
    wrong = (
        "{", "[]", "null", "[" * 100_000, '{"cell": [], "method": {}, "rounds": []}', '{"rounds": [["full", -1]]}',
        '{"cell": "c", "method": "m", "rounds": [["full", 1e400]]}',
        '{"cell": "c", "method": "m", "rounds": [["full", NaN]]}',
        '{"cell": "c", "method": "m", "rounds": [["full", ' + "9" * 4000 + "]]}",
        '{"cell": "c", "method": "m", "rounds": {}}',
    )  # fmt: skip
    lines.insert(int(rng.integers(4)), _any(rng, wrong))
    content = "\n".join(lines).encode()
    Path("trace.jsonl").write_bytes(_flipped(rng, content) if rng.random() < 0.3 else content)
    return ["eval", "--clock", "realtime", "--latency", "trace:trace.jsonl", "--episodes", "1", "--out", "run"]


def database(rng: np.random.Generator) -> list[str]:
    """A stored run with flipped bits, a missing end, or content that does not belong there."""
    Path("run").mkdir()
    source = sqlite3.connect(f"file:{DATABASES[rng.integers(len(DATABASES))]}?mode=ro&immutable=1", uri=True)
    target = sqlite3.connect("run/episodes.db", isolation_level=None)
    source.backup(target)
    target.execute("DELETE FROM episodes WHERE key NOT IN (SELECT key FROM episodes ORDER BY cell LIMIT 8)")
    target.execute("DELETE FROM rounds WHERE episode NOT IN (SELECT key FROM episodes)")
    columns = [row[1] for row in target.execute("PRAGMA table_info(episodes)")]
    if rng.random() < 0.6:
        table = _any(rng, ("episodes", "rounds", "runs"))
        column = _any(rng, [row[1] for row in target.execute(f"PRAGMA table_info({table})")])
        value = _any(rng, (
            "'{'", "'[]'", "'null'", "NULL", "-1", "x'ff'", "'\x1b[31m<b>|'", "CAST(x'7bff7d' AS TEXT)",
            "9223372036854775807", f"'{'[' * 100_000}'", "'{\"a\": {}}'", "'{\"a\": 1e999}'",
        ))  # fmt: skip
        change = _any(rng, (
            f'UPDATE {table} SET "{column}" = {value}',
            f'UPDATE {table} SET "{column}" = {value} WHERE rowid % 2' if table != "rounds" else f"DELETE FROM {table}",
            f'ALTER TABLE {table} DROP COLUMN "{column}"',
            f"DROP TABLE {table}",
            f"DELETE FROM {table}",
            'DELETE FROM rounds WHERE "index" % 2',
            f"PRAGMA user_version = {rng.integers(-1, 7)}",
            "PRAGMA application_id = 1",
            "ALTER TABLE episodes ADD COLUMN code TEXT",
        ))  # fmt: skip
        try:
            target.execute(change)
        except sqlite3.Error:
            target.execute(f"UPDATE episodes SET {columns[2]} = 'elsewhere'")
    target.execute("VACUUM")
    target.close()
    if rng.random() < 0.6:
        file = Path("run/episodes.db")
        data = file.read_bytes()
        file.write_bytes(_flipped(rng, data) if rng.random() < 0.7 else data[: rng.integers(len(data))])
    extra = ([], ["--markdown"], ["--html", "page.html"])[rng.integers(3)]
    return ["board", "run", *extra]


KINDS: tuple[Callable[[np.random.Generator], list[str]], ...] = (
    command_line,
    specification,
    checkpoint,
    trace,
    database,
)


def _any(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _flipped(rng: np.random.Generator, data: bytes) -> bytes:
    """Returns the bytes with one to eight of them changed."""
    changed = bytearray(data)
    for place in rng.integers(len(data), size=rng.integers(1, 9)):
        changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


class _Here:
    """A worker in this process: starting others for each case would take most of the time."""

    def __init__(self, registry: Any) -> None:
        from replan.eval import workers
        from replan.eval.journal import Journal

        self._workers, workers._worker, workers._registry, workers._entries = workers, None, registry, Journal()

    def describe(self, spec: Any) -> Any:
        return self._or_raise(self._workers._describe(spec))

    def build(self, *what: Any) -> None:
        self._or_raise(self._workers._build(*what))

    def _or_raise(self, answer: Any) -> Any:
        if isinstance(answer, self._workers.Refusal):
            raise answer.error
        return answer


@contextmanager
def _here(registry: Any, workers: int) -> Iterator[list[_Here]]:
    """What takes the place of :func:`replan.eval.workers.local_workers`."""
    yield [_Here(registry)]


def _build_only(spec: Any, jobs: Any, record: Any, host: Any, registry: Any, workers: Any, **_: Any) -> None:
    """What takes the place of :func:`replan.eval.runner.run`: all that it does before the first episode."""
    from replan.results.store import Store

    Store.start(spec.out, record).close()
    workers[0].build([jobs[0]], spec, host)
    sys.exit(0)


def run_case(seed: int, number: int) -> Case:
    """Makes and runs one case in this process."""
    from replan.eval.cli import main

    kind = KINDS[number % len(KINDS)]
    rng = np.random.default_rng([seed, number])
    out, err, code = io.StringIO(), io.StringIO(), None
    with ExitStack() as stack:
        stack.callback(os.chdir, os.getcwd())
        os.chdir(stack.enter_context(tempfile.TemporaryDirectory()))
        arguments = [*kind(rng), "--json"]
        stack.enter_context(mock.patch("replan.eval.evaluate.local_workers", _here))
        stack.enter_context(mock.patch("replan.eval.evaluate.run", _build_only))
        stack.enter_context(mock.patch("subprocess.run", side_effect=OSError(30, "Read-only file system", "fuzz")))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    return Case(number, kind.__name__, arguments, _fault(code, out.getvalue(), err.getvalue()), code, err.getvalue())


def _fault(code: Any, out: str, err: str) -> str | None:
    if code not in (0, 2, 4):
        return f"exit code {code}"
    if "Traceback" in err or "\x1b" in err or "\x1b" in out:
        return "a traceback or an escape sequence"
    if code and not (0 < len(err.strip().splitlines()) <= LIMIT_LINES and len(err) < 3000):
        return f"{len(err.splitlines())} lines on stderr"
    if code and not json.loads(out.splitlines()[-1])["error"]:
        return "no error in the JSON"
    return None


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    os.environ["OMP_NUM_THREADS"] = "1"


def run_cases(seed: int, numbers: range, workers: int) -> Iterator[Case]:
    """Runs cases in worker processes, which a case may crash, hang or fill."""
    # Not forked: whoever calls this may have rendered, and a fork of such a process cannot.
    with ProcessPool(workers, initializer=_limit, context=get_context("spawn")) as pool:
        futures: list[Future[Case]] = [pool.schedule(run_case, (seed, n), timeout=LIMIT_S) for n in numbers]
        for number, future in zip(numbers, futures, strict=True):
            try:
                yield future.result()
            except Exception as error:
                yield Case(
                    number, KINDS[number % len(KINDS)].__name__, [], f"{type(error).__name__}: {error}", None, ""
                )


def main() -> None:
    """Prints the faults, then counts by kind and exit code; exit code 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", type=int, help="Run only this case, and show it.")
    asked = parser.parse_args()
    numbers = range(asked.count) if asked.case is None else range(asked.case, asked.case + 1)
    counts: Counter[tuple[str, str]] = Counter()
    for case in run_cases(asked.seed, numbers, asked.workers):
        counts[case.kind, f"exit code {case.code}" if case.fault is None else "FAULT"] += 1
        if case.fault is not None or asked.case is not None:
            shown = [argument[:60] for argument in case.arguments]
            print(f"case {case.number}, {case.kind}: {case.fault}\n  {shown!r}\n  {case.stderr[-600:]!r}", flush=True)
    for (kind, how), count in sorted(counts.items()):
        print(f"{kind:14} {how:12} {count}")
    sys.exit(any(how == "FAULT" for _, how in counts))


if __name__ == "__main__":
    main()
