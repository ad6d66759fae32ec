"""What has happened so far in the verification of one job, and the verdict that follows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.calls.coverage import is_printed
from npufix.rewriters.verification.calls.device import describe_place
from npufix.rewriters.verification.calls.values import SPECIAL
from npufix.rewriters.verification.judge.judge import Judge
from npufix.rewriters.verification.judge.observe_case import name_dtype, observe_original
from npufix.rewriters.verification.judge.plausibility import Purpose
from npufix.rewriters.verification.verdict import (
    Launches,
    Measure,
    Status,
    Synchronisations,
    Times,
    Tried,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.coverage import LinesToCover, Place
    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.target import CallCase, Target
    from npufix.rewriters.verification.judge.observe_case import CaseRun


_OTHER_NUMBERS = (
    "; it draws other random numbers: what they do is compared without them, "
    "how often by mean and variance"
)
_NO_KERNEL = (
    r"NoReferenceKernel|UncoveredLaunch|not implemented|NotImplemented|no kernel|CPU kernel"
)
_MOST_SHOWN = 40


class RefusedCase(NamedTuple):
    """A case whose shapes an operator refuses, and what it says."""

    one: CaseRun
    error: str


@dataclass(slots=True)
class TriedCalls:
    """What was called so far, in few words: sizes, dtypes, masks, values, modes."""

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
        shown = list(self.arguments)[:_MOST_SHOWN]
        return Tried(
            tuple(shown),
            len(self.arguments) - len(shown),
            tuple(self.dtypes),
            tuple(self.values),
            tuple(self.modes),
            tuple(self.errors),
            tuple(sorted(self.lines)),
        )


@dataclass(slots=True)
class Proof:
    """What has happened so far in the verification of one job."""

    job: Job
    on: str = "reference"
    missing: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    judge: Judge = field(default_factory=Judge)
    drawn: Judge = field(default_factory=Judge)
    """Cases in which the original draws random numbers."""
    special: Judge = field(default_factory=Judge)
    """Cases of NaN and Inf, where it is not the purpose of the code to treat them."""
    beyond: Judge = field(default_factory=Judge)
    """Cases of sizes at which the original makes NaN of ordinary numbers."""
    senseless: set[str] = field(default_factory=set)
    """Plain values of which it makes nothing else of ordinary numbers: a dropout of all."""
    special_purpose: Purpose = Purpose.TREATS
    asks_second: bool = False
    """Whether the code itself asks for gradients of gradients, so that both must have them."""
    second: bool = False
    """Whether gradients are propagated as well: the code asks for it somewhere, or the change is
    to an operator with a gradient of its own."""
    notes: list[str] = field(default_factory=list)
    """Differences that refute nothing."""
    unable: dict[torch.dtype, str] = field(default_factory=dict)
    """Why a dtype could not be compared in some case, for a reason of the ground."""
    compared: set[torch.dtype] = field(default_factory=set)
    propagated: set[torch.dtype] = field(default_factory=set)
    """Dtypes in which gradients were compared."""
    not_propagated: dict[torch.dtype, str] = field(default_factory=dict)
    """Why they were not in some case, for a reason of the ground."""
    propagated_twice: bool = False
    not_twice: str = ""
    tried: TriedCalls = field(default_factory=TriedCalls)
    at_edges: tuple[LinesToCover, set[Place]] | None = None
    """What ordinary calls reach of the original; the rest must run in calls that are compared."""
    uncalled: dict[str, list[str]] = field(default_factory=dict)
    """Methods that could not be called before, and what only they change, little by little."""
    out_of_time: bool = False
    """Whether calls that tell code apart were left out, for the time that they take."""
    looked_at: int = 0
    """How many differences there were when it was asked which of them refute."""
    drawing: set[object] = field(default_factory=set)
    """What the original was called on and with where it draws random numbers."""
    called_again: list[CaseRun] = field(default_factory=list)
    refused_lines: set[Place] = field(default_factory=set)
    """Lines that have run in calls which the original refuses."""
    refused_lines_patched: set[Place] = field(default_factory=set)
    launched_for: CaseRun | None = None
    """The call whose launches were kept."""
    other_numbers: bool = False
    draws_as_many: bool = True
    """Whether the patched code leaves the generator in the same state as the original."""
    without_own: str = ""
    """Why the original itself has no gradients."""
    changed: set[str] = field(default_factory=set)
    skipped: str = ""
    without_init: bool = False
    refused: list[RefusedCase] = field(default_factory=list)
    """Cases of shapes that the original takes and an operator does not."""
    not_taken: list[RefusedCase] = field(default_factory=list)
    """A case of more dimensions than others, which the original takes and the changed code not."""
    other_integers: str = ""
    """A call with integers that nothing asks for, of which the same come out in another type."""
    without_half: str = ""
    """What the changed code raises there for a number of the original that is too large."""
    rounded: str = ""
    """The new buffers that a conversion of the module rounds, where that changes results."""
    only_on_host: str = ""
    """What fails on a device alone, where the original mixes tensors of it with the host's."""
    absent: str = ""
    """What the device has not run, though the host does."""
    launches: Launches | None = None
    synchronisations: Synchronisations | None = None
    times: Times | None = None
    launches_in_low: bool = False
    """Whether they are those of a call in low precision, where casts launch as well."""

    def counts(self, case: CallCase) -> bool:
        """Say whether a difference in a call refutes: of NaN and Inf only where code treats them.

        Elsewhere it is said beside the verdict.
        """
        return case.flavour not in SPECIAL or self.special_purpose is Purpose.TREATS

    def forgive_without_second(self, one: CaseRun, after: CallRecord) -> None:
        """Say beside the verdict that changed code has no gradients of gradients, if none asks.

        It raises, or says ``once_differentiable``. Elsewhere what is missing or wrong goes unheard:
        in a loss with a penalty on gradients, the penalty would train nothing.
        """
        if self.asks_second or one.original.without_second:
            return
        why = after.without_second
        once = "once_differentiable" in self.job.patched
        if once and not why and one.original.flows_twice and not after.flows_twice:
            why = "they want no gradient"
        if why:
            one.original.without_second = why
            words = f"the gradients of the patched code have none themselves: {why}"
            self.notes += [words] * (words not in self.notes)

    def note_gradients(self, original: Target, one: CaseRun) -> None:
        """Remember in what a call was compared, and in what it could not be."""
        self.tried.add(one)
        self.compared.add(one.dtype)
        if one.gradients != "none":
            self.propagated.add(one.dtype)
            if one.original.without_second:
                self.not_twice = one.original.without_second
            elif one.second:
                self.propagated_twice = True
        elif one.why_without and one.dtype not in self.not_propagated:
            text = _find_limit(original, one)
            if text:
                self.not_propagated[one.dtype] = text
            elif not self.propagated:
                self.without_own = one.why_without

    def list_missing(self) -> list[tuple[str, str]]:
        """Return what could not be compared though the code may do it, and why."""
        found = [
            (f"without {name_dtype(dtype)}", why)
            for dtype, why in self.unable.items()
            if dtype not in self.compared
        ]
        found += [
            (f"without gradients in {name_dtype(dtype)}", why)
            for dtype, why in self.not_propagated.items()
            if dtype not in self.propagated
        ]
        if self.not_twice and not self.propagated_twice and re.search(_NO_KERNEL, self.not_twice):
            found.append(("without second derivatives", self.not_twice))
        return found

    def verdict(
        self,
        status: Status,
        reason: str = "",
        counterexample: str = "",
        measures: tuple[Measure, ...] = (),
    ) -> Verdict:
        """Return the verdict, with the ground that it stands on."""
        scope, count = self.job.qualname, self.judge.cases
        return Verdict(
            status,
            self._describe_ground(),
            scope,
            reason,
            count,
            measures,
            counterexample,
            self.on,
            self.launches,
            times=self.times,
            notes=tuple(dict.fromkeys(self.notes)),
            tried=self.tried.summarise(),
            synchronisations=self.synchronisations,
        )

    def _say_what_is_taken(self, ground: str) -> str:
        if self.job.by_hand and self.job.vouched:
            ground += f"; taken for granted: {', '.join(self.job.vouched)}"
        if self.out_of_time:
            ground = f"in the {self.judge.cases} calls that there was time for, no more; {ground}"
        if self.without_half:
            ground = f"not in float16, where the changed code raises {self.without_half}; {ground}"
        if self.rounded:
            ground = f"not for a module converted by .half(), which rounds {self.rounded}; {ground}"
        if self.job.by_hand and self._is_printed():
            ground = f"what it prints is not compared; {ground}"
        if self.job.inference:
            return f"without gradients, which nobody asks for; {ground}"
        if self.without_own:
            return f"{ground}; without gradients, the original has none: {self.without_own}"
        return ground

    def _is_printed(self) -> bool:
        job = self.job
        versions = ((job.original, job.lines_original), (job.patched, job.lines_patched))
        return any(is_printed(text, lines) for text, lines in versions)

    def _describe_ground(self) -> str:
        ground = describe_place()
        if self.kernels:
            ground += f" + reference kernels: {', '.join(sorted(self.kernels))}"
        if self.judge.without_oracle:
            ground += "; no float64 run for some results: compared with the original itself"
        if self.refused:
            whose = "changed code" if self.job.by_hand else "operator"
            ground += f"; not for {self.refused[0].one.case}, which the {whose} refuses"
        if self.only_on_host:
            ground += f"; for tensors of the host alone: {self.only_on_host}"
        if self.absent:
            ground += f"; not for {self.absent}"
        if self.other_integers:
            ground += f"; its integers are of another type for {self.other_integers}"
        if self.other_numbers:
            ground += _OTHER_NUMBERS
        ground = self._say_what_is_taken(ground)
        if self.without_init:
            ground += "; on an object with stand-in attributes, its __init__ does not run here"
        if self.missing:
            ground += f"; stood in for: {', '.join(sorted(self.missing))}"
        return ground


def _find_limit(original: Target, one: CaseRun) -> str:
    """Return why backward fails here, if that is a matter of the ground and not of the code."""
    why = one.why_without
    if re.search(_NO_KERNEL, why):
        return why
    if not original.on_npu:
        return ""
    host = observe_original(original.on_host(), one.case, one.dtype, inference=False)
    return why if host is not None and host.gradients != "none" else ""
