"""What a worker process finds in one file, and what is wrong with a rewrite, as plain data."""

from __future__ import annotations

import ast
import gc
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.rewriters.edit.site import Site
    from npufix.rules.substitution import Safety


_NEW_OBJECTS_BETWEEN_COLLECTIONS = 300_000


def begin() -> None:
    """Look for garbage as seldom as the command does: a third of the time would go to that."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)


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
    written: bool
    """Whether there is a rewrite."""


def scan(path: Path) -> list[Found] | str:
    """Return the sites of a file, or what went wrong."""
    source = path.read_text(encoding="utf-8")
    try:
        sites = find_sites(source, all_rules(), with_text=False)  # ``fault`` reads texts of some
        return [_found(path, site) for site in sites]
    except Exception as error:  # noqa: BLE001 - that nothing is raised is what is tested
        return f"{path}: {error!r}"


def fault(place: Found) -> str:
    """Return what is wrong with the rewrite of a place, "" if nothing."""
    source, sites = _sites_of(place.path, place.rule)
    (site,) = (s for s in sites if _span(s) == place.span)
    return _fault(source, sites, site)


@lru_cache(maxsize=1)  # places of one file and rule come one after the other
def _sites_of(path: Path, identifier: str) -> tuple[str, list[Site]]:
    source = path.read_text(encoding="utf-8")
    return source, list(find_sites(source, [r for r in all_rules() if r.id == identifier]))


def _span(site: Site) -> tuple[str, int, str]:
    return site.function, site.line, site.code


def _found(path: Path, site: Site) -> Found:
    return Found(
        path,
        site.rule.id,
        site.function,
        site.line,
        _span(site),
        site.safety,
        tuple(condition.name for condition in site.open_conditions),
        site.problem,
        site.rewrite is not None,
    )


def _fault(source: str, sites: list[Site], site: Site) -> str:
    assert site.rewrite is not None
    new, line = site.rewrite.direct, site.rewrite.line
    ast.parse(new)
    ast.parse(site.rewrite.portable)
    if new == source:
        return "nothing changed"
    # What a search finds may be changed in several places; the line is that of the first.
    where = new if site.rule.search else new.splitlines()[line - 1]
    if site.rewrite.text.splitlines()[-1].partition("[")[0].split("(")[0] not in where:
        return f"line {line} is not the new code"
    before = Counter(s.function for s in sites if s.rewrite)
    # Below a guard stands one version of the statement; a second site in it stays as it is.
    beside = [s.function for s in sites if s is not site and s.rewrite and s.line == site.line]
    left = {new: [site.function], site.rewrite.portable: [site.function, *beside]}
    if new == site.rewrite.portable:
        left = {new: [site.function]}
    for text, gone in left.items():
        # Behind ``sum(x > 0)`` another finding may be left that nothing is written for.
        again = find_sites(text, [site.rule], with_text=False, chosen_too=True)
        after = Counter(s.function for s in again if s.rewrite)
        if after != before - Counter(gone):
            return f"left after the change: {after}"
    return ""
