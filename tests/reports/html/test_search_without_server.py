"""The documentation is opened as files, where a browser starts no worker for the search."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SHIM = Path(__file__).resolve().parents[3] / "docs/scripts/iframe-worker.js"


def test_a_worker_answers_in_a_page_opened_as_a_file(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "part.js").write_text("self.suffix = '!';", encoding="utf-8")
    (tmp_path / "worker.js").write_text(
        "addEventListener('message', async event => {\n"
        "  const base = document.querySelector('script[src]').src.split('/worker')[0];\n"
        "  await importScripts(base + '/part.js');\n"
        "  postMessage(event.data + suffix);\n"
        "});",
        encoding="utf-8",
    )
    page_file = tmp_path / "page.html"
    page_file.write_text(
        f"<!doctype html><head><script>{SHIM.read_text(encoding='utf-8')}</script></head><body>",
        encoding="utf-8",
    )
    page = browser.new_page()
    page.goto(page_file.as_uri())
    answer = page.evaluate(
        """() => new Promise(resolve => {
          const worker = new Worker(new URL('worker.js', location.href));
          worker.addEventListener('message', event => resolve(event.data));
          worker.postMessage('found');
        })"""
    )
    assert answer == "found!"
    page.close()
