"""What a user vouches for, at a change that somebody made by hand.

The rules know which operands a condition is about: where one of them matches the code as it was,
the verifier looks at those; elsewhere at the arguments of the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.project.source_tree import SourceFile
from npufix.advisor.verify.changed_functions import callers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.advisor.verify.changes import ChangedFile
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rules.substitution import Condition

_MOST_PROBES = 4
_ACTIVATIONS = ("ACT2FN", "get_activation")


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is taken for granted in one function."""

    names: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    """The module with a look at the operands in place of what a rule would change."""
    inference: bool = False
    """The user says that nobody wants gradients there."""
    alone: bool = False
    """The change is named in the header of a patch of npufix, which knows the code around it."""
    known: tuple[str, ...] = ()
    """What that code proves of the changes."""


class Assumptions:
    """What is taken for granted in the functions of one file."""

    def __init__(
        self,
        file: ChangedFile,
        allow: frozenset[str],
        recorded: Mapping[int, Sequence[RecordedCall]] | None = None,
        granted: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        """Find what the rules know in the code as it was, if it is of interest.

        ``recorded`` holds the operator calls of a run of this very code, by line; ``granted`` what
        holds in single functions, besides what is allowed in all.
        """
        self._allow = allow
        self._granted = granted or {}
        self._file = file
        self._sites: list[Site] = []
        # Which activation a configuration selects is proven by the source, but the verifier makes
        # up another one.
        if allow or granted or recorded or any(word in file.original for word in _ACTIVATIONS):
            # A matcher with a parser of its own takes longer to import than most changes to read.
            from npufix.rewriters.find import find_sites
            from npufix.rules.registry import all_rules

            name, data = file.path.name, file.data[0]
            source = SourceFile(file.path, name, data, file.original, "utf-8")
            neighbour, width = source.neighbour, source.line_width
            self._sites = list(
                find_sites(file.original, all_rules(), recorded, neighbour, width=width)
            )

    def of(self, qualname: str) -> Assumption:
        """Return what is taken for granted in a function, and in those that it calls."""
        names: dict[str, None] = {}
        proven: dict[str, None] = {}
        probes: list[str] = []
        inference = False
        alone = qualname in self._granted
        for site in self._sites:
            if site.rewrite is None or not site.rewrite.probe:
                continue
            known = self._list_known(site)
            around = site.proven_names if alone and site.function == qualname else ()
            if (known or around) and self._runs(qualname, site.function):
                names.update(dict.fromkeys(known))
                proven.update(dict.fromkeys(around))
                probes.append(site.rewrite.probe)
                inference |= any(c.excludes_gradients for c in self._list_allowed(site))
        allowed = sorted(self._allow | self._granted.get(qualname, frozenset()))
        if allowed and not names:  # then they are asked of arguments, not of operands
            return Assumption(tuple(allowed), alone=alone)
        return Assumption(
            tuple(names), tuple(probes[:_MOST_PROBES]), inference, alone, tuple(proven)
        )

    def _list_allowed(self, site: Site) -> list[Condition]:
        known = self._allow | self._granted.get(site.function, frozenset())
        return [c for c in site.open_conditions if c.name in known]

    def _list_known(self, site: Site) -> list[str]:
        """Return the conditions that hold here, though not in every call one can make up."""
        from npufix.advisor.patch.patching import list_assumed_conditions

        allowed = self._list_allowed(site)
        asked = {c.meaning or c.name: c in allowed for c in site.open_conditions}
        return [name for name in list_assumed_conditions(site) if asked.get(name, True)]

    def _runs(self, qualname: str, other: str) -> bool:
        texts = self._file.original, self._file.original
        return qualname == other or qualname in callers(*texts, other)
