from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from replan.results import Mark, Store
from replan.results.groups import ManifestMismatch
from replan.results.leaderboard import board
from replan.results.plots import _frontier, spread
from replan.results.report import render

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, text and figures, and notices tags that close in another order than they opened."""

    def __init__(self, source: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.broken: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    def titles(self) -> list[str]:
        return [attributes["aria-label"] or "" for tag, attributes in self.tags if tag == "figure"]


@pytest.fixture
def flash_run(written, make):
    def episodes(method, ms, lost=()):
        return [
            make.episode(
                method,
                i,
                i not in lost,
                rounds=tuple(
                    make.round(
                        k, ms=ms + 0.1 * k, route="flash" if method == "flash" and k else "full", action_error=0.1
                    )
                    for k in range(4)
                ),
            )
            for i in range(8)
        ]

    return written(*episodes("dense", 40), *episodes("flash", 10, lost=(5,)), make.error("flash", 9))


def test_the_page_shows_what_was_run_and_what_came_out(flash_run):
    page = Page(render([flash_run], title="My board"))
    assert not page.broken and not page.open
    text = re.sub(r"\s+", " ", page.text)
    for part in (
        "My board",
        "16 episodes, 2 methods on conveyor",
        "Not measured because of harness errors: 1",
        "tiny model trained here",
        "replan eval --suite conveyor",
        "abc1234",
        "one core",
        "torch 2.13.0",
        "f00d",
        "2026-01-02T03:04:05+00:00",
        "87.5 %",
        "flash: 1 lost, 0 gained against dense",
    ):
        assert part in text, part


def test_the_page_loads_nothing(flash_run):
    source = render([flash_run])
    assert not re.search(r"https?:|url\((?!#)|@import|<link|src=", source)
    assert all(href.startswith("#") for href in re.findall(r'href="([^"]*)"', source))


def test_plots_follow_the_page_colours(flash_run):
    source = render([flash_run])
    drawings = "".join(re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL))
    assert re.search(r"var\(--c\d+\)", drawings) and "var(--ink)" in drawings
    assert not re.search(r"#0[1-5]0[0-9a-f]{3}", drawings)
    used = set(re.findall(r"var\((--\w+)\)", drawings))
    light, dark, *_ = re.findall(r":root \{(.*?)\}", source, flags=re.DOTALL)
    for name in used:
        assert f"{name}:" in light and f"{name}:" in dark


def test_figures_appear_where_there_is_something_to_draw(written, make, flash_run):
    full = Page(render([flash_run])).titles()
    assert full == ["Kept success against time", "Success", "Latency by route", "Action error"]
    assert Page(render([written(make.episode("dense"))])).titles() == ["Success", "Latency by route"]
    assert Page(render([written(make.episode("dense", rounds=()))])).titles() == ["Success"]
    assert Page(render([written(make.error("dense"))])).titles() == []


def test_a_numeric_setting_with_several_values_is_a_curve(written, make):
    episodes = [
        make.episode(method, cell, settings={"speed": speed, "light": "dim"}, latency=latency, clock="realtime")
        for method in ("dense", "flash")
        for latency in ("fixed:20ms", "fixed:58ms")
        for speed in (6.0, 8.0, 10.0, 15.0)
        for cell in range(2)
    ]
    page = Page(render([written(*episodes)]))
    assert page.titles()[0] == "Success against speed"
    figure = render([written(*episodes)]).partition('aria-label="Success against speed"')[2].partition("</svg>")[0]
    texts = re.findall(r'translate\(\S+ (\S+)\)">(dense|flash|fixed:\d+ms)<', figure)
    words = [word for _, word in texts]
    assert sorted(zip(words[::2], words[1::2], strict=True)) == [
        (method, latency) for method in ("dense", "flash") for latency in ("fixed:20ms", "fixed:58ms")
    ]
    heights = sorted(float(height) for height, _ in texts)
    assert np.diff(heights).min() > 9  # px of a line of text: all lines end at 100 %, and no label covers another
    assert "Success" not in page.titles()[1:]  # too many rows for one line each
    lost = [make.error("dense", cell, settings={"speed": speed}) for cell, speed in ((0, 6.0), (1, 8.0))]
    assert "Success against speed" not in Page(render([written(*lost)])).titles()
    one = Page(render([written(*episodes[:2])])).titles()
    assert "Success against speed" not in one


def test_labels_of_lines_that_end_together_are_moved_apart_and_stay_in_their_order_and_room():
    ends = [0.02, 0.9, 0.9, 0.91, 0.99]
    places = spread(ends, 0.1, 0.0, 1.0)
    assert np.diff(places).min() == pytest.approx(0.1)
    assert places[0] >= 0.05 - 1e-9 and places[-1] <= 0.95 + 1e-9
    assert spread([0.2, 0.5, 0.8], 0.1, 0.0, 1.0) == pytest.approx([0.2, 0.5, 0.8])
    assert spread([0.5, 0.5], 0.2, 0.0, 1.0) == pytest.approx([0.4, 0.6])


def test_names_are_escaped(written, make):
    name = "<b>$x$ & </b>"
    episodes = [make.episode("dense"), make.episode(name, success=False, outcome="<i>lost")]
    source = render([written(*episodes)], title="<script>alert(1)</script>")
    assert "<script>alert" not in source and "<b>$" not in source and "<i>lost" not in source
    page = Page(source)
    assert name in page.text and not page.broken


def test_a_method_that_was_not_active_gets_no_clean_figure(written, make):
    run = make.run(activity_counters={"flash": ("drafts",)})
    source = render([written(make.episode("dense"), make.episode("flash"), run=run)])
    assert 'class="card idle"' in source
    assert 'class="card idle"' not in render([written(make.episode("dense"), make.episode("flash"))])


def test_every_run_is_named_with_its_resumptions(written, make):
    first, second = written(make.episode("dense")), written(make.episode("flash"), run=make.run(commit="def5678"))
    Store.start(first.path.parent, make.run(commit="fee1dea", started="2026-02-03")).close()
    with Store.open(first.path.parent) as resumed:
        page = Page(render([resumed, second]))
    assert "abc1234" in page.text and "def5678" in page.text and "2026-02-03 at fee1dea" in page.text


def test_a_page_of_several_suites_says_which_mark_is_about_which(written, make):
    marks = {"robotwin": (Mark("stand-in assets", "another robot and other objects"),)}
    tiny, cpu, changes = map(Mark.parse, ("tiny model trained here", "CPU", "uncommitted changes"))
    belt = written(make.episode("dense"), run=make.run(marks=(tiny, cpu)))
    episode = make.episode("dense", suite="robotwin", policy="pi0-other")
    robotwin = written(episode, run=make.run(marks=(cpu, changes), suite_marks=marks))
    source = render([belt, robotwin])
    page = Page(source)
    head, first, second = re.split("<h2>", source)[:3]
    assert "CPU" in head and "tiny model" not in head and "uncommitted" not in head
    assert "tiny model trained here" in first and "stand-in" not in first and "uncommitted" not in first
    assert "tiny model" not in second and "uncommitted changes" in second
    assert re.search(r'class="badge"[^>]*>stand-in assets</a>', second) and "another robot and other objects" in second
    assert "2 episodes, 1 methods on conveyor, robotwin" in re.sub(r"\s+", " ", page.text)


def test_acceptance_by_position_is_on_the_page_where_something_was_drafted(written, make, flash_run):
    summary = "<summary>Draft acceptance by position"
    assert summary not in render([flash_run])
    drafted = written(make.episode("flash", rounds=(make.round(0, accepted=3), make.round(1, accepted=1))))
    assert not Page(render([drafted])).broken
    section = render([drafted]).partition(summary)[2].partition("</details>")[0]
    assert re.findall(r">(\d+ %)<", section) == ["100 %", "50 %", "50 %", *["0 %"] * 7]


def test_an_empty_run_makes_a_page(written):
    assert "No episode has been measured yet" in render([written()])


def test_the_page_is_the_same_each_time(flash_run):
    assert render([flash_run]) == render([flash_run])


def test_the_page_refuses_what_the_board_refuses(written, make):
    store = written(make.episode("dense"), make.episode("flash", observation_hash="other"))
    for read in (board, render):
        with pytest.raises(ManifestMismatch):
            read([store])


def test_the_frontier_keeps_what_nothing_beats():
    points = [(1.0, 0.9), (2.0, 0.8), (1.5, 0.7), (3.0, 0.8), (0.5, 0.95)]
    assert _frontier(points) == [(0.5, 0.95), (1.0, 0.9), (3.0, 0.8)]


def test_an_idle_method_has_no_rank_and_what_was_not_timed_together_no_speed_up_on_the_page(written, make):
    run = make.run(activity_counters={"idle": ("used",)})
    source = render([written(make.episode("dense"), make.episode("idle"), run=run)])
    (line,) = [line for line in re.findall(r"<tr.*?</tr>", source, re.DOTALL) if ">idle<" in line and "verdict" in line]
    assert re.search(r'data-label="rank"[^>]*><b><span class="keep">–<', line)
    assert "<dt>rank</dt><dd>by speed-up per action" in source and "excludes a loss of 10 points" in re.sub(
        r"\s+", " ", source
    )
    apart = [written(make.episode("dense")), written(make.episode("flash"))]
    assert '<div class="big"><b>n/a</b>' in render(apart)
    assert '<div class="big"><b>1.00×</b>' in render(apart, allow_mixed=True)


def test_success_by_task_is_on_the_page_where_there_are_several(written, make):
    several = render([written(make.episode("dense", task="lift"), make.episode("dense", 1, task="stack"))])
    assert not Page(several).broken
    assert "<summary>Success by task" in several
    assert "<summary>Success by task" not in render([written(make.episode("dense"))])


def test_two_versions_of_a_method_have_a_line_each_in_every_figure(written, make):
    def version(digest):
        rounds = (make.round(ms=10, action_error=0.1), make.round(1, ms=12, action_error=0.2))
        return [make.episode("flash", i, code=make.code("flash", method=digest * 64), rounds=rounds) for i in (0, 1)]

    source = render([written(*(make.episode("dense", i) for i in (0, 1)), *version("a"), *version("b"))])
    figures = re.findall(r"<svg.*?</svg>", source, flags=re.DOTALL)
    assert len(figures) == 4
    assert all(f"flash @{digest * 6}" in figure for figure in figures for digest in "ab")
