"""What rules about a run or a job promise, and small recordings to test them with.

A row of ``recording`` says only what matters: ``recording([{"type": "Cast"}], step_ns=4 * MS)``.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from npufix.profiling_parsers.profile import Environment
from npufix.profiling_parsers.schema import KERNELS
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.rules.cluster_diagnostic import ClusterDiagnostic
from npufix.rules.diagnostic import Diagnostic, Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.advisor.rules_test.subject import Subject

US = 1_000
MS = 1_000_000
START = 1_736_408_883_000_000_000

_RECORDINGS = 20
_OPS = (
    "aten::_local_scalar_dense", "aten::copy_", "acl_memcpy_host_to_device", "ProfilerStep#1",
    "enumerate(DataLoader)#X.__next__", "aten::nonzero",
)  # fmt: skip
_TYPES = (
    "Add", "Cast", "TransData", "NonZero", "Sort", "MatMulV3", "ReduceSum", "ConcatD", "Cos",
    "Transpose", "FlashAttentionScore", "BroadcastTo", "StridedSlice", "Relu",
)  # fmt: skip
_APIS = ("launch", "aclrtSynchronizeStream", "aclopCompileAndExecute", "aclrtMalloc", "Add_Tiling")

_LINE: dict[str, Any] = {"path": "", "line": 0, "function": ""}
_KERNEL: dict[str, Any] = {
    **{name: column.unknown for name, column in KERNELS.items()},
    "step": 1, "name": "aclnnAdd_AddAiCore_Add", "type": "Add", "core": "AI_VECTOR_CORE",
    "start_ns": 0, "duration_ns": 10 * US, "wait_ns": 0, "communication": False, "device": 0,
    "state": "dynamic", "recomputed": False, **_LINE,
}  # fmt: skip
_HOST_OP: dict[str, Any] = {
    "name": "aten::add", "start_ns": 0, "duration_ns": US, "sequence": -1, "input_dims": "",
    "input_types": "", "stack": -1, **_LINE,
}  # fmt: skip
_STEP: dict[str, Any] = {
    "step": 1, "device": 0, "computing_ns": 0, "communication_exposed_ns": 0, "overlapped_ns": 0,
    "communication_ns": 0, "free_ns": 0, "bubble_ns": -1, "preparing_ns": 0,
}  # fmt: skip


def kernels(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return kernels; moments are nanoseconds after a start, as they are in dumps."""
    frame = _frame(_KERNEL, rows)
    frame["start_ns"] += START
    frame["launch_ns"] = frame["launch_ns"].where(
        frame["launch_ns"] < 0, frame["launch_ns"] + START
    )
    return frame.astype({name: column.dtype for name, column in KERNELS.items()})


def in_a_row(durations: Sequence[int], gap: int, **columns: object) -> list[dict[str, Any]]:
    """Return kernels of these durations with the same gap between them, from 0 on."""
    rows, at = [], 0
    for duration in durations:
        rows.append({"start_ns": at, "duration_ns": duration, **columns})
        at += duration + gap
    return rows


def host_ops(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return host operators; moments are nanoseconds after the start."""
    frame = _frame(_HOST_OP, rows)
    frame["start_ns"] += START
    return frame


def signal(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table of ``Signals``; what a row leaves out is unknown."""
    unknown = {"category": "", "int64": -1, "float64": float("nan")}
    defaults = {name: unknown[kind] for name, kind in SCHEMAS[table].items()}
    return _frame(defaults, rows).astype(dict(SCHEMAS[table]))


def recording(  # noqa: PLR0913 - the parts of a recording
    kernel_rows: Sequence[Mapping[str, Any]] = (),
    host_rows: Sequence[Mapping[str, Any]] = (),
    *,
    step: Mapping[str, Any] | None = None,
    step_ns: int = 100 * MS,
    step_count: int = 1,
    recorded_steps: int = 0,
    variables: Mapping[str, str] | None = None,
    environment: Environment | None = None,
    **signals: Sequence[Mapping[str, Any]],
) -> Recording:
    """Return a recording; ``step`` is the one row of its steps, further names are signals."""
    tables: dict[str, Any] = {name: signal(name, rows) for name, rows in signals.items()}
    steps = _frame(_STEP, [] if step is None else [step])
    return Recording(
        kernels=kernels(kernel_rows),
        host_ops=host_ops(host_rows),
        steps=steps.astype({"step": "Int64", "device": "int32"}),
        step_ns=step_ns,
        step_count=step_count,
        signals=Signals(**tables),
        environment=environment or Environment(variables=variables or {}),
        recorded_steps=recorded_steps,
    )


def _frame(defaults: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    unknown = {name for row in rows for name in row} - set(defaults)
    if unknown:
        raise ValueError(f"a table with {', '.join(defaults)} has no {', '.join(sorted(unknown))}")
    kinds = {str: "category", bool: "bool", int: "int64", float: "float64"}
    return pd.DataFrame(
        {
            name: pd.Series([row.get(name, value) for row in rows], dtype=kinds[type(value)])
            for name, value in defaults.items()
        }
    )


def check_empty_recordings(subject: Subject) -> Iterator[str]:
    """Check that a recording without anything shows nothing."""
    assert isinstance(subject.rule, Diagnostic)  # noqa: S101 - the table in `running` sees to it
    for empty in (recording(), recording(step_ns=0)):
        for seen in subject.rule.check(empty):
            yield f"it says of an empty recording: {seen.what}"


def check_empty_jobs(subject: Subject) -> Iterator[str]:
    """Check that ranks of which nothing is known show nothing."""
    from npufix.advisor.cluster.gathering import all_steps, cluster_of
    from npufix.advisor.cluster.jobs import Dump
    from npufix.profiling_parsers.cluster.summary import Summary

    assert isinstance(subject.rule, ClusterDiagnostic)  # noqa: S101 - as above
    dumps = [Dump(Path(f"rank{rank}"), Summary(rank), rank, rank) for rank in range(4)]
    for seen in subject.rule.check(cluster_of(dumps, all_steps(dumps), {})):
        yield f"it says of a job without steps and collectives: {seen.what}"


def check_amounts(subject: Subject) -> Iterator[str]:
    """Check that nothing costs more than the step, or saves more than it costs."""
    assert isinstance(subject.rule, Diagnostic)  # noqa: S101 - as above
    for seed, looked_at in enumerate(_recordings()):
        problems = list(problems_of_amounts(subject.rule, looked_at))
        if problems:
            yield from (f"any_recording(Random({seed})): {problem}" for problem in problems)
            return


@cache
def _recordings() -> tuple[Recording, ...]:
    seeds = range(_RECORDINGS)
    return tuple(any_recording(random.Random(seed)) for seed in seeds)  # noqa: S311 - no secret


def problems_of_amounts(rule: Diagnostic, looked_at: Recording) -> Iterator[str]:
    """Yield which amounts in the observations of a rule cannot be."""
    for seen in rule.check(looked_at):
        low, high = seen.saving_ns or (0, 0)
        if not 0 <= seen.cost_ns <= looked_at.step_ns:
            yield f"{seen.cost_ns=} of a step of {looked_at.step_ns}"
        if not 0 <= low <= high <= seen.cost_ns:
            yield f"{seen.saving_ns=} of {seen.cost_ns=}"
        if not (seen.basis and re.search(r"\d", seen.what)):
            yield f"it needs a number in what it says, and a basis: {seen.what!r}, {seen.basis!r}"
        if not seen.kernels <= set(looked_at.kernels.index):
            yield "`kernels` are not labels of the rows of Recording.kernels"
        costs = [place.cost_ns for place in seen.places]
        if costs != sorted(costs, reverse=True):
            yield f"the places are not in the order of their costs: {costs}"
        if not all(0 <= cost <= looked_at.step_ns for cost in costs):
            yield f"a place costs more than the step of {looked_at.step_ns}: {costs}"


def any_recording(draw: random.Random) -> Recording:
    """Return a recording of anything: rows that rules look for, in no sensible order."""

    def moment() -> int:
        return draw.choice((0, 1, draw.randint(0, 90 * MS)))

    def rows(most: int, made: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        return [made() for _ in range(draw.randint(0, most))]

    host_rows = rows(12, lambda: {
        "name": draw.choice(_OPS), "start_ns": moment(), "duration_ns": moment(),
    })  # fmt: skip
    step = {
        "computing_ns": moment(), "communication_exposed_ns": (exposed := moment()),
        "free_ns": moment(), "communication_ns": exposed,
    }  # fmt: skip
    return recording(
        rows(20, lambda: {
            "start_ns": moment(), "duration_ns": moment(), "launch_ns": moment() - 1,
            "type": draw.choice(_TYPES), "core": draw.choice(("AI_CPU", "AI_VECTOR_CORE")),
            "name": draw.choice(("Conv2D1", "hcom_1", "x")),
            "communication": draw.choice((False, True)), "step": draw.randint(1, 3),
            "input_shapes": draw.choice(("", "4,8;;2", "a,b", "9" * 30)),
            "input_dtypes": draw.choice(("", "FLOAT;;INT64", "DT_BF16", "BOOL")),
            "path": draw.choice(("", "a.py", "b.py")),
        }),
        sorted(host_rows, key=lambda row: int(row["start_ns"])),
        step=draw.choice((None, step)),
        step_ns=draw.randint(1, 300) * MS,
        step_count=draw.randint(1, 3),
        recorded_steps=draw.randint(0, 5),
        apis=rows(4, lambda: {
            "level": "acl", "name": draw.choice(_APIS), "count": draw.randint(0, 99),
            "total_ns": moment(), "max_ns": 1,
        }),
        transports=rows(3, lambda: {
            "name": "hcom_1", "transport": draw.choice(("SDMA", "RDMA")),
            "size_bytes": draw.randint(-1, 10**9), "transit_ns": moment() - 1,
            "gb_per_s": draw.choice((0.0, draw.uniform(0, 30))),
        }),
        collectives=rows(3, lambda: {
            "name": "hcom_1", "elapse_ns": 100 * moment(), "transit_ns": moment() - 1,
            "wait_ns": moment() - 1,
        }),
        gc=[{"start_ns": START + moment(), "duration_ns": moment()}],
        frequency=[
            {"device": 0, "start_ns": START + moment(), "mhz": draw.uniform(0, 1800)}
            for _ in range(2)
        ],
    )  # fmt: skip
