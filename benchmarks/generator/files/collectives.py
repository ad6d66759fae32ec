"""What the analysis says of each collective: communication.json, communication_matrix.json."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.generator.ranks import Fault
from benchmarks.generator.ranks_run import (
    RETRANSMITTED_NS,
    SLOW_LINK,
    SMALL_COUNT,
    SMALL_NS,
    last_collectives,
)
from benchmarks.generator.transformer import REDUCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.generator.ranks import Group, Layout
    from benchmarks.generator.ranks_run import Waits
    from benchmarks.generator.run import Run

    Json = dict[str, Any]

TRANSPORTS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
_USED = {"HCCS": ("HCCS", "SDMA"), "RDMA": ("RDMA",)}
_MB, _TRANSIT, _WAIT = 28.5, 0.25, 0.5
"""Size, and how the time divides, of a collective of ranks that do not wait for each other."""
_SLOWER = 2.5
"""Links between nodes."""
_MOVES = 0.9
SPEED = {"HCCS": 18.0, "RDMA": 20.0, "LOCAL": 300.0}
"""MB per millisecond, which is GB/s."""
_SMALL_MB, _HEAVY = 0.08, 1.8


@dataclass(frozen=True)
class Collective:
    """One collective of a rank; milliseconds and MB."""

    step: str
    name: str
    group: Group
    start_us: float
    elapse: float
    transit: float
    """Time in which data moved."""
    wait: float
    """Time in which it waited for other ranks, all of it to synchronize."""
    idle: float
    network: str
    size: float
    packets: int = 0
    """Of 2 MB, where that was recorded."""

    @property
    def kind(self) -> str:
        """Under which key of its step it stands."""
        return "p2p" if "receive" in self.name else "collective"


def collectives(run: Run) -> list[Collective]:
    """Return the collectives in start order, and behind them those that only a fault makes."""
    return list(_of_waiting(run, run.waits) if run.waits else _of_others(run))


def _rows(run: Run) -> Iterator[tuple[int, int, str]]:
    """Yield row, index of the step and name of each collective of the run."""
    kernels = run.kernels
    for at in np.flatnonzero(run.program.collective[kernels.code]).tolist():
        name = REDUCE.kernels[0].name % kernels.number[at]
        yield at, int(run.launches.step[kernels.launch[at]]), name


def _step(run: Run, index: int) -> str:
    return f"step{run.step_id(index) if run.parameters.schedule else ''}"


def _of_others(run: Run) -> Iterator[Collective]:
    """Yield the collectives of a rank that waits for no other."""
    everyone = run.parameters.layout.everyone
    for at, index, name in _rows(run):
        elapse = int(run.kernels.duration_ns[at]) / 1e6
        transit, wait = elapse * _TRANSIT, elapse * _WAIT
        start_us, idle = int(run.kernels.start_ns[at]) / 1000, elapse - transit - wait
        yield Collective(_step(run, index), name, everyone, start_us, elapse, transit, wait, idle,
                         "HCCS", _MB, packets=14)  # fmt: skip


def _of_waiting(run: Run, waits: Waits) -> Iterator[Collective]:
    """Yield the collectives of a rank whose last one of each step waits for the other ranks."""
    kernels, layout, rank = run.kernels, run.parameters.layout, run.parameters.rank
    groups = [group for group in layout.groups_of(rank) if len(group.members) > 1]
    everyone = groups[0]
    parallel = [group for group in groups if group.role in {"tp", "dp"}] or [everyone]
    last = last_collectives(run)

    def collective(  # noqa: PLR0913, PLR0917 - what a collective is made of
        index: int, name: str, group: Group, start: int, moved_ns: float, waited_ns: int,
        size: float | None = None,
    ) -> Collective:  # fmt: skip
        network = layout.network(*group.members)
        moved, waited = moved_ns / 1e6, waited_ns / 1e6
        idle = moved * (1 / _MOVES - 1)
        size = moved * SPEED[network] if size is None else size
        return Collective(_step(run, index), name, group, start / 1000, moved + waited + idle,
                          moved, waited, idle, network, size)  # fmt: skip

    for number, (at, index, name) in enumerate(_rows(run)):
        elapse, start = int(kernels.duration_ns[at]), int(kernels.start_ns[at])
        if last[index] == at:
            own_ns, for_others = elapse - int(waits.total[index]), int(waits.for_others[index])
            yield collective(index, name, everyone, start, own_ns * _MOVES, for_others)
        else:
            group = parallel[number % len(parallel)]
            yield collective(index, name, group, start, elapse * _MOVES, 0)
    for index, at in last.items():
        end = int(kernels.start_ns[at] + kernels.duration_ns[at])
        for name, group, moved, waited, size in _of_faults(waits, index, groups, layout, rank):
            yield collective(index, name, group, end, moved, waited, size)


def _of_faults(
    waits: Waits, index: int, groups: list[Group], layout: Layout, rank: int
) -> Iterator[tuple[str, Group, float, int, float | None]]:
    """Yield what only a fault makes: name, group, moving and waiting time in ns, MB."""
    by_role = {group.role: group for group in groups}
    if waits.bubble and "pp" in by_role:
        yield f"hcom_receive__{index}_1_1", by_role["pp"], 100_000, waits.bubble, None
    data = by_role.get("dp", groups[0])
    if layout.has("small-packets"):
        for number in range(SMALL_COUNT):
            name = f"hcom_reduceScatter__{index}_{number}_1"
            yield name, data, SMALL_NS, 0, _SMALL_MB
    if (heavy := layout.has("expert-imbalance")) is not None:
        size = 20.0 * (_HEAVY if rank == heavy.rank else 1.0)
        yield f"hcom_alltoallv__{index}_1_1", data, size / SPEED["HCCS"] * 1e6, 0, size
    lost = layout.has("retransmission") or Fault("")
    if lost.step == index and lost.rank in data.members:
        yield f"hcom_allReduce__{index}_9_9", data, RETRANSMITTED_NS, 0, None


def communication(found: Sequence[Collective]) -> Json:
    """Return the content of communication.json."""
    steps: Json = {}
    for each in found:
        _kinds(steps, each)[f"{each.name}@{each.group.number}"] = _entry(each)
    return steps


def _kinds(steps: Json, each: Collective) -> Json:
    """Return what stands under the step and the kind of a collective."""
    kinds: dict[str, Json] = steps.setdefault(each.step, {"p2p": {}, "collective": {}})
    return kinds[each.kind]


def _entry(each: Collective) -> Json:
    waited = round(each.wait / max(1e-9, each.wait + each.transit), 4)
    used = _USED[each.network]
    sizes = {"HCCS": {"2.0": [each.packets, each.transit]}} if each.packets else {}
    return {
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
            name: {
                "Transit Size(MB)": size,
                "Transit Time(ms)": time,
                "Bandwidth(GB/s)": round(size / time, 4) if time else 0,
                "Large Packet Ratio": 0.0,
                "Size Distribution": sizes.get(name, {}),
            }
            for name in TRANSPORTS
            for size, time in ((each.size, each.transit) if name in used else (0, 0),)
        },
    }


def matrix(run: Run, found: Sequence[Collective]) -> Json:
    """Return the content of communication_matrix.json: what each step moved over each link."""
    return _links_of_groups(run, found) if run.waits else _links_to_neighbours(run, found)


def _add_link(links: Json, pair: str, transport: str, size: float, time: float) -> Json:
    """Add MB and milliseconds to a link between two ranks, and return it."""
    nothing = {"Transit Size(MB)": 0.0, "Transit Time(ms)": 0.0, "Bandwidth(GB/s)": 0.0}
    link: Json = links.setdefault(pair, {"Transport Type": transport, **nothing})
    link["Transit Size(MB)"] += size
    link["Transit Time(ms)"] += time
    link["Bandwidth(GB/s)"] = round(link["Transit Size(MB)"] / link["Transit Time(ms)"], 4)
    return link


def _links_to_neighbours(run: Run, found: Sequence[Collective]) -> Json:
    """Return the first collective of each step and all of them together, between all ranks."""
    steps: Json = {}
    rank = run.parameters.rank
    for _, group in groupby(found, key=lambda each: each.step):
        moved = list(group)
        for name, part in (("allreduce-top1", moved[:1]), ("allreduce-total", moved)):
            links = _kinds(steps, moved[0])[f"{name}@{moved[0].group.number}"] = {}
            size, time = sum(each.size for each in part), sum(each.transit for each in part)
            for other, transport in _neighbours(run.parameters.layout, rank):
                taken = time * (_SLOWER if transport == "RDMA" else 1)
                link = _add_link(links, f"{rank}-{other}", transport, size, taken)
                link["Op Name"] = moved[0].name
    return steps


def _neighbours(layout: Layout, rank: int) -> Iterator[tuple[int, str]]:
    """Yield what a rank is linked to: all of its node, and its counterparts in the next ones."""
    node = layout.host(rank) * layout.per_host
    for other in range(node, min(node + layout.per_host, layout.ranks)):
        yield other, "LOCAL" if other == rank else "HCCS"
    for other in (rank - layout.per_host, rank + layout.per_host):
        if 0 <= other < layout.ranks:
            yield other, "RDMA"


def _links_of_groups(run: Run, found: Sequence[Collective]) -> Json:
    """Return the collectives of each kind and group; ranks are numbered within their group."""
    steps: Json = {}
    layout, rank = run.parameters.layout, run.parameters.rank
    for each in found:
        name, members = each.name.split("__")[0].removeprefix("hcom_").lower(), each.group.members
        links = _kinds(steps, each).setdefault(f"{name}-total@{each.group.number}", {})
        for place, other in enumerate(members):
            transport = layout.network(rank, other)
            # Links that are as they should be work side by side.
            time = each.transit / (SLOW_LINK if layout.is_slow(rank, other) else 1.0)
            if rank == other:
                transport, time = "LOCAL", each.size / SPEED["LOCAL"]
            _add_link(links, f"{members.index(rank)}-{place}", transport, each.size, time)
    return steps
