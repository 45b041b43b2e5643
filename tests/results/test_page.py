"""The page in a real browser: it loads nothing, sorts, filters, explains itself, and fits a phone and paper."""

from __future__ import annotations

import pytest
from chromium import Chromium, found
from replan.results.report import render

pytestmark = pytest.mark.skipif(found() is None, reason="no Chromium: install the package chromium, or set CHROMIUM")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(written, make, tmp_path):
    """Two suites; on the first, flash is faster and loses a cell, and slow is slower."""

    def episodes(method, ms, lost=(), **fields):
        rounds = tuple(make.round(k, ms=ms + 0.1 * k, action_error=0.1) for k in range(4))
        return [make.episode(method, i, i not in lost, rounds=rounds, **fields) for i in range(8)]

    long = "flash:delta=0.15:tau=0.9/0.95:max_age=60"
    belt = written(*episodes("dense", 40), *episodes(long, 10, lost=(5,)), *episodes("slow", 60))
    shelf = written(*episodes("dense", 40, suite="shelf"), *episodes("slow", 60, suite="shelf"))
    file = tmp_path / "page.html"
    file.write_text(render([belt, shelf]), encoding="utf-8")
    return file


SHOWN = "[...document.querySelectorAll('table.methods tbody tr')].filter(e => e.checkVisibility())"
NAMES = f"{SHOWN}.map(e => e.querySelector('.name b').textContent.trim().split(':')[0])"


def check(browser, *boxes):
    for box in boxes:
        browser.run(f"document.querySelector('input[value=\"{box}\"]').click()")


def test_the_page_loads_without_a_request_or_a_complaint(browser, page):
    browser.open(page)
    assert browser.requests == [page.resolve().as_uri()] and browser.console == []


def test_filters_leave_the_rows_that_have_all_that_is_checked(browser, page):
    browser.open(page)
    assert sorted(browser.run(NAMES)) == ["dense", "dense", "flash", "slow", "slow"]
    check(browser, "slow")
    assert browser.run(NAMES) == ["slow", "slow"]
    check(browser, "shelf")
    assert browser.run(NAMES) == ["slow"]
    assert browser.run("document.getElementById('count').textContent") == "1 of 5 rows"
    check(browser, "slow", "flash:delta=0.15:tau=0.9/0.95:max_age=60")  # no longer slow, which shelf has alone
    assert browser.run(NAMES) == []
    assert browser.run("document.getElementById('none').checkVisibility()")
    browser.run("document.querySelector('button[type=reset]').click()")
    assert browser.run(f"new Promise(done => setTimeout(() => done({NAMES}.length)))") == 5


def test_a_heading_sorts_its_table_and_turns_the_order_round(browser, page):
    browser.open(page)
    press = "[...document.querySelectorAll('table.methods th')].find(e => e.textContent.trim() === 'ms per action')"
    browser.run(f"{press}.querySelector('button').click()")
    assert browser.run(NAMES)[:3] == ["flash", "dense", "slow"]
    browser.run(f"{press}.querySelector('button').click()")
    assert browser.run(NAMES)[:3] == ["slow", "dense", "flash"]
    assert browser.run(f"{press}.getAttribute('aria-sort')") == "descending"


def test_nothing_is_wider_than_the_screen_and_the_dark_page_is_dark(browser, page):
    parts = "[...document.querySelectorAll('.methods, .methods td, .card')]"
    for width, dark in ((320, False), (375, True), (1280, False), (1280, True)):
        browser.open(page, width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") == width
        assert browser.run(f"{parts}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)") == []
        red = int(browser.run("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")[0])
        assert red < 60 if dark else red > 200


def test_a_mark_says_what_it_means_to_who_comes_by_keyboard(browser, page):
    browser.open(page)
    browser.run("document.querySelector('table.methods .badge').focus()")
    tip = browser.run("document.getElementById('tip').checkVisibility() && document.getElementById('tip').textContent")
    assert tip.startswith("loss not excluded: a loss of ")
    browser.press("Escape")
    assert not browser.run("document.getElementById('tip').checkVisibility()")


def test_a_point_of_a_plot_says_its_values(browser, page):
    browser.open(page)
    tips = browser.run("[...document.querySelectorAll('svg [data-tip]')].map(e => e.dataset.tip)")
    assert any(tip.startswith("flash") and "success 87.5 %" in tip for tip in tips)


def test_paper_has_every_column(browser, page):
    browser.open(page)
    assert browser.pdf().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.size(718)  # A4 in CSS pixels, less the margins
    right = "Math.max(...[...document.querySelectorAll('table.methods td')].map(e => e.getBoundingClientRect().right))"
    assert browser.run(right) <= 718
    browser.call("Emulation.setEmulatedMedia", media="")
