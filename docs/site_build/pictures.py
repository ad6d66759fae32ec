"""Make the pictures of README and the documentation: `make pictures`.

They show what the bundled example prints and its page, so they are made again where these change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, get_args

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
Scheme = Literal["light", "dark"]
PICTURES = ROOT / "docs/pictures"
COMMAND = ("diagnose", "dump", "--source", "bert_like")
# What rich would write asks a server for its font; a viewer's own serves as well.
_WITHOUT_FONT_FACES = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{ font-family: Consolas, Menlo, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px; line-height: {line_height}px }}
    .{unique_id}-title {{ font: bold 18px sans-serif }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">{matrix}</g>
  </g>
</svg>
"""


def printed() -> str:
    """Return what the terminal's picture shows, with its colours."""
    return _run("--color", *COMMAND)


def _run(*arguments: str) -> str:
    environment = os.environ | {"COLUMNS": "100", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-m", "npufix", *arguments]
    return subprocess.run(
        command, cwd=ROOT / "examples", env=environment, check=True, text=True, capture_output=True
    ).stdout


def _draw_terminal() -> None:
    console = Console(record=True, width=100, file=StringIO())
    console.print(Text.from_ansi(printed()))
    console.save_svg(
        str(PICTURES / "terminal.svg"),
        title=f"npufix {' '.join(COMMAND)}",
        theme=SVG_EXPORT_THEME,
        code_format=_WITHOUT_FONT_FACES,
        unique_id="terminal",
    )


def _draw_page(browser: Browser, page_file: Path, scheme: Scheme) -> None:
    page = browser.new_page(
        viewport={"width": 1280, "height": 860}, color_scheme=scheme, reduced_motion="reduce"
    )
    page.goto(page_file.as_uri())
    page.screenshot(path=str(PICTURES / f"page-{scheme}.png"))
    page.close()


def main() -> None:
    """Write the pictures."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - a test asks for the text only

    _draw_terminal()
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder, "report.html")
        _run(*COMMAND, "--html", str(page_file))
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for scheme in get_args(Scheme):
            _draw_page(browser, page_file, scheme)
        browser.close()


if __name__ == "__main__":
    main()
