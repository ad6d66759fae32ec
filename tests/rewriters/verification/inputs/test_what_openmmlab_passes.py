"""Instances, samples and what is known of images; functions of packages that are missing."""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.calls.values import Several, Tensor
from npufix.rewriters.verification.inputs.objects.openmmlab import annotations as of_images
from npufix.rewriters.verification.inputs.objects.openmmlab import elements, functions
from npufix.rewriters.verification.inputs.search_result import SearchResult
from npufix.rewriters.verification.inputs.source.parameters import Parameter
from npufix.rewriters.verification.inputs.source.several import lengthen
from npufix.rewriters.verification.inputs.source.usage import Use
from npufix.rewriters.verification.judge.verify_function import verify_function
from npufix.rewriters.verification.verdict import Status

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED = inspect.Parameter.empty
MATCHED = """
from __future__ import annotations
import torch
from mmengine.dist import all_reduce
from mmengine.structures import InstanceData

def assign(batch_gt_instances: InstanceList, batch_img_metas: List[dict]):
    totals = []
    for gt_instances, meta in zip(batch_gt_instances, batch_img_metas):
        height, width = meta["img_shape"]
        factor = gt_instances.bboxes.new_tensor([width, height, width, height])
        kept = gt_instances[gt_instances.labels == 0]
        totals.append((kept.bboxes / factor).sum() + len(kept) + isinstance(kept, InstanceData))
    total = torch.stack(totals)
    all_reduce(total)
    return total
"""


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("gt_instances.labels == 0", "~(gt_instances.labels != 0)", Status.EQUIVALENT),
        ("[width, height, width, height]", "[height, width, height, width]", Status.REFUTED),
        ("    all_reduce(total)\n", "    total = total * 1\n", Status.REFUTED),
    ],
)
def test_instances_and_metas_are_passed(tmp_path: Path, old: str, new: str, status: Status) -> None:
    place, changed = tmp_path / "m.py", MATCHED.replace(old, new)
    place.write_text(MATCHED, encoding="utf-8")
    (one,) = find_touched(MATCHED, changed)
    lines = one.lines_original, one.lines_changed
    job = Job(str(place), str(tmp_path), MATCHED, changed, "assign", *lines, by_hand=True)
    found = verify_function(job).verdict
    assert found.status is status, found.reason


@pytest.mark.parametrize(
    ("name", "annotation", "default", "count"),
    [
        ("pred_instances", "InstanceData", REQUIRED, 1),
        ("gt_instances", "InstanceData", REQUIRED, 2),
        ("batch_gt_instances_ignore", "OptInstanceList", None, 3),
        ("batch_data_samples", "SampleList", REQUIRED, 2),
        ("data_samples", "Optional[List['TextDetDataSample']]", None, 3),
        ("batch_img_metas", "List[dict]", REQUIRED, 1),
        ("img_meta", "dict", REQUIRED, 1),
        ("boxes", "Tensor", REQUIRED, 0),
        ("metas", "List[dict]", REQUIRED, 0),
    ],
)
def test_what_is_offered(name: str, annotation: str, default: object, count: int) -> None:
    offered = of_images.offer_detections(Parameter(name, annotation, default), Use())
    assert len(offered) == count


def test_instances_are_selected_and_joined() -> None:
    made = of_images.make_instances(0, 3)
    assert len(made) == 3
    assert len(made[made.labels == 0]) == 2
    assert made[0].bboxes.shape == (1, 4)
    assert len(elements.InstanceData.cat([made, made[1:]])) == 5
    assert "labels" in made
    assert made.img_shape == made.metainfo["img_shape"]
    assert "img_shape" not in made.keys()  # noqa: SIM118 - no dictionary


def test_functions_of_missing_packages() -> None:
    reduced = torch.tensor([2.0, 4.0])
    functions.all_reduce(reduced)
    assert reduced.tolist() == [3.0, 6.0]
    functions.all_reduce(reduced, "mean")
    assert reduced.tolist() == [2.25, 4.5]
    assert functions.digit_version("2.13.0+cpu") > functions.digit_version("2.0.0")
    names = ("mmcv.cnn", "build_norm_layer"), ("mmengine.utils", "to_2tuple")
    assert all(functions.find_openmmlab(*one) for one in names)
    assert functions.find_openmmlab("mine.dist", "all_reduce") is None
    image = torch.arange(12.0).view(1, 1, 3, 4)
    assert functions.point_sample(image, torch.full((1, 1, 2), 0.5)).item() == 5.5


def test_lists_are_as_long_as_code_goes() -> None:
    pair = Several((Tensor((2, 3)),) * 2, "list")
    lengths = [len(s.items) for s in lengthen([pair], Use(length=3)) if isinstance(s, Several)]
    assert lengths == [3, 4]
    assert lengthen([pair, Tensor((2,))], Use(length=2)) == [pair, Tensor((2,))]


def test_a_search_ends_where_nothing_new_is_learned() -> None:
    found, until = SearchResult(), time.process_time() + 60
    for number in range(1600):
        found.note(f"ValueError: {number} is too large", "")
    assert found.ends(until)
    assert not found.ends(until)
    found.ran = True
    for number in range(1600):
        found.note(f"ValueError: {number} is too large", "")
    assert not found.ends(until)
