"""What running the original and the patched code side by side has shown."""

from __future__ import annotations

from dataclasses import dataclass, field
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
class Launches:
    """The kernels that one run of the code launches on the device, in order."""

    original: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()
    original_backward: tuple[str, ...] = ()
    """What its gradients take besides; empty where none were taken."""
    patched_backward: tuple[str, ...] = ()

    saved: int = field(init=False, default=0)
    """How many fewer there are after the change, gradients included."""

    def __post_init__(self) -> None:
        before = len(self.original) + len(self.original_backward)
        after = len(self.patched) + len(self.patched_backward)
        object.__setattr__(self, "saved", before - after)


@dataclass(frozen=True, slots=True)
class Synchronisations:
    """Where one forward run makes the host wait for the device, in order: ``item``, ``nonzero``.

    Counted as if all tensors were on the device: copies to it are in no count.
    """

    original: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()

    saved: int = field(init=False, default=0)
    """How many fewer there are after the change."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "saved", len(self.original) - len(self.patched))


@dataclass(frozen=True, slots=True)
class Timing:
    """How long one version took, in microseconds: median, and the quarters around it."""

    median_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class Times:
    """How long both versions took on a device, run in turn."""

    original: Timing
    patched: Timing
    repetitions: int
    case: str
    """What they were called with."""
    with_backward: bool = False

    @property
    def is_slower(self) -> bool:
        """Whether the change is slower by more than the times vary."""
        return self.patched.low_us > self.original.high_us


@dataclass(frozen=True, slots=True)
class Tried:
    """What both versions were called with."""

    arguments: tuple[str, ...] = ()
    """``x=float[2, 3, 8], mask=bool[2, 3]``: each once, without those beyond a few dozen."""
    more: int = 0
    """How many were left out of ``arguments``."""
    dtypes: tuple[str, ...] = ()
    """Of what is called float above."""
    values: tuple[str, ...] = ()
    """``ordinary``, ``zeros``, ``NaN and Inf``, ``strided``, ..."""
    modes: tuple[str, ...] = ()
    """``training mode``, ``with gradients``, ``3 optimiser steps``, ..."""
    errors: tuple[str, ...] = ()
    """What both raise, and for what: ``ValueError for x=float[2, 7]``."""
    lines: tuple[int, ...] = ()
    """The changed lines of the new text that have run."""


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
    on: str = "reference"
    """The ground: ``npu``, ``virtual-npu``, ``reference``, or ``none`` if nothing could run."""
    launches: Launches | None = None
    """None where nothing records them."""
    limit: bool = False
    """Not verified for a reason of the ground, not of the code: another ground may say more."""
    ended: bool = False
    """Not verified as its process crashed or was ended, for its time as well: less of the code may
    run to the end."""
    script: str = ""
    """The counterexample as a Python program that shows it; empty if there is none."""
    times: Times | None = None
    """Measured on a real device only."""
    notes: tuple[str, ...] = ()
    """Differences that refute nothing, as no ordinary caller sees them; why there is no script."""
    tried: Tried = Tried()
    synchronisations: Synchronisations | None = None
    """None where the call could not be made once more to count them."""


NOTHING_RUNS = "no arguments were found under which the original runs"
"""So begins the reason where not even the old function runs, whatever has changed in it."""


class NotVerifiedError(Exception):
    """There is no verdict; the message says why."""


class BackendLimitError(NotVerifiedError):
    """The ground cannot run it, whatever the code is; another may."""


class RefutedError(Exception):
    """The two are different; the message says in what."""

    def __init__(self, message: str, script: str = "", why_no_script: str = "") -> None:
        super().__init__(message)
        self.script = script
        """A program that shows it."""
        self.why_no_script = why_no_script
