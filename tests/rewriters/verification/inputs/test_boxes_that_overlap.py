"""Boxes that overlap on both sides of the usual limits, and what code is recognised to take."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.values import (  # noqa: E402 - same
    Tensor,
    make_tensor,
    seed_generator,
)
from npufix.rewriters.verification.inputs.source.operands import find_corners  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

NMS = """
def suppress(dets, limit: float = 0.5):
    x1, y1, x2, y2 = dets[:, 0], dets[:, 1], dets[:, 2], dets[:, 3]
    area = (x2 - x1) * (y2 - y1)
    order = dets[:, 4].argsort(descending=True)
    keep = []
    while len(order):
        i, order = order[0], order[1:]
        keep.append(int(i))
        w = torch.minimum(x2[i], x2[order]) - torch.maximum(x1[i], x1[order])
        h = torch.minimum(y2[i], y2[order]) - torch.maximum(y1[i], y1[order])
        both = w.clamp(min=0) * h.clamp(min=0)
        order = order[both <= limit * (area[i] + area[order] - both)]
    return keep
"""
GREEDY = "order = order[both <= limit * (area[i] + area[order] - both)]"


@pytest.mark.parametrize(
    ("new", "status"),
    [
        ("order = order[both <= limit * torch.minimum(area[i], area[order])]", Status.REFUTED),
        # every other one suppresses, one that is suppressed itself as well
        ("order = order[(both <= limit * (area[i] + area[order] - both)) | (len(keep) > 3)]",
         Status.REFUTED),
        ("united = area[i] + area[order] - both\n        order = order[both <= united * limit]",
         Status.EQUIVALENT),
    ],
)  # fmt: skip
def test_what_suppresses_others_is_tried(new: str, status: Status) -> None:
    found = verdict(NMS, (GREEDY, new))
    assert found.status is status, found


@pytest.mark.parametrize("scale", [1, 64])
def test_boxes_overlap_a_little_and_much(scale: int) -> None:
    spec = Tensor((2, 12, 5), "box", scale)
    made = make_tensor(spec, "overlapping", seed_generator("boxes"), torch.float32)[0]
    lower = torch.maximum(made[:, None, :2], made[:, :2])
    both = (torch.minimum(made[:, None, 2:4], made[:, 2:4]) - lower).clamp(min=0).prod(-1)
    area = (made[:, 2:4] - made[:, :2]).prod(-1)
    overlaps = (both / (area[:, None] + area - both))[torch.ones(12, 12).triu(1).bool()]
    assert (made[:, :4] > 0).all()
    for low, high in ((0.0, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 1.0)):
        assert ((overlaps > low) & (overlaps < high)).any()


def test_shares_are_near_each_other_and_distinct() -> None:
    spec = Tensor((12,), "unit")
    made = make_tensor(spec, "overlapping", seed_generator("scores"), torch.float32)
    gaps = made.sort().values.diff()
    assert gaps.min() > 0
    assert (gaps < 1 / 64).any()


@pytest.mark.parametrize(
    ("code", "held"),
    [
        ("(b[:, 2] - b[:, 0]) * c[:, 3]", {"b"}),
        ("b[..., 2:] - b[..., :2]", {"b"}),
        ("box_iou(b, c).max()", {"b", "c"}),
        ("x1, y1, x2, y2 = b.unbind(-1)\n  x2 - x1", {"b"}),
        ("x1 = b[:, 0]\n  x2 = c[:, 2]\n  x2 - x1", set()),
        ("b[:, 2] - c[:, 0]", set()),
        ("q, k, v, g = b.chunk(4, -1)\n  q - k", set()),
        ("b[:, 1:] - b[:, :-1]", set()),
    ],
)
def test_corners_are_recognised(code: str, held: set[str]) -> None:
    function = ast.parse(f"def f(b, c):\n  {code}").body[0]
    assert find_corners(function, {"b", "c"}) == held
