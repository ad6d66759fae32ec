"""What a worker process finds in one file, as plain data."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.sites import Site, find_sites
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.rules.substitution import Safety


class Found(NamedTuple):
    """A site without its graph."""

    path: Path
    rule: str
    function: str
    line: int
    span: tuple[str, int, str]
    safety: Safety
    conditions: tuple[str, ...]
    problem: str
    fault: str
    """What is wrong with the rewrite."""


def scan(path: Path) -> list[Found] | str:
    """Return the sites of a file, or what went wrong."""
    source = path.read_text(encoding="utf-8")
    try:
        sites = list(find_sites(source, all_rules()))
        return [_found(path, source, sites, site) for site in sites]
    except Exception as error:  # noqa: BLE001 - that nothing is raised is what is tested
        return f"{path}: {error!r}"


def _found(path: Path, source: str, sites: list[Site], site: Site) -> Found:
    return Found(
        path,
        site.rule.id,
        site.function,
        site.line,
        (site.function, site.line, site.code),
        site.safety,
        tuple(condition.name for condition in site.open_conditions),
        site.problem,
        _fault(source, sites, site),
    )


def _fault(source: str, sites: list[Site], site: Site) -> str:
    if site.rewrite is None:
        return ""
    new, line = site.rewrite.direct, site.rewrite.line
    ast.parse(new)
    ast.parse(site.rewrite.portable)
    if new == source:
        return "nothing changed"
    if site.rewrite.text.splitlines()[-1].split("(")[0] not in new.splitlines()[line - 1]:
        return f"line {line} is not the new code"
    before = Counter(s.function for s in sites if s.rule is site.rule)
    for text in {new, site.rewrite.portable}:
        after = Counter(s.function for s in find_sites(text, [site.rule]))
        if after != before - Counter([site.function]):
            return f"left after the change: {after}"
    return ""
