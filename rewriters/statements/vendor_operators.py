"""Calls of operators that a vendor's library has for the NPU, known by their names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.statements.proposal import Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.statements.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class _Row:
    """What a call is known by, and what the operator of mx_driving is called with."""

    called: str
    """Fits the last parts of the name: ``ms_deform_attn_core_pytorch``, ``Function.apply``."""
    operator: str
    limits: str = ""
    package: str = ""
    """Begins the import that it comes from, where the name alone says too little."""


_GROUPED = "float32, int32 indices that are not negative, no NaN or infinity"
_ROWS = (
    _Row(
        r"(\w*MultiScaleDeformableAttn\w*|MSDeformAttn)Function(_fp16|_fp32)?\.apply"
        r"|ms_deform_attn_core_pytorch|multi_scale_deformable_attn(_pytorch)?",
        "multi_scale_deformable_attn(value, value_spatial_shapes, value_level_start_index, "
        "sampling_locations, attention_weights)",
        "levels times points at most 64, at most 8 heads, heads of a multiple of 8 up to 256; "
        "float16 is unstable",
    ),
    _Row(
        r"(\w*DeformableAggregationFunction\.apply|deformable_aggregation_function)",
        "deformable_aggregation(feature_maps, spatial_shape, scale_start_index, sample_locations, "
        "weight)",
    ),
    _Row(
        r"(\w*GeometricKernelAttn\w*Function\.apply)",
        "geometric_kernel_attention(value, spatial_shapes, level_start_index, sampling_locations, "
        "attention_weights)",
    ),
    _Row(
        r"scatter_max",
        "scatter_max(updates, indices, out=None)",
        f"{_GROUPED}; along the first dimension, below 491520 groups, rows of n * 32 bytes",
        "torch_scatter",
    ),
    _Row(
        r"scatter_mean",
        "scatter_mean(src, indices, out=None, dim=0, dim_size=None)",
        f"{_GROUPED}; slow where what stands behind the index is small",
        "torch_scatter",
    ),
    _Row(
        r"scatter_(add|sum)",
        "scatter_add(src, indices, dim=0, out=None, dim_size=None)",
        f"{_GROUPED}; slow where what stands behind the index is small",
        "torch_scatter",
    ),
    _Row(
        r"segment_csr|segment_coo|scatter",
        "scatter_max(updates, indices), scatter_mean(src, indices) or scatter_add(src, indices), "
        "with the group of each row: torch.repeat_interleave(torch.arange(n), indptr.diff())",
        _GROUPED,
        "torch_scatter",
    ),
    _Row(
        r"bev_pool_v2|QuickCumsumCuda\.apply|bev_pool",
        "bev_pool_v3(depth, feat, ranks_depth, ranks_feat, ranks_bev, bev_feat_shape)",
    ),
    _Row(
        r"voxel_pooling(_train|_v2)?|VoxelPooling\w*\.apply",
        "npu_voxel_pooling_train(geom_xyz, input_features, voxel_num)",
    ),
    _Row(
        r"(hard_|dynamic_)?voxelize|Voxelization",
        "Voxelization(voxel_size, coors_range, max_points, max_voxels)",
    ),
    _Row(
        r"DynamicScatter|dynamic_scatter|DynamicPointToVoxel\w*",
        'dynamic_scatter(feats, coors, reduce_type="max")',
    ),
    _Row(
        r"SparseConv3d", "SparseConv3d(in_channels, out_channels, kernel_size, ...)", "", "spconv"
    ),
    _Row(r"SubMConv3d", "SubMConv3d(in_channels, out_channels, kernel_size, ...)", "", "spconv"),
    _Row(
        r"modulated_deform_conv2d|ModulatedDeformConv2dFunction\.apply",
        "modulated_deform_conv2d(x, offset, mask, weight, bias, stride, padding, dilation, groups, "
        "deformable_groups)",
        "groups of 1",
    ),
    _Row(
        r"deform_conv2d|DeformConv2dFunction\.apply",
        "deform_conv2d(x, offset, weight, stride, padding, dilation, groups, deformable_groups)",
        "groups of 1",
    ),
    _Row(r"furthest_point_sample", "furthest_point_sampling(points, num_points)"),
    _Row(r"furthest_point_sample_with_dist", "furthest_point_sample_with_dist(points, num_points)"),
    _Row(r"three_nn", "three_nn(target, source)"),
    _Row(r"three_interpolate", "three_interpolate(features, indices, weight)"),
    _Row(r"knn", "knn(k, xyz, center_xyz, transposed)", "", "mmcv"),
    _Row(r"group_points|grouping_operation", "group_points(features, indices)"),
    _Row(r"radius", "radius(x, y, ptr_x, ptr_y, r, max_num_neighbors)", "", "torch_cluster"),
    _Row(r"softmax", "graph_softmax(src, index)", "", "torch_geometric"),
    _Row(r"points_in_boxes_(part|gpu|all)", "points_in_box(boxes, points) or points_in_boxes_all"),
    _Row(r"nms3d|nms_gpu|nms_bev", "nms3d(boxes, scores, iou_threshold)"),
    _Row(
        r"nms3d_normal|nms_normal_gpu|nms_normal_bev", "nms3d_normal(boxes, scores, iou_threshold)"
    ),
    _Row(r"boxes_iou_bev|boxes_iou_bev_gpu", "boxes_iou_bev(boxes_a, boxes_b)"),
    _Row(r"diff_iou_rotated_2d", "diff_iou_rotated_2d(boxes_a, boxes_b)"),
    _Row(
        r"box_iou_rotated",
        "box_iou_rotated(boxes_a, boxes_b, mode, aligned, clockwise)",
        "",
        "mmcv",
    ),
    _Row(
        r"border_align|BorderAlignFunction\.apply", "border_align(feature_map, rois, pooled_size)"
    ),
    _Row(
        r"roi_align_rotated",
        "roi_align_rotated(feature_map, rois, spatial_scale, sampling_ratio, pooled_height, "
        "pooled_width, aligned, clockwise)",
    ),
    _Row(r"RoIAwarePool3d\w*|RoIPointPool3d", "roiaware_pool3d or roipoint_pool3d", "", ""),
    _Row(
        r"draw_(umich_)?(heatmap_gaussian|gaussian)",
        "npu_draw_gaussian_to_heatmap(mask, cur_class_id, center_int_trans, radius, "
        "feature_map_size_x, feature_map_size_y, num_classes)",
        "all objects at once, not one by one",
    ),
    _Row(
        r"fused_bias_leakyrelu|fused_leaky_relu",
        "npu_fused_bias_leaky_relu(x, bias, negative_slope, scale)",
    ),
)
_ADD_RELU = (
    "mx_driving.npu_add_relu(x, y) of Ascend DrivingSDK adds and cuts off in one kernel: float32, "
    "x and y of one shape, and only for more than 2 million elements; Atlas A2"
)
_FLASH = (
    "torch_npu.npu_fusion_attention({0})[0]; with dropout keep_prob=1 - dropout_p; a causal call "
    "takes sparse_mode=3 and atten_mask=torch.triu(torch.ones(2048, 2048, dtype=torch.bool, "
    "device=q.device), diagonal=1)"
)
_DENSE = 'q, k, v, q.shape[2], "BSND", scale=q.shape[-1] ** -0.5'
_PACKED_ROWS = (
    'q, k, v, q.shape[1], "TND", scale=q.shape[-1] ** -0.5, '
    "actual_seq_qlen=cu_seqlens_q[1:].tolist(), actual_seq_kvlen=cu_seqlens_k[1:].tolist()"
)
_ATTENTIONS = re.compile(
    r"(flash_attn|flash_attention|flash_attn_interface)\."
    r"(?:\w+\.)*flash_attn_(varlen_|unpadded_)?(?:qkvpacked_|kvpacked_)?func"
)
_WITHOUT_COUNTERPART = frozenset({"alibi_slopes", "softcap", "return_attn_probs", "block_table"})
_RELU = re.compile(r"relu\d?_?|ReLU")
VENDOR_WORDS = "|".join([r"(?i:relu\d?_?\()", *(rf"\b(?:{row.called})\b" for row in _ROWS)])
"""What stands in code that one of these operators may be for."""


@cache
def _patterns() -> Sequence[tuple[re.Pattern[str], _Row]]:
    return [(re.compile(rf"(?:.*\.)?(?:{row.called})"), row) for row in _ROWS]


def find_vendor_operators(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls that an operator of mx_driving stands for."""
    for node in here.nodes:
        if isinstance(node, ast.Call):
            row = _row(_imported(here, node.func))
            if row is not None:
                limits = f"{row.limits}; " if row.limits else ""
                advice = f"mx_driving.{row.operator} of Ascend DrivingSDK: {limits}Atlas A2"
                yield Proposal(node, advice)
        for block in (getattr(node, name, None) for name in ("body", "orelse")):
            if isinstance(block, list):
                yield from _sums_cut_off(here, block)
    yield from _sums_cut_off(here, here.flow.function.body)


def find_flash_attention(here: Surroundings) -> Iterator[Proposal]:
    """Yield the calls of the package flash_attn, which has no kernels for the NPU."""
    for node in here.nodes:
        if not isinstance(node, ast.Call):
            continue
        found = _ATTENTIONS.fullmatch(_imported(here, node.func))
        if found and not {k.arg for k in node.keywords} & _WITHOUT_COUNTERPART:
            yield Proposal(node, _FLASH.format(_PACKED_ROWS if found[2] else _DENSE))


def _row(called: str) -> _Row | None:
    if not called or called.startswith(("mx_driving", "torch.", "torch_npu")):
        return None
    for pattern, row in _patterns():
        if pattern.fullmatch(called) and called.startswith(row.package):
            return row
    return None


def _imported(here: Surroundings, code: ast.expr) -> str:
    """Return the full name of a function or class that is imported, "" for anything else."""
    known = here.flow.names.dotted(code)
    if known is not None:
        return known
    parts: list[str] = []
    while isinstance(code, ast.Attribute):
        parts.append(code.attr)
        code = code.value
    if not isinstance(code, ast.Name) or code.id not in here.flow.names.relative:
        return ""
    return ".".join([here.flow.names.relative[code.id].lstrip("."), *reversed(parts)])


def _sums_cut_off(here: Surroundings, block: list[ast.stmt]) -> Iterator[Proposal]:
    """Yield ``out += identity`` with ``out = relu(out)`` behind it."""
    for first, second in pairwise(block):
        match first:
            case ast.AugAssign(ast.Name(name), ast.Add(), ast.Name() | ast.Attribute()):
                pass
            case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(), ast.Add(), ast.Name())):
                pass
            case _:
                continue
        match second:
            case ast.Assign(value=ast.Call(function, [ast.Name(cut)]) as call) | ast.Return(
                ast.Call(function, [ast.Name(cut)]) as call
            ) if cut == name:
                last = function.attr if isinstance(function, ast.Attribute) else ""
                if _RELU.fullmatch(last) and here.is_hot:
                    yield Proposal(call, _ADD_RELU)
