"""What the versions were called with, in few words: sizes, dtypes, masks, values, modes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.rewriters.verification.judge.observe_case import name_dtype
from npufix.rewriters.verification.verdict import Tried

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.rewriters.verification.calls.coverage import Place
    from npufix.rewriters.verification.judge.observe_case import CaseRun

_MOST = 40


@dataclass(slots=True)
class TriedCalls:
    """The calls that were compared, so far."""

    arguments: dict[str, None] = field(default_factory=dict)
    dtypes: dict[str, None] = field(default_factory=dict)
    values: dict[str, None] = field(default_factory=dict)
    modes: dict[str, None] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)
    """Exceptions that both versions raise."""
    lines: dict[int, None] = field(default_factory=dict)
    """Lines of the changed text that have run."""

    def add(self, one: CaseRun) -> None:
        """Take a call that was compared."""
        case = one.case
        self.arguments[str(case.assignment)] = None
        self.dtypes[name_dtype(one.dtype)] = None
        self.values[case.flavour] = None
        if case.assignment.recipe is not None:
            self.modes["training mode" if case.training else "eval mode"] = None
        if case.steps:
            self.modes[f"{case.steps} optimiser steps"] = None
        if case.float32_weights:
            self.modes["float32 weights"] = None
        self.modes["without gradients" if one.gradients == "none" else "with gradients"] = None
        if one.second and one.gradients != "none" and not one.original.without_second:
            self.modes["with second derivatives"] = None

    def note_lines(self, places: Iterable[Place]) -> None:
        """Take the lines of the changed text that a call has run."""
        self.lines |= dict.fromkeys(sorted(p for p in places if isinstance(p, int)))

    def summarise(self) -> Tried:
        """Return it for the verdict."""
        shown = list(self.arguments)[:_MOST]
        return Tried(
            tuple(shown),
            len(self.arguments) - len(shown),
            tuple(self.dtypes),
            tuple(self.values),
            tuple(self.modes),
            tuple(self.errors),
            tuple(sorted(self.lines)),
        )
