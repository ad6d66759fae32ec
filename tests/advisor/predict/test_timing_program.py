"""Programs that time a recorded operator: they run here, and nothing of a dump runs in them."""

from __future__ import annotations

import ast
from typing import Any

import pandas as pd
import pytest

from npufix.advisor.predict.timing.calls import WAYS
from npufix.advisor.predict.timing.collectives import collective_program, is_collective
from npufix.advisor.predict.timing.program import rules_about, timing_program
from npufix.profiling_parsers.profile import DumpError
from npufix.rules.registry import every_rule
from npufix.rules.substitution import Substitution

SHAPES = {
    "MatMulV3": ("8,4;8,2", "4,2"),
    "BatchMatMulV2": ("3,4,8;3,8,2", "3,4,2"),
    "RmsNorm": ("4,1,8;8", "4,1,8;4,1,1"),
    "SwiGlu": ("4,8", "4,4"),
    "RotaryPositionEmbedding": ("4,1,2,8;4,1,1,8;4,1,1,8", "4,1,2,8"),
    "FlashAttentionScore": ("6,1,8;6,1,4;6,1,4", "1,2,6,8;1,2,6,8;;6,1,8"),
    "LayerNormV3": ("4,8;8;8", "4,8"),
    "ConcatD": ("4,8;4,2", "4,10"),
    "Conv2D": ("2,3,9,9;4,3,3,3;4", "2,4,7,7"),
    "Mul": ("4,8;", "4,8"),
    # What blocks of channels are stored in: (N, C1, H, W, C0), weights as (C1HW, N1, N0, C0).
    "Conv2DV2": ("2,1,20,20,8;9,2,4,8", "2,1,10,10,8"),
    "Conv2DBackpropInput": ("4;9,1,8,8;2,1,5,5,8", "2,1,9,9,8"),
    "Conv2DBackpropFilter": ("2,1,9,9,8;4;2,1,5,5,8", "9,1,8,8"),
    "MaxPoolWithArgmaxV1": ("2,1,9,9,8", "2,1,4,4,8"),
    "MaxPoolGradWithArgmaxV1": ("2,1,9,9,8;2,1,4,4,8", "2,1,9,9,8"),
    "Transpose": ("2,3,4;3", "4,2,3"),
    "Slice": ("4,8,6;3;3", "4,8,2"),
    "ReduceSum": ("2,3,4;1", "2,4"),
    "ReduceMean": ("2,3,4;1", "2,3,1"),
    "GatherV2": ("9,4;1,5;1", "1,5,4"),
    "EmbeddingDenseGradV2": ("1,5,4;5;5", "9,4"),
    "RmsNormGrad": ("4,1,8;4,1,8;4,1,1;8", "4,1,8;8"),
    "LayerNormGradV3": ("4,8;4,8;4,1;4,1;8", "4,8;8;8"),
    "SwiGluGrad": ("4,4;4,8", "4,8"),
    "RotaryPositionEmbeddingGrad": ("4,1,2,8;4,1,1,8;4,1,1,8;", "4,1,2,8;;"),
    "FlashAttentionScoreGrad": (
        "6,1,8;6,1,4;6,1,4;6,1,8;6,6;1,2,6,8;1,2,6,8;;6,1,8",
        "6,1,8;6,1,4;6,1,4",
    ),
    "ApplyAdamWV2": ("8;8;8;8;1", ""),
    "NLLLoss": ("4,8;4;8", ";"),
    "NLLLossGrad": ("4,8;;4;8;", "4,8"),
    "ForeachAddList": ("4,8;3;4,8;3;", "32;3"),
    "Addcmul": ("4,8;4,8;4,8", "4,8"),
    "Fill": ("2;", "4,8"),
    "Range": ("1;1;1", "9"),
    "TopKV2": ("4,8;", "4,3;4,3"),
    "BroadcastTo": ("1,8;2", "4,8"),
    "Pack": ("4,8;4,8", "2,4,8"),
    "AddRmsNorm": ("4,8;4,8;8", "4,8;4,1;4,8"),
    "GemmaRmsNorm": ("4,8;8", "4,8;4,1"),
    "AddLayerNorm": ("4,8;4,8;8;8", "4,8;4,1;4,1"),
    "GeGluGradV2": ("4,4;4,8;4,4", "4,8"),
    "GroupNormSilu": ("2,6,5;6;6", "2,6,5;2,3;2,3"),
    "CrossEntropyLossGrad": ("1;4,8;4", "4,8"),
    "MoeGatingTopKSoftmax": ("4,8", "4,2;4,2;4,2"),
    "MoeTokenPermute": ("4,8;4,2", "8,8;8"),
    "MoeTokenUnpermute": ("8,8;8;4,2", "4,8"),
    "GroupedMatmul": ("8,4;2,4,6;;;;;2", "8,6"),
    "BNInfer": ("2,3,4;3;3;3;3", "2,3,4"),
    "BatchNormV3": ("2,3,4;3;3;3;3", "2,3,4;3;3;3;3"),
    "CrossEntropyLoss": ("4,8;4", "1;4,8"),
    "ReduceVar": ("2,3,4", "2,4"),
}
ALIKE = {
    kind: like
    for like, kinds in {
        "MatMulV3": "MatMul MatMulV2 MatMulCommon aten::mm aten::matmul",
        "BatchMatMulV2": "BatchMatMul BatchMatMulV3 aten::bmm",
        "LayerNormV3": "LayerNormV4 LayerNorm",
        "LayerNormGradV3": "LayerNormGrad",
        "RotaryPositionEmbedding": "RotaryMul",
        "RotaryPositionEmbeddingGrad": "RotaryMulGrad",
        "ConcatD": "ConcatV2 Concat",
        "Slice": "SliceD StridedSlice StridedSliceD SplitV SplitVD Split SplitD",
        "Transpose": "TransposeD",
        "GatherV2": "GatherV3 Gather Embedding",
        "EmbeddingDenseGradV2": "EmbeddingDenseGrad",
        "Conv2DBackpropInput": "Conv2DBackpropInputV2",
        "Conv2DBackpropFilter": "Conv2DBackpropFilterV2",
        "MaxPoolWithArgmaxV1": "MaxPoolV3 MaxPool",
        "ReduceSum": "ReduceSumD",
        "ReduceMean": "ReduceMeanD ReduceMax ReduceMaxD ReduceMin",
        "ApplyAdamWV2": "ApplyAdamW",
        "ForeachAddList": "ForeachMulList ForeachAddListV2",
        "Addcmul": "Addcdiv Lerp",
        "Fill": "Fills",
        "TopKV2": "TopKV3 TopK",
        "BroadcastTo": "Tile TileD Expand",
        "GroupNormSilu": "GroupNormSwish GroupNorm GroupNormV2",
        "ReduceVar": "ReduceLogSumExp",
    }.items()
    for kind in kinds.split()
}
WHOLE = {"BitwiseAnd": "INT32", "BitwiseOr": "INT32", "OneHot": "INT32"}


def kernels(kind: str, inputs: str, outputs: str, dtype: str = "FLOAT") -> pd.DataFrame:
    text = {
        "type": kind,
        "input_shapes": inputs,
        "input_dtypes": ";".join([dtype] * (inputs.count(";") + 1)),
        "output_shapes": outputs,
    }
    frame = pd.DataFrame([text, text]).astype("category")
    return frame.assign(duration_ns=[2_000, 4_000], communication=False)


def run(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "bench"}
    code = compile(text, "bench.py", "exec", dont_inherit=True)  # as a file of its own is run
    exec(code, space)  # noqa: S102 - what the test is about
    space["RUNS"], space["WARM_UPS"] = 3, 0
    space["main"]()
    return space


@pytest.mark.parametrize("kind", WAYS)
def test_a_program_runs_every_way_that_needs_no_npu(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, outputs = SHAPES.get(ALIKE.get(kind, kind), ("4,8;4,8", "4,8"))
    dtype = WHOLE.get(kind, "FLOAT")
    space = run(timing_program(kernels(kind, inputs, outputs, dtype), kind, 5, []))
    said = capsys.readouterr().out
    assert "cannot run" not in said, said
    assert said.count(" us (") + said.count("needs an NPU") == len(space["WAYS"])
    assert "2 calls, recorded 3.0 us" in said


def test_products_have_the_recorded_result() -> None:
    inputs, outputs = SHAPES["MatMulV3"]
    space = run(timing_program(kernels("MatMulV3", inputs, outputs), "MatMulV3", 5, []))
    (tensors, out, _, _), device = space["CASES"][0], space["find_device"]()[0]
    made = [space["make"](*tensor, device) for tensor in tensors]
    for way in space["WAYS"]:
        assert list(way(made, out)().shape) == [4, 2]


def test_what_a_dump_says_is_no_code() -> None:
    evil = "4,8');import os;('"
    frame = kernels("Mul", f"4,8;{evil}", evil, "FLOAT")
    frame["input_dtypes"] = pd.Categorical([f"FLOAT;x');{evil}"] * 2)
    text = timing_program(frame, "Mul", 5, [])
    assert "import os" not in text
    (cases,) = [n.value for n in ast.parse(text).body
                if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "CASES"]  # fmt: skip
    assert ast.literal_eval(cases) == [([([4, 8], "float32")], [], 2, 3.0)]


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("Mul", "MatMul", "no kernel"),
        ("Strange'Op", "Strange'Op", "cannot be run again"),
    ],
)
def test_what_cannot_be_timed_is_said(kind: str, asked: str, said: str) -> None:
    with pytest.raises(DumpError, match=said):
        timing_program(kernels(kind, "4,8", "4,8"), asked, 5, [])


@pytest.mark.parametrize("kind", ["allReduce", "allGather", "reduceScatter", "alltoAllV"])
def test_a_collective_is_timed_with_its_sizes_on_the_ranks_that_there_are(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"type": [f"hcom_{kind}_"] * 3, "name": ["a@1", "b@1", "c@1"]})
    frame = frame.assign(duration_ns=[5_000, 9_000, 70_000], communication=True)
    assert is_collective(f"hcom_{kind}_")
    text = collective_program(frame, f"hcom_{kind}_", 5, {"a": 64, "b": 64, "c": 4096})
    space = run(text)
    assert space["CASES"] == [(4096, 1, 70.0, 70.0), (64, 2, 7.0, 5.0)]
    said = capsys.readouterr().out
    assert "cannot run" not in said
    assert said.count(" us (") == 2 * len(space["WAYS"])
    with pytest.raises(DumpError, match="moves was not recorded"):
        collective_program(frame, f"hcom_{kind}_", 5, {})
    with pytest.raises(DumpError, match="no kernel"):
        collective_program(frame, "hcom_broadcast_", 5, {})


def test_shapes_that_were_not_recorded_are_missed() -> None:
    with pytest.raises(DumpError, match="not recorded"):
        timing_program(kernels("Mul", "", ""), "Mul", 5, [])


def test_rules_that_make_the_operator_are_named() -> None:
    rules = [rule for rule in every_rule() if isinstance(rule, Substitution)]
    about = rules_about("RmsNorm", rules)
    assert "eager-rms-norm" in {rule.name for rule in about}
    text = timing_program(kernels("RmsNorm", *SHAPES["RmsNorm"]), "RmsNorm", 5, about)
    assert f"npufix rules show {about[0].id}" in text
