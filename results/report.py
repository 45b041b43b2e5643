"""One self-contained HTML page from stores: what was run, the leaderboard, plots, and every cell that flipped."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from . import plots, stats
from .groups import BASELINE, Group, by_start, groups
from .leaderboard import Row, rows_of
from .marks import ACTIVE_SHARE, RANK, SHARED_CORE, SMALL_N
from .schema import Run
from .store import Store
from .tables import condition, milliseconds, percent, tables, varying
from .verdicts import MARGIN

MANY = 12  # rows above which single rows get no plot line and no card of their own


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
    colours = plots.palette(row.method for row in rows)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    suites = []
    for each in tables(rows):
        of_suite = [row for row in rows if row.suite == each.suite]
        suites.append(
            {
                "tables": each,
                "rows": of_suite,
                "cards": _cards(of_suite, colours) if len(of_suite) <= MANY else [],
                "figures": _figures(of_suite, [group for group in gathered if group.suite == each.suite], colours),
                "labels": _labels(of_suite),
            }
        )
    return environment.get_template("report.html.j2").render(
        title=title,
        suites=suites,
        rows=rows,
        baseline=BASELINE,
        runs=[_provenance(store) for store in stores],
        run_marks=_shared_marks([run for store in stores for run in store.runs]),
        rules={
            "rank": RANK.removeprefix("Rank: "),
            "small_n": f"{100 * SMALL_N:.0f}",
            "shared_core": f"{SHARED_CORE:g}",
            "margin": f"{100 * MARGIN:.0f}",
            "active": f"{100 * ACTIVE_SHARE:.0f}",
            "minimum": {q: stats.minimum_samples(q) for q in stats.PERCENTILES},
        },
    )


def _labels(rows: list[Row]) -> list[str]:
    """A name for each row: its method, and of its condition what differs between the rows."""
    names = varying(rows)
    return [" · ".join([row.label, *(f"{name} {condition(row).get(name, 'any')}" for name in names)]) for row in rows]


def _cards(rows: list[Row], colours: dict[str, str]) -> list[dict[str, Any]]:
    """The comparison of each method in two lines."""
    cards = []
    for row, label in zip(rows, _labels(rows), strict=True):
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
                "label": label,
                "colour": f"var({plots.VARIABLES[colours[row.method]]})",
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


def _figures(rows: list[Row], gathered: list[Group], colours: dict[str, str]) -> list[dict[str, Any]]:
    """Title, caption and SVG of each plot that the rows support."""
    figures = []
    for setting in _swept(rows):
        having = [row for row in rows if setting in row.settings]
        rest = [name for name in varying(having) if name != setting]

        def line_of(row: Row, rest: list[str] = rest) -> tuple[str, str]:
            return row.method, ", ".join(
                filter(None, [row.version, *(condition(row).get(name, "any") for name in rest)])
            )

        caption = "Bars are 95 % intervals, a little apart so that they do not hide each other."
        figures.append((f"Success against {setting}", caption, plots.sweep(having, setting, line_of, colours)))
    if len(rows) <= MANY and any(row.success.n for row in rows):
        caption = f"Wilson intervals. The grey band is {BASELINE}'s. Overlap of two intervals proves nothing: see vs "
        caption += f"{BASELINE}."
        figures.append(("Success", caption, plots.success(rows, _labels(rows), colours)))
    for policy in dict.fromkeys(row.policy for row in rows):
        which = f", {policy}" if len({row.policy for row in rows}) > 1 else ""
        of_policy = [group for group in gathered if group.policy == policy]
        caption = (
            "Wall time in the worker without warm-up; each histogram is scaled to its own peak, ticks are medians, "
        )
        caption += "the share of these rounds is on the right. All episodes, failed ones too."
        figures.append((f"Latency by route{which}", caption, plots.latency(of_policy, colours)))
        caption = "Up and right is better. Bars are 95 % intervals; differences inside them are not established. A "
        caption += "dashed line, where all points share one condition, joins the methods that no other beats in both."
        svg = plots.tradeoff([row for row in rows if row.policy == policy], colours)
        figures.append((f"Success against speed-up{which}", caption, svg))
        caption = f"Distance of a round's actions to those of {BASELINE} for the same observation and noise. "
        caption += "Further up and left is closer; the last percent is cut off."
        figures.append((f"Action error{which}", caption, plots.action_error(of_policy, colours)))
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
