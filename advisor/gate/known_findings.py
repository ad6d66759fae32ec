"""Which findings of a source are new: a gate that needs no dump."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from npufix.reports.known_findings import Known, from_json, known
from npufix.reports.report import ReportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from npufix.reports.data.sources import Sources
    from npufix.reports.report import Finding


@dataclass(frozen=True, slots=True)
class ComparedFindings:
    """The findings of a source beside those of its baseline."""

    new: list[Finding]
    gone: list[Known]
    known: int
    """How many of the findings the baseline holds."""


@dataclass(frozen=True)
class Searched:
    """What was looked at: an entry elsewhere is neither gone nor moved."""

    sources: Sources
    files: frozenset[str]
    """Below the source root."""
    rules: frozenset[str]
    """Ids."""
    _texts: dict[str, str | None] = field(default_factory=dict, init=False, compare=False)

    @property
    def paths(self) -> frozenset[str]:
        """Return the files from the repository on."""
        return frozenset(map(self.path, self.files))

    def path(self, relative: str) -> str:
        """Return a path of a finding from the repository on."""
        return self.sources.relative(relative) or relative

    def has_home(self, entry: Known) -> bool:
        """Tell whether the function of an entry is still in its file."""
        text = self._text_of(entry.path)
        if text is None:
            return False
        name = entry.function.rpartition(".")[2]
        return not name.isidentifier() or re.search(rf"\b(def|class)\s+{name}\b", text) is not None

    def _text_of(self, path: str) -> str | None:
        """Return a file, None if it cannot be read; once, however many entries are of it."""
        if path not in self._texts:
            try:
                text = (self.sources.repository / path).read_text("utf-8", "replace")
            except OSError:
                text = None
            self._texts[path] = text
        return self._texts[path]

    def covers(self, entry: Known, paths: frozenset[str]) -> bool:
        """Tell whether an entry would have been found if it were still there."""
        if entry.rule not in self.rules:
            return False
        return entry.path in paths or not (self.sources.repository / entry.path).exists()


def read(path: Path) -> list[Known]:
    """Read a baseline.

    Raises:
        ReportError: there is none, or it cannot be used.

    """
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        remedy = "write it with npufix scan SOURCE --write-baseline FILE"
        raise ReportError(f"{path}: {error.strerror} -- {remedy}") from error
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from error


def compare(
    findings: Sequence[Finding], before: Sequence[Known], searched: Searched
) -> ComparedFindings:
    """Tell the new findings from the known ones.

    A finding is known by its rule, file, function and code, as often as the baseline holds it.
    What is left on both sides is the same finding in a renamed function of its file where rule and
    code agree, or in a renamed or another file where rule, function and code agree, and nothing
    else could be meant; or in a function of another name in another file, where as many of a rule
    and code came as went with functions that are not there any more.
    """
    paths = searched.paths
    missing: dict[str, list[Known]] = defaultdict(list)
    for found in before:
        # A baseline of runs names files from the source on.
        path = searched.path(found.path) if found.fingerprint else found.path
        entry = msgspec.structs.replace(found, path=path)
        missing[entry.fingerprint or str(entry)].append(entry)
    new: list[tuple[Known, Finding]] = []
    for finding in findings:
        entry = known(finding, searched.path(finding.path))
        key = next((k for k in (str(entry), entry.fingerprint) if missing.get(k)), None)
        if key is None:
            new.append((entry, finding))
        else:
            missing[key].pop()
    left = [e for entries in missing.values() for e in entries if searched.covers(e, paths)]
    entries = [entry for entry, _ in new]
    moved_to, moved_from = _find_moved(entries, left)
    _add_renamed(entries, left, moved_to, moved_from, searched)
    fresh = [f for number, (_, f) in enumerate(new) if number not in moved_to]
    gone = sorted(entry for number, entry in enumerate(left) if number not in moved_from)
    return ComparedFindings(fresh, gone, len(findings) - len(fresh))


def _find_moved(new: Sequence[Known], left: Sequence[Known]) -> tuple[set[int], set[int]]:
    """Return the positions of what is the same on both sides, one function to one other."""
    to, of = set[int](), set[int]()
    for same in ("path", "function"):
        there: dict[tuple[str, ...], list[int]] = defaultdict(list)
        here: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for entries, by, done in ((left, there, of), (new, here, to)):
            for number, entry in enumerate(entries):
                if entry.code and number not in done:
                    by[entry.rule, entry.code, getattr(entry, same)].append(number)
        for key, numbers in here.items():
            old = there.get(key, [])
            if len({_home(new[n]) for n in numbers}) == len({_home(left[n]) for n in old}) == 1:
                pairs = list(zip(numbers, old, strict=False))
                to |= {n for n, _ in pairs}
                of |= {n for _, n in pairs}
    return to, of


def _add_renamed(
    new: Sequence[Known],
    left: Sequence[Known],
    moved_to: set[int],
    moved_from: set[int],
    searched: Searched,
) -> None:
    """Add what went with its function and came in another, whatever both are called."""
    went: dict[tuple[str, str], list[int]] = defaultdict(list)
    came: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, entry in enumerate(left):
        if entry.code and number not in moved_from and not searched.has_home(entry):
            went[entry.rule, entry.code].append(number)
    for number, entry in enumerate(new):
        if number not in moved_to:
            came[entry.rule, entry.code].append(number)
    for key, numbers in came.items():
        if len(numbers) == len(went.get(key, [])):
            moved_to.update(numbers)
            moved_from.update(went[key])


def _home(entry: Known) -> tuple[str, str]:
    return entry.path, entry.function


def merge_findings(
    findings: Iterable[Finding], before: Iterable[Known], searched: Searched
) -> list[Known]:
    """Return the entries of a new baseline; what was not searched stays as it is."""
    paths = searched.paths
    kept = [entry for entry in before if not searched.covers(entry, paths)]
    return [*kept, *(known(f, searched.path(f.path)) for f in findings)]
