"""Kernels in a row, for tests of advice about sequences: a row says only what matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.advisor.rules_test.recordings import MS, US, recording

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Observation

STEP = 4 * MS


def kernel(kind: str, read: str = "", written: str = "", **columns: Any) -> dict[str, Any]:
    """Return a kernel of 100 µs; ``chain`` puts them one after the other."""
    row = {"type": kind, "duration_ns": 100 * US, "input_shapes": read, "output_shapes": written}
    if kind.startswith("hcom_"):
        row |= {"communication": True, "name": f"{kind}_1", "input_shapes": "", "output_shapes": ""}
    return {**row, **columns}


def chain(*rows: dict[str, Any], times: int = 1, gap: int = US) -> list[dict[str, Any]]:
    """Return the kernels in a row, several times over, each with a line of its own."""
    made, at = [], 0
    for _ in range(times):
        for number, row in enumerate(rows):
            place = {"path": "model.py", "line": 10 + number, "function": "forward"}
            made.append({**place, **row, "start_ns": at})
            at += row["duration_ns"] + gap
    return made


def seen(rule: Any, rows: list[dict[str, Any]], **others: Any) -> list[Observation]:
    return list(getattr(rule, "RULE", rule).check(recording(rows, **{"step_ns": STEP, **others})))


def the(found: list[Observation]) -> Observation:
    (observation,) = found
    return observation


PRODUCT = kernel("MatMulV3", "64,32;32,16", "64,16", input_dtypes="DT_BF16;DT_BF16")
REDUCED = kernel("hcom_allReduce_")
ADDED = kernel("Add", "1,64,16;1,64,16", "1,64,16", input_dtypes="DT_BF16;DT_BF16")
NORM = kernel("RmsNorm", "1,64,16;16", "1,64,16;1,64,1", input_dtypes="DT_BF16;DT_BF16")
