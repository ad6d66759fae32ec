"""What was launched, in order; and what may be."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.virtual_npu.wheel.entry_points import REFUSED, SUCCESS

if TYPE_CHECKING:
    from collections.abc import Iterator


OUTSIDE = "torch_npu"
"""The operator of a launch that torch_npu makes by itself."""


class Launch(NamedTuple):
    """One kernel that would run on the device."""

    kernel: str
    """``aclnnRmsNorm``, or the Type of a graph-engine operator: ``ScaledMaskedSoftmax``."""
    operator: str
    """What the program called, below autograd: ``npu::npu_rms_norm``."""


class Recorder:
    """Takes down every launch, and refuses those that no operator under control makes."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.message = ""
        """Why the last launch was refused."""
        self.refused = 0
        """How many launches were."""
        self._operator = ""

    @property
    def controlled(self) -> bool:
        """Whether an operator runs whose results are going to be computed."""
        return bool(self._operator)

    def launch(self, kernel: str) -> int:
        """Note a launch and return its ACL status."""
        if not self._operator:
            self.refused += 1
            self.message = f"{kernel} was launched outside of an operator: nothing computes it"
            return REFUSED
        self.launches.append(Launch(kernel, self._operator))
        return SUCCESS

    @contextmanager
    def running(self, operator: str, kernels: list[str]) -> Iterator[None]:
        """Permit the launches of an operator; ``kernels`` has them afterwards."""
        outer, start = self._operator, len(self.launches)
        self._operator = operator
        try:
            yield
        finally:
            self._operator = outer
            kernels += [launch.kernel for launch in self.launches[start:]]
