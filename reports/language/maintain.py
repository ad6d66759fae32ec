"""Keeps the catalogues: puts new messages in, takes old ones out, compiles (needs Babel)."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from npufix.reports.language import extract
from npufix.reports.language.catalogue import DOMAINS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FOLDER = extract.ROOT / "reports" / "locale" / "zh" / "LC_MESSAGES"
_NO_DATE = datetime(2026, 1, 1, tzinfo=timezone.utc)  # a real one would change every time
_USAGE = "usage: python -m npufix.reports.language extract|compile|missing\n"


def main(words: Sequence[str]) -> int:
    """Run one command; return the exit status."""
    if list(words) == ["extract"]:
        for domain, found in extract.messages().items():
            _write(_po(domain), renewed(domain, found))
    elif list(words) == ["missing"]:
        lost = missing()
        print("\n".join(lost))  # noqa: T201 - what this is for
        return 1 if lost else 0
    elif list(words) != ["compile"]:
        raise SystemExit(_USAGE)
    for domain in DOMAINS:
        _po(domain).with_suffix(".mo").write_bytes(compiled(domain))
    return 0


def renewed(domain: str, found: dict[str, str]) -> Catalog:
    """Return a catalogue with exactly these messages, translated where they were before."""
    known = translations(domain)
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
    if not _po(domain).exists():
        return {}
    with _po(domain).open("rb") as file:
        return {str(m.id): str(m.string) for m in read_po(file, "zh") if m.id and m.string}


def missing() -> list[str]:
    """Return the messages that have no translation."""
    known = {domain: translations(domain) for domain in DOMAINS}
    return [
        message
        for domain, found in extract.messages().items()
        for message in found
        if message not in known[domain]
    ]


def compiled(domain: str) -> bytes:
    """Return a catalogue as gettext reads it."""
    out = io.BytesIO()
    with _po(domain).open("rb") as file:
        write_mo(out, read_po(file, "zh"))
    return out.getvalue()


def _po(domain: str) -> Path:
    return _FOLDER / f"{domain}.po"


def _write(path: Path, catalogue: Catalog) -> None:
    out = io.BytesIO()
    write_po(out, catalogue, width=0, omit_header=False, sort_output=False)
    path.write_bytes(out.getvalue())
