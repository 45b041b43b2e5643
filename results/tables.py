"""The leaderboard as tables of text, for a terminal, for Markdown and for the report."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from tabulate import tabulate

from . import stats
from .compare import Comparison
from .escaping import in_markdown, visible
from .groups import BASELINE
from .leaderboard import Row
from .marks import PUBLISHED, RANK
from .pairs import Flip
from .schema import Mark
from .verdicts import Kind, Verdict, headline

WIDTH = 80  # columns of a terminal of the usual size
LEFT_OUT = ("rank", "keeps", "verdict", "rounds", "ms per\naction", "accepted", "marks")  # on a terminal
LISTED = 4  # rows that a note names
EXACT = (
    "An interval without 0 next to p > 0.05: the interval is approximate, the test exact and therefore cautious; these "
    "cells establish neither a difference nor its absence"
)


class Table(NamedTuple):
    """A table of text: a cell may have several lines, the most important one first.

    Attributes:
        title: What all its rows share.
        columns: Column headings.
        cells: [rows, columns].
        notes: Sentences that belong under it.
    """

    title: str
    columns: list[str]
    cells: list[list[str]]
    notes: list[str]


_LONG_PATH = re.compile(r"(?=[^:=+,]*[A-Za-z])(?=[^:=+,]{36})[^:=+,]*/([^:=+,/]+)")  # numbers are joined by / as well


class SuiteTables(NamedTuple):
    """The tables of one suite.

    Attributes:
        suite: Suite name.
        condition: What all its rows were measured under.
        methods: One line per method and condition.
        rounds: One line per route of each.
        acceptance: How much of the drafts was accepted, one line per row that drafts; None where none does.
        tasks: Success of each method by task, one line per task; None where there is one task.
        headline: The fastest method that loses little, in words; empty where nothing is compared. Also a note.
        marks: What each badge says, and of which rows. Also notes.
    """

    suite: str
    condition: str
    methods: Table
    rounds: Table
    acceptance: Table | None
    tasks: Table | None
    headline: str
    marks: dict[str, str]


def tables(rows: list[Row]) -> list[SuiteTables]:
    """The tables of each suite, in the order of the rows."""
    rows = _with_short_names(list(map(_visible, rows)))
    suites = dict.fromkeys(row.suite for row in rows)
    return [_suite_tables([row for row in rows if row.suite == suite]) for suite in suites]


def _visible(row: Row) -> Row:
    """Returns the row with names and marks that say nothing to a terminal."""

    def marks(of: tuple[Mark, ...]) -> tuple[Mark, ...]:
        return tuple(Mark(visible(mark.badge), visible(mark.text)) for mark in of)

    names = {name: visible(getattr(row, name)) for name in ("suite", "policy", "method", "latency")}
    settings = {visible(k): visible(v) if isinstance(v, str) else v for k, v in row.settings.items()}
    return replace(row, **names, settings=settings, marks=marks(row.marks), run_marks=marks(row.run_marks))


def _with_short_names(rows: list[Row]) -> list[Row]:
    """Returns the rows with long paths in names cut to the file, where that leaves different names different."""
    for name in ("policy", "method"):  # traces all have the same name
        short = {full: _LONG_PATH.sub(r".../\1", full) for full in {getattr(row, name) for row in rows}}
        count = Counter(short.values())
        shown = {full: each if count[each] == 1 else full for full, each in short.items()}
        rows = [replace(row, **{name: shown[getattr(row, name)]}) for row in rows]
    return rows


def condition(row: Row) -> dict[str, str]:
    """What the row was measured under, besides suite and method."""
    settings = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in row.settings.items()}
    where = {"precision": row.dtype, "device": " and ".join(row.devices)}
    return {"policy": row.policy, "clock": row.clock, "latency": row.latency, **settings, **where}


def varying(rows: list[Row]) -> list[str]:
    """Parts of the condition in which the rows differ."""
    conditions = [condition(row) for row in rows]
    names = dict.fromkeys(name for each in conditions for name in each)
    return [name for name in names if len({each.get(name) for each in conditions}) > 1]


def _suite_tables(rows: list[Row]) -> SuiteTables:
    columns = varying(rows)
    shared = ", ".join(f"{name} {value}" for name, value in condition(rows[0]).items() if name not in columns)
    title = ", ".join(filter(None, [rows[0].suite, shared]))
    drafts = any(row.acceptance.drafts for row in rows)
    latency = any(row.latency_ns for row in rows)
    prefix = {id(row): [condition(row).get(name, "any") for name in columns] + [row.label] for row in rows}
    methods = Table(
        title,
        [
            *columns,
            "method",
            "rank",
            "success",
            f"vs {BASELINE}",
            "keeps",
            "verdict",
            "n",
            "rounds",
            "round ms",
            "ms per\naction",
        ]
        + ["latency\nms"] * latency
        + ["speed-up", "action\nerror"]
        + ["accepted"] * drafts
        + ["marks"],
        [prefix[id(row)] + _method_cells(row, drafts, latency) for row in rows],
        _notes(rows, prefix),
    )
    rounds = Table(
        f"Rounds by route: {title}",
        [*columns, "method", "route", "share", "rounds", "mean ms", "p50", "p90", "p99"],
        [
            [*prefix[id(row)], name, f"{100 * route.share:.0f} %", str(route.rounds), *_duration_cells(route.durations)]
            for row in rows
            for name, route in row.routes.items()
        ],
        [
            "Rounds include warm-up, durations do not. "
            + ", ".join(f"p{q} needs {stats.minimum_samples(q)} rounds" for q in stats.PERCENTILES),
            "≤: the percentile is not above this with 99 % confidence, were rounds independent",
        ],
    )
    acceptance = _acceptance(title, columns, rows, prefix)
    return SuiteTables(
        rows[0].suite,
        shared,
        methods,
        rounds,
        acceptance,
        _tasks(title, rows, prefix),
        _headline(rows, prefix),
        _marks(rows, prefix),
    )


def _duration_cells(durations: stats.Durations) -> list[str]:
    cells = [milliseconds(durations.mean)]
    estimates = (durations.p50, durations.p90, durations.p99)
    for value, high in zip(estimates, (durations.p50_high, durations.p90_high, durations.p99_high), strict=True):
        cells.append(_lines(milliseconds(value), "" if math.isnan(high) else f"≤ {milliseconds(high)}"))
    return cells


def _tasks(title: str, rows: list[Row], prefix: dict[int, list[str]]) -> Table | None:
    tasks = sorted({task for row in rows for task in row.tasks})
    if len(tasks) < 2:
        return None
    return Table(
        f"Success by task: {title}",
        ["task", *("\n".join(prefix[id(row)]) for row in rows)],
        [[task, *(_task_cell(row.tasks.get(task)) for row in rows)] for task in tasks],
        ["Lower lines: episodes. A task has few of them, so its rate is uncertain"],
    )


def _task_cell(rate: stats.Proportion | None) -> str:
    return _lines(percent(rate.rate), f"n {rate.n}") if rate else "–"


def _acceptance(title: str, columns: list[str], rows: list[Row], prefix: dict[int, list[str]]) -> Table | None:
    drafting = [row for row in rows if row.acceptance.drafts]
    if not drafting:
        return None
    positions = max(len(row.acceptance.per_position) for row in drafting)
    return Table(
        f"Draft acceptance: {title}",
        [*columns, "method", "drafts", "rate", "mean length", "rate if any", *map(str, range(1, positions + 1))],
        [
            [*prefix[id(row)], str(row.acceptance.drafts), percent(row.acceptance.rate)]
            + [number(row.acceptance.length, ".2f"), percent(row.acceptance.rate_if_any)]
            + [percent(share, digits=0) for share in row.acceptance.per_position]
            + [""] * (positions - len(row.acceptance.per_position))
            for row in drafting
        ],
        [
            "Under each position: the share of drafts of which it was accepted. Rate: accepted over drafted positions; "
            "rate if any: the same over the drafts of which at least one position was accepted."
        ],
    )


def _method_cells(row: Row, drafts: bool, latency: bool) -> list[str]:
    success = "–"
    if row.success.n:
        success = _lines(percent(row.success.rate), _interval(row.success))
        if not math.isnan(row.at_end) and row.at_end != row.success.rate:
            success += f"\n{percent(row.at_end)} at end"
    if row.worst is not None:
        success += f"\n{percent(row.worst.rate)} worst"
    versus = "baseline" if row.method == BASELINE else "–"
    if row.paired is not None:
        versus = _difference(row.paired, row.paired_worst)
    cells = [
        "–" if row.rank is None else str(row.rank),
        success,
        versus,
        _keeps(row),
        _verdict(row),
        _lines(str(row.success.n), f"+{row.errors} err." if row.errors else ""),
        _lines(number(row.rounds.all, ".1f"), f"{number(row.rounds.successful, '.1f')} succ."),
        _lines(f"p50 {milliseconds(row.round_ns.p50)}", f"p90 {milliseconds(row.round_ns.p90)}"),
        milliseconds(row.action_ns),
    ]
    if latency:
        cells.append(_lines(milliseconds(row.latency_ns), "published" if PUBLISHED in row.badges else ""))
    if row.speed_up is not None:
        cells.append(f"{_ratio(row.speed_up.action, 'action')}\n{_ratio(row.speed_up.round, 'round')}")
    else:
        cells.append("1" if row.method == BASELINE else "n/a" if row.paired else "–")
    error = row.action_error
    cells.append(_lines(number(error.mean, ".2g"), f"n {error.n}" if error.n else ""))
    if drafts:
        rate, length = percent(row.acceptance.rate, digits=0), row.acceptance.length
        cells.append(_lines(rate, "" if math.isnan(length) else f"mean {length:.1f}"))
    return [*cells, "\n".join(mark.badge for mark in row.marks)]


def _keeps(row: Row) -> str:
    """Retention with its lower bound, and the worst task."""
    if row.retention is None or not row.retention.overall.solved:
        return "–"
    overall, worst = row.retention.overall, row.retention.worst_task
    cell = f"{percent(overall.rate)}\n≥ {percent(overall.low)}"
    return _lines(cell, f"{_short(worst)} {percent(row.retention.tasks[worst].rate, digits=0)}" if worst else "")


def _verdict(row: Row) -> str:
    if row.verdict is None:
        return "–"
    for mark in (": ", ", "):  # what it says, and below it the figures
        first, found, rest = row.verdict.text.partition(mark)
        if found:
            return f"{first}\n{rest}"
    return row.verdict.text


def _difference(paired: stats.Paired, worst: stats.Paired | None) -> str:
    cell = f"{100 * paired.difference:+.1f} (p {paired.p:.2g})\n{_interval(paired, '+')}"
    return _lines(cell, f"{100 * worst.difference:+.1f} worst" if worst else "")


def _ratio(ratio: stats.Ratio, per: str) -> str:
    interval = "" if math.isnan(ratio.low) else f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    return _lines(f"{number(ratio.value, '.2f')}× {per}", interval)


def _interval(share: stats.Proportion | stats.Paired, sign: str = "") -> str:
    return f"[{100 * share.low:{sign}.1f}, {100 * share.high:{sign}.1f}]"


def _lines(first: str, second: str) -> str:
    return f"{first}\n{second}" if second else first


def _notes(rows: list[Row], prefix: dict[int, list[str]]) -> list[str]:
    """What the rows say, then marks of the runs, and those of the rows."""
    runs = dict.fromkeys(str(mark) for row in rows for mark in row.run_marks)
    rule = [RANK] if any(row.paired for row in rows) else []
    return [*_findings(rows, prefix), *runs, *_marks(rows, prefix).values(), *rule]


def _marks(rows: list[Row], prefix: dict[int, list[str]]) -> dict[str, str]:
    """What each badge says: its sentences and the rows they are about."""
    badges: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for mark in row.marks:
            badges.setdefault(mark.badge, {}).setdefault(mark.text, []).append(" ".join(prefix[id(row)]))
    notes = {}
    for badge, texts in badges.items():
        sentences = "; ".join(f"{text} ({_listed(names, len(rows))})" for text, names in texts.items())
        notes[badge] = sentences if list(texts) == [badge] else f"{badge}: {sentences}"
    return notes


def _findings(rows: list[Row], prefix: dict[int, list[str]]) -> list[str]:
    """What the rows say in words: what the data exclude, and where success is lowest."""
    named = [(" ".join(prefix[id(row)]), row) for row in rows]
    paired = [(name, row.paired) for name, row in named if row.paired]
    judged = [(name, row, row.verdict) for name, row in named if row.verdict]
    worst = [
        f"{name} {_short(row.worst_task)} ({percent(row.tasks[row.worst_task].rate)} of {row.tasks[row.worst_task].n})"
        for name, row in named
        if row.worst_task
    ]
    findings = []
    if judged:
        findings.append(_headline(rows, prefix))
        findings.append(f"Verdicts (95 %, together): {'; '.join(_said(judged))}")
    kept = [(name, row.retention.overall) for name, row in named if row.retention and row.retention.overall.solved]
    if kept:
        shares = _some([f"{name} {percent(each.rate)} (at least {percent(each.low)})" for name, each in kept])
        findings.append(f"Of the cells that {BASELINE} solves, kept: {shares}")
    if any((found.low > 0 or found.high < 0) and found.p > 1 - stats.CONFIDENCE for _, found in paired):
        findings.append(EXACT)
    if worst:
        findings.append(f"Worst task: {_some(worst)}")
    return findings


def _headline(rows: list[Row], prefix: dict[int, list[str]]) -> str:
    judged = [row for row in rows if row.verdict]
    speed_ups = ((" ".join(prefix[id(row)]), row.speed_up, row.verdict) for row in judged)
    return (
        headline((name, speed_up.action.value, verdict) for name, speed_up, verdict in speed_ups if speed_up)
        if judged
        else ""
    )


def _said(judged: list[tuple[str, Row, Verdict]]) -> list[str]:
    """Verdicts, those that cost success first; a verdict of several rows once."""
    said: dict[str, list[str]] = {}
    order = list(Kind)
    for name, _, verdict in sorted(judged, key=lambda each: order.index(each[2].kind)):
        said.setdefault(verdict.text, []).append(name)
    return [f"{_some(names)} {text}" for text, names in said.items()]


def _short(name: str) -> str:
    """A name that fits a line with some words around it."""
    return name if len(name) <= 50 else f"{name[:36]}…{name[-13:]}"


def _listed(names: list[str], rows: int) -> str:
    return "all rows" if len(names) == rows > 1 else _some(names)


def _some(parts: list[str]) -> str:
    return ", ".join(parts[:LISTED]) + (f" and {len(parts) - LISTED} more" if len(parts) > LISTED else "")


def percent(share: float, digits: int = 1) -> str:
    """A share in percent; a dash for NaN."""
    return number(100 * share, f".{digits}f") + ("" if math.isnan(share) else " %")


def number(value: float, style: str) -> str:
    """A formatted number; a dash for NaN."""
    return "–" if math.isnan(value) else format(value, style)


def milliseconds(ns: float) -> str:
    """Nanoseconds as milliseconds with about three digits; a dash for NaN."""
    value = ns / 1e6
    return number(value, ".0f" if value >= 100 else ".1f" if value >= 10 else ".2f")


def text(rows: list[Row]) -> str:
    """The board for a terminal: a choice of columns that fits 80 characters, and all notes."""
    parts = []
    for suite in tables(rows):
        for table in (_narrow(suite), _narrow_rounds(suite)):
            notes = [_wrapped(note, "  ") for note in table.notes]
            parts.append("\n".join([_wrapped(table.title), *_fitted(table), *notes]))
    return "\n\n".join(parts)


def _wrapped(sentence: str, indent: str = "") -> str:
    return textwrap.fill(
        sentence,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def _narrow(suite: SuiteTables) -> Table:
    """The table of methods without what a terminal has no room for; an urgent mark stands under the method's name."""
    table = suite.methods
    lines = [dict(zip(table.columns, line, strict=True)) for line in table.cells]
    for line in lines:
        urgent = [badge for badge in line["marks"].split("\n") if badge.isupper()]
        line["method"] = "\n".join([line["method"], *urgent])
        episodes, *errors = line["n"].split("\n")
        line["n"] = "\n".join([episodes, line["rounds"].split("\n")[0], *errors])
        line["round ms"] = line["round ms"].replace("p50 ", "").replace("p90 ", "")
        per_action = itertools.takewhile(lambda each: not each.endswith("round"), line["speed-up"].split("\n"))
        line["speed-up"] = "\n".join(per_action).replace(" action", "")
    headings = {"n": "n\nrounds", "round ms": "ms per\nround", "speed-up": "speed\nup"}
    columns = [column for column in table.columns if column not in LEFT_OUT]
    notes = ["Lower lines: 95 % intervals, rounds per episode, p90 of a round (above it p50). Speed-up: per action"]
    if any(each.startswith("n ") for line in lines for each in line["action\nerror"].split("\n")):
        notes[0] += ". Action error: from n rounds"
    if suite.acceptance:
        first = suite.acceptance.columns.index("drafts")
        each = [f"{' '.join(line[:first])} {line[first + 1]} ({line[first + 2]})" for line in suite.acceptance.cells]
        notes.append(f"Accepted share of the drafted actions (and mean per draft): {', '.join(each)}")
    return Table(
        table.title,
        [headings.get(column, column) for column in columns],
        [[line[column] for column in columns] for line in lines],
        [*notes, *table.notes],
    )


def _narrow_rounds(suite: SuiteTables) -> Table:
    """The table of rounds without bounds."""
    cells = [[cell.split("\n")[0] for cell in line] for line in suite.rounds.cells]
    return Table(f"Rounds by route: {suite.suite}", suite.rounds.columns, cells, suite.rounds.notes[:1])


def _fitted(table: Table) -> list[str]:
    """Lines of the table. Labels for which it has no room become headings: the condition, or the method as well."""
    labels = table.columns.index("method") + 1
    lines: list[str] = []
    for above in dict.fromkeys((0, labels - 1, labels)):
        rows = [table.columns[above:], *(line[above:] for line in table.cells)]
        body = iter(tabulate(rows, tablefmt="plain", disable_numparse=True).splitlines())
        indent = "  " if above else ""
        blocks = [
            [indent + next(body).rstrip() for _ in range(max(cell.count("\n") for cell in row) + 1)] for row in rows
        ]
        rule = "-" * max(len(line) for block in blocks for line in block)
        lines, heading = [*blocks[0], rule], ""
        for line, block in zip(table.cells, blocks[1:], strict=True):
            named = [f"{name} {value}" for name, value in zip(table.columns, line[: labels - 1], strict=False)]
            previous, heading = heading, ", ".join([*named, line[labels - 1]][:above]).replace("\n", " ")
            lines += [*([_wrapped(heading)] if heading != previous else []), *block]
        if max(map(len, lines)) <= WIDTH:
            break
    return lines


def comparison_text(found: list[Comparison]) -> str:
    """Comparisons of two arms for a terminal, with the cells that ended differently."""
    suites: dict[str, list[Comparison]] = {}
    for each in found:
        suites.setdefault(each.suite, []).append(each)
    return "\n\n".join(_compared(suite, members) for suite, members in suites.items())


def _compared(suite: str, found: list[Comparison]) -> str:
    conditions = [{name: str(value) for name, value in each.condition.items()} for each in found]
    columns = [name for name in conditions[0] if len({each.get(name) for each in conditions}) > 1]
    shared = [f"{name} {value}" for name, value in conditions[0].items() if name not in columns]
    values = [f"{each.old.value} → {each.new.value}" for each in found]
    if found[0].across == "method":  # which has a column anyway
        pass
    elif len(set(values)) == 1:
        shared.append(f"{found[0].across} {values[0]}")
    else:
        columns.append(found[0].across)
    labels = [
        [each_condition.get(name, value) for name in columns]
        + [" → ".join(dict.fromkeys((each.old.method, each.new.method)))]
        for each, each_condition, value in zip(found, conditions, values, strict=True)
    ]
    table = Table(
        ", ".join([suite, *shared]),
        [*columns, "method", "before", "after", "difference", "lost\ngained", "cells"],
        [label + _comparison_cells(each) for label, each in zip(labels, found, strict=True)],
        _comparison_notes(found, [" ".join(label) for label in labels]),
    )
    return "\n".join([_wrapped(table.title), *_fitted(table), *(_wrapped(note, "  ") for note in table.notes)])


def _comparison_cells(each: Comparison) -> list[str]:
    arms = []
    for arm in (each.old, each.new):
        cell = _lines(percent(arm.success.rate), _interval(arm.success)) if arm.success.n else "–"
        arms.append(_lines(cell, f"+{arm.errors} err." if arm.errors else ""))
    if each.paired is None:
        return [*arms, "–", "–", "0"]
    return [
        *arms,
        _difference(each.paired, each.paired_worst),
        f"{each.paired.lost}\n{each.paired.gained}",
        str(each.paired.n),
    ]


def _comparison_notes(found: list[Comparison], labels: list[str]) -> list[str]:
    marks: dict[Mark, list[str]] = {}
    notes = []
    for each, label in zip(found, labels, strict=True):
        for mark in each.marks:
            marks.setdefault(mark, []).append(label)
        for direction in ("lost", "gained"):
            flips = [_flipped(flip) for flip in each.flips if flip.direction == direction]
            if flips:
                notes.append(f"{direction}, {label}: {_some(flips)}")
    losses = [
        f"{label} {max(0.0, -100 * each.paired.low):.1f}"
        for each, label in zip(found, labels, strict=True)
        if each.paired
    ]
    return [
        "Lower lines: 95 % intervals; difference: after minus before on the cells of both, with the exact p-value",
        *([f"What these cells exclude (95 %): a loss of more points than {_some(losses)}"] if losses else []),
        *(f"{mark} ({_listed(names, len(labels))})" for mark, names in marks.items()),
        *notes,
    ]


def _flipped(flip: Flip) -> str:
    return f"{_short(flip.task)} {flip.init_state} seed {flip.seed} ({flip.baseline_outcome} → {flip.outcome})"


def markdown(rows: list[Row]) -> str:
    """The board as Markdown."""
    parts = []
    for suite in tables(rows):
        for table in filter(None, (suite.methods, suite.tasks, suite.rounds, suite.acceptance)):
            columns, *cells = [
                [in_markdown(cell).replace("\n", "<br>") for cell in line] for line in (table.columns, *table.cells)
            ]
            body = tabulate(cells, columns, tablefmt="pipe", disable_numparse=True)
            notes = "\n".join(f"- {in_markdown(note)}" for note in table.notes)
            parts.append("\n\n".join([f"### {in_markdown(table.title)}", body, notes]))
    return "\n\n".join(parts) + "\n"
