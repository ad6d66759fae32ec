"""What has happened so far in the verification of one job, and the verdict that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.verdict import Measure, Status, Verdict
from npufix.rewriters.verification.compare import Judge

if TYPE_CHECKING:
    from npufix.rewriters.verification.job import Job


class NotVerifiedError(Exception):
    """There is no verdict; the message says why."""


class RefutedError(Exception):
    """The two are different before any case was compared."""


class Refusal(NamedTuple):
    """A case whose shapes an operator refuses, and what it says."""

    case: str
    error: str


@dataclass(slots=True)
class Run:
    """What has happened so far in the verification of one job."""

    job: Job
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
    refused: list[Refusal] = field(default_factory=list)
    """Cases of shapes that the original takes and an operator does not."""

    def verdict(
        self,
        status: Status,
        reason: str = "",
        counterexample: str = "",
        measures: tuple[Measure, ...] = (),
    ) -> Verdict:
        """Return the verdict, with the ground that it stands on."""
        ground = f"torch {torch.__version__.partition('+')[0]}, CPU"
        if self.kernels:
            ground += f" + reference kernels: {', '.join(sorted(self.kernels))}"
        if self.judge.without_oracle:
            ground += "; no float64 run for some results: compared with the original itself"
        if self.refused:
            ground += f"; not for {self.refused[0].case}, which the operator refuses"
        if self.other_numbers:
            ground += "; it draws other random numbers: what they do is compared without them, "
            ground += "how often by mean and variance"
        if self.job.inference:
            ground += "; without gradients"
        if self.without_init:
            ground += "; on an object with stand-in attributes, its __init__ does not run here"
        if self.missing:
            ground += f"; without the imports {', '.join(sorted(self.missing))}"
        scope, count = self.job.qualname, self.judge.cases
        return Verdict(status, ground, scope, reason, count, measures, counterexample)
