"""What has happened so far in the verification of one job, and the verdict that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.calls.device import describe_place
from npufix.rewriters.verification.judge.judge import Judge
from npufix.rewriters.verification.verdict import Launches, Measure, Status, Times, Verdict

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.judge.observe_case import CaseRun


class RefusedCase(NamedTuple):
    """A case whose shapes an operator refuses, and what it says."""

    one: CaseRun
    error: str


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
    drawing: dict[object, bool] = field(default_factory=dict)
    """Whether it does, by what it was called on and with."""
    other_numbers: bool = False
    changed: set[str] = field(default_factory=set)
    skipped: str = ""
    without_init: bool = False
    refused: list[RefusedCase] = field(default_factory=list)
    """Cases of shapes that the original takes and an operator does not."""
    not_taken: RefusedCase | None = None
    """A case of more dimensions than others, which the original takes and the changed code not."""
    absent: str = ""
    """What the device has not run, though the host does."""
    launches: Launches | None = None
    times: Times | None = None
    launches_in_low: bool = False
    """Whether they are those of a call in low precision, where casts launch as well."""

    def verdict(
        self,
        status: Status,
        reason: str = "",
        counterexample: str = "",
        measures: tuple[Measure, ...] = (),
    ) -> Verdict:
        """Return the verdict, with the ground that it stands on."""
        ground = describe_place()
        if self.kernels:
            ground += f" + reference kernels: {', '.join(sorted(self.kernels))}"
        if self.judge.without_oracle:
            ground += "; no float64 run for some results: compared with the original itself"
        if self.refused:
            whose = "changed code" if self.job.by_hand else "operator"
            ground += f"; not for {self.refused[0].one.case}, which the {whose} refuses"
        if self.absent:
            ground += f"; not for {self.absent}"
        if self.other_numbers:
            ground += "; it draws other random numbers: what they do is compared without them, "
            ground += "how often by mean and variance"
        if self.job.by_hand and self.job.vouched:
            ground += f"; taken for granted: {', '.join(self.job.vouched)}"
        if self.job.inference:
            ground += "; without gradients"
        if self.without_init:
            ground += "; on an object with stand-in attributes, its __init__ does not run here"
        if self.missing:
            ground += f"; without the imports {', '.join(sorted(self.missing))}"
        scope, count = self.job.qualname, self.judge.cases
        return Verdict(
            status,
            ground,
            scope,
            reason,
            count,
            measures,
            counterexample,
            self.on,
            self.launches,
            times=self.times,
        )
