"""Outer joins of two runs: by Type, by shape, by host operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.advisor.compare.side import CostTable
from npufix.reports.comparison import HostOperatorChange, OperatorChange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.compare.side import ComparedRun

MOST_ROWS = 500
"""Of a table; those that are left out change by the least time."""
_SUMS = ("total_ns", "calls")
# What one operator of PyTorch is called on different devices.
_COMMON_NAMES = {
    "aten::_convolution": "aten::convolution",
    "aten::cudnn_convolution": "aten::convolution",
    "aten::miopen_convolution": "aten::convolution",
    "aten::npu_convolution": "aten::convolution",
    "npu::npu_convolution": "aten::convolution",
    "aten::npu_convolution_backward": "aten::convolution_backward",
    "npu::npu_convolution_backward": "aten::convolution_backward",
    "aten::cudnn_batch_norm": "aten::native_batch_norm",
    "aten::miopen_batch_norm": "aten::native_batch_norm",
    "aten::cudnn_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::miopen_batch_norm_backward": "aten::native_batch_norm_backward",
    "aten::clamp_min_": "aten::relu_",
    "aten::_cudnn_rnn": "aten::lstm",
    "npu::_npu_dropout": "aten::native_dropout",
    "npu::npu_dropout_backward": "aten::native_dropout_backward",
    "aten::_scaled_dot_product_flash_attention": "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_efficient_attention": "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_cudnn_attention": "aten::scaled_dot_product_attention",
    "aten::_flash_attention_forward": "aten::scaled_dot_product_attention",
    "aten::_efficient_attention_forward": "aten::scaled_dot_product_attention",
    "npu::npu_fusion_attention": "aten::scaled_dot_product_attention",
    "npu::npu_fusion_attention_v2": "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_flash_attention_backward":
        "aten::scaled_dot_product_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward":
        "aten::scaled_dot_product_attention_backward",
    "aten::_flash_attention_backward": "aten::scaled_dot_product_attention_backward",
    "npu::npu_fusion_attention_grad": "aten::scaled_dot_product_attention_backward",
    "npu::npu_rms_norm": "aten::_fused_rms_norm",
    "npu::npu_rms_norm_backward": "aten::_fused_rms_norm_backward",
    "aten::linear": "aten::addmm",
    "aten::npu_linear": "aten::addmm",
    "npu::npu_linear": "aten::addmm",
}  # fmt: skip
_DTYPES = {
    "c10::bfloat16": "bfloat16", "bf16": "bfloat16", "bfloat16": "bfloat16", "dt_bf16": "bfloat16",
    "c10::half": "float16", "half": "float16", "float16": "float16", "float": "float32",
    "float32": "float32", "double": "float64", "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "long": "int64", "long int": "int64", "int64": "int64",
    "int": "int32", "int32": "int32", "bool": "bool", "signed char": "int8", "int8": "int8",
    "unsigned char": "uint8", "uint8": "uint8", "short": "int16", "int16": "int16",
}  # fmt: skip


def join_tables(before: CostTable, after: CostTable, keys: Sequence[str]) -> pd.DataFrame:
    """Return both tables side by side, the largest change first.

    A column of sums is there as ``before_...`` and ``after_...``; NaN is not known.
    """
    sides = {}
    for name, table in (("before", before), ("after", after)):
        sums = table.rows.groupby(list(keys), sort=False, as_index=False)[list(_SUMS)].sum()
        # An empty table has no types of its own.
        sums = sums.astype({key: bool if key == "communication" else object for key in keys})
        sides[name] = sums.rename(columns={column: f"{name}_{column}" for column in _SUMS})
    both = sides["before"].merge(sides["after"], on=list(keys), how="outer")
    for name, table, other in (("before", before, "after"), ("after", after, "before")):
        columns = [f"{name}_{column}" for column in _SUMS]
        both[columns] = both[columns].astype(np.float64)
        absent = both[f"{name}_total_ns"].isna()
        if not table.complete:
            absent &= both[f"{other}_total_ns"].astype(np.float64) > table.missing_ns
        both.loc[absent, columns] = 0.0
    return by_change(both, keys)


def by_change(both: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Sort by the size of the change, then by what takes time at all; ties by the keys."""
    change = (both["after_total_ns"] - both["before_total_ns"]).abs().fillna(-1.0).round(3)
    largest = both[["before_total_ns", "after_total_ns"]].max(axis=1).round(3)
    order = both.assign(_change=-change, _largest=-largest)
    order = order.sort_values(["_change", "_largest", *keys], kind="stable")
    return both.loc[order.index].reset_index(drop=True)


def operator_changes(
    before: ComparedRun, after: ComparedRun
) -> tuple[list[OperatorChange], list[OperatorChange]]:
    """Return what changed by Type, and by Type and shape; collectives are in the first only."""
    core = ["core"] if before.by_core or after.by_core else []
    types = join_tables(before.types, after.types, ["communication", "type", *core])
    if any(table.rows.empty and not table.complete for table in (before.types, after.types)):
        types = types.head(0)  # a baseline knows shapes only
    shapes = join_tables(before.shapes, after.shapes, ["type", *core, "shapes"])
    shapes = shapes[shapes["shapes"].astype(bool)].assign(communication=False)
    return _operators(types.assign(shapes="")), _operators(shapes)


def _operators(both: pd.DataFrame) -> list[OperatorChange]:
    columns = [
        both[name].tolist()
        for name in ("type", "shapes", "communication", "before_total_ns", "after_total_ns",
                     "before_calls", "after_calls")
    ]  # fmt: skip
    return [
        OperatorChange(
            str(kind), str(shapes), bool(communication), whole(before), whole(after),
            round_known(before_calls), round_known(after_calls),
        )
        for kind, shapes, communication, before, after, before_calls, after_calls
        in list(zip(*columns, strict=True))[:MOST_ROWS]
    ]  # fmt: skip


def whole(value: float) -> int | None:
    """Return nanoseconds, None for NaN."""
    return None if np.isnan(value) else round(value)


def round_known(value: float) -> float | None:
    """Return a number with few digits, None for NaN."""
    return None if np.isnan(value) else round(float(value), 3)


def host_operator_changes(before: ComparedRun, after: ComparedRun) -> list[HostOperatorChange]:
    """Return what changed by host operator; nothing where a side does not know them."""
    if before.cells is None or after.cells is None:
        return []
    sides = [_by_host(before), _by_host(after)]
    complete = before.types.complete, after.types.complete
    both = join_tables(CostTable(sides[0], complete[0]), CostTable(sides[1], complete[1]), ["name"])
    kinds = [run.shown.format == "kineto" for run in (before, after)]
    if kinds[0] != kinds[1]:
        # What the NPU loses most time at comes first, behind it what one of them lacks.
        lost = (both["after_total_ns"] - both["before_total_ns"]) * (1 if kinds[0] else -1)
        in_both = (both["before_total_ns"] > 0) & (both["after_total_ns"] > 0)
        both = both.assign(_one=~in_both, _lost=-lost).sort_values(["_one", "_lost"], kind="stable")
    rows = both.head(MOST_ROWS)
    details = [_details(side, rows["name"].tolist()) for side in sides]
    columns = [
        rows[name].tolist()
        for name in ("name", "before_total_ns", "after_total_ns", "before_calls", "after_calls")
    ]
    return [
        HostOperatorChange(
            name=str(name),
            before_ns=whole(before_ns),
            after_ns=whole(after_ns),
            before_calls=None if np.isnan(before_ns) else one.calls,
            after_calls=None if np.isnan(after_ns) else other.calls,
            before_kernels=round_known(before_kernels),
            after_kernels=round_known(after_kernels),
            before_dtypes=one.dtypes,
            after_dtypes=other.dtypes,
            before_names=one.names,
            after_names=other.names,
        )
        for name, before_ns, after_ns, before_kernels, after_kernels, one, other in zip(
            *columns, *details, strict=True
        )
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Details:
    """What is said of a host operator of one run."""

    calls: float = 0.0
    dtypes: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def _details(table: pd.DataFrame, names: list[str]) -> list[_Details]:
    columns = (table[column].tolist() for column in ("name", "host_calls", "dtypes", "names"))
    known = {
        name: _Details(round(calls, 3), dtypes if isinstance(dtypes, list) else [], own)
        for name, calls, dtypes, own in zip(*columns, strict=True)
    }
    return [known.get(name, _Details()) for name in names]


def _by_host(run: ComparedRun) -> pd.DataFrame:
    """Return a row per host operator: its time, kernels, own calls, dtypes and own names."""
    if run.cells is None or run.host_calls is None:  # pragma: no cover - asked before
        raise TypeError("no cells")
    cells = run.cells[~run.cells["communication"]]
    own = cells["host"].astype(str)
    cells = cells.assign(name=common_names(own), own=own)
    sums = cells.groupby("name", as_index=False)[list(_SUMS)].sum()
    calls = run.host_calls.groupby(common_names(run.host_calls.index.to_series())).sum()
    return sums.assign(
        host_calls=sums["name"].map(calls).fillna(0.0),
        dtypes=sums["name"].map(_leading_dtypes(cells)),
        names=sums["name"].map(cells.groupby("name")["own"].agg(lambda own: sorted(set(own)))),
    )


def common_names(names: pd.Series[str]) -> pd.Series[str]:
    """Return the names under which operators of different devices are the same."""
    return names.map(lambda name: _COMMON_NAMES.get(name, name))


def _leading_dtypes(cells: pd.DataFrame) -> pd.Series[Any]:
    """Return the dtypes of the tensors of each host operator, the one with the most time first."""
    texts = {text: _dtype(text) for text in pd.unique(cells["host_types"].astype(str))}
    own = cells["host_types"].astype(str).map(texts)
    of_kernel = {text: _dtype(text) for text in pd.unique(cells["dtypes"].astype(str))}
    dtype = own.where(own != "", cells["dtypes"].astype(str).map(of_kernel))
    rows = cells.assign(dtype=dtype)
    rows = rows[rows["dtype"] != ""]
    sums = rows.groupby(["name", "dtype"])["total_ns"].sum().reset_index()
    sums = sums.sort_values(["total_ns", "dtype"], ascending=[False, True], kind="stable")
    return sums.groupby("name")["dtype"].agg(list)


def _dtype(types: str) -> str:
    """Return the floating dtype of ``float;float;Scalar``, else the first one; "" if none."""
    names = [_DTYPES.get(part.strip().lower(), "") for part in types.split(";")]
    floating = [name for name in names if "float" in name]
    return next((name for name in (*floating, *names) if name), "")
