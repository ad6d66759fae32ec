"""What a reader of a generated dump must find: the line of each kernel, and totals."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.host import modules_around
from benchmarks.generator.transformer import forward_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.generator.run import Run


_SPLIT = (
    "step", "device", "start_ns", "computing", "exposed", "overlapped", "communication", "free",
)  # fmt: skip


@dataclass(frozen=True)
class KernelTruth:
    """One row of kernel_details.csv; empty texts where nothing can be known."""

    start_ns: int
    duration_ns: int
    name: str
    type: str
    core: str
    device: int
    step: int
    frame: str
    """Innermost frame of the stack, ``file(line): function``."""
    basis: str
    operator: str
    """The operator of torch around the launch."""
    module: str


def kernel_truths(run: Run) -> list[KernelTruth]:
    """Return the truth of each kernel in start order; a function for tests, not for millions."""
    own, kernels, launches = run.parameters, run.kernels, run.launches
    found = []
    for at in np.flatnonzero(run.program.listed[kernels.code]).tolist():
        launch, step = int(kernels.launch[at]), int(launches.step[kernels.launch[at]])
        kernel, origin = (
            run.program.kernels[kernels.code[at]],
            run.program.launches[launches.code[launch]],
        )
        kind, core = (kernel.type, kernel.core) if own.level else ("N/A", "N/A")
        frame, basis, module = _origin(run, launch)
        found.append(
            KernelTruth(
                start_ns=int(kernels.start_ns[at]),
                duration_ns=int(kernels.duration_ns[at]),
                name=kernel.name % kernels.number[at] if kernel.collective else kernel.name,
                type=kind,
                core=own.collective_core if kernel.collective else core,
                device=int(launches.device[launch]),
                step=run.step_id(step) if own.schedule else -1,
                frame=frame,
                basis=basis,
                operator=origin.chain[max(0, len(origin.chain) - 2)],
                module=module,
            )
        )
    return found


def _origin(run: Run, launch: int) -> tuple[str, str, str]:
    """Return innermost frame, basis and module of a launch, as far as the run recorded them."""
    own, origin = run.parameters, run.program.launches[run.launches.code[launch]]
    forward = forward_of(origin)
    if forward is None:
        return "", "", ""
    basis = "call-stack" if forward is origin else "forward"
    module = modules_around(forward, int(run.launches.layer[launch])) if own.modules else ""
    return (forward.stack[0], basis, module) if own.stacks else ("", "", module)


def write(run: Run, path: Path) -> None:
    """Write totals per line and per Type and core, in nanoseconds."""
    lines: dict[str, int] = {}
    types: dict[str, list[int]] = {}
    for each in kernel_truths(run):
        lines[each.frame] = lines.get(each.frame, 0) + each.duration_ns
        total = types.setdefault(f"{each.type} {each.core}", [0, 0])
        total[0] += 1
        total[1] += each.duration_ns
    steps = [{name: getattr(each, name) for name in _SPLIT} for each in run.splits]
    path.write_text(
        json.dumps({"lines": lines, "types": types, "steps": steps}, indent=1), encoding="utf-8"
    )
