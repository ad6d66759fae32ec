"""One browser for all tests of pages: Debian's Chromium, headless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_checks import CHROMIUM, QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a browser that asks nobody for anything."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()
