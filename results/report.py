"""One self-contained HTML page from stores: what was run, the leaderboard, plots, and every cell that flipped."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import plots, stats
from .escaping import visible
from .grid import flips_grid, grid, methods_grid, tasks_grid
from .groups import BASELINE, Group, by_start, groups
from .leaderboard import Row, rows_of
from .marks import ACTIVE_SHARE, NOT_ACTIVE, RANK, SHARED_CORE, SMALL_N
from .pairs import MIXED
from .schema import Run
from .store import Store
from .svg import SERIES, VARIABLES, palette
from .tables import SuiteTables, condition, milliseconds, percent, tables, varying
from .verdicts import MARGIN

MANY = 12  # rows above which single rows get no plot line and no card of their own
URGENT = (NOT_ACTIVE, "errors", MIXED)
FOLDER = Path(__file__).parent


def render(stores: Iterable[Store], title: str = "Leaderboard", *, allow_mixed: bool = False) -> str:
    """The page. It loads nothing, so it can be mailed, committed and opened offline.

    Args:
        stores: The runs to show.
        title: Heading of the page.
        allow_mixed: As for :func:`.leaderboard.board`.

    Raises:
        ManifestMismatch: The runs must not be compared (see :mod:`.groups`).
        MeasurementMismatch: A latency stands for different durations.
        CodeMismatch: The only baseline on a row's cells was played by other code.
    """
    stores = by_start(stores)
    gathered = groups(stores)
    rows = rows_of(gathered, allow_mixed=allow_mixed)
    stand_ins = palette(row.method for row in rows)
    colours = {method: f"var({VARIABLES[colour]})" for method, colour in stand_ins.items()}
    run_marks = _shared_marks([run for store in stores for run in store.runs])
    suites = []
    for each in tables(rows):
        suites.append(_suite(each, rows, gathered, stand_ins, run_marks, f"suite{len(suites)}"))
    headings = dict.fromkeys(name for suite in suites for name, *_ in suite["methods"].columns)
    facets = [_facets(row) for row in rows]
    script = (FOLDER / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=title,
        suites=suites,
        rows=rows,
        facets=facets,
        choices=_choices(facets),
        sortable=[name for name in headings if name != "rank"],
        colours={visible(method): colour for method, colour in colours.items()},
        tints=[colours[row.method] for row in rows],
        series=SERIES,
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        urgent=URGENT,
        baseline=BASELINE,
        runs=[_provenance(store) for store in stores],
        run_marks=run_marks,
        rules={
            "rank": RANK.removeprefix("Rank: "),
            "small_n": f"{100 * SMALL_N:.0f}",
            "shared_core": f"{SHARED_CORE:g}",
            "margin": f"{100 * MARGIN:.0f}",
            "active": f"{100 * ACTIVE_SHARE:.0f}",
            "minimum": {q: stats.minimum_samples(q) for q in stats.PERCENTILES},
        },
    )


def _suite(
    each: SuiteTables,
    rows: list[Row],
    gathered: list[Group],
    colours: dict[str, str],
    run_marks: list[str],
    prefix: str,
) -> dict[str, Any]:
    """What the template shows of a suite. Rows are known by their numbers on the page."""
    of_suite = {number: row for number, row in enumerate(rows) if visible(row.suite) == each.suite}
    members = [group for group in gathered if visible(group.suite) == each.suite]
    labels = dict(zip(of_suite, _labels(list(of_suite.values())), strict=True))
    shown_elsewhere = {each.headline, *run_marks, *each.marks.values()}
    badges = [{visible(mark.badge) for mark in row.marks} for row in of_suite.values()]
    shared = [badge for badge in each.marks if badge not in URGENT and all(badge in own for own in badges)]
    if len(of_suite) == 1:
        shared = []
    by_route = [number for number, row in of_suite.items() for _ in row.routes]
    drafting = [number for number, row in of_suite.items() if row.acceptance.drafts]
    return {
        "tables": each,
        "rows": list(of_suite),
        "ids": {badge: f"{prefix}-mark{i}" for i, badge in enumerate(each.marks)},
        "shared": shared,
        "methods": methods_grid(
            each.methods, of_suite, [note for note in each.methods.notes if note not in shown_elsewhere], shared
        ),
        "rounds": grid(each.rounds, by_route),
        "tasks": tasks_grid(each.tasks, list(of_suite)) if each.tasks else None,
        "acceptance": grid(each.acceptance, drafting) if each.acceptance else None,
        "flipped": [(number, labels[number], row) for number, row in of_suite.items() if row.flips],
        "flips": {number: flips_grid(row) for number, row in of_suite.items() if row.flips},
        "cards": _cards(of_suite, labels) if len(of_suite) <= MANY else [],
        "figures": _figures(of_suite, labels, members, colours),
    }


def _facets(row: Row) -> dict[str, list[str]]:
    """What a row can be filtered by."""
    named = {"suite": [row.suite], "family": [row.family], "method": [row.method], "device": list(row.devices)}
    return {name: list(map(visible, values)) for name, values in named.items()}


def _choices(facets: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Values of each facet in which rows differ."""
    values = {name: list(dict.fromkeys(each for row in facets for each in row[name])) for name in (facets or [{}])[0]}
    return {name: each for name, each in values.items() if len(each) > 1}


def _labels(rows: list[Row]) -> list[str]:
    """A name for each row: its method, and of its condition what differs between the rows."""
    names = varying(rows)
    return [" · ".join([row.label, *(f"{name} {condition(row).get(name, 'any')}" for name in names)]) for row in rows]


def _cards(rows: dict[int, Row], labels: dict[int, str]) -> list[dict[str, Any]]:
    """The comparison of each method in two lines: what it gains, and in the same size what it keeps."""
    cards = []
    for number, row in rows.items():
        if row.paired is None:
            continue
        ratio = row.speed_up.action if row.speed_up else stats.Ratio(math.nan, math.nan, math.nan)
        speed_up = "n/a" if math.isnan(ratio.value) else f"{ratio.value:.2f}×"
        interval = "" if math.isnan(ratio.low) else f"[{ratio.low:.2f}, {ratio.high:.2f}]"
        difference = (
            f"{100 * row.paired.difference:+.1f} points "
            f"[{100 * row.paired.low:+.1f}, {100 * row.paired.high:+.1f}] on {row.paired.n} shared cells"
        )
        cards.append(
            {
                "row": number,
                "label": labels[number],
                "speed_up": speed_up,
                "interval": f"per action {interval}",
                "keeps": _kept(row),
                "verdict": row.verdict.text if row.verdict else "",
                "latency": f"{milliseconds(row.action_ns)} ms per action",
                "difference": difference,
                "active": row.active,
            }
        )
    return cards


def _kept(row: Row) -> tuple[str, str]:
    """Retention and its lower bound."""
    if row.retention is None or not row.retention.overall.solved:
        return "n/a", f"{BASELINE} solved none"
    kept = row.retention.overall
    return percent(kept.rate), f"kept, at least {percent(kept.low)}"


def _figures(
    rows: dict[int, Row], labels: dict[int, str], gathered: list[Group], colours: dict[str, str]
) -> list[dict[str, Any]]:
    """Title, caption and SVG of each plot that the rows support, the one that says most first."""
    figures = []
    for setting in _swept(list(rows.values())):
        having = {number: row for number, row in rows.items() if setting in row.settings}
        rest = [name for name in varying(list(having.values())) if name != setting]

        def line_of(row: Row, rest: list[str] = rest) -> tuple[str, str]:
            return row.method, ", ".join(
                filter(None, [row.version, *(condition(row).get(name, "any") for name in rest)])
            )

        caption = "Bars are 95 % intervals, a little apart so that they do not hide each other."
        figures.append((f"Success against {setting}", caption, plots.sweep(having, labels, setting, line_of, colours)))
    policies = list(dict.fromkeys(row.policy for row in rows.values()))
    parts = []
    for policy in policies:
        which = f", {policy}" if len(policies) > 1 else ""
        of_policy = {number: row for number, row in rows.items() if row.policy == policy}
        parts.append((which, of_policy, [group for group in gathered if group.policy == policy]))
        caption = "Up and left is better. Bars: 95 % bounds of what is kept, and of the speed-up; differences inside "
        caption += "them are not established. A dashed line, where all points share one condition, joins the methods "
        caption += f"that no other beats in both. {BASELINE.capitalize()} keeps all that it solves, by definition."
        figures.append((f"Kept success against time{which}", caption, plots.pareto(of_policy, labels, colours)))
    if len(rows) <= MANY:
        caption = f"Wilson intervals. The grey band is {BASELINE}'s. Overlap of two intervals proves nothing: see vs "
        caption += f"{BASELINE}."
        figures.append(("Success", caption, plots.success(rows, labels, colours)))
    for which, of_policy, members in parts:
        caption = (
            "Wall time in the worker without warm-up; each histogram is scaled to its own peak, ticks are medians, "
        )
        caption += "the share of these rounds is on the right. All episodes, failed ones too."
        figures.append((f"Latency by route{which}", caption, plots.latency(members, of_policy, colours)))
        caption = f"Distance of a round's actions to those of {BASELINE} for the same observation and noise. "
        caption += "Further up and left is closer; the last percent is cut off."
        figures.append((f"Action error{which}", caption, plots.action_error(members, of_policy, colours)))
    return [{"title": title, "caption": caption, "svg": Markup(svg)} for title, caption, svg in figures if svg]


def _swept(rows: list[Row]) -> list[str]:
    """Numeric settings of which the rows hold several values."""
    values: dict[str, set[float]] = {}
    for row in rows:
        for name, value in row.settings.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                values.setdefault(name, set()).add(float(value))
    return [name for name, different in values.items() if len(different) > 1]


def _shared_marks(runs: list[Run]) -> list[str]:
    """Marks of every run. The others stand under the tables of the suites that they are about."""
    return [
        str(mark) for mark in dict.fromkeys(runs[0].marks if runs else ()) if all(mark in run.marks for run in runs)
    ]


def _provenance(store: Store) -> dict[str, Any]:
    return {
        "directory": store.path.parent.name,
        "run": store.run,
        "identity": asdict(store.run.identity),
        "resumed": [_short(run) for run in store.runs[1:]],
    }


def _short(run: Run) -> str:
    return f"{run.started} at {run.commit}"
