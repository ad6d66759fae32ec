"""A call of an operator that Ascend DrivingSDK has for the NPU.

What: operators of driving, point cloud and graph models that their authors took from packages with
CUDA kernels (mmcv, mmdet3d, spconv, torch_scatter, torch_cluster, torch_geometric, or kernels of the project), and
their fallbacks in plain PyTorch, by the name that is called; deformable attention also by what a
function computes, points by the voxel they are in (``unique`` of rows), and the loop that samples each
time the point furthest from those before.

Why it is slow on the NPU: the packages have no kernels for it; the fallbacks are loops over levels,
groups or points in many small kernels. Where these operators were exchanged they had taken 20 to 70 %
of a step.

Use instead: the operator of ``mx_driving`` that is named, with the signature that is given. For
projects of mmcv, mmdet and mmdet3d ``mx_driving.patcher`` exchanges many of them when the program
starts, without an edit.

Safety: where arguments mean the same one by one the call is written, else named. mx_driving is a
package of its own (condition ``mx-driving-installed``); its operators take the dtypes and sizes that
are named, mostly float32 with int32 indices, on Atlas A2 (``within-limits``); what is for another chip
is only named, with it. Calls of torch_scatter
are verified with reference functions of ours for both; what calls kernels of another package cannot
be run to compare it, and is not.

References: API pages of Ascend DrivingSDK, https://gitcode.com/Ascend/DrivingSDK; its ports of VAD,
BEVFormer, SparseDrive, Point Transformer V3 and FB-BEV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import unknown
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution
from npufix.rules.substitutions.residual_relu import INSTALLED

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def one_by_one(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Add up the rows of each group, as scatter_add of these packages does."""
    return torch.stack([(x * (index == group)[:, None]).sum(0) for group in range(count)])


def together(x: Tensor, index: Tensor, count: int) -> Tensor:
    """Add up the rows of all groups in one pass."""
    return x.new_zeros(count, x.shape[1]).index_add(0, index, x)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows and the group of each."""
    import torch

    count, rows = draw.integer(1, 3), draw.integer(1, 6)
    return {
        "x": draw.floats(rows, 4, dtype=torch.float32).abs(),
        "index": draw.integers(rows, low=0, high=count - 1),
        "count": count,
    }


_DEFORMABLE = """
from mmcv.ops.multi_scale_deform_attn import MultiScaleDeformableAttnFunction


def attend(value, shapes, starts, locations, weights):
    return MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)
"""
_SCATTER = """
import torch_scatter


def pool(x, starts):
    return torch_scatter.segment_csr(x, starts, reduce="max")
"""
_POOL = """
from mmdet3d.ops.bev_pool_v2.bev_pool import bev_pool_v2


def pool(depth, feat, ranks_depth, ranks_feat, ranks_bev, shape, starts, lengths):
    return bev_pool_v2(
        depth, feat, ranks_depth, ranks_feat, ranks_bev, shape, starts, lengths
    )
"""
_UNDER_ANOTHER_NAME = """
from ..ops import deformable_aggregation_function as DAF


def aggregate(maps, shapes, starts, points, weights):
    return DAF(maps, shapes, starts, points, weights)
"""
_COPY = """
def sample_levels(value, shapes, locations, weights):
    n, s, m, d = value.shape
    parts = value.split([h * w for h, w in shapes], dim=1)
    grids = 2 * locations - 1
    sampled = []
    for level, (h, w) in enumerate(shapes):
        features = parts[level].flatten(2).transpose(1, 2).reshape(n * m, d, h, w)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
        sampled.append(F.grid_sample(features, grid, align_corners=False))
    return (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1)


def deform_attend(value, shapes, level_start_index, locations, weights):
    return sample_levels(value, shapes, locations, weights)
"""
_FURTHEST = """
def farthest_point_sample(xyz, npoint):
    rows = torch.arange(len(xyz), device=xyz.device)
    chosen = torch.zeros(len(xyz), npoint, dtype=torch.long, device=xyz.device)
    distance = torch.full(xyz.shape[:2], 1e10, device=xyz.device)
    furthest = torch.zeros(len(xyz), dtype=torch.long, device=xyz.device)
    for i in range(npoint):
        chosen[:, i] = furthest
        apart = ((xyz - xyz[rows, furthest][:, None]) ** 2).sum(-1)
        distance = torch.minimum(distance, apart)
        furthest = torch.max(distance, -1)[1]
    return chosen
"""
_GROUPED = """
from . import pointnet2_utils


def group(features, index):
    return pointnet2_utils.grouping_operation(features, index)
"""
_FOCAL = """
from mmcv.ops import sigmoid_focal_loss


def loss(pred, target):
    return sigmoid_focal_loss(pred, target, 2.0, 0.25, None, "none")
"""
_EQUAL_ROWS = """
def pillars(points, coords):
    unique, inverse = coords.unique(return_inverse=True, dim=0)
    return unique, inverse
"""
LIMITS = Condition(
    "within-limits",
    "dtypes and sizes are those that the operator of mx_driving takes",
    unknown,
)

RULE = Substitution(
    id="NPU171",
    name="driving-operator-call",
    summary="a call of an operator that mx_driving has for the NPU",
    table="fusion",
    forms=(Form(one_by_one, together, inputs, (INSTALLED, LIMITS)),),
    search="vendor-operators",
    once=True,
    replaces=(),
    becomes=(),
    passes=(1, 1),
    requires="torch_npu>=2.1; chip A2",
    valid=(
        # a method of one's own
        """
class Runner:
    def scatter_mean(self, x):
        return x

    def run(self, x):
        return self.scatter_mean(x)
""",
        # equal numbers
        """
def f(ids):
    return ids.unique(return_inverse=True), torch.unique(ids, dim=0)
""",
        # arrays of the host, from a loader
        """
import numpy as np
import torch


def farthest_point_sample(points, npoint):
    distance = np.full(len(points), 1e10)
    chosen = [0]
    for _ in range(npoint - 1):
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(-1))
        chosen.append(distance.argmax())
    return points[chosen]
""",
        # of torchvision, whose targets are as large as its logits
        """
from torchvision.ops import sigmoid_focal_loss


def loss(pred, target):
    return sigmoid_focal_loss(pred, target, reduction="sum")
""",
        # of torch itself
        """
def f(x, index, src):
    return torch.scatter(x, 0, index, src), F.softmax(x, -1)
""",
        # features of one size each, weighted by nothing
        """
def deform(features, grids, weights):
    sampled = [F.grid_sample(f, grid) for f, grid in zip(features, grids)]
    return torch.stack(sampled).sum(0)
""",
        # an operator of mx_driving
        """
from mx_driving import scatter_max


def pool(x, index):
    return scatter_max(x, index)
""",
    ),
    rewritten=(
        Rewritten(
            f"import mx_driving{_DEFORMABLE}",
            f"import mx_driving{_DEFORMABLE}".replace(
                "MultiScaleDeformableAttnFunction.apply(value, shapes, starts, locations, weights, 64)",
                "mx_driving.multi_scale_deformable_attn(value, shapes, starts, locations, weights)",
            ),
        ),
        Rewritten(
            f"import mx_driving{_POOL}",
            f"import mx_driving{_POOL}".replace(
                """bev_pool_v2(
        depth, feat, ranks_depth, ranks_feat, ranks_bev, shape, starts, lengths
    )""",
                """mx_driving.bev_pool_v3(
        depth, feat, ranks_depth, ranks_feat, ranks_bev, shape
    )""",
            ),
        ),
        Rewritten(
            f"import mx_driving{_COPY}",
            f"import mx_driving{_COPY}".replace(
                "    return sample_levels(value, shapes, locations, weights)",
                "    return mx_driving.multi_scale_deformable_attn(\n"
                "        value, shapes, level_start_index, locations, weights\n    )",
            ),
        ),
        Rewritten(
            f"import mx_driving{_GROUPED}",
            f"import mx_driving{_GROUPED}".replace(
                "pointnet2_utils.grouping_operation", "mx_driving.group_points"
            ),
        ),
        Rewritten(
            """
import mx_driving
import torch_scatter


def pool(x, index, n):
    return torch_scatter.scatter_mean(x, index, dim=0, dim_size=n)
""",
            """
import mx_driving
import torch_scatter


def pool(x, index, n):
    return mx_driving.scatter_mean(x, index.int(), dim_size=n)
""",
        ),
        Rewritten(_FURTHEST, _FURTHEST),
        Rewritten(_FOCAL, _FOCAL),
        Rewritten(_SCATTER, _SCATTER),
        Rewritten(_EQUAL_ROWS, _EQUAL_ROWS),
        Rewritten(_UNDER_ANOTHER_NAME, _UNDER_ANOTHER_NAME),
    ),
)
