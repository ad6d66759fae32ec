"""Keeps the catalogues: puts new messages in, takes old ones out (needs Babel)."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po

from npufix.reports.language import extract
from npufix.reports.language.catalogue import read_messages

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = extract.ROOT / "reports" / "locale" / "zh" / "LC_MESSAGES"
_NO_DATE = datetime(2026, 1, 1, tzinfo=timezone.utc)  # a real one would change every time


def main() -> int:
    """Bring the ``.po`` files up to date, and say what is still to be translated in them."""
    for domain, found in extract.messages().items():
        known = translations(domain)
        with _po(domain).open("wb") as file:
            write_po(file, renew(domain, found, known), width=0, sort_output=False)
        for message in found:
            if message not in known:
                print(f"{_po(domain).name}: {message}")  # noqa: T201 - what this is for
    return 0


def renew(domain: str, found: dict[str, str], known: dict[str, str]) -> Catalog:
    """Return a catalogue with exactly these messages, translated where they are ``known``."""
    catalogue = Catalog(
        locale="zh", domain=domain, project="npufix", charset="utf-8", fuzzy=False,
        header_comment=f"# What npufix says ({domain}), in Chinese.", creation_date=_NO_DATE,
        revision_date=_NO_DATE,
    )  # fmt: skip
    for message, place in sorted(found.items(), key=lambda item: (item[1], item[0])):
        catalogue.add(message, known.get(message, ""), locations=[(place, 0)])
    return catalogue


def translations(domain: str) -> dict[str, str]:
    """Return what a catalogue holds."""
    return read_messages(_po(domain).read_text(encoding="utf-8"))


def _po(domain: str) -> Path:
    return _FOLDER / f"{domain}.po"
