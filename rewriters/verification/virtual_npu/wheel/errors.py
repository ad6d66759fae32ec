"""What can go wrong: each error is one line that says what, where, and what to do."""

from __future__ import annotations


class VirtualNpuError(Exception):
    """There is no virtual NPU on this machine, or in this process."""

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        """Put what is wrong, where, and what to do about it into one line."""
        place = f" ({where})" if where else ""
        advice = f"; {hint}" if hint else ""
        super().__init__(" ".join(f"{what}{place}{advice}".split()))


class UncoveredLaunchError(RuntimeError):
    """A kernel was launched that no reference kernel computes: its results would be garbage."""


class ReferenceDisagreesError(RuntimeError):
    """A reference kernel returns other shapes or dtypes than the operator of torch_npu does."""
