"""The time of all kernels by what asked for them: for flame graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.advisor.diagnose.result import Diagnosis

_KEYS = ["stack", "module", "type"]


def stack_times(result: Diagnosis) -> list[tuple[tuple[str, ...], int]]:
    """Return the nanoseconds of each stack, over all recorded steps, the most first.

    A stack begins with the outermost frame of the host and ends with the Type of the kernel. Where
    no call stack was recorded the nn.Modules stand for it, where there are none either the kernel
    stands alone. Kernels of several streams run at the same time: this is a sum, no timeline.
    """
    if result.evidence is None:
        return []
    kernels = result.evidence.kernels
    sums = kernels.groupby(_KEYS, observed=True, sort=False)["duration_ns"].sum().reset_index()
    found: dict[tuple[str, ...], int] = {}
    columns = (sums[name].tolist() for name in (*_KEYS, "duration_ns"))
    for stack, module, kind, spent in zip(*columns, strict=True):
        frames = (*_frames(result, int(stack), int(module)), str(kind))
        found[frames] = found.get(frames, 0) + int(spent)
    return sorted(found.items(), key=lambda item: -item[1])


def _frames(result: Diagnosis, stack: int, module: int) -> tuple[str, ...]:
    if stack >= 0:
        sites = reversed(result.stacks[stack])
        return tuple(f"{site.function} ({site.path}:{site.line})" for site in sites)
    return tuple(result.modules[module].split("/")) if module >= 0 else ()
