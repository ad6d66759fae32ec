"""The treemap and the timeline by keyboard alone: what is selected is said, shown and reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_checks import Opened, written
from page_samples import sample

from npufix.reports.html.page import to_html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("keys"), to_html(*sample(60, 10)))


def press(page: Page, chart: str, *keys: str) -> str:
    """Press keys on a chart, none of which may scroll the page, and return what is said."""
    page.focus(f"#{chart}")
    before = page.evaluate("scrollY")
    for key in keys:
        page.keyboard.press(key)
    assert page.evaluate("scrollY") == before
    return page.inner_text(f"#{chart}-said")


def tip(page: Page, chart: str) -> str:
    return page.locator(f"#{chart} > div").nth(1).inner_text()


def test_the_treemap_is_walked_through(browser: Browser, file: Path) -> None:
    with Opened(browser, file, reduced_motion="reduce") as page:
        page.locator("#treemap").scroll_into_view_if_needed()
        assert press(page, "treemap").startswith("Op0: ")
        said = press(page, "treemap", "ArrowRight", "ArrowDown", "ArrowLeft")
        assert said.startswith("Op1: ")
        assert said.endswith("(2 of 300)")
        assert "Op1" in tip(page, "treemap")
        assert press(page, "treemap", "Home", "ArrowLeft").startswith("Op0: ")
        assert press(page, "treemap", "Enter").startswith("Op0, 0 float: ")
        inner = press(page, "treemap", "Enter", "Enter")
        assert inner.startswith("Op0, 0 float, src/file0.py:0 f: ")
        assert press(page, "treemap", "Escape", "Backspace").startswith("Op0: ")
        assert press(page, "treemap", "Escape") == ""


def test_the_timeline_is_walked_through(browser: Browser, file: Path) -> None:
    with Opened(browser, file, reduced_motion="reduce") as page:
        page.locator("#timeline").scroll_into_view_if_needed()
        assert press(page, "timeline").startswith("compute, 1 of 1,500: Op0, 20 us @ 0 us")
        said = press(page, "timeline", "ArrowRight", "+", "+")
        assert "compute, 2 of 1,500: Op2" in said
        assert said.endswith("25.0% of the time shown")
        assert "Op2" in tip(page, "timeline")
        below = press(page, "timeline", "ArrowDown")
        assert below.startswith("communication, 1 of 1,500: Op1, 20 us @ 30 us")
        assert press(page, "timeline", "End", "-", "-").startswith("communication, 1,500 of 1,500")
        found = press(page, "timeline", "ArrowDown", "ArrowDown")
        assert found.startswith("findings, 2,400 of 2,400: NPU201")
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#finding-3"
        page.locator("#timeline").scroll_into_view_if_needed()
        assert press(page, "timeline", "Escape") == ""


def test_keys_of_the_page_stay_its_own(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport={"width": 1280, "height": 700}) as page:
        page.locator("#treemap").scroll_into_view_if_needed()
        page.wait_for_selector("#treemap svg")
        page.click("#treemap", position={"x": 40, "y": 40})
        assert page.evaluate("document.activeElement.id") != "treemap"
        page.focus("#treemap")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "timeline"
        assert page.inner_text("#treemap-said") == ""
        page.keyboard.press("ArrowRight")
        page.click("#language")
        page.focus("#timeline")
        assert page.inner_text("#timeline-said").startswith("计算")
