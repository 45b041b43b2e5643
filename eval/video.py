"""Episodes as a video: side by side, each under its title and over a timeline of its rounds."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..policies.round import FULL
from .footage import FPS, PERIOD_NS, Course, frames
from .spec import BadInput

if TYPE_CHECKING:
    from .registry import Registry

WIDTH, TITLE, TIMELINE, GAP = 480, 44, 58, 8  # pixels
INK, MUTED, PAPER, GOOD, BAD, CUT = "#1c2126", "#66707a", "#ffffff", "#1a7f4b", "#b3261e", "#c2188a"
DENSE = "#7b858f"  # of the route that every policy has
ROUTES = ("#2563c9", "#d1700a", "#7a3fb5", "#0f8b8d", "#b3261e", "#8a6d00")
LAST = FPS  # images for which a video stands still at its end: a second


def route_colours(routes: Iterable[str]) -> dict[str, str]:
    """Returns a colour per route: grey for the full one, and the others by name, whoever takes them."""
    others = sorted(set(routes) - {FULL})
    return {FULL: DENSE} | {route: ROUTES[i % len(ROUTES)] for i, route in enumerate(others)}


def parting(one: Course, other: Course) -> int | None:
    """Returns the first control step at which two episodes act differently; None if one is a part of the other."""
    for step, (a, b) in enumerate(zip(one.actions, other.actions, strict=False)):
        if a.tobytes() != b.tobytes():
            return step
    return None


def check_encoder() -> None:
    """Makes sure, before anything is played, that videos can be written.

    Raises:
        BadInput: The package that writes them is not here.
    """
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise BadInput("a video needs imageio-ffmpeg, which is not here: pip install 'replan[video]'")


def write_video(path: str | Path, courses: Sequence[Course], registry: Registry) -> None:
    """Writes an MP4 file (H.264) in which simulated time passes as time does.

    Images appear at :data:`.footage.FPS` per second. An episode that is over stands still until the others are, too.

    Args:
        path: The file. It appears whole or not at all.
        courses: Episodes, from left to right.
        registry: Where their suites come from.

    Raises:
        OSError: The file cannot be written.
    """
    import imageio_ffmpeg

    unfinished = Path(path).with_name(f".{Path(path).name}.part.mp4")
    images = _composed(courses, registry)
    first = next(images)
    writer = imageio_ffmpeg.write_frames(
        str(unfinished),
        (first.shape[1], first.shape[0]),
        fps=FPS,
        codec="libx264",
        macro_block_size=2,
        output_params=["-threads", "1", "-crf", "23", "-movflags", "+faststart"],
    )
    try:
        unfinished.touch()  # what cannot be written is an OSError that names the file, and no broken pipe
        writer.send(None)
        for image in itertools.chain([first], images):
            writer.send(image)
        writer.close()
        unfinished.replace(path)
    finally:
        writer.close()
        unfinished.unlink(missing_ok=True)


def _composed(courses: Sequence[Course], registry: Registry) -> Iterator[np.ndarray]:
    end_ns = max(course.end_ns for course in courses)
    colours = route_colours(round.route for course in courses for round in course.row.rounds)
    parted = parting(*courses) if len(courses) == 2 else None
    panels = [_Panel(course, end_ns, colours, parted) for course in courses]
    streams = [frames(course, registry) for course in courses]
    images = [next(stream) for stream in streams]
    for number in range(end_ns // PERIOD_NS + 1 + LAST):
        shown = [panel.image(image, number * PERIOD_NS) for panel, image in zip(panels, images, strict=True)]
        yield _beside(shown)
        images = [next(stream, image) for stream, image in zip(streams, images, strict=True)]


def _beside(images: Sequence[Image.Image]) -> np.ndarray:
    width = sum(image.width for image in images) + GAP * (len(images) - 1)
    page = Image.new("RGB", (width + width % 2, max(image.height for image in images)), PAPER)
    for i, image in enumerate(images):
        page.paste(image, (i * (WIDTH + GAP), 0))
    return np.asarray(page)


class _Panel:
    """One episode of a video."""

    def __init__(self, course: Course, end_ns: int, colours: dict[str, str], parted: int | None) -> None:
        self._course, self._end_ns, self._colours = course, max(end_ns, 1), colours
        self._parted_ns = None if parted is None else course.acted_ns[parted]

    def image(self, image: np.ndarray, time_ns: int) -> Image.Image:
        """Returns the panel as it is at a moment of simulated time."""
        height = round(WIDTH * image.shape[0] / image.shape[1] / 2) * 2
        panel = Image.new("RGB", (WIDTH, TITLE + height + TIMELINE), PAPER)
        scaled = Image.fromarray(np.ascontiguousarray(image)).resize((WIDTH, height), Image.Resampling.BILINEAR)
        panel.paste(scaled, (0, TITLE))
        draw = ImageDraw.Draw(panel)
        self._title(draw, time_ns)
        self._timeline(draw, TITLE + height, time_ns)
        return panel

    def _title(self, draw: ImageDraw.ImageDraw, time_ns: int) -> None:
        row = self._course.row
        draw.text((6, 3), _cut(draw, row.method, 330, 17), INK, _font(17))
        draw.text((6, 25), _cut(draw, f"{row.task} {row.init_state}, seed {row.seed}", 330, 13), MUTED, _font(13))
        over = time_ns >= self._course.end_ns
        text = row.outcome if over else f"{time_ns / 1e9:.1f} s"
        colour = (GOOD if row.success else BAD) if over else MUTED
        draw.text((WIDTH - 6, 3), _cut(draw, text, 130, 17), colour, _font(17), anchor="ra")
        if not self._course.bit_equal:
            draw.text((WIDTH - 6, 25), "same outcome, other rounding", CUT, _font(11), anchor="ra")

    def _timeline(self, draw: ImageDraw.ImageDraw, top: int, time_ns: int) -> None:
        def across(ns: int) -> float:
            return 8 + (WIDTH - 17) * ns / self._end_ns

        course, middle = self._course, top + 19
        draw.line((across(0), middle, across(course.end_ns), middle), MUTED)
        for ns, route in course.rounds_ns:
            x = across(ns)
            draw.rectangle((x - 1, middle - 9, x + 1, middle + 9), self._colours[route])
        if self._parted_ns is not None:
            x = across(self._parted_ns)
            draw.polygon(((x - 5, top + 2), (x + 5, top + 2), (x, top + 10)), CUT)
        x = across(min(time_ns, course.end_ns))
        draw.line((x, top + 3, x, middle + 13), INK, width=2)
        place = 8.0
        for route, colour in self._colours.items():
            count = sum(name == route for _, name in course.rounds_ns)
            if count:
                draw.rectangle((place, top + 43, place + 8, top + 51), colour)
                text = f"{route} {count}"
                draw.text((place + 13, top + 38), text, MUTED, _font(13))
                place += 25 + draw.textlength(text, _font(13))
        if self._parted_ns is not None:
            draw.polygon(((place, top + 43), (place + 10, top + 43), (place + 5, top + 51)), CUT)
            draw.text((place + 15, top + 38), "actions part", MUTED, _font(13))


def _cut(draw: ImageDraw.ImageDraw, text: str, width: int, size: int) -> str:
    """Returns a text without its end, where it would be wider than so many pixels."""
    if draw.textlength(text, _font(size)) <= width:
        return text
    while text and draw.textlength(f"{text} ...", _font(size)) > width:
        text = text[:-1]
    return f"{text} ..."


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
