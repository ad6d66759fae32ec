"""An operator runs on the AI CPU of the device instead of an AI core.

What: kernels whose core is AI_CPU and that take more than 20 µs.

Why it is slow on the NPU: the AI CPU is a few scalar cores beside the AI cores, one to two orders
of magnitude slower on tensors. An operator ends there when no AI core kernel accepts its dtypes,
its shapes or its arguments: int64 and double most of all.

Evidence: Accelerator Core and duration of each kernel; the recorded dtypes against the lists of
dtypes that CANN has AI core kernels for (of 2026-08: an older CANN accepts less), so the reason
that is named is a reason to look at, not a proof.

Use instead: cast to a dtype on the list (``x.float()`` for double, ``x.int()`` for int64 where the
values allow it), or write it with another operator: ``x.float().sort()`` for whole numbers below
2**24, ``x.int().cumsum(dim, dtype=torch.int32)``, a mask instead of ``unique``,
``torch.view_as_real(z).pow(2).sum(-1).sqrt()`` for the absolute value of complex numbers.

Safety: advice; a narrower dtype overflows or rounds where a wider one does not.

References: aicpu_rules.yaml of msprof-analyze (threshold 20 µs); solution_to_top2.md and
solution_to_top5.md of the troubleshooting guide; aclnn_index_put_impl.cpp of ops-nn.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.core_time import on_ai_core
from npufix.rules.shared.recording.observing import (
    BATCH_QUEUE,
    is_named,
    per_step,
    places,
    share,
)
from npufix.rules.shared.recording.recorded_cells import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from npufix.rules.diagnostic import Recording

AICPU_20 = 20_000
"""Nanoseconds of one kernel."""
_REMEDIES = (
    (r"(Arg)?Sort\w*", "x.float().sort() for whole numbers below 2**24, or topk on floats"),
    (r"Cumsum\w*", "x.int().cumsum(dim, dtype=torch.int32) where the sums fit 31 bits"),
    (
        r"Unique\w*",
        (
            "no unique in the loop: work it out once, or use a mask; its result has a length for "
            "which the host must wait as well"
        ),
    ),
    (
        r"IndexPut\w*",
        (
            "masked_fill_ or torch.where for a mask, index_copy_ or scatter_ for unique indices; "
            "values in float32, float16, bfloat16 or int32"
        ),
    ),
    (
        r"MaskedScatter\w*",
        (
            "x.index_put(mask.nonzero(as_tuple=True), rows) where the mask is one of rows (NPU220), or "
            "torch.where where there are as many values as elements"
        ),
    ),
    (
        r"(NMS|NonMaxSuppression)\w*",
        (
            "fewer boxes before it (topk of the scores), boxes in float32, and one call for all "
            "classes (torch_npu.contrib.function.npu_batched_multiclass_nms)"
        ),
    ),
    (r"ComplexAbs", "torch.view_as_real(z).pow(2).sum(-1).sqrt()"),
)
_KEEPS_DTYPE = re.compile(r"Unique\w*|IndexPut\w*|MaskedScatter\w*|NMS\w*|NonMaxSuppression\w*")
"""What another operator, or none, takes the place of, without a cast."""
_INDEXES = frozenset({"INT32", "INT64"})
_MOST_DTYPES = 3
_INDEX_PUT = "IndexPut"
_INDEX_PUT_DTYPES = {
    "DOUBLE": "DOUBLE has no AI core kernel",
    "INT16": "INT16 has no AI core kernel",
    "INT64": "INT64 goes there with more than 100 indices or more than 128 elements behind each",
    "UINT8": "UINT8 goes there with more than 100 indices or more than 128 elements behind each",
}
_INDEX_PUT_OTHER = (
    "indices of different shapes, indexed axes that are not adjacent, an index that is not INT32 "
    "or INT64, 8 dimensions or more, or more than 60 million indices"
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per cause, a dtype or the Type itself; the most expensive first."""
    kernels = recording.kernels
    own = (kernels["core"] == "AI_CPU") & (kernels["duration_ns"] > AICPU_20)
    own &= ~is_named(kernels, BATCH_QUEUE, "type")  # it waits for data (NPU408)
    slow = kernels[own & ~kernels["communication"].to_numpy(bool)]
    cause = _cause(slow, recording.environment.chip or "")
    causes = slow["duration_ns"].groupby(cause).sum()
    for name in causes.sort_values(ascending=False, kind="stable").index:
        rows = slow[(cause == name).to_numpy(bool)]
        yield _observation(rows, recording)


def _cause(rows: pd.DataFrame, chip: str) -> pd.Series[str]:
    """Return the dtype for which a Type is there, else the Type: Mul, Sub and Exp in DOUBLE are one."""
    import pandas as pd

    keys = list(rows[["type", "input_dtypes"]].astype(str).itertuples(index=False, name=None))
    known: dict[tuple[str, str], str] = {}
    for kind, cell in set(keys):
        refused = "" if remedy(kind) else _find_refused(kind, cell, chip)
        known[kind, cell] = refused or kind
    return pd.Series([known[key] for key in keys], rows.index, dtype=object)


def _observation(rows: pd.DataFrame, recording: Recording) -> Observation:
    totals = rows.groupby("type", observed=True)["duration_ns"].sum()
    kinds = list(map(str, totals.sort_values(ascending=False, kind="stable").index))
    name = kinds[0]
    cost = per_step(rows["duration_ns"].sum(), recording)
    calls = len(rows) / max(1, recording.step_count)
    saving, basis, instead = _saving(rows, recording)
    reasons = tuple(_dtypes(name, rows, recording.environment.chip or ""))
    times, of_step = format_count(calls, "time"), percent(share(cost, recording))
    what = (
        f"{name} runs on the AI CPU {times} per step and takes {milliseconds(cost)} "
        f"({of_step} of the step); {': '.join(reasons[0])}"
    )
    if len(kinds) > 1:
        what = (
            f"{', '.join(kinds)} run on the AI CPU {times} per step and take {milliseconds(cost)} "
            f"({of_step} of the step); {': '.join(reasons[0])}"
        )
    return Observation(
        what=what,
        evidence=(("longest", milliseconds(rows["duration_ns"].max())), *reasons),
        cost_ns=cost,
        saving_ns=saving,
        basis=basis,
        instead=instead,
        instead_launches=1 if _KEEPS_DTYPE.fullmatch(name) else 2,  # a cast comes before it
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
        advice=remedy(name),
    )


def _saving(
    rows: pd.DataFrame, recording: Recording
) -> tuple[tuple[int, int] | None, str, tuple[int, ...] | None]:
    """Return what is saved per step, by what that is told, and the kernels that come instead."""
    expected = on_ai_core(rows, recording.kernels)
    if expected is None:
        why = "the dump has no shapes or too few kernels to tell what an AI core would take"
        return None, why, None
    now = float(rows["duration_ns"].sum())
    low, high = max(0.0, now - expected.high_ns), max(0.0, now - expected.low_ns)
    times = (expected.low_ns, expected.high_ns, expected.likely_ns)
    instead = (len(rows), *map(round, times))
    return (per_step(low, recording), per_step(high, recording)), expected.basis, instead


def _dtypes(name: str, rows: pd.DataFrame, chip: str) -> Iterator[tuple[str, str]]:
    """Yield the reason for each of the most expensive combinations of dtypes."""
    cells = rows.groupby("input_dtypes", observed=True)["duration_ns"].sum()
    for cell in cells.sort_values(ascending=False, kind="stable").index[:_MOST_DTYPES]:
        dtypes = str(cell)
        yield (f"inputs {dtypes}" if dtypes else "inputs", reason(name, dtypes, chip))


def reason(name: str, dtypes: str, chip: str = "") -> str:
    """Return why a Type with these input dtypes (``"INT64;FLOAT"``) is not on an AI core."""
    given = [dtype_name(part) for part in dtypes.split(";") if part.strip()]
    if not given:
        return "dtypes were not recorded"
    if name.startswith(_INDEX_PUT):
        return _INDEX_PUT_DTYPES.get(given[0], _INDEX_PUT_OTHER)
    accepted = _find_accepted(name, chip)
    if accepted is None:
        return "the dtypes that AI core kernels of this Type accept are not known"
    if refused := _find_refused(name, dtypes, chip):
        return f"{refused} has no AI core kernel; {', '.join(accepted)} have"
    return "these dtypes have an AI core kernel: the shape, an argument or an older CANN decides"


def _find_refused(name: str, dtypes: str, chip: str) -> str:
    """Return the first dtype that no AI core kernel of a Type accepts, "" if none is known."""
    accepted = _find_accepted(name, chip)
    given = [dtype_name(part) for part in dtypes.split(";") if part.strip()]
    if accepted is None:
        return ""
    # Inputs behind the first may be indices, of which the lists say nothing.
    refused = (d for i, d in enumerate(given) if d not in accepted and (not i or d not in _INDEXES))
    return next(refused, "")


def remedy(name: str) -> str:
    """Return what to write instead, "" where nothing special is known for a Type."""
    found = (text for pattern, text in _REMEDIES if re.fullmatch(pattern, name))
    return next(found, "")


def _find_accepted(name: str, chip: str) -> tuple[str, ...] | None:
    families = _table().get(name)
    if families is None:
        return None
    return tuple(families.get(_family(chip), families.get("910B", ())))


def _family(chip: str) -> str:
    """Return the column of the table: Ascend910B3 and Ascend910_9391 have that of 910B."""
    model = chip.removeprefix("Ascend")
    return "910" if model in {"910", "910A", "910ProA", "910ProB"} else "910B"


@cache
def _table() -> Mapping[str, Mapping[str, list[str]]]:
    text = files("npufix.rules.diagnostics").joinpath("aicore_dtypes.json").read_text("utf-8")
    types: Mapping[str, Mapping[str, list[str]]] = json.loads(text)["types"]
    return types


RULE = Diagnostic(
    id="NPU301",
    name="ai-cpu-operator",
    summary="an operator runs on the slow AI CPU of the device",
    advice=(
        "cast its inputs to a dtype that has an AI core kernel (x.float() for double, x.int() for "
        "int64 where the values allow it), or write it with another operator"
    ),
    check=check,
)
