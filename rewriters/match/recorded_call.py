"""An operator call as a dump recorded it: what proves facts, and what a change is tried with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The arguments of one operator call, recorded at a line of the source."""

    name: str
    dims: tuple[tuple[int, ...] | None, ...]
    """Shape per argument; ``None`` where it is no tensor."""
    types: tuple[str, ...]
    """As the profiler names them: ``float``, ``long int``, ``c10::BFloat16``, ``Scalar``."""
