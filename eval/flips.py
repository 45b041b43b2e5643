"""A folder that shows every cell that two methods ended differently: a video each, and a page that leads to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..files import write_file
from ..results.flips import Flipped, Flips
from .footage import Course, NoActions, NotTheSame, follow
from .video import parting, write_video

if TYPE_CHECKING:
    from ..results.store import Store
    from .registry import Registry

PAGE = "index.html"


@dataclass(frozen=True)
class Shown:
    """A cell that flipped, and what there is to see of it.

    Attributes:
        flipped: The two episodes.
        video: File name of the video; None where there is none.
        parted: Where the actions part, in words; empty without a video.
        reason: Why there is no video; empty where there is one, or where it was not asked for.
    """

    flipped: Flipped
    video: str | None = None
    parted: str = ""
    reason: str = ""


def show_flips(flips: Flips, store: Store, registry: Registry, out: str | Path, limit: int) -> list[Shown]:
    """Writes the videos and the page.

    Args:
        flips: The comparison.
        store: The run.
        registry: Where its suites come from.
        out: Folder, which is made where there is none.
        limit: Most videos to write.

    Raises:
        BadInput: A suite is not here.
        SuiteUnavailable: It lacks something.
        OSError: The folder cannot be written.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    shown = [_show(each, store, registry, out) for each in flips.flipped[:limit]]
    shown += [Shown(each) for each in flips.flipped[limit:]]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    write_file(out / PAGE, environment.get_template("flips.html.j2").render(flips=flips, shown=shown, run=store.run))
    return shown


def _show(flipped: Flipped, store: Store, registry: Registry, out: Path) -> Shown:
    try:
        courses = [follow(row, store, registry) for row in flipped]
    except (NoActions, NotTheSame) as error:
        return Shown(flipped, reason=str(error))
    name = f"{flipped.row.task}-{flipped.row.init_state}-{flipped.row.cell[:8]}.mp4"
    write_video(out / name, courses, registry)
    return Shown(flipped, name, _parted(*courses))


def _parted(against: Course, course: Course) -> str:
    """Says where the actions of two episodes part, and which round of the second one that was."""
    step = parting(against, course)
    if step is None:
        return "the actions never part before one of them is over"
    number, round = next((i, r) for i, r in enumerate(course.row.rounds) if step < r.control_step + r.executed)
    return (
        f"actions part at step {step} of {course.row.steps} ({course.acted_ns[step] / 1e9:.2f} s), "
        f"in round {number}, which took the route {round.route}"
    )
