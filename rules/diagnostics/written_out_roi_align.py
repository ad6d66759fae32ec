"""Regions of interest are aligned with small operators.

What: a function named ``roi_align`` that launches several kernels for each call, or runs on the
host.

Why it is slow on the NPU: the kernels of torchvision and mmcv are made for a GPU. What runs instead
are gathers and products over all sample points of all boxes.

Evidence: kernels that a function of that name asked for, except those of ROIAlign itself.

Use instead: ``torch_npu.contrib.module.ROIAlign(output_size, spatial_scale, sampling_ratio,
aligned)``.

Safety: equal up to rounding; check the sample points at the border for ``aligned=False``.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import NamedFunction, by_name

_FUNCTION = NamedFunction(
    r"roi_align(_rotated)?",
    "regions are aligned with small operators",
    "torch_npu.contrib.module.ROIAlign",
    r"(?!ROIAlign|RoiAlign).*",
)


RULE = Diagnostic(
    id="NPU149",
    name="written-out-roi-align",
    summary="regions of interest are aligned with small operators",
    advice=_FUNCTION.instead,
    check=lambda recording: by_name(recording, [_FUNCTION]),
    table="fusion",
    requires="torch_npu>=2.1",
)
