"""What the analysis says of each collective: communication.json, communication_matrix.json."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.generator.program import REDUCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.generator.run import Run

    Json = dict[str, Any]

GROUP = "5862276093215481612"
"""How collectives call the group that profiler_metadata.json calls group_name_0."""
RANKS_PER_NODE = 8
TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
_USED = ("HCCS", "SDMA")
_MB, _TRANSIT, _WAIT = 28.5, 0.25, 0.5
_SLOWER = 2.5
"""Links between nodes."""


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


def collectives(run: Run) -> Iterator[Collective]:
    """Yield the collectives in start order."""
    kernels = run.kernels
    for at in np.flatnonzero(run.program.collective[kernels.code]).tolist():
        launch = int(kernels.launch[at])
        step = run.step_id(int(run.launches.step[launch])) if run.parameters.schedule else ""
        yield Collective(
            f"step{step}",
            REDUCE.kernels[0].name % kernels.number[at],
            int(kernels.start_ns[at]) / 1000,
            int(kernels.duration_ns[at]) / 1e6,
        )


def communication(run: Run) -> Json:
    """Return the content of communication.json."""
    steps: Json = {}
    for each in collectives(run):
        step = steps.setdefault(each.step, {"p2p": {}, "collective": {}})
        step["collective"][f"{each.name}@{GROUP}"] = entry(
            each.start_us, (each.elapse, each.transit, each.wait, each.idle),
            dict.fromkeys(_USED, (_MB, each.transit)), {"HCCS": {"2.0": [14, each.transit]}},
        )  # fmt: skip
    return steps


def entry(
    start_us: float,
    times: tuple[float, float, float, float],
    moved: Mapping[str, tuple[float, float]],
    packets: Mapping[str, Json] | None = None,
) -> Json:
    """Return what communication.json says of a collective.

    ``times`` are milliseconds: all, transit, waiting, idle. ``moved`` are MB and milliseconds of
    each kind of link that was used.
    """
    elapse, transit, wait, idle = times
    waited = round(wait / max(1e-9, wait + transit), 4)
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": start_us,
            "Elapse Time(ms)": elapse,
            "Transit Time(ms)": transit,
            "Wait Time(ms)": wait,
            "Synchronization Time(ms)": wait,
            "Idle Time(ms)": idle,
            "Wait Time Ratio": waited,
            "Synchronization Time Ratio": waited,
        },
        "Communication Bandwidth Info": {
            name: {
                "Transit Size(MB)": size,
                "Transit Time(ms)": time,
                "Bandwidth(GB/s)": round(size / time, 4) if time else 0,
                "Large Packet Ratio": 0.0,
                "Size Distribution": (packets or {}).get(name, {}),
            }
            for name in TRANSPORTS
            for size, time in (moved.get(name, (0, 0)),)
        },
    }


def links_of_steps(run: Run) -> Json:
    """Return the content of communication_matrix.json: what each step moved over each link."""
    steps: Json = {}
    for name, moved in _matrix(run):
        step = steps.setdefault(moved[0].step, {"p2p": {}, "collective": {}})
        step["collective"][f"{name}@{GROUP}"] = {
            f"{run.parameters.rank}-{other}": {
                "Transport Type": transport,
                "Transit Size(MB)": size,
                "Transit Time(ms)": time,
                "Bandwidth(GB/s)": speed,
                "Op Name": moved[0].name,
            }
            for other, transport, size, time, speed in _links(run, moved)
        }
    return steps


def _matrix(run: Run) -> Iterator[tuple[str, list[Collective]]]:
    """Yield the entries of each step: the first collective, and all of them together."""
    for _, group in groupby(collectives(run), key=lambda each: each.step):
        moved = list(group)
        yield "allreduce-top1", moved[:1]
        yield "allreduce-total", moved


def _links(run: Run, moved: Sequence[Collective]) -> Iterator[tuple[int, str, float, float, float]]:
    """Yield rank, transport, MB, milliseconds and GB/s of each link that these went over."""
    size = _MB * len(moved)
    time = sum(each.transit for each in moved)
    for other, transport in _neighbours(run.parameters.rank, run.parameters.ranks):
        taken = time * (_SLOWER if transport == "RDMA" else 1)
        yield other, transport, size, taken, round(size / taken, 4)


def _neighbours(rank: int, ranks: int) -> Iterator[tuple[int, str]]:
    """Yield what a rank is linked to: all of its node, and its counterparts in the next ones."""
    node = rank - rank % RANKS_PER_NODE
    for other in range(node, min(node + RANKS_PER_NODE, ranks)):
        yield other, "LOCAL" if other == rank else "HCCS"
    for other in (rank - RANKS_PER_NODE, rank + RANKS_PER_NODE):
        if 0 <= other < ranks:
            yield other, "RDMA"
