"""What a search has found: arguments, the lines that they reach, and why there are none."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import Spec, Value
from npufix.rewriters.verification.inputs.objects.offers import StandInLayer
from npufix.rewriters.verification.inputs.source.path_conditions import find_setting
from npufix.rewriters.verification.verdict import NOTHING_RUNS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.verification.calls.coverage import Place
    from npufix.rewriters.verification.inputs.target import Assignment

NO_OBJECT = "no object of the class can be made"
MOST_EXPIRED = 2
_MOST_WANTING = 200
_MOST_ALIKE = 1000
_MOST_KNOWN = 1500
"""Twice as many calls in succession as ever taught nothing before one that ran."""
_NOT_TAKEN = re.compile(r"got an unexpected keyword argument\b")
_MOST_NOT_TAKEN = 100
_MOST_WIDTHS = 4
_MOST_REFUSED = 400
_WIDTHS = (
    r"shapes cannot be multiplied \(\d+x(?P<given>\d+) and (?P<taken>\d+)x",
    r"to have (?P<taken>\d+) channels, but got (?P<given>\d+) channels",
    r"expected input with shape \[\*, (?P<taken>\d+)\], but got .*?(?P<given>\d+)\]$",
    r"running_mean should contain (?P<given>\d+) elements not (?P<taken>\d+)",
    r"(?i)expect(?:ed|ing embedding dimension of) (?P<taken>\d+), (?:but )?got (?P<given>\d+)$",
)
"""How layers refuse what is as wide as they are not."""
_SIZES = (
    r"Expected size (\d+) but got size (\d+) for tensor number",
    r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)",
    r"expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)",
    r"first two dimensions of batch2 tensor to be: \[\d+, (\d+)\] but got: \[\d+, (\d+)\]",
    r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x",
    r"to have (\d+) channels, but got (\d+) channels",
    r"Expected target size \[(?:\d+, )*(\d+)\], got \[(?:\d+, )*(\d+)\]",
    r"input batch_size \((\d+)\) to match target batch_size \((\d+)\)",
    r"mask \[(\d+)[\d, ]*\] at index 0 does not match the shape of the indexed tensor \[(\d+)",
)
"""How operators refuse tensors that do not go together."""


@dataclass(slots=True)
class SearchResult:
    """The result of a search."""

    assignments: list[Assignment] = field(default_factory=list)
    reached: set[Place] = field(default_factory=set)
    ran: bool = False
    """Whether the original ran at all, reaching the lines or not."""
    outside: bool = False
    """Whether a call was left out that is not within what the user vouches for."""
    errors: Counter[str] = field(default_factory=Counter)
    errors_as_declared: Counter[str] = field(default_factory=Counter)
    """Of the search within all that the text says, where a later one was within less of it."""
    expired: int = 0
    time_is_up: bool = False
    """Whether a search for them ended by its time, with more to try."""
    uncalled: dict[str, list[str]] = field(default_factory=dict)
    """Methods that write what the function reads, and of which no call was found that runs.

    With what they change little by little and no method that was called does.
    """
    called: set[str] = field(default_factory=set)
    """Methods of which one was found, by whatever object."""
    not_made: str = ""
    """What ``__init__`` raises, where no object of the class was made by it."""

    wanting: int = 0
    """Calls in succession that all miss a part of what they are called on."""
    alike: Counter[str] = field(default_factory=Counter)
    """How many calls in succession ask tensors for the same that no tensor has: ``gt.bboxes``."""
    not_taken: Counter[str] = field(default_factory=Counter)
    """How many calls fail, and none runs, for a keyword that what the object holds does not take.

    ``self.fn(x, mask=mask)`` of a layer does, whatever it is given.
    """
    kinds: set[str] = field(default_factory=set)
    """What calls have raised, without its numbers."""
    known: int = 0
    """Calls in succession that have raised nothing new, where none has run."""

    refused: list[tuple[Assignment, str]] = field(default_factory=list)
    """Calls whose tensors do not go together, the first few, and what each has raised."""

    def note(self, error: str, owner: str, assignment: Assignment | None = None) -> None:
        """Count what a call has raised."""
        room = len(self.refused) < _MOST_REFUSED
        if assignment is not None and room and read_sizes(error) is not None:
            self.refused.append((assignment, error))
        self.errors[error] += 1
        kind = re.sub(r"\d+", "", error)
        self.known = 0 if kind not in self.kinds or self.ran else self.known + 1
        lacking = re.match(r"AttributeError: '(\w+)' object has no attribute", error)
        misses = lacking is not None and lacking[1] in {owner, StandInLayer.__name__}
        # beside others of which as much is known: of None, where that is another guess
        self.wanting = self.wanting + 1 if misses else self.wanting if kind in self.kinds else 0
        self.kinds.add(kind)
        of_tensors = lacking is not None and lacking[1] == "Tensor"
        self.alike = Counter({error: self.alike[error] + 1} if of_tensors else {})
        self.not_taken[error] += _NOT_TAKEN.search(error) is not None

    def ends(self, until: float) -> bool:
        """Say whether a search is to end.

        By its processor time, as calls do not return, or as no argument helps.
        """
        learns = self.known < _MOST_KNOWN
        learns = learns and max(self.not_taken.values(), default=0) < _MOST_NOT_TAKEN
        if self.wanting >= _MOST_WANTING or self.alike.total() >= _MOST_ALIKE or not learns:
            self.wanting, self.alike, self.known, self.not_taken = 0, Counter(), 0, Counter()
            return True
        now = time.process_time() > until
        self.time_is_up |= now
        return now or self.expired >= MOST_EXPIRED

    def list_widths(self) -> list[tuple[int, int]]:
        """Return what layers take, and what they were given instead, the most frequent first."""
        found = Counter[tuple[int, int]]()
        for error, count in self.errors.items():
            seen = next(filter(None, (re.search(p, error) for p in _WIDTHS)), None)
            if seen is not None:
                found[int(seen["taken"]), int(seen["given"])] += count
        return [widths for widths, _ in found.most_common(_MOST_WIDTHS)]

    @property
    def is_thin(self) -> bool:
        """Whether every call passes a one: into patches of one pixel, any width is cut."""
        values = [[s for s in a.specs.values() if isinstance(s, Value)] for a in self.assignments]
        return all(
            any(s.given and type(s.value) is int and s.value == 1 for s in v) for v in values
        )

    @property
    def reason(self) -> str:
        """Why there are no assignments."""
        if self.expired >= MOST_EXPIRED:
            return f"the original does not return within {CALL_S:g} s"
        rest = "; there was more to try when the time was up" if self.time_is_up else ""
        if self.outside:
            return "no arguments were found that meet the conditions" + rest
        if self.ran:
            return "no arguments were found that reach the rewritten lines" + rest
        declared, others = (
            next((error for error, _ in errors.most_common(1)), "")
            for errors in (self.errors_as_declared, self.errors)
        )
        common = declared or others
        why = f"; most often: {common}" if common else ""
        if others not in common:
            why += f"; without what its text says: {others}"
        missing = next(
            (e for e in self.errors if e.startswith(ImportError.__name__) and e not in why), ""
        )
        why += f"; calls that come further: {missing}" if missing else ""
        if self.not_made:
            why = "" if common == NO_OBJECT else why
            why += f"; no object of its class can be made: {self.not_made}"
        else:
            why += rest + "; --assume says what callers pass: 'x: float[b, t, d]'"
        return f"{NOTHING_RUNS}{why}"


def read_sizes(error: str) -> tuple[int, int] | None:
    """Return the two sizes that an error says should be one."""
    seen = next(filter(None, (re.search(pattern, error) for pattern in _SIZES)), None)
    return None if seen is None else (int(seen[1]), int(seen[2]))


def vary_refused(
    found: SearchResult, owner: type | None, settings: Mapping[str, object]
) -> Iterator[dict[str, Spec]]:
    """Yield what else to make an object with, by what calls have raised on those so far.

    As wide as what its layers were given; and so that it has what calls have missed of it.
    """
    if owner is None:
        return
    for taken, given in found.list_widths():
        yield from _vary_width(settings, taken, given)
    for error, _ in found.errors.most_common(_MOST_WIDTHS):
        missed = re.match(r"AttributeError: '(\w+)' object has no attribute '(\w+)'", error)
        if missed is not None and missed[1] == owner.__name__:
            asked: dict[str, Spec] = {
                n: Value(v) for n, v in find_setting(owner, missed[2]).items() if n in settings
            }
            yield from [asked] * bool(asked)


def _vary_width(
    settings: Mapping[str, object], taken: int, given: int
) -> Iterator[dict[str, Spec]]:
    """Yield what else to make an object with, so that a layer takes what it was given.

    ``in_dim=16`` and ``hidden=(16, 4)`` in place of 8 each.
    """
    for name, value in settings.items():
        if type(value) is int and value == taken:
            yield {name: Value(given)}
        elif isinstance(value, tuple) and value[:1] == (taken,):
            yield {name: Value((given, *value[1:]))}
