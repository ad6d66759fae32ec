"""``Profile.kernels`` of a Kineto trace: its device tasks or, without any, its host operators."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kineto.events import CORES
from npufix.profiling_parsers.kineto.names import short_name, tensor_shapes
from npufix.profiling_parsers.kineto.timeline import ThreadTimeline
from npufix.profiling_parsers.tables.columns import category, find_rows_with
from npufix.profiling_parsers.tables.time_index import number_threads
from npufix.profiling_parsers.trace.rows import Codes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.kineto.events import KinetoTrace
    from npufix.profiling_parsers.kineto.launches import KinetoLaunches

    Integers = NDArray[np.int64]

_COLLECTIVE_KERNEL = re.compile(
    r"^[^(<]*(?:nccl|rccl|hccl|oneccl|nvshmem|rocshmem|mscclpp|\b(?:intra|inter)node(?:_ll)?::)",
    re.IGNORECASE,
)
"""Of a library, or in a namespace of DeepEP (``deep_ep::internode::dispatch<...>``)."""
_OTHER_COLLECTIVES = re.compile(
    r"^(?!triton_[a-z]+_fused_).*(all_?(reduce|gather|to_?all)|reduce_?scatter|cross_?device_?reduce"
    r"|(intra|inter)node_(dispatch|combine))",
    re.IGNORECASE,
)
"""In the own names of kernels that exchange over NVLink without a library: those of symmetric
memory, vLLM, TensorRT-LLM and aiter (``multimem_all_reduce_kernel``). Inductor names a kernel after
what it computes for: ``triton_poi_fused_all_reduce_0`` adds what was reduced."""
_COLLECTIVE_OPERATOR = re.compile(r"c10d::|_c10d_functional::|\w*ccl:|gloo:")
_GPU, _MTIA, _CPU = (CORES.index(core) for core in ("GPU", "MTIA", "CPU"))


def device_kernels(trace: KinetoTrace, launches: KinetoLaunches) -> pd.DataFrame:
    """Return one row per device task, in the order of ``trace.device``, which is by start."""
    device, operators = trace.device, trace.operators
    names = device["name"].cat
    is_collective = find_rows_with(device["name"], _is_collective)
    communication = is_collective & device["core"].isin((_GPU, _MTIA)).to_numpy()
    types = Codes[str]()
    of_kernel = np.array([types[short_name(name)] for name in names.categories], np.int64)
    of_operator = np.array([types[name] for name in operators["name"].cat.categories], np.int64)
    of_note = np.array([types[name] for name in trace.annotations["name"].cat.categories], np.int64)
    found = of_kernel[names.codes]
    computes = (launches.named >= 0) & device["core"].isin((_GPU, _MTIA)).to_numpy()
    found[computes] = of_operator[operators["name"].cat.codes.to_numpy()[launches.named[computes]]]
    noted = communication & (launches.collective >= 0)
    notes = trace.annotations["name"].cat.codes.to_numpy()[launches.collective[noted]]
    found[noted] = of_note[notes]
    columns = {
        "name": device["name"].array,
        "type": category(found, list(types)),
        "core": category(device["core"].to_numpy(), list(CORES)),
        "start_ns": device["start_ns"].to_numpy(),
        "duration_ns": device["duration_ns"].to_numpy(),
        "wait_ns": _waits(device),
        "communication": communication,
        "device": device["device"].to_numpy().astype(np.int32),
        "stream": device["stream"].to_numpy().astype(np.int32),
        "launch_ns": launches.launch_ns,
        **_shapes(trace, np.where(launches.named >= 0, launches.named, launches.operator)),
    }
    return pd.DataFrame(columns, copy=False)


def _is_collective(name: str) -> bool:
    return bool(_COLLECTIVE_KERNEL.search(name) or _OTHER_COLLECTIVES.search(short_name(name)))


def operator_kernels(trace: KinetoTrace) -> pd.DataFrame:
    """Return one row per operator of ``trace.operators``, its duration that without those in it."""
    operators = trace.operators
    (thread,) = number_threads(operators)
    starts, durations = operators["start_ns"].to_numpy(), operators["duration_ns"].to_numpy()
    is_collective = find_rows_with(operators["name"], lambda n: bool(_COLLECTIVE_OPERATOR.match(n)))
    count = len(operators)
    columns = {
        "name": operators["name"].array,
        "type": operators["name"].array,
        "core": category(np.full(count, _CPU), list(CORES)),
        "start_ns": starts,
        "duration_ns": ThreadTimeline(thread, starts, durations).innermost_ns(count),
        "wait_ns": np.zeros(count, np.int64),
        "communication": is_collective,
        "device": np.full(count, -1, np.int32),
        **_shapes(trace, np.arange(count)),
    }
    return pd.DataFrame(columns, copy=False)


def _waits(device: pd.DataFrame) -> Integers:
    """Return how long the device had nothing to do before each task; rows are in start order."""
    of_device, starts = device["device"].to_numpy(), device["start_ns"].to_numpy()
    ends = device["start_ns"] + device["duration_ns"]
    latest = ends.groupby(of_device).cummax().to_numpy()
    order = np.argsort(of_device, kind="stable")
    task, before = order[1:], order[:-1]
    waits = np.zeros(len(device), np.int64)
    gaps = (starts[task] - latest[before]).clip(min=0)
    waits[task] = np.where(of_device[task] == of_device[before], gaps, 0)
    return waits


def _shapes(trace: KinetoTrace, rows: Integers) -> dict[str, pd.Categorical[str]]:
    """Return shapes and types of the inputs of the operators at ``rows``, "" for -1."""
    dims = trace.operators["input_dims"].to_numpy().astype(np.int64)
    types = trace.operators["input_types"].to_numpy().astype(np.int64)
    pairs = dims * max(len(trace.types), 1) + types
    known = rows >= 0
    found = np.zeros(len(rows), np.int64)
    distinct, codes = np.unique(pairs[rows[known]], return_inverse=True)
    found[known] = codes + 1
    shapes, dtypes = Codes({"": 0}), Codes({"": 0})
    spelled = [(0, 0)]
    dims_texts, types_texts = list(trace.dims), list(trace.types)
    for pair in distinct.tolist():
        dim, kind = divmod(pair, max(len(types_texts), 1))
        shape, dtype = tensor_shapes(dims_texts[dim], types_texts[kind])
        spelled.append((shapes[shape], dtypes[dtype]))
    table = np.array(spelled, np.int64)
    return {
        "input_shapes": category(table[found, 0], list(shapes)),
        "input_dtypes": category(table[found, 1], list(dtypes)),
    }
