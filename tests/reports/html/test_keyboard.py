"""The time line and the icicle by keyboard alone: what is selected is said and reached."""

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
    """Press keys on a picture, none of which may scroll the page, and return what is said."""
    page.focus(f"#{chart}")
    before = page.evaluate("scrollY")
    for key in keys:
        page.keyboard.press(key)
    assert page.evaluate("scrollY") == before
    return page.inner_text(f"#{chart}-said")


def test_the_icicle_is_walked_through(browser: Browser, file: Path) -> None:
    with Opened(browser, file) as page:
        page.locator("#icicle").scroll_into_view_if_needed()
        assert press(page, "icicle").startswith("step: ")
        assert press(page, "icicle", "ArrowDown").startswith("computing: ")
        assert press(page, "icicle", "ArrowRight").startswith("idle: 9 ms, ")
        for key in ("Home", *(["ArrowDown"] * 3)):
            page.keyboard.press(key)
        line = page.inner_text("#icicle-said")
        assert line.startswith("computing; Model_0; Op")
        assert "src/file" in line
        assert "● " in line  # there is a finding at it
        page.keyboard.press("ArrowDown")
        assert page.inner_text("#icicle-said").split(":")[-2].endswith(("(forward)", "(backward)"))
        page.keyboard.press("Enter")
        assert page.inner_text("#icicle-said").startswith("computing; ")
        assert press(page, "icicle", "Escape") == ""


def test_the_timeline_is_walked_through(browser: Browser, file: Path) -> None:
    with Opened(browser, file) as page:
        page.locator("#timeline").scroll_into_view_if_needed()
        assert press(page, "timeline").startswith("host, 1 of 1,000: Op0, 20 µs @ 0 µs")
        said = press(page, "timeline", "ArrowRight", "+", "+")
        assert "host, 2 of 1,000: Op3" in said
        assert said.endswith("25.0% of the time shown")
        below = press(page, "timeline", "ArrowDown")
        assert below.startswith("compute, 2 of 1,000: Op4, 20 µs @ 120 µs")
        assert "● 4 NPU201" in below
        page.keyboard.press("Enter")
        assert page.evaluate("location.hash") == "#finding-3"
        page.locator("#finding-3[open]").wait_for()  # it is opened when the address has changed
        idle = press(page, "timeline", *(["ArrowDown"] * 3), "End")
        assert idle.startswith("idle, 3,000 of 3,000: idle: not launched yet, 10 µs")
        assert press(page, "timeline", "Escape") == ""


def test_keys_of_the_page_stay_its_own(browser: Browser, file: Path) -> None:
    with Opened(browser, file, viewport={"width": 1280, "height": 700}) as page:
        page.locator("#icicle").scroll_into_view_if_needed()
        page.click("#icicle", position={"x": 40, "y": 10})
        assert page.evaluate("document.activeElement.id") != "icicle"
        page.focus("#icicle")
        page.keyboard.press("Tab")
        assert page.inner_text("#icicle-said") == ""
        page.click("#language")
        page.focus("#timeline")
        assert page.inner_text("#timeline-said").startswith("主机")
