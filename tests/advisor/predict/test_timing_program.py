"""Programs that time a recorded operator: they run here, and nothing of a dump runs in them."""

from __future__ import annotations

import ast
from typing import Any

import pandas as pd
import pytest

from npufix.advisor.predict.timing_program import rules_about, timing_program
from npufix.advisor.predict.timing_ways import WAYS
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
}
ALIKE = {
    kind: like
    for like, kinds in {
        "MatMulV3": "MatMul MatMulV2 MatMulCommon aten::mm aten::matmul",
        "BatchMatMulV2": "BatchMatMul BatchMatMulV3 aten::bmm",
        "LayerNormV3": "LayerNormV4",
        "RotaryPositionEmbedding": "RotaryMul",
    }.items()
    for kind in kinds.split()
}


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
    exec(compile(text, "bench.py", "exec"), space)  # noqa: S102 - what the test is about
    space["RUNS"], space["WARM_UPS"] = 3, 0
    space["main"]()
    return space


@pytest.mark.parametrize("kind", WAYS)
def test_a_program_runs_every_way_that_needs_no_npu(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, outputs = SHAPES.get(ALIKE.get(kind, kind), ("4,8;4,8", "4,8"))
    space = run(timing_program(kernels(kind, inputs, outputs), kind, 5, []))
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


def test_shapes_that_were_not_recorded_are_missed() -> None:
    with pytest.raises(DumpError, match="not recorded"):
        timing_program(kernels("Mul", "", ""), "Mul", 5, [])


def test_rules_that_make_the_operator_are_named() -> None:
    rules = [rule for rule in every_rule() if isinstance(rule, Substitution)]
    about = rules_about("RmsNorm", rules)
    assert "eager-rms-norm" in {rule.name for rule in about}
    text = timing_program(kernels("RmsNorm", *SHAPES["RmsNorm"]), "RmsNorm", 5, about)
    assert f"npufix rules show {about[0].id}" in text
