"""``replan analyze``: what repeats itself inside a policy, and so could be taken over."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import json_option, named, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..analysis import Analysis, Range


@click.command()
@click.option("--policy", metavar="NAME|PATH", help="The policy that plays; the suite's own if missing.")
@click.option("--suite", default="conveyor", show_default=True, metavar="NAME", help="Suite; `replan envs` lists them.")
@click.option("--task", "tasks", metavar="NAME,...", help="Tasks to play; all of the suite if missing.")
@click.option("--episodes", type=click.IntRange(2, 1000), default=2, show_default=True, help="Episodes per task.")
@click.option(
    "--seed",
    type=click.IntRange(0, 999),
    default=600,
    show_default=True,
    help="Different seeds share no initial state.",
)
@click.option(
    "--out",
    metavar="DIR",
    callback=lambda c, o, v: v and named(c, o, v),
    help="Gets the figures (analysis.json) and plots of them (SVG).",
)
@json_option
def analyze(
    policy: str | None, suite: str, tasks: str | None, episodes: int, seed: int, out: str | None
) -> dict[str, Any]:
    """Show what repeats itself inside a policy."""
    from ...files import write_file
    from ..analysis import analyse, record
    from ..registry import Registry

    if out:
        Path(out).mkdir(parents=True, exist_ok=True)  # what cannot be written is known before anything is played
    analysis = analyse(*record(Registry(), suite, policy, tasks, episodes, seed))
    show(_text(analysis))
    plain = _plain(asdict(analysis))
    if out:
        write_file(Path(out) / "analysis.json", json.dumps(plain, indent=1))
        for name, svg in _plots(analysis).items():
            write_file(Path(out) / f"{name}.svg", svg)
    return plain


def _text(analysis: Analysis) -> str:
    from tabulate import tabulate

    from ..analysis import NEURONS, SHARES

    rows = {
        "FFN inputs of the prefill, cosine": analysis.inputs,
        "FFN outputs of the prefill, cosine": analysis.outputs,
        f"overlap of the {NEURONS:.0%} most important neurons": analysis.overlap,
    }
    references = list(analysis.inputs)
    similar = [[name, *(_cell(values[reference]) for reference in references)] for name, values in rows.items()]
    held = {**{f"tokens by {name}": line for name, line in analysis.tokens.items()}, "neurons": analysis.neurons}
    coverage = [[name, *(f"{value:.0%}" for value in line)] for name, line in held.items() if line]
    return "\n\n".join(
        [
            f"{analysis.rounds} rounds against others: mean [lowest and highest mean of a task]\n"
            + tabulate(similar, headers=["", *references], disable_numparse=True),
            "Share of the change of FFN outputs, and of all contributions, that the top shares hold\n"
            + tabulate(coverage, headers=["top", *(f"{share:.0%}" for share in SHARES)], disable_numparse=True),
            f"Neurons shared by half of the steps hold {analysis.shared:.1%} of what each step's own hold.\n"
            f"The most similar round of another episode of the task is within 10 points of progress in "
            f"{analysis.diagonal:.0%} of the rounds.",
        ]
    )


def _cell(values: Range) -> str:
    return f"{values.mean:.3f} [{values.low:.3f}, {values.high:.3f}]"


def _plain(value: Any) -> Any:
    """Returns figures that JSON has: what is not known is null."""
    from ..analysis import Range

    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Range):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _plots(analysis: Analysis) -> dict[str, str]:
    from ..analysis import SHARES

    def coverage(axes: Axes) -> None:
        for name, line in analysis.tokens.items():
            axes.plot((0, *SHARES), [0, *line], label=f"tokens by {name}")
        axes.plot((0, *SHARES), [0, *analysis.neurons], label="neurons by contribution")
        axes.plot((0, 1), (0, 1), color="grey", linestyle=":", label="at random")
        axes.set(xlabel="share of tokens or neurons", ylabel="share of change or contributions held")
        axes.legend(frameon=False)

    def progress(axes: Axes) -> None:
        axes.scatter(*zip(*analysis.places, strict=True), s=9)
        axes.plot((0, 1), (0, 1), color="grey", linestyle=":")
        axes.set(xlabel="progress of a round", ylabel="progress of the most similar round of the task")

    return {"coverage": _svg(coverage), "progress": _svg(progress)} if analysis.places else {}


def _svg(plot: Any) -> str:
    import io

    from matplotlib.figure import Figure

    figure, page = Figure(figsize=(5.2, 3.6), layout="constrained"), io.StringIO()
    plot(figure.add_subplot())
    figure.savefig(page, format="svg", metadata={"Date": None})
    return page.getvalue()
