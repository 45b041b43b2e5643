"""Mutation testing: changes one thing at a time in the files that decide an episode or a number, and runs their tests.

Usage: python tools/mutation.py [--minutes 20] [FILE ...], or `make mutation MINUTES=20 FILES="eval/cells.py"`.

Files, tests, operators and known equivalents are in tools/mutation.toml. Everything happens in a copy of the working
tree; results go to tools/mutation_record.txt, so that the next run goes on where this one stopped, and as a table to
tools/mutation.md. Commit both. A killed mutant is tried again when its function changes, a survivor also when its tests
do; survivors come first.

Most of the time of a quick test is importing torch. So that is done once: every mutant is tested in a fork.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import functools
import hashlib
import importlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time  # noqa: TID251 - a budget in minutes
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parso
import tomllib
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "tools/mutation.toml").read_text(encoding="utf-8"))
RECORD = ROOT / "tools/mutation_record.txt"  # lines of: key, killed or survived, digest of the tests, date
TABLE = ROOT / "tools/mutation.md"
PACKAGES = ("accel", "envs", "eval", "files", "kernels", "policies", "results")


class DeleteStatement(Operator):
    """Replaces a call whose result is not used, or an assignment to an attribute or an item, by ``pass``."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Yields the position of a statement that can be deleted."""
        if node.type == "simple_stmt":
            first = node.children[0]
            target = first.children[0] if first.type == "expr_stmt" else None
            sign = first.children[1] if target is not None else None
            augmented = sign is not None and sign.type == "operator" and sign.value != "="
            stores = target is not None and re.search(r"[.\[]", target.get_code())
            if augmented or stores or first.type in ("atom_expr", "power"):
                yield first.start_pos, first.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replaces the statement."""
        first = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", first.start_pos, prefix=first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None: only cosmic-ray's own tests read them."""
        return ()


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Path from the root of the repository.
        line: Number of the first changed line, from 1.
        was: That line.
        now: What replaces it.
        key: Digest of the function around the change, before and after; outside functions, of the changed line.
    """

    file: str
    line: int
    was: str
    now: str
    key: str

    @property
    def reason(self) -> str | None:
        """Why no test can kill it, or why none has to, where tools/mutation.toml says so."""
        for each in CONFIG["equivalent"]:
            if each["file"] == self.file and each["was"] == self.was and each.get("now", self.now) == self.now:
                return each["reason"]
        return None


def ignored(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Returns the regions that no mutant changes: annotations, error messages, and what only a type checker runs."""
    nodes: list[Any] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.arg) and node.annotation:
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            nodes.append(node.returns)
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            nodes.append(node)
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes]


def mutants_of(file: str, source: str) -> Iterator[tuple[Mutant, str]]:
    """Yields the mutants of a file, each with the whole changed content."""
    provider = OperatorProvider()
    operators = [provider[name]() for name in CONFIG["operators"]] + [DeleteStatement()]
    regions, seen, lines = ignored(source), {" ".join(source.split())}, [*source.splitlines(keepends=True), ""]
    tree = parso.parse(source)
    for operator in operators:
        for node in _below(tree):
            for index, (start, _) in enumerate(operator.mutation_positions(node)):
                skipped = any(first <= start < last for first, last in regions) or node.parent.type == "parameters"
                if not skipped and not re.search(CONFIG["skip"], lines[start[0] - 1]):
                    changed = _changed(lines, operator, node, index)
                    plain = re.sub(r"\bnot not ", "", " ".join(changed.split()))  # two operators write one mutant
                    if plain not in seen:
                        seen.add(plain)
                        yield _mutant(file, source, changed), changed


def _below(tree: Any) -> Iterator[Any]:
    yield tree
    for child in getattr(tree, "children", ()):
        yield from _below(child)


def _changed(lines: list[str], operator: Operator, node: Any, index: int) -> str:
    """Returns the content with a node mutated. The tree stays as it was: to parse anew would take most of the time."""
    children = [(each, [*each.children]) for each in _below(node) if hasattr(each, "children")]
    values = [(each, each.value) for each in _below(node) if hasattr(each, "value")]
    (top, left), (bottom, right) = node.get_start_pos_of_prefix(), node.end_pos
    text = operator.mutate(node, index).get_code()
    for each, old in children:
        each.children[:] = old
    for each, old in values:
        each.value = old
    return "".join([*lines[: top - 1], lines[top - 1][:left], text, lines[bottom - 1][right:], *lines[bottom:]])


def planted(file: str, source: str) -> Iterator[tuple[Mutant, str]]:
    """Yields the bugs that tools/mutation.toml plants by hand.

    Raises:
        SystemExit: The text that one replaces is no longer there.
    """
    for bug in CONFIG["planted"]:
        if bug["file"] == file:
            if bug["was"] not in source:
                sys.exit(f"{file} no longer contains {bug['was']!r}; correct its [[planted]] in tools/mutation.toml")
            changed = source.replace(bug["was"], bug["now"], 1)
            yield _mutant(file, source, changed), changed


def _mutant(file: str, source: str, changed: str) -> Mutant:
    before, after = source.splitlines(), changed.splitlines()
    line = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    name, first, last = _scope(source, line + 1)
    scope = ["\n".join(lines[first - 1 : last + len(lines) - len(before)]) for lines in (before, after)]
    return Mutant(file, line + 1, before[line].strip(), after[line].strip(), _digest(file, name, *scope))


def _scope(source: str, line: int) -> tuple[str, int, int]:
    """Returns the name and the first and last line of the outermost function around a line, else of the line itself."""
    name, body = "", _parsed(source).body
    while around := [each for each in body if each.lineno <= line <= (each.end_lineno or 0)]:
        if not isinstance(around[0], ast.ClassDef | ast.FunctionDef):
            break
        name += "." + around[0].name
        if isinstance(around[0], ast.FunctionDef):
            return name, around[0].lineno, around[0].end_lineno or 0
        body = around[0].body
    return name, line, line


@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


class Laboratory:
    """A copy of the working tree in which the tests run."""

    def __init__(self, top: Path) -> None:
        self.top = top
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(listed, text=True).split("\0")):
            if (ROOT / name).is_file():
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, top / name)
        site = top / "build/site"
        (site / "replan").mkdir(parents=True)
        for package in PACKAGES:
            (site / "replan" / package).symlink_to(top / package)
        os.environ["PYTHONPATH"] = str(site)  # for processes that tests start
        sys.path.insert(0, str(site))
        sys.dont_write_bytecode = True  # two mutants of one second and length would share it

    def run(self, tests: list[str], seconds: int | None = None) -> tuple[bool, float, str]:
        """Runs tests in a fork: whether they pass, seconds of processor time, and the last lines of the output."""
        output = self.top / "build/output.txt"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        child = os.fork()
        if child == 0:
            os.setsid()
            stream = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(stream, 1)
            os.dup2(stream, 2)
            os.chdir(self.top)
            if seconds is not None:
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            import pytest

            code = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no", *tests])
            os._exit(int(code))
        status = _wait(child, 20 * seconds if seconds else 1800)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return status == 0, used, output.read_text(errors="replace")[-2000:]


def _wait(child: int, seconds: float) -> int:
    """Waits for a process, and ends it and its children when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@dataclass(frozen=True)
class Result:
    """What the tests did with a mutant: one line of the record.

    Attributes:
        key: Of the mutant.
        outcome: ``killed`` or ``survived``.
        tests: Digest of the test files.
        on: Date.
    """

    key: str
    outcome: str
    tests: str
    on: str

    def __str__(self) -> str:
        """Returns the line."""
        return f"{self.key} {self.outcome} {self.tests} {self.on}"


def results() -> dict[str, Result]:
    """Returns the newest result of each mutant, by key."""
    lines = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return {result.key: result for result in (Result(*line.split()) for line in lines)}


def tests_digest(top: Path, file: str) -> str:
    """Returns a digest of the test files of a file in a tree."""
    paths = [top / name.partition("::")[0] for name in CONFIG["files"][file]]
    return _digest(*(path.read_text(encoding="utf-8") for path in paths))


def examine(file: str, laboratory: Laboratory, end: float) -> None:
    """Tests the mutants of a file that have no result yet, until the time is up."""
    # Of the copy, not of the working tree, which may be edited meanwhile.
    source, tests = (laboratory.top / file).read_text(encoding="utf-8"), CONFIG["files"][file]
    digest = tests_digest(laboratory.top, file)
    known, waiting = results(), []
    for mutant, changed in [*planted(file, source), *mutants_of(file, source)]:
        result = known.get(mutant.key)
        survived = result is not None and result.outcome == "survived" and mutant.reason is None
        if result is None or (survived and result.tests != digest):
            waiting.append((mutant, changed))
    if not waiting:
        return
    bugs = {mutant.key for mutant, _ in planted(file, source)}
    # By a digest in the end, so that what a run has time for is a random sample.
    waiting.sort(key=lambda each: (each[0].key not in known, each[0].key not in bugs, each[0].key))
    passed, base, output = laboratory.run(tests)
    if not passed:
        print(f"the tests of {file} fail without a mutation:\n{output}", flush=True)
        return
    print(f"{file}: {len(waiting)} mutants, {base:.1f} s each", flush=True)
    for mutant, changed in waiting:
        if time.monotonic() > end:
            break
        (laboratory.top / file).write_text(changed, encoding="utf-8")
        passed, _, _ = laboratory.run(tests, int(4 * base + 10))
        if passed:
            print(f"  survived, line {mutant.line}: {mutant.was}  ->  {mutant.now}", flush=True)
        outcome, today = "survived" if passed else "killed", str(datetime.date.today())  # noqa: TID251
        with RECORD.open("a", encoding="utf-8") as stream:
            stream.write(f"{Result(mutant.key, outcome, digest, today)}\n")
    (laboratory.top / file).write_text(source, encoding="utf-8")


def write_table() -> None:
    """Writes what is known of the files as they are now, and drops from the record what is not about them."""
    known, record, rows, survivors = results(), [], [], []
    for file in CONFIG["files"]:
        source = (ROOT / file).read_text(encoding="utf-8")
        mutants = {m.key: m for m, _ in [*planted(file, source), *mutants_of(file, source)]}
        tested = [(mutant, known[key]) for key, mutant in mutants.items() if key in known]
        record += [f"{result}\n" for _, result in tested]
        alive = [mutant for mutant, result in tested if result.outcome == "survived"]
        counts = Counter("justified" if mutant.reason else "open" for mutant in alive)
        newest = max((result.on for _, result in tested), default="")
        rows.append(
            f"| `{file}` | {len(mutants)} | {len(tested)} | {len(tested) - len(alive)} | {counts['justified']} "
            f"| {counts['open']} | {newest} |"
        )
        for mutant in sorted(alive, key=lambda mutant: mutant.line):
            was, now = (text.replace("|", "\\|") for text in (mutant.was, mutant.now))
            survivors.append(f"| `{file}` {mutant.line} | `{was}` | `{now}` | {mutant.reason or '**open**'} |")
    head = (ROOT / "tools/mutation.head.md").read_text(encoding="utf-8")
    RECORD.write_text("".join(record), encoding="utf-8")
    TABLE.write_text(
        "\n".join(
            [
                head,
                "| file | mutants | tested | killed | justified | open | date |",
                "|---|--:|--:|--:|--:|--:|---|",
                *rows,
                "\n## Survivors\n",
                "| place | line | mutant | why it may live |",
                "|---|---|---|---|",
                *survivors,
                "",
            ]
        ),
        encoding="utf-8",
    )


def main() -> None:
    """Tests until the time is up, then writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files to mutate; all of tools/mutation.toml if none")
    parser.add_argument("--minutes", type=float, default=20)
    arguments = parser.parse_args()
    if unknown := set(arguments.files) - set(CONFIG["files"]):
        parser.error(f"{', '.join(sorted(unknown))} not in tools/mutation.toml; add it with its tests")
    end = time.monotonic() + 60 * arguments.minutes
    for module in CONFIG["preload"]:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as top:
        laboratory = Laboratory(Path(top))
        for file in arguments.files or CONFIG["files"]:
            if time.monotonic() < end:
                examine(file, laboratory, end)
    write_table()


if __name__ == "__main__":
    main()
