"""Advice to use a ready-made operator: recognised by kernels, operators and names of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.rules_test.recordings import MS, recording
from npufix.profiling_parsers.profile import Environment
from npufix.rules.diagnostics import (
    batch_norm_counter,
    channel_shuffle,
    drop_path,
    dropout_masks,
    focus_slices,
    reversed_lstm,
    rolled_windows,
    written_out_box_arithmetic,
    written_out_label_smoothing,
    written_out_roi_align,
)
from npufix.rules.shared.recording.versions import unmet

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Observation, Recording


def told(rule: Any, looked_at: Recording) -> list[Observation]:
    return list(rule.RULE.check(looked_at))


def row(name: str, function: str = "forward", **columns: Any) -> dict[str, Any]:
    return {
        "type": name, "path": "m.py", "line": 3, "function": function, "duration_ns": MS, **columns
    }  # fmt: skip


def one_by_one(*rows: dict[str, Any]) -> Recording:
    return recording([{**line, "start_ns": at * 2 * MS} for at, line in enumerate(rows)])


def test_masks_for_dropout() -> None:
    (found,) = told(dropout_masks, one_by_one(row("DSAStatelessGenBitMask"), row("Add")))
    assert found.cost_ns == MS
    (both,) = told(dropout_masks, one_by_one(row("DropOutGenMask"), row("DropOutDoMask")))
    assert both.cost_ns == 2 * MS
    assert not told(dropout_masks, one_by_one(row("DropOutDoMask")))
    short = row("DSAGenBitMask", duration_ns=MS - 1000)
    assert not told(dropout_masks, one_by_one(short))


@pytest.mark.parametrize(
    ("rule", "function", "other"),
    [
        (drop_path, "drop_path", "drop_last"),
        (written_out_label_smoothing, "label_smoothing_loss", "smooth_l1_loss"),
        (written_out_box_arithmetic, "bbox_overlaps", "bbox_head"),
        (written_out_box_arithmetic, "delta2bbox", "loss_bbox"),
        (written_out_box_arithmetic, "multiclass_nms", "forward"),
        (written_out_box_arithmetic, "responsible_flags", "flags"),
        (written_out_roi_align, "roi_align", "align"),
    ],
)
def test_functions_by_their_name(rule: Any, function: str, other: str) -> None:
    (found,) = told(rule, one_by_one(row("Mul", function), row("ReduceSum", function)))
    assert function in found.what
    assert found.advice
    assert found.kernels == {0, 1}
    assert not told(rule, one_by_one(row("Mul", other), row("ReduceSum", other)))
    # A single kernel per call is as good as it gets.
    assert not told(rule, one_by_one(row("Mul", function)))


def test_the_fused_operator_itself_is_no_reason() -> None:
    rows = [row("ROIAlign", "roi_align"), row("ROIAlignGrad", "roi_align")]
    assert not told(written_out_roi_align, one_by_one(*rows))


def test_what_is_deprecated_is_not_told() -> None:
    requires = written_out_box_arithmetic.RULE.requires
    assert not unmet(requires, Environment(torch_npu="2.1.0.post17"))
    for version in ("2.7.1.post11", "2.10.0.post7", "2.14.0"):
        assert "the run had" in unmet(requires, Environment(torch_npu=version))


def test_channels_are_shuffled() -> None:
    (found,) = told(channel_shuffle, one_by_one(row("Transpose", "channel_shuffle"), row("Add")))
    assert found.kernels == {0}
    assert not told(channel_shuffle, one_by_one(row("Transpose", "attention")))


def test_rolls_by_their_operator() -> None:
    host = [{"name": "aten::add"}, {"name": "aten::roll"}]
    rows = [row("Slice", host_op=1), row("Slice", host_op=0), row("Slice")]
    (found,) = told(rolled_windows, recording(rows, host))
    assert found.kernels == {0}
    assert not told(rolled_windows, recording(rows[1:], host))


def test_an_lstm_in_both_directions() -> None:
    layer = row("DynamicRNN")
    (found,) = told(reversed_lstm, one_by_one(layer, row("ReverseV2"), layer))
    assert found.kernels == {0, 2}
    assert not told(reversed_lstm, one_by_one(layer, row("ReverseV2", "augment"), layer))
    assert not told(reversed_lstm, one_by_one(layer))


def counted(**columns: Any) -> dict[str, Any]:
    return row("Add", **{"input_dtypes": "INT64;INT64", "input_shapes": "1;1", **columns})


def test_batch_norm_counts() -> None:
    (found,) = told(batch_norm_counter, one_by_one(counted(), row("BNTrainingReduce")))
    assert found.kernels == {0}
    for other in (counted(input_dtypes="FLOAT"), counted(input_shapes="8;8")):
        assert not told(batch_norm_counter, one_by_one(other, row("BNTrainingReduce")))
    assert not told(batch_norm_counter, one_by_one(counted(), row("LayerNormV3")))


def focused(joined: str = "2,3,32,32;2,3,32,32;2,3,32,32;2,3,32,32") -> Recording:
    slices = [row("StridedSlice", input_shapes="2,3,64,64", output_shapes="2,3,32,32")] * 4
    return one_by_one(*slices, row("ConcatD", input_shapes=joined, output_shapes="2,12,32,32"))


def test_quarters_of_an_image() -> None:
    (found,) = told(focus_slices, focused())
    assert len(found.kernels) == 5
    assert not told(focus_slices, focused("2,4,32,32;2,2,32,32;2,3,32,32;2,3,32,32"))
    assert not told(focus_slices, focused(""))
