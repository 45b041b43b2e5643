"""Plots as SVG fragments of a page: they take colours from its style sheet, and say which rows their parts show.

Figures are plotted in stand-in colours that become CSS variables, so one figure serves light and dark pages; text
stays text. A part with a tag becomes ``<g data-rows="0 4"><title>...</title>``: the page hides it with these rows, and
shows its title where it is pointed at.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .groups import BASELINE

HUES = 12
SERIES = 2 * HUES  # colours of methods in the style sheet: a darker and a lighter one of each hue; dense has its own
# With this salt no two methods that come with the package have one colour, and common ones differ in hue.
SALT = b"1484544"
INK, MUTED, LINE, BASE = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "--ink", MUTED: "--muted", LINE: "--line", BASE: "--base"} | {
    f"#0501{i:02x}": f"--c{i}" for i in range(SERIES)
}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "font.size": 8.5,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a method's name is not a formula
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
}
_TAGGED = re.compile(r"""<g id=(["'])rows ([\d ]*)\|(.*?)\1>""", re.DOTALL)


def palette(methods: Iterable[str]) -> dict[str, str]:
    """A stand-in colour for each method; the baseline is grey.

    A name has the same colour on every page, whatever else is there, unless two names of one page share it: then all
    but the first of them, by the alphabet, take the next free one.
    """
    names = sorted(set(methods) - {BASELINE})
    slots: dict[int, str] = {}
    for name in names:
        slots.setdefault(_slot(name), name)
    for name in names:
        if slots[_slot(name)] != name:
            free = ((_slot(name) + i) % SERIES for i in range(SERIES))
            slots[next((slot for slot in free if slot not in slots), SERIES + len(slots))] = name
    return {BASELINE: BASE} | {name: f"#0501{slot % SERIES:02x}" for slot, name in slots.items()}


def _slot(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4, salt=SALT).digest(), "big") % SERIES


def tag(rows: Iterable[int], says: str = "") -> str:
    """A ``gid`` for a part of a plot.

    Args:
        rows: Numbers of the rows that it shows.
        says: What is shown where it is pointed at; empty for nothing.
    """
    return f"rows {' '.join(map(str, rows))}|{says}"


def fragment(name: str, plot: Callable[[Axes], None], height: float) -> str:
    """Renders what ``plot`` puts on the axes.

    Args:
        name: What the plot shows; identifiers inside the SVG derive from it.
        plot: Plots.
        height: In inches; it is 5.2 wide.
    """
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.2, height), layout="constrained")
        axes = figure.add_subplot()
        plot(axes)
        page = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    svg = page.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML needs none, and the page then holds no URL
    svg = _TAGGED.sub(_with_title, svg)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # identifiers would repeat from figure to figure
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
    return re.sub("|".join(VARIABLES), lambda match: f"var({VARIABLES[match[0]]})", svg)


def _with_title(match: re.Match[str]) -> str:
    _, rows, says = match.groups()
    return f'<g data-rows="{rows}">' + (f"<title>{html.escape(html.unescape(says))}</title>" if says else "")
