"""Multi-scale deformable attention that samples level by level.

What: the PyTorch fallback of Deformable DETR, BEVFormer and their relatives: a loop over the levels
with one ``F.grid_sample`` each, then a weighted sum over all sampled values.

Why it is slow on the NPU: bilinear sampling of scattered points runs on scalar units level by level,
and all samples are written and read again for the sum. In BEVFormer this dominates the step.

Evidence: GridSampler2D kernels of one line, one after the other, for inputs of different sizes.

Use instead: ``mx_driving.multi_scale_deformable_attn(value, spatial_shapes, level_start_index,
sampling_locations, attention_weights)`` of Ascend's DrivingSDK.

Safety: advice. mx_driving is a package of its own. Its documentation notes that float16 is unstable
here: keep float32.

References: multi_scale_deformable_attn and the guide to model optimisation of Ascend DrivingSDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable
from npufix.rules.shared.recording.recorded_shapes import share_an_input

if TYPE_CHECKING:
    from npufix.rules.shared.recording.recorded_shapes import Shape
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_SAMPLE = r"GridSample(r2D)?(V\d)?"
_BETWEEN = (
    "Add", "Adds", "Cast", "ConcatD", "Mul", "Muls", "Pack", "Slice", "StridedSlice",
    "StridedSliceD", "Sub", "TensorMove", "Transpose", "ViewCopy",
)  # fmt: skip
_IMAGE = 4


def _are_levels(found: Occurrences) -> Mask:
    return np.asarray(share_an_input(found.part(0), found.part(1), _other_size), np.bool_)


def _other_size(one: tuple[Shape, ...], other: tuple[Shape, ...]) -> bool:
    """Tell whether two images differ in height or width, and in nothing else."""
    return (
        len(one[0]) == len(other[0]) == _IMAGE
        and one[0][:2] == other[0][:2]
        and one[0][2:] != other[0][2:]
    )


RULE = Diagnostic(
    id="NPU134",
    name="eager-deformable-attention",
    summary="deformable attention samples level by level",
    advice=(
        "mx_driving.multi_scale_deformable_attn(value, spatial_shapes, level_start_index, "
        "sampling_locations, attention_weights) of Ascend DrivingSDK, in float32"
    ),
    check=lambda recording: fusable(
        recording,
        Fusable(
            parts=(_SAMPLE, _SAMPLE),
            saved=(0, 1),
            operator="mx_driving.multi_scale_deformable_attn",
            basis="at most all the sampling: the operator samples as well, in one kernel",
            between=_BETWEEN,
            within="line",
            links=_are_levels,
        ),
    ),
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
