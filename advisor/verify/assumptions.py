"""What a user vouches for, at a change that somebody made by hand.

The rules know which operands a condition is about: where one of them matches the code as it was,
the verifier looks at those; elsewhere at the arguments of the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.patch.patching import assumed_conditions
from npufix.advisor.project.source_tree import SourceFile
from npufix.advisor.verify.changed_functions import callers
from npufix.rewriters.edit.site import Basis
from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.advisor.verify.changes import ChangedFile
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.recorded_call import RecordedCall

_MOST_PROBES = 4
_ACTIVATIONS = ("ACT2FN", "get_activation")


@dataclass(frozen=True, slots=True)
class Assumption:
    """What is taken for granted in one function."""

    names: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()
    """The module with a look at the operands in place of what a rule would change."""


class Assumptions:
    """What is taken for granted in the functions of one file."""

    def __init__(
        self,
        file: ChangedFile,
        allow: frozenset[str],
        recorded: Mapping[int, Sequence[RecordedCall]] | None = None,
    ) -> None:
        """Find what the rules know in the code as it was, if it is of interest.

        ``recorded`` holds the operator calls of a run of this very code, by line.
        """
        self._allow = allow
        self._file = file
        self._sites: list[Site] = []
        # Which activation a configuration selects is proven by the source, but the verifier makes
        # up another one.
        if allow or recorded or any(word in file.original for word in _ACTIVATIONS):
            name, data = file.path.name, file.data[0]
            neighbour = SourceFile(file.path, name, data, file.original, "utf-8").neighbour
            self._sites = list(find_sites(file.original, all_rules(), recorded, neighbour))

    def of(self, qualname: str) -> Assumption:
        """Return what is taken for granted in a function, and in those that it calls."""
        names: dict[str, None] = {}
        probes: list[str] = []
        for site in self._sites:
            if site.rewrite is None or not site.rewrite.probe:
                continue
            known = self._known(site)
            if known and self._runs(qualname, site.function):
                names.update(dict.fromkeys(known))
                probes.append(site.rewrite.probe)
        if not names:
            return Assumption(tuple(sorted(self._allow)))
        return Assumption(tuple(names), tuple(probes[:_MOST_PROBES]))

    def _known(self, site: Site) -> list[str]:
        """Return the conditions that hold here, though not in every call one can make up."""
        asked = {c.meaning or c.name: c.name in self._allow for c in site.open_conditions}
        known = [name for name in assumed_conditions(site) if asked.get(name, True)]
        return known + [
            proof.condition.meaning or proof.condition.name
            for proof in site.proofs
            if proof.basis is Basis.PROFILE
        ]

    def _runs(self, qualname: str, other: str) -> bool:
        texts = self._file.original, self._file.original
        return qualname == other or qualname in callers(*texts, other)
