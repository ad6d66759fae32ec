"""What the analysis says of each collective: communication.json, communication_matrix.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import REDUCE
from benchmarks.generator.run import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.generator.run import Run

GROUP = "17522688603477080586"
TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
_USED = {"HCCS", "SDMA"}
_MB, _TRANSIT, _WAIT = 28.5, 0.25, 0.5


@dataclass(frozen=True)
class Collective:
    """One collective; milliseconds, and how they divide."""

    step: str
    name: str
    start_us: float
    elapse: float

    @property
    def transit(self) -> float:
        """Time in which data moved."""
        return self.elapse * _TRANSIT

    @property
    def wait(self) -> float:
        """Time in which it waited for other ranks, all of it to synchronize."""
        return self.elapse * _WAIT

    @property
    def idle(self) -> float:
        """The rest."""
        return self.elapse - self.transit - self.wait

    def bandwidth(self, transport: str) -> tuple[float, float, float]:
        """Return MB, milliseconds and GB/s over one kind of link."""
        if transport not in _USED:
            return 0, 0, 0
        return _MB, self.transit, round(_MB / self.transit, 4)


def collectives(run: Run) -> Iterator[Collective]:
    """Yield the collectives in start order."""
    kernels = run.kernels
    for at in np.flatnonzero(COLLECTIVE[kernels.code]).tolist():
        launch = int(kernels.launch[at])
        step = run.step_id(int(run.launches.step[launch])) if run.parameters.schedule else ""
        yield Collective(
            f"step{step}",
            REDUCE.kernels[0].name % kernels.number[at],
            int(kernels.start_ns[at]) / 1000,
            int(kernels.duration_ns[at]) / 1e6,
        )


def write_communication(run: Run, path: Path) -> None:
    """Write communication.json, unless there are no collectives."""
    steps: dict[str, dict[str, dict[str, object]]] = {}
    for each in collectives(run):
        step = steps.setdefault(each.step, {"p2p": {}, "collective": {}})
        waited = round(each.wait / (each.wait + each.transit), 4)
        step["collective"][f"{each.name}@{GROUP}"] = {
            "Communication Time Info": {
                "Start Timestamp(us)": each.start_us,
                "Elapse Time(ms)": each.elapse,
                "Transit Time(ms)": each.transit,
                "Wait Time(ms)": each.wait,
                "Synchronization Time(ms)": each.wait,
                "Idle Time(ms)": each.idle,
                "Wait Time Ratio": waited,
                "Synchronization Time Ratio": waited,
            },
            "Communication Bandwidth Info": {
                transport: _bandwidth(each, transport) for transport in TRANSPORTS
            },
        }
    if steps:
        path.write_text(json.dumps(steps), encoding="utf-8")


def _bandwidth(each: Collective, transport: str) -> dict[str, object]:
    size, time, speed = each.bandwidth(transport)
    packets = {"2.0": [14, time]} if transport == "HCCS" else {}
    return {
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": speed,
        "Large Packet Ratio": 0.0,
        "Size Distribution": packets,
    }


def write_communication_matrix(run: Run, path: Path) -> None:
    """Write communication_matrix.json: what each step moved over each link."""
    steps: dict[str, object] = {}
    for each in collectives(run):
        steps.setdefault(
            each.step,
            {
                "p2p": {},
                "collective": {
                    f"allreduce-top1@{GROUP}": {
                        f"{run.parameters.rank}-{other}": _link(run, each, other)
                        for other in range(run.parameters.ranks)
                    }
                },
            },
        )
    if steps:
        path.write_text(json.dumps(steps), encoding="utf-8")


def _link(run: Run, each: Collective, other: int) -> dict[str, object]:
    size, time, speed = each.bandwidth("HCCS")
    return {
        "Transport Type": "LOCAL" if other == run.parameters.rank else "HCCS",
        "Transit Size(MB)": size,
        "Transit Time(ms)": time,
        "Bandwidth(GB/s)": speed,
        "Op Name": each.name,
    }
