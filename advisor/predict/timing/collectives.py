"""A small program that times a recorded collective again, on as many ranks as run it.

As in ``program``, only numbers and names of tables here go into the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from npufix.advisor.predict.timing.measuring import fill_in
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

_OPERATION = re.compile(
    r"(?i)(?:hcom|hccl|nccl)\w*?"
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast)\w*"
)
_WAYS = {
    "allreduce": ("all_reduce", "all_reduce_in_four_parts"),
    "allgather": ("all_gather",),
    "reducescatter": ("reduce_scatter",),
    "alltoall": ("all_to_all",),
    "broadcast": ("broadcast",),
}


class Case(NamedTuple):
    """Collectives of one size."""

    size_bytes: int
    """What each rank gives."""
    calls: int
    recorded_us: float
    """The median."""
    shortest_us: float
    """Of the one that waited least for other ranks."""


def is_collective(operator: str) -> bool:
    """Tell whether this program is the one that times an operator."""
    return _OPERATION.fullmatch(operator) is not None


def collective_program(
    kernels: pd.DataFrame, operator: str, most: int, sizes: Mapping[str, int]
) -> str:
    """Return a program that times a collective with the sizes that took most time.

    ``sizes`` are bytes by the name of a kernel.

    Raises:
        DumpError: the dump has no such collective, or not how much it moves.

    """
    rows = kernels[(kernels["type"] == operator) & kernels["communication"]]
    found = _OPERATION.fullmatch(operator)
    if rows.empty or found is None:
        known = {str(kind) for kind in kernels.loc[kernels["communication"], "type"].unique()}
        able = ", ".join(sorted(filter(is_collective, known)))
        raise DumpError(
            f"no kernel of this recording has the Type {operator!r}",
            f"of its collectives these can be timed: {able or 'none'}",
        )
    cases = _cases(rows, most, sizes)
    if not cases:
        raise DumpError(
            f"how much {operator} moves was not recorded", "profile at Level1 or with a trace"
        )
    values = {
        "operator": ascii(operator),
        "cases": "\n".join(f"    {tuple(case)!r}," for case in cases),
        "ways": ", ".join(_WAYS[re.sub("_", "", found[1]).lower()]),
    }
    return fill_in(_PROGRAM, values)


def _cases(rows: pd.DataFrame, most: int, sizes: Mapping[str, int]) -> Sequence[Case]:
    given = rows["name"].astype(str).str.split("@").str[0].map(sizes).fillna(0).to_numpy(np.int64)
    times = rows["duration_ns"].groupby(given).agg(["sum", "count", "median", "min"])
    times = times[times.index > 0].sort_values("sum", ascending=False, kind="stable")
    return [
        Case(int(size), int(count), round(float(middle) / 1000, 2), round(float(least) / 1000, 2))
        for size, _, count, middle, least in times[:most].itertuples(name=None)
    ]


_PROGRAM = '''"""Times one collective with the sizes of a recording. Written by npufix replay.

    torchrun --nproc-per-node 8 FILE

Runs over HCCL on NPUs, else over NCCL on GPUs, else over Gloo. Times are microseconds, medians
over runs: all ranks begin together, so nothing of them is waiting for a late rank.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist

@torch_npu@

OPERATOR = @operator@

# Bytes of each rank, calls in the recording, their median, and the shortest, which waited least.
CASES = [
@cases@
]
WARM_UPS, RUNS = 5, 30


def newer(*names):
    """Return the first of some functions that this version of torch has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def all_reduce(x, world):
    return lambda: dist.all_reduce(x)


def all_reduce_in_four_parts(x, world):
    """Do the same in smaller buckets, of which each may begin sooner."""
    parts = [part.contiguous() for part in x.chunk(4)]
    return lambda: [work.wait() for work in [dist.all_reduce(p, async_op=True) for p in parts]]


def all_gather(x, world):
    out = x.new_empty(x.numel() * world)
    gather = newer("all_gather_single", "all_gather_into_tensor")
    return lambda: gather(out, x)


def reduce_scatter(x, world):
    out = x.new_empty(x.numel() // world)
    whole = x[: out.numel() * world]
    scatter = newer("reduce_scatter_single", "reduce_scatter_tensor")
    return lambda: scatter(out, whole)


def all_to_all(x, world):
    whole = x[: x.numel() // world * world]
    out = torch.empty_like(whole)
    return lambda: dist.all_to_all_single(out, whole)


def broadcast(x, world):
    return lambda: dist.broadcast(x, 0)


WAYS = [@ways@]


def begin():
    """Return device, what waits for it, rank and number of ranks; without torchrun it is one."""
    rank, local = (int(os.environ.get(name, 0)) for name in ("RANK", "LOCAL_RANK"))
    device, wait, backend = torch.device("cpu"), lambda: None, "gloo"
    if torch_npu is not None and hasattr(torch, "npu") and torch.npu.is_available():
        torch.npu.set_device(local)
        device, wait, backend = torch.device("npu", local), torch.npu.synchronize, "hccl"
    elif torch.cuda.is_available():
        torch.cuda.set_device(local)
        device, wait, backend = torch.device("cuda", local), torch.cuda.synchronize, "nccl"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device, wait, rank, dist.get_world_size()


@measure@


def main():
    device, wait, rank, world = begin()

    def together():
        wait()
        dist.barrier()
        wait()

    def say(text):
        if rank == 0:
            print(text)

    say(f"{OPERATOR} on {world} x {device.type}, torch {torch.__version__}")
    for size, calls, recorded, shortest in CASES:
        say(f"{size} bytes: {calls} calls, recorded {recorded:.1f} us, {shortest:.1f} at least")
        x = torch.ones(max(world, size // 4), device=device)
        for way in WAYS:
            try:
                middle, low, high = measure(way(x, world), wait, together)
            except (RuntimeError, ValueError) as error:
                say(f"  {way.__name__:28} cannot run: {error}")
                continue
            say(f"  {way.__name__:28} {middle:10.1f} us ({low:.1f} to {high:.1f})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
