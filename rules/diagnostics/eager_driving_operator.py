"""Operators of driving models that Ascend DrivingSDK has as one kernel.

What: pooling of large images, deformable convolutions, voxels, bird's eye view pooling, sparse
convolutions, scatter_max and heatmaps of detection models (mmcv, mmdet3d, spconv, torch_scatter).

Why it is slow on the NPU: the packages have CUDA kernels; what runs instead is many small kernels,
an AI CPU kernel, or a general one that the sizes of these models do not suit.

Evidence: by table: kernels of a Type with the shapes that the operator takes, kernels below an
operator of the host, or kernels below a function of this name in the user's code.

Use instead: ``mx_driving.npu_max_pool2d``, ``bev_pool_v3``, ``SparseConv3d`` and ``SubMConv3d``,
``deform_conv2d`` and ``modulated_deform_conv2d``, ``voxelization`` and ``unique_voxel``,
``scatter_max``, ``scatter_mean`` and ``scatter_add``, ``npu_gaussian`` and
``npu_draw_gaussian_to_heatmap``.

Safety: advice. mx_driving is a package of its own. ``npu_max_pool2d`` takes float32 NCHW with C a
multiple of 8, H and W above 100, kernel 3, stride 2, padding 1, on Atlas A2, and has no gradient:
it is named in runs without a backward pass only.

References: API pages and the guide to model optimisation of Ascend DrivingSDK.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.fusable import trains
from npufix.rules.shared.recording.observing import computing, find_named, per_step, places, share
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording


@dataclass(frozen=True, slots=True)
class _Row:
    """An operator of DrivingSDK, and by what the code that it replaces is known in a dump."""

    operator: str
    host_ops: str = ""
    functions: str = ""


_ROWS = (
    _Row(
        "mx_driving.deform_conv2d or modulated_deform_conv2d",
        host_ops=r"(torchvision|mmcv|aten)::(modulated_)?deform_conv(2d)?\w*",
        functions=r"(modulated_)?deform_conv(2d)?",
    ),
    _Row(
        "mx_driving.scatter_max, scatter_mean or scatter_add",
        host_ops=r"torch_scatter::scatter_(max|mean|sum|add)",
        functions=r"scatter_(max|mean)",
    ),
    _Row("mx_driving.bev_pool_v3", functions=r"(voxel_pooling|bev_pool)(_v\d)?"),
    _Row(
        "mx_driving.SparseConv3d or SubMConv3d",
        host_ops=r"spconv::\w+",
        functions=r"(indice_(subm_)?conv|sparse_conv|subm_conv)\w*",
    ),
    _Row(
        "mx_driving.voxelization or unique_voxel",
        functions=r"(hard_|dynamic_)?voxeli[sz](e|ation)",
    ),
    _Row(
        "mx_driving.npu_gaussian or npu_draw_gaussian_to_heatmap",
        functions=r"draw_(umich_)?(heatmap_gaussian|gaussian)(_to_heatmap)?|gaussian_(2d|radius)",
    ),
)
_POOL = r"MaxPool\w*"
_CHANNELS, _LEAST_SIDE = 8, 100


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each row of the table that takes a share worth telling."""
    for row in _ROWS:
        rows = _find_known(recording, row)
        if len(rows):
            yield from _observation(recording, rows, row.operator)
    pools = _pools(recording)
    if len(pools) and not trains(recording):
        yield from _observation(recording, pools, "mx_driving.npu_max_pool2d")


def _find_known(recording: Recording, row: _Row) -> pd.DataFrame:
    """Return the compute kernels below the operators and functions of a row."""
    kernels = recording.kernels
    chosen = np.zeros(len(kernels), np.bool_)
    if row.host_ops:
        below = find_named(recording.host_ops, row.host_ops).index
        chosen |= kernels["host_op"].isin(below).to_numpy()
    if row.functions:
        chosen |= kernels.index.isin(find_named(kernels, row.functions, "function").index)
    chosen &= ~kernels["communication"].to_numpy(bool)
    found: pd.DataFrame = kernels[chosen] if chosen.any() else kernels[:0]
    return found


def _pools(recording: Recording) -> pd.DataFrame:
    rows = computing(recording, _POOL)
    cells = rows["input_shapes"].cat.categories
    return rows[rows["input_shapes"].isin([cell for cell in cells if _is_pooled(str(cell))])]


def _is_pooled(cell: str) -> bool:
    """Tell whether the operator takes an image of this shape."""
    match shapes(cell)[0]:
        case (_, channels, height, width):
            return channels % _CHANNELS == 0 and min(height, width) > _LEAST_SIDE
    return False


def _observation(recording: Recording, rows: pd.DataFrame, operator: str) -> Iterator[Observation]:
    spent = rows["duration_ns"].to_numpy()
    cost = per_step(int(spent.sum()), recording)
    if share(cost, recording) < LEAST_SHARE:
        return
    steps = max(1, recording.step_count)
    yield Observation(
        what=(
            f"{format_count(len(rows) / steps, 'kernel')} per step that {operator} stands for take "
            f"{milliseconds(cost)}, {percent(share(cost, recording))} of the step"
        ),
        evidence=(("kernels", ", ".join(sorted({str(name) for name in rows["type"]}))),),
        cost_ns=cost,
        basis="the dump does not tell how long the operator takes for these sizes",
        places=places(rows, spent, recording),
        kernels=Labels(rows.index),
    )


RULE = Diagnostic(
    id="NPU135",
    name="eager-driving-operator",
    summary="an operator of driving models runs in kernels that do not suit it",
    advice="the operator of this purpose in mx_driving (Ascend DrivingSDK)",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
