"""A loss that is written out is told by its kernels alone, and what looks like one is not."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, recording
from npufix.rules.diagnostics import (
    cast_storm,
    gradient_accumulation_add,
    unaligned_matmul,
    written_out_vocabulary_loss,
)

WORDS, TOKENS, HIDDEN = 32_000, 2_048, 1_024
LOGITS = f"{TOKENS},{WORDS}"
LOSS = ("Cast", "ReduceMax", "Sub", "Exp", "ReduceSum", "RealDiv", "ZerosLike", "Cast")


def kernel(kind: str, shape: str, duration: int = MS, **columns: Any) -> dict[str, Any]:
    return {
        "type": kind, "name": f"aclnn{kind}_{kind}", "input_shapes": shape, "output_shapes": shape,
        "input_dtypes": "FLOAT", "duration_ns": duration, **columns,
    }  # fmt: skip


def product(inputs: str, output: str, kind: str = "MatMulV3") -> dict[str, Any]:
    return kernel(kind, inputs, 10 * MS, input_dtypes="DT_BF16;DT_BF16", output_shapes=output)


HEAD = product(f"{TOKENS},{HIDDEN};{WORDS},{HIDDEN}", LOGITS)


@pytest.mark.parametrize("output", [LOGITS, f"{WORDS // 16},{TOKENS // 16},16,16"])
def test_a_loss_is_told_without_source(output: str) -> None:
    head = {**HEAD, "output_shapes": output}
    rows = [head, *(kernel(kind, LOGITS) for kind in LOSS), kernel("Exp", f"{TOKENS},{HIDDEN}")]
    (seen,) = written_out_vocabulary_loss.check(recording(rows))
    assert seen.kernels == frozenset(range(1, 9))
    assert seen.cost_ns == 8 * MS
    assert seen.saving_ns is not None
    assert 0 < seen.saving_ns[1] < 8 * MS
    assert seen.likely_ns is not None
    assert seen.saving_ns[1] / 2 < seen.likely_ns < seen.saving_ns[1], "it reads the logits twice"
    assert "32000 classes" in seen.what
    assert not list(cast_storm.check(recording(rows))), "its casts are no storm"


@pytest.mark.parametrize(
    "rows",
    [
        # Scores of an attention over a long sequence: a batch of products, or square.
        [product("8,2048,64;8,64,32000", "8,2048,32000", "BatchMatMulV2"),
         *(kernel(kind, "8,2048,32000") for kind in LOSS)],
        [product("32000,64;32000,64", "32000,32000"),
         *(kernel(kind, "32000,32000") for kind in LOSS)],
        # A fused loss, with a cast of the logits before it.
        [HEAD, kernel("Cast", LOGITS), kernel("CrossEntropyLoss", LOGITS)],
        # The next word: a single row.
        [product(f"1,{HIDDEN};{WORDS},{HIDDEN}", f"1,{WORDS}"),
         *(kernel(kind, f"1,{WORDS}") for kind in LOSS)],
        # A layer that is wide, and its activation.
        [HEAD, kernel("Exp", LOGITS), kernel("Mul", LOGITS)],
        # Nothing was recorded of shapes.
        [{**HEAD, "input_shapes": "", "output_shapes": ""}, *(kernel(kind, "") for kind in LOSS)],
    ],
    ids=["attention", "square", "fused", "one row", "activation", "no shapes"],
)  # fmt: skip
def test_what_looks_like_a_loss_is_not_told(rows: list[dict[str, Any]]) -> None:
    assert not list(written_out_vocabulary_loss.check(recording(rows)))


def test_casts_of_random_numbers_are_no_storm() -> None:
    casts = [kernel("Cast", "8", name="aclnnInplaceNormal_CastAiCore_Cast")] * 3
    assert not list(cast_storm.check(recording(casts)))
    assert list(cast_storm.check(recording([kernel("Cast", "8")] * 3)))


def test_casts_matter_only_where_they_take_some_of_the_step() -> None:
    few = [kernel("Cast", "8", 1000)] * 3
    assert list(cast_storm.check(recording(few, step_ns=2 * MS)))
    assert not list(cast_storm.check(recording(few, step_ns=200 * MS)))


def gradient(between: str) -> list[dict[str, Any]]:
    made = kernel("MatMulV2", f"{TOKENS},{WORDS};{TOKENS},{HIDDEN}", 10 * MS,
                  input_dtypes="DT_BF16;DT_BF16", output_shapes=f"{WORDS},{HIDDEN}")  # fmt: skip
    summed = kernel("Add", f"{WORDS},{HIDDEN};{WORDS},{HIDDEN}", input_dtypes="FLOAT;DT_BF16")
    return [made, *([kernel(between, f"{WORDS},{HIDDEN}")] if between else []), summed]


@pytest.mark.parametrize(
    ("between", "told"), [("", 1), ("Cast", 1), ("TransData", 1), ("Transpose", 0)]
)
def test_a_gradient_is_added_behind_a_conversion(between: str, told: int) -> None:
    rows = [{**row, "start_ns": 20 * MS * at} for at, row in enumerate(gradient(between))]
    assert len(list(gradient_accumulation_add.check(recording(rows)))) == told


@pytest.mark.parametrize(("words", "told"), [(32_001, 1), (32_000, 0)])
def test_an_unaligned_vocabulary_is_told_with_its_conversions(words: int, told: int) -> None:
    logits = f"{TOKENS},{words}"
    rows = [
        kernel("TransData", logits, input_dtypes="DT_BF16"),
        product(f"{TOKENS},{words};{TOKENS},{HIDDEN}", f"{words},{HIDDEN}"),
        product("2048,1024;1024,1024", "2048,1024"),
        kernel("TransData", f"{words},{HIDDEN}", input_dtypes="DT_BF16"),
        kernel("Add", "2048,1024"),
        kernel("TransData", "2048,1024"),
    ]
    rows[2], rows[3] = rows[3], rows[2]
    rows = [{**row, "start_ns": 20 * MS * at} for at, row in enumerate(rows)]
    found = list(unaligned_matmul.check(recording(rows, step_ns=200 * MS)))
    assert [set(seen.kernels) for seen in found] == [{0, 1, 2}] * told


def test_a_log_softmax_and_its_loss_are_one_loss() -> None:
    kinds = ("Cast", "LogSoftmaxV2", "NLLLoss", "NLLLossGrad", "LogSoftmaxGrad", "Cast")
    (seen,) = written_out_vocabulary_loss.check(
        recording([HEAD, *(kernel(kind, LOGITS) for kind in kinds)])
    )
    assert seen.kernels == frozenset(range(1, 7))
    few = f"{TOKENS},1000"
    classes = [product(f"{TOKENS},64;64,1000", few), kernel("LogSoftmaxV2", few)]
    assert not list(written_out_vocabulary_loss.check(recording(classes)))
