"""Files that a program writes: the change belongs into what they are made from."""

from __future__ import annotations

import re
from dataclasses import replace

from npufix.rewriters.edit.site import Basis, Proof, Site
from npufix.rules.substitution import Condition

GENERATED_FILE = "generated-file"
_HEADER_LINES = 40
_FROM = re.compile(
    r"generated (?:automatically )?(?:from|by|with) (?P<source>[\w./\\-]+)",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"@generated\b|\bauto-?generated\b|\bautomatically generated\b"
    r"|\bgenerated\b.*\bdo not (edit|modify)\b|\bdo not (edit|modify)\b.*\bgenerated\b",
    re.IGNORECASE,
)
_DO_NOT_EDIT = re.compile(r"\bDO NOT (EDIT|MODIFY)\b")


def find_origin(text: str) -> str | None:
    """Return what a file says that it is made from, "" if it only says so; ``None`` if it is not.

    Only comments above the code count: a program that writes such headers holds them as strings.
    """
    marked = False
    header = _header(text)
    for line in header:
        if (match := _FROM.search(line)) and _looks_like_a_file(match["source"]):
            return match["source"].rstrip(".")
        marked = marked or bool(_MARK.search(line) or _DO_NOT_EDIT.search(line))
    return "" if marked else None


def _looks_like_a_file(name: str) -> bool:
    return "/" in name or re.search(r"\.\w{1,5}\.?$", name) is not None


def _header(text: str) -> list[str]:
    lines = []
    for line in text.split("\n", _HEADER_LINES)[:_HEADER_LINES]:
        bare = line.strip().lstrip("\ufeff")
        if bare and not bare.startswith("#"):
            break
        lines.append(bare)
    return lines


def with_condition(site: Site, source: str) -> Site:
    """Return the site with one more open condition: that this generated file may be changed."""
    return replace(site, proofs=(*site.proofs, Proof(condition(source), Basis.OPEN)))


def condition(source: str) -> Condition:
    """Return the condition under which a generated file is changed."""
    made = f"; change {source} instead" if source else ""
    return Condition(
        GENERATED_FILE,
        f"this generated file may be changed, which its next generation undoes{made}",
        lambda _site: None,
    )
