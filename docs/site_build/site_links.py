"""Checks a built site: every link and anchor leads somewhere, nothing is fetched from elsewhere."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_TAG = re.compile(r"<(a|link|script|img|iframe|source|video)\s([^>]*)>")
_ATTRIBUTE = re.compile(r"([\w-]+)=(?:\"([^\"]*)\"|'([^']*)'|([^\s>]+))")
_ANCHOR = re.compile(r"\s(?:id|name)=(?:\"([^\"]+)\"|([^\s>\"]+))")
_FETCHED = {"stylesheet", "icon", "preconnect", "preload", "prefetch", "manifest"}
"""Relations of a link that make a browser ask for something."""
_IN_STYLES = re.compile(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\s\"')]+)")
_NOT_FOUND = "404.html"


@dataclass(frozen=True)
class Page:
    """What a page links to, what a browser fetches for it, and its anchors."""

    links: tuple[str, ...]
    fetched: tuple[str, ...]
    anchors: frozenset[str]


def problems(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere and each request to another place."""
    pages = {path: read(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [line for path in pages for line in _of_page(site, path, pages)]
    found += [
        f"{path.relative_to(site)}: fetches {address}"
        for path in sorted(site.rglob("*.css"))
        for address in _IN_STYLES.findall(path.read_text(encoding="utf-8"))
    ]
    return found


def read(text: str) -> Page:
    """Return what is to be checked of a page."""
    links, fetched = [], _IN_STYLES.findall(text)
    for tag, inside in _TAG.findall(text):
        given = {name: html.unescape("".join(value)) for name, *value in _ATTRIBUTE.findall(inside)}
        if tag == "a":
            links += [given["href"]] if "href" in given else []
        elif tag != "link":
            fetched += [given["src"]] if "src" in given else []
        elif _FETCHED & set(given.get("rel", "").split()):
            fetched += [given["href"]] if "href" in given else []
    anchors = frozenset("".join(found) for found in _ANCHOR.findall(text))
    return Page(tuple(dict.fromkeys(links)), tuple(fetched), anchors)


def _of_page(site: Path, path: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    page, name = pages[path], path.relative_to(site)
    for address in page.fetched:
        parts = urlsplit(address)
        if parts.netloc or parts.scheme not in {"", "data"}:
            yield f"{name}: fetches {address}"
    for address in [*page.links, *page.fetched]:
        parts = urlsplit(address)
        if not (parts.scheme or parts.netloc) and not _leads(site, path, address, pages):
            yield f"{name}: {address} leads nowhere"


def _leads(site: Path, path: Path, address: str, pages: Mapping[Path, Page]) -> bool:
    parts = urlsplit(address)
    # What is shown for a page that is not found is shown at any depth: its links start at the root.
    start = site if path.name == _NOT_FOUND else path.parent
    target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if parts.fragment and target in pages:
        return bool({parts.fragment, unquote(parts.fragment)} & pages[target].anchors)
    return target.is_file()
