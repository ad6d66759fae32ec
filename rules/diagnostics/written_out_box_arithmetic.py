"""Boxes of a detector are compared, coded and sorted with small operators.

What: overlaps (IoU, GIoU, DIoU, CIoU), encoding and decoding of boxes, responsible anchors and
non-maximum suppression, in functions of the usual names.

Why it is slow on the NPU: each is a dozen slices, minima, differences and products on a few thousand
boxes, and suppression has results of unknown length, for which the host waits.

Evidence: kernels that functions named like that asked for.

Use instead: ``torch_npu.contrib.function``: ``npu_iou``, ``npu_giou``, ``npu_diou``, ``npu_ciou``,
``npu_bbox_coder_encode_xyxy2xywh``, ``npu_bbox_coder_decode_xywh2xyxy``,
``npu_single_level_responsible_flags``, ``npu_multiclass_nms``.

Safety: advice; padded results of fixed length, and other rounding. These functions are deprecated
from release 26.0.0 on, so newer versions are told nothing.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import NamedFunction, by_name

_CONTRIB = "torch_npu.contrib.function"
FUNCTIONS = (
    NamedFunction(
        r"(box|bbox|bboxes|pairwise)_(iou|overlaps)|bbox_overlaps|\w*_iou|[gdc]?iou",
        "overlaps of boxes are written out",
        f"{_CONTRIB}.npu_iou, npu_giou, npu_diou or npu_ciou",
    ),
    NamedFunction(
        r"bbox2delta|delta2bbox|bbox_transform\w*|xyxy2xywh|xywh2xyxy|encode_boxes|decode_boxes",
        "boxes are coded with small operators",
        f"{_CONTRIB}.npu_bbox_coder_encode_xyxy2xywh or npu_bbox_coder_decode_xywh2xyxy",
    ),
    NamedFunction(
        r"(single_level_)?responsible_flags",
        "responsible anchors are marked by index",
        f"{_CONTRIB}.npu_single_level_responsible_flags",
    ),
    NamedFunction(
        r"(multiclass_|batched_|soft_)?nms|non_max_suppression",
        "boxes are suppressed with small operators",
        f"{_CONTRIB}.npu_multiclass_nms or npu_batched_multiclass_nms",
        r"(?!NonMaxSuppression|BatchMultiClass).*",
    ),
)


RULE = Diagnostic(
    id="NPU148",
    name="written-out-box-arithmetic",
    summary="boxes of a detector are compared, coded and sorted with small operators",
    advice="the functions npu_iou, npu_multiclass_nms and others of torch_npu.contrib.function",
    check=lambda recording: by_name(recording, FUNCTIONS),
    table="fusion",
    # Deprecated in release 26.0.0, which is a post release of 2.7.1 and later.
    requires="torch_npu>=2.1,<2.7",
)
