"""How far kernels are from the shortest time that the chip allows them.

Times are nanoseconds per step, over the steady steps.
"""

from __future__ import annotations

import msgspec


class HeadroomRow(msgspec.Struct, frozen=True):
    """The kernels of one Type, or of one line of code."""

    name: str
    """The Type, or ``file.py:12``."""
    calls: int
    """Over all steady steps."""
    time_ns: int
    """Of those whose bound is known."""
    bound_ns: int
    """The shortest that they could take."""
    above_ns: int
    """What they take beyond it."""
    limit: str
    """What sets most of the bound: compute, memory, launch or link."""
    reached: float
    """Share of the time that the bound is, 0..1."""


class Headroom(msgspec.Struct, frozen=True):
    """What a run takes above the bounds of its kernels."""

    basis: str
    """By what rates the bounds are taken."""
    chip: str
    """"" where it is not known."""
    sources: list[str]
    """Where the rates of the chip are published."""
    tb_per_s: float
    tflops: dict[str, float]
    """Of the dtypes that products of this run have."""
    covered: float
    """Share of the device time whose bound is known, 0..1."""
    time_ns: int
    """Of the kernels whose bound is known."""
    bound_ns: int
    above_ns: int
    operators: list[HeadroomRow]
    """Those first that take most above their bounds."""
    lines: list[HeadroomRow]

    def cut(self, rows: int) -> Headroom:
        """Return it with only so many operators and lines."""
        return msgspec.structs.replace(
            self, operators=self.operators[:rows], lines=self.lines[:rows]
        )
