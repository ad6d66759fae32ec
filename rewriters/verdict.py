"""What running the original and the patched code side by side has shown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """The outcome of a verification."""

    EQUIVALENT = "equivalent"
    REFUTED = "refuted"
    NOT_VERIFIED = "not verified"


@dataclass(frozen=True, slots=True)
class Measure:
    """The errors of one compared tensor, both against a float64 run of the original code.

    ``error_*`` is max |value - float64 value| over the elements, relative to the largest
    float64 magnitude of the tensor (absolute if that is zero); 0.0 for exact and integer results.
    """

    what: str
    dtype: str
    error_original: float
    error_patched: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a change computes the same, on what ground, and with which figures."""

    status: Status
    ground: str
    """Which kernels ran: ``torch <version>, CPU`` (+ `` + reference kernels: npu_rms_norm``)."""
    scope: str
    """What was run: ``LlamaRMSNorm.forward``."""
    reason: str = ""
    """Why it was refuted or could not be verified; empty if equivalent."""
    cases: int = 0
    measures: tuple[Measure, ...] = ()
    counterexample: str = ""
    """The smallest input found that tells the two apart, in words; empty unless refuted."""
