"""The leaderboard as tables of text, for a terminal, for Markdown and for the report."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import NamedTuple

from tabulate import tabulate

from . import stats
from .escaping import in_markdown, visible
from .groups import BASELINE
from .leaderboard import Row
from .schema import Mark

WIDTH = 80  # columns of a terminal of the usual size


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


class SuiteTables(NamedTuple):
    """The tables of one suite.

    Attributes:
        suite: Suite name.
        condition: What all its rows were measured under.
        methods: One line per method and condition.
        rounds: One line per route of each.
        acceptance: How much of the drafts was accepted, one line per row that drafts; None where none does.
    """

    suite: str
    condition: str
    methods: Table
    rounds: Table
    acceptance: Table | None


def tables(rows: list[Row]) -> list[SuiteTables]:
    """The tables of each suite, in the order of the rows."""
    rows = list(map(_visible, rows))
    suites = dict.fromkeys(row.suite for row in rows)
    return [_suite_tables([row for row in rows if row.suite == suite]) for suite in suites]


def _visible(row: Row) -> Row:
    """Returns the row with names and marks that say nothing to a terminal."""

    def marks(of: tuple[Mark, ...]) -> tuple[Mark, ...]:
        return tuple(Mark(visible(mark.badge), visible(mark.text)) for mark in of)

    names = {name: visible(getattr(row, name)) for name in ("suite", "policy", "method", "latency")}
    settings = {visible(k): visible(v) if isinstance(v, str) else v for k, v in row.settings.items()}
    return replace(row, **names, settings=settings, marks=marks(row.marks), run_marks=marks(row.run_marks))


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
    prefix = {id(row): [condition(row).get(name, "any") for name in columns] + [row.method] for row in rows}
    methods = Table(
        title,
        [*columns, "method", "success", f"vs {BASELINE}", "n", "rounds", "round ms", "ms per\naction"]
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
            [*prefix[id(row)], name, f"{100 * route.share:.0f} %", str(route.rounds)]
            + [milliseconds(value) for value in route.durations[1:]]
            for row in rows
            for name, route in row.routes.items()
        ],
        [
            "Rounds include warm-up, durations do not. "
            + ", ".join(f"p{q} needs {stats.minimum_samples(q)} rounds" for q in (50, 90, 99))
        ],
    )
    return SuiteTables(rows[0].suite, shared, methods, rounds, _acceptance(title, columns, rows, prefix))


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
    cells = [
        _lines(percent(row.success.rate), f"[{100 * row.success.low:.1f}, {100 * row.success.high:.1f}]"),
        "baseline" if row.method == BASELINE else "–",
        _lines(str(row.success.n), f"+{row.errors} err." if row.errors else ""),
        _lines(number(row.rounds.all, ".1f"), f"{number(row.rounds.successful, '.1f')} succ."),
        _lines(f"p50 {milliseconds(row.round_ns.p50)}", f"p90 {milliseconds(row.round_ns.p90)}"),
        milliseconds(row.action_ns),
    ]
    if not row.success.n:
        cells[0] = "–"
    elif not math.isnan(row.at_end) and row.at_end != row.success.rate:
        cells[0] += f"\n{percent(row.at_end)} at end"
    if row.paired is not None:
        cells[1] = _lines(
            f"{100 * row.paired.difference:+.1f} (p {row.paired.p:.2g})",
            f"[{100 * row.paired.low:+.1f}, {100 * row.paired.high:+.1f}]",
        )
    if latency:
        cells.append(milliseconds(row.latency_ns))
    if row.speed_up is None:
        cells.append("1" if row.method == BASELINE else "–")
    else:
        cells.append(
            _lines(f"{number(row.speed_up.action, '.2f')}× action", f"{number(row.speed_up.round, '.2f')}× round")
        )
    cells.append(number(row.action_error.mean, ".2g"))
    if drafts:
        rate, length = percent(row.acceptance.rate, digits=0), row.acceptance.length
        cells.append(_lines(rate, "" if math.isnan(length) else f"mean {length:.1f}"))
    return [*cells, "\n".join(mark.badge for mark in row.marks)]


def _lines(first: str, second: str) -> str:
    return f"{first}\n{second}" if second else first


def _notes(rows: list[Row], prefix: dict[int, list[str]]) -> list[str]:
    """Marks of the runs, then those of the rows: each badge once, with its sentences and the rows they are about."""
    badges: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for mark in row.marks:
            badges.setdefault(mark.badge, {}).setdefault(mark.text, []).append(" ".join(prefix[id(row)]))
    runs = dict.fromkeys(str(mark) for row in rows for mark in row.run_marks)
    notes = []
    for badge, texts in badges.items():
        sentences = "; ".join(f"{text} ({_listed(names, len(rows))})" for text, names in texts.items())
        notes.append(sentences if list(texts) == [badge] else f"{badge}: {sentences}")
    return [*runs, *notes]


def _listed(names: list[str], rows: int) -> str:
    if len(names) == rows > 1:
        return "all rows"
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


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
        for table in (_narrow(suite), suite.rounds._replace(title=f"Rounds by route: {suite.suite}")):
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
        line["speed-up"] = line["speed-up"].replace(" action", "").replace(" round", "")
    headings = {"n": "n\nrounds", "round ms": "ms per\nround", "speed-up": "speed\nup"}
    columns = [column for column in table.columns if column not in ("rounds", "ms per\naction", "accepted", "marks")]
    notes = [
        "Lower lines: 95 % intervals, rounds per episode, p90 of a round (above it p50), speed-up per round (above it "
        "per action)"
    ]
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


def markdown(rows: list[Row]) -> str:
    """The board as Markdown."""
    parts = []
    for suite in tables(rows):
        for table in filter(None, (suite.methods, suite.rounds, suite.acceptance)):
            columns, *cells = [
                [in_markdown(cell).replace("\n", "<br>") for cell in line] for line in (table.columns, *table.cells)
            ]
            body = tabulate(cells, columns, tablefmt="pipe", disable_numparse=True)
            notes = "\n".join(f"- {in_markdown(note)}" for note in table.notes)
            parts.append("\n\n".join([f"### {in_markdown(table.title)}", body, notes]))
    return "\n\n".join(parts) + "\n"
