"""Dumps of ranks that belong together: their collectives by group, and who waits for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.generator.collectives import entry
from benchmarks.generator.dump import Job, write_dump
from benchmarks.generator.profiler_json import VARIABLES
from benchmarks.generator.program import REDUCE
from benchmarks.generator.ranks import Fault
from benchmarks.generator.ranks_run import (
    RETRANSMITTED_NS,
    SLOW_LINK,
    SMALL_COUNT,
    SMALL_NS,
    last_collectives,
    runs,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from benchmarks.generator.parameters import Parameters
    from benchmarks.generator.ranks import Group, Layout
    from benchmarks.generator.ranks_run import Waits
    from benchmarks.generator.run import Run

    Json = dict[str, Any]

_MOVES = 0.9
_SPEED = {"HCCS": 18.0, "RDMA": 20.0}
"""MB per millisecond, which is GB/s."""
_LOCAL = 300.0
_SMALL_MB = 0.08
_HEAVY = 1.8
_NONE = Fault("")


def write_job(  # noqa: PLR0913 - as write_ranks
    parameters: Parameters,
    layout: Layout,
    folder: Path,
    export: str = "text",
    *,
    only: Collection[str] = (),
    with_truth: bool = False,
) -> list[Path]:
    """Write the dumps of all ranks of a job."""
    made = []
    for run, waits in runs(parameters, layout):
        entries = list(_entries(run, waits, layout))
        rank = run.parameters.rank
        job = Job(_communication(entries), _matrix(entries, layout, rank), _metadata(layout, rank))
        made.append(
            write_dump(
                run.parameters, folder, export, only=only, with_truth=with_truth, run=run, job=job
            )
        )
    return made


def _metadata(layout: Layout, rank: int) -> Json:
    return {
        "distributed_args": {
            "tensor_model_parallel_size": layout.tp,
            "pipeline_model_parallel_size": layout.pp,
            "data_parallel_size": layout.dp,
            "rank": rank,
            "world_size": layout.ranks,
        },
        "ENV_VARIABLES": VARIABLES,
        "parallel_group_info": {
            group.name: {
                "group_name": group.role,
                "group_rank": group.members.index(rank),
                "global_ranks": list(group.members),
            }
            for group in layout.groups_of(rank)
        },
    }


def _entries(run: Run, waits: Waits, layout: Layout) -> Iterator[Json]:
    """Yield the collectives: ``step``, ``kind``, ``name``, ``group``, milliseconds and MB."""
    rank, kernels = run.parameters.rank, run.kernels
    groups = [group for group in layout.groups_of(rank) if len(group.members) > 1]
    everyone = groups[0]
    parallel = [group for group in groups if group.role in {"tp", "dp"}] or [everyone]
    last = last_collectives(run)
    rows = np.flatnonzero(run.program.collective[kernels.code]).tolist()
    for number, at in enumerate(rows):
        index = int(run.launches.step[kernels.launch[at]])
        is_last = last[index] == at
        waited = int(waits.total[index]) if is_last else 0
        elapse = int(kernels.duration_ns[at])
        group = everyone if is_last else parallel[number % len(parallel)]
        yield _entry(run, index, REDUCE.kernels[0].name % kernels.number[at], group, layout,
                     start=int(kernels.start_ns[at]), moved=(elapse - waited) * _MOVES,
                     waited=int(waits.for_others[index]) if is_last else 0)  # fmt: skip
    for index, at in last.items():
        end = int(kernels.start_ns[at] + kernels.duration_ns[at])
        for name, group, moved, wait, size in _further(waits, index, groups, layout, rank):
            yield _entry(run, index, name, group, layout, start=end, moved=moved, waited=wait,
                         size=size)  # fmt: skip


def _further(
    waits: Waits, index: int, groups: list[Group], layout: Layout, rank: int
) -> Iterator[tuple[str, Group, float, float, float | None]]:
    """Yield collectives that only a fault makes: name, group, moving and waiting time, MB."""
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
        yield f"hcom_alltoallv__{index}_1_1", data, size / 18.0 * 1e6, 0, size
    lost = layout.has("retransmission") or _NONE
    if lost.step == index and lost.rank in data.members:
        yield f"hcom_allReduce__{index}_9_9", data, RETRANSMITTED_NS, 0, None


def _entry(  # noqa: PLR0913 - what a collective is made of
    run: Run,
    index: int,
    name: str,
    group: Group,
    layout: Layout,
    *,
    start: int,
    moved: float,
    waited: float,
    size: float | None = None,
) -> Json:
    between = len({layout.host(rank) for rank in group.members}) > 1
    network = "RDMA" if between else "HCCS"
    step = run.step_id(index) if run.parameters.schedule else ""
    kind = "p2p" if "receive" in name else "collective"
    return {
        "step": f"step{step}", "kind": kind, "name": name, "group": group, "start": start / 1000,
        "moved": moved / 1e6, "waited": waited / 1e6, "idle": moved / 1e6 * (1 / _MOVES - 1),
        "network": network, "size": moved / 1e6 * _SPEED[network] if size is None else size,
    }  # fmt: skip


def _communication(entries: list[Json]) -> Json:
    steps: Json = {}
    for each in entries:
        step = steps.setdefault(each["step"], {"p2p": {}, "collective": {}})
        used = ("HCCS", "SDMA") if each["network"] == "HCCS" else ("RDMA",)
        moved, waited, idle = each["moved"], each["waited"], each["idle"]
        step[each["kind"]][f"{each['name']}@{each['group'].number}"] = entry(
            each["start"], (moved + waited + idle, moved, waited, idle),
            dict.fromkeys(used, (each["size"], moved)),
        )  # fmt: skip
    return steps


def _matrix(entries: list[Json], layout: Layout, rank: int) -> Json:
    """Return what each step moved over each link; ranks are numbered within their group."""
    steps: Json = {}
    for each in entries:
        step = steps.setdefault(each["step"], {"p2p": {}, "collective": {}})
        name = each["name"].split("__")[0].removeprefix("hcom_").lower()
        group = each["group"]
        links = step[each["kind"]].setdefault(f"{name}-total@{group.number}", {})
        own = group.members.index(rank)
        for place, other in enumerate(group.members):
            link = links.setdefault(f"{own}-{place}", _link(layout, rank, other))
            link["Transit Size(MB)"] += each["size"]
            link["Transit Time(ms)"] += _taken(link["Transport Type"], each) / (
                SLOW_LINK if layout.is_slow(rank, other) else 1.0
            )
            link["Bandwidth(GB/s)"] = round(link["Transit Size(MB)"] / link["Transit Time(ms)"], 4)
    return steps


def _taken(transport: str, each: Json) -> float:
    """Return the milliseconds on a link that is as it should be: links work side by side."""
    return float(each["moved"] if transport in _SPEED else each["size"] / _LOCAL)


def _link(layout: Layout, rank: int, other: int) -> Json:
    transport = "HCCS" if layout.host(rank) == layout.host(other) else "RDMA"
    return {
        "Transport Type": "LOCAL" if rank == other else transport,
        "Transit Size(MB)": 0.0,
        "Transit Time(ms)": 0.0,
        "Bandwidth(GB/s)": 0.0,
    }
