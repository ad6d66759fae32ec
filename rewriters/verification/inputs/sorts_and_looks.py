"""What a search has tried and found: which sorts of arguments work, how those look that do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import Value
from npufix.rewriters.verification.inputs.arguments import look_of, sketch_of, sort_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.verification.calls.coverage import Place
    from npufix.rewriters.verification.calls.values import Spec
    from npufix.rewriters.verification.inputs.target import Assignment

NO_OBJECT = "no object of the class can be made"
MOST_EXPIRED = 2
_HOPELESS = 16
"""Calls that fail with an argument of one sort, where others of it work."""
_MOST_ALIKE = 1
"""That differ from others in plain floating numbers alone: another rank says more."""


@dataclass(slots=True)
class Sorts:
    """Which sorts of arguments the original takes; what fails beside those is left out."""

    works: set[tuple[str, object]] = field(default_factory=set)
    failed: Counter[tuple[str, object]] = field(default_factory=Counter)

    def are_hopeless(self, assignment: Assignment) -> bool:
        """Say whether one of a call's sorts has failed again and again where the others work."""
        return any(self.failed[one] >= _HOPELESS for one in self._unknown(assignment))

    def note(self, assignment: Assignment, *, works: bool) -> None:
        """Remember how a call went; of one in which several sorts are new, nothing is learned."""
        unknown = self._unknown(assignment)
        if works:
            self.works |= unknown
        elif len(unknown) == 1:
            self.failed.update(unknown)

    def _unknown(self, assignment: Assignment) -> set[tuple[str, object]]:
        return {(n, sort_of(s)) for n, s in assignment.specs.items()} - self.works


@dataclass(slots=True)
class Looks:
    """How the assignments look that were kept: what looks like one of them says nothing new."""

    known: set[tuple[object, ...]] = field(default_factory=set)
    sketches: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def say_nothing(self, assignment: Assignment, *, any_sketch: bool) -> bool:
        """Say whether an assignment looks like some that are known."""
        alike = self.sketches[sketch_of(assignment.specs)] > 0
        enough = self.sketches.total() - len(self.sketches) >= _MOST_ALIKE
        return look_of(assignment.specs) in self.known or (alike and enough and not any_sketch)

    def note(self, assignment: Assignment) -> None:
        """Remember how one looks."""
        self.known.add(look_of(assignment.specs))
        self.sketches[sketch_of(assignment.specs)] += 1


def passes(specs: Mapping[str, Spec], values: Mapping[str, object]) -> bool:
    """Say whether arguments are these values, as far as they are named."""
    passed = {name: getattr(spec, "value", None) for name, spec in specs.items()}
    return all(passed.get(name) == value for name, value in values.items())


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
    uncalled: dict[str, list[str]] = field(default_factory=dict)
    """Methods that write what the function reads, and of which no call was found that runs.

    With what they change little by little and no method that was called does.
    """
    not_made: str = ""
    """What ``__init__`` raises, where no object of the class was made by it."""

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
        if self.outside:
            return "no arguments were found that meet the conditions"
        if self.ran:
            return "no arguments were found that reach the rewritten lines"
        declared, others = (
            next((error for error, _ in errors.most_common(1)), "")
            for errors in (self.errors_as_declared, self.errors)
        )
        common = declared or others
        why = f"; most often: {common}" if common else ""
        if others not in common:
            why += f"; without what its text says: {others}"
        if self.not_made:
            why = "" if common == NO_OBJECT else why
            why += f"; no object of its class can be made: {self.not_made}"
        return f"no arguments were found under which the original runs{why}"
