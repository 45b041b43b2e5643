"""The page in a real browser: what it shows, sorts, hides and prints, and that it asks nobody for anything."""

from __future__ import annotations

import io
import re

import pytest
from chromium import Chromium, found
from PIL import Image
from replan.results import Store
from replan.results.report import render

pytestmark = pytest.mark.skipif(not found(), reason="there is no Chromium; install it, or name it in CHROMIUM")
WIDTHS = (375, 1280)
SHOWN = "[...document.querySelectorAll('table.methods tbody tr')].filter(line => line.offsetParent)"
NAMES = f"{SHOWN}.map(line => line.querySelector('td.name b').textContent.trim())"
OVERFLOW = """[...document.querySelectorAll('main *')].filter(part => part.getBoundingClientRect().right >
    document.documentElement.clientWidth + 1 && !part.closest('svg, .always, thead')).map(part => part.outerHTML)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(make, tmp_path_factory):
    """A page of two suites, three methods, two devices; fast loses the most."""

    def episodes(suite, device, method, ms, lost):
        return [
            make.episode(
                method,
                cell,
                cell >= lost,
                suite=suite,
                device=device,
                task=f"task-{cell % 3}-with-a-long-name-that-has-to-break-somewhere",
                rounds=(make.round(ms=ms, action_error=0.1), make.round(1, ms=ms + 1, action_error=0.2)),
            )
            for cell in range(12)
        ]

    kinds = (("dense", 40, 0), ("slow", 30, 1), ("fast", 10, 4))
    worlds = (("belt", "cpu"), ("shelf", "A card with a name"))
    folder = tmp_path_factory.mktemp("run")
    with Store.start(folder, make.run()) as store:
        for episode in (each for world in worlds for kind in kinds for each in episodes(*world, *kind)):
            store.add(episode)
    file = folder / "page.html"
    with Store.open(folder) as store:
        file.write_text(render([store], title="A page"), encoding="utf-8")
    return file


def test_the_page_is_silent_requests_nothing_and_fits(browser, page):
    heights = []
    for width in WIDTHS:
        browser.open(page, width)
        assert browser.console == []
        assert browser.requests == [page.resolve().as_uri()]
        assert browser.run("document.documentElement.scrollWidth") == width
        assert browser.run(OVERFLOW) == []
        with Image.open(io.BytesIO(browser.screenshot())) as image:
            assert image.width == width
            heights.append(image.height)
    assert 2000 < heights[1] < heights[0] < 12 * heights[1]


def test_filters_hide_rows_and_what_shows_only_them(browser, page):
    browser.open(page)
    assert browser.run(NAMES) == ["dense", "slow", "fast"] * 2 or browser.run(NAMES) == ["dense", "fast", "slow"] * 2

    def click(name, value):
        browser.run(f"document.querySelector('input[name={name}][value={value}]').click()")

    click("method", "fast")
    assert browser.run(NAMES) == ["fast", "fast"]
    assert browser.run("document.getElementById('count').textContent") == "2 of 6 rows"
    click("suite", "belt")
    assert browser.run(NAMES) == ["fast"]
    assert browser.run("[...document.querySelectorAll('h2')].filter(h => h.offsetParent)[0].textContent") == "belt"
    marks = "[...document.querySelectorAll('svg [data-rows]')].filter(part => !part.closest('[data-off]')).length"
    few = browser.run(marks)
    browser.run("document.querySelector('button[type=reset]').click()")
    browser.run("new Promise(done => setTimeout(done, 20))")
    assert len(browser.run(NAMES)) == 6
    assert browser.run(marks) > 2 * few > 0


@pytest.mark.parametrize("facet", ["suite", "method", "device"])
def test_each_facet_in_which_rows_differ_has_a_filter(browser, page, facet):
    browser.open(page)
    assert browser.run(f"document.querySelectorAll('input[name={facet}]').length") == (3 if facet == "method" else 2)


def test_a_heading_sorts_its_table_by_number_both_ways(browser, page):
    browser.open(page)
    heading = "[...document.querySelectorAll('table.methods th')].find(th => th.textContent.startsWith('success'))"
    for way, names in (("descending", ["dense", "slow", "fast"]), ("ascending", ["fast", "slow", "dense"])):
        browser.run(f"{heading}.firstElementChild.click()")
        assert browser.run(f"{heading}.getAttribute('aria-sort')") == way
        assert browser.run(NAMES)[:3] == names
    browser.run(
        "(s => { s.value = 'ms per action'; s.dispatchEvent(new Event('change', {bubbles: true})); })"
        "(document.getElementById('sort'))"
    )
    assert browser.run(NAMES) == ["fast", "slow", "dense"] * 2


def test_marks_and_points_say_what_they_are_to_keyboard_and_pointer(browser, page):
    browser.open(page)
    browser.run("document.querySelector('a.badge').focus()")
    browser.run("new Promise(done => setTimeout(done, 100))")  # it scrolls there
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    assert "interval of success is wider" in browser.run(tip)
    browser.press("Escape")
    assert browser.run(tip) == ""
    assert browser.run("document.querySelector(document.querySelector('a.badge').getAttribute('href')).textContent")
    x, y = browser.run(
        "(part => { part.scrollIntoView({block: 'center'}); const box = part.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })(document.querySelector('svg [data-tip]'))"
    )
    browser.run("new Promise(requestAnimationFrame)")
    browser.move(x, y)
    assert re.search(r"\d", browser.run(tip))


def test_dark_pages_have_other_colours(browser, page):
    colours = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        with Image.open(io.BytesIO(browser.screenshot())) as image:
            colours.append(image.convert("L").getpixel((2, 2)))
    assert colours[0] > 200 > 60 > colours[1]


def test_paper_shows_every_column(browser, page):
    browser.open(page)
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.size(1040)  # A4 landscape without its margins, at 96 pixels per inch
    try:
        assert browser.run("document.documentElement.scrollWidth") <= 1040
        assert browser.run(OVERFLOW) == []
        shown = "[...document.querySelectorAll('table.methods th')].filter(th => th.getBoundingClientRect().width > 0)"
        assert browser.run(f"{shown}.length") == browser.run("document.querySelectorAll('table.methods th').length")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    assert len(re.findall(rb"/Type\s*/Page\b", browser.pdf())) > 1
