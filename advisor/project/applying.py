"""Carrying out the changes of several sites of one file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.programs.files import find_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npufix.rewriters.edit.site import Rewrite, Site
    from npufix.rules.substitution import Substitution


def _again(
    text: str,
    rule: Substitution,
    neighbour: Callable[[str], str | None] | None,
    width: int | None,
) -> Iterator[Site]:
    if rule.files:
        return find_settings(text, rule.files[0], [rule])
    from npufix.rewriters.find import find_sites  # who only shows what was found goes without

    return find_sites(text, [rule], neighbour=neighbour, chosen_too=True, width=width)


def apply_in_order(
    text: str,
    sites: Iterable[Site],
    neighbour: Callable[[str], str | None] | None,
    write: Callable[[Site, Site, Rewrite], str],
    width: int | None = None,
) -> tuple[str, list[Site]]:
    """Return a text with the changes of sites that were found in it, and those in the way.

    Each is looked up again in the text so far: ``write`` gets the site, the same site there and its
    rewrite, and returns the new text. From the last line to the first: what stands above a change
    stays where it is in its function, so that twins of the same code are told apart. Of
    ``a = norm(x)`` in line 3 and line 7 of a function, line 7 is changed first; then what is left
    at depth 3 can only be the other. ``width`` is how long a line may be.
    """
    failed: list[Site] = []
    for site in sorted(sites, key=lambda s: -s.line):
        rule = dataclasses.replace(site.rule, forms=(site.form,))
        again = [
            s
            for s in _again(text, rule, neighbour, width)
            if (s.function, s.code) == (site.function, site.code)
        ]
        same = min(again, key=lambda s: abs(s.depth - site.depth), default=None)
        if same is None or same.rewrite is None:
            failed.append(site)
        else:
            text = write(site, same, same.rewrite)
    return text, failed
