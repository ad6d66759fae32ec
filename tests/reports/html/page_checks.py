"""A page in a real browser, and what must never happen in one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import axe_core_python

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text("utf-8")
# A browser that asks nobody for anything.
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


class Opened:
    """A page, and everything in it that should not have happened."""

    def __init__(self, browser: Browser, file: Path, **context: Any) -> None:
        self.faults: list[str] = []
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(600_000)  # milliseconds: on a slow machine as well
        self.page.on("console", lambda m: self.faults.append(m.text))
        self.page.on("pageerror", lambda error: self.faults.append(error.stack or str(error)))
        self.page.on("request", lambda r: r.url.startswith("file:") or self.faults.append(r.url))
        self.page.goto(file.as_uri())

    def __enter__(self) -> Page:
        return self.page

    def __exit__(self, *error: object) -> None:
        self.context.close()
        assert error[0] or not self.faults, self.faults


def written(folder: Path, text: str) -> Path:
    path = folder / "report.html"
    path.write_text(text, "utf-8")
    return path


def wait_until_drawn(page: Page, canvas: str) -> None:
    """Wait until a canvas that is looked at holds anything; what is out of sight is not drawn."""
    page.locator(canvas).scroll_into_view_if_needed()
    page.wait_for_function(
        """(id) => {
          const canvas = document.querySelector(id), blank = document.createElement("canvas");
          [blank.width, blank.height] = [canvas.width, canvas.height];
          return canvas.toDataURL() !== blank.toDataURL();
        }""",
        arg=canvas,
        polling=200,
    )


def violations(page: Page) -> list[object]:
    """Return what axe finds; the page's policy forbids inserted scripts, not evaluated ones."""
    page.evaluate(AXE + "; undefined")
    found: list[object] = page.evaluate(
        "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes[0].html]))"
    )
    return found


def shown_rows(page: Page, table: str) -> list[list[str]]:
    """Return the texts of a whole table, turned page by page."""
    found: list[list[str]] = page.evaluate(
        """(name) => {
          const rows = [], table = document.getElementById(`t-${name}`);
          const pager = document.querySelector(`[data-pager="${name}"]`);
          for (;;) {
            const texts = (row) => [...row.cells].map((cell) => cell.innerText.trim());
            rows.push(...[...table.tBodies[0].rows].map(texts));
            const next = pager.querySelector('[data-step="1"]:enabled');
            if (!next) return rows;
            next.click();
          }
        }""",
        table,
    )
    return found
