"""A Type that takes much of the compute time is told, and what it comes from."""

from __future__ import annotations

from typing import Any

import pytest

from npufix.advisor.rules_test.recordings import MS, recording
from npufix.rules.diagnostics.hot_operator import check


def kernel(kind: str, duration: int, **columns: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "name": kind,
        "core": "AI_VECTOR_CORE",
        "duration_ns": duration,
        **columns,
    }


@pytest.mark.parametrize(("spent", "told"), [(5 * MS, 1), (5 * MS - 1, 1), (2 * MS, 0)])
def test_a_twentieth_of_the_compute_time_is_told_and_what_is_near_it(spent: int, told: int) -> None:
    rows = [kernel("IndexPutV2", spent, path="m.py", line=7, function="f")]
    # Collectives are no computing.
    rows += [kernel("MatMulV3", 100 * MS - spent), kernel("hcom", 500 * MS, communication=True)]
    found = [o for o in check(recording(rows, step_ns=800 * MS)) if "IndexPutV2" in o.what]
    assert len(found) == told
    for seen in found:
        assert seen.cost_ns == spent
        assert seen.kernels == {0}
        assert (seen.places[0].path, seen.places[0].line) == ("m.py", 7)
        assert "NPU201" in seen.advice
        assert not seen.is_work


@pytest.mark.parametrize(
    ("kind", "is_work"),
    [("MatMulV3", True), ("BatchMatMulV2", True), ("GroupedMatmul", True), ("Conv2D", True),
     ("FlashAttentionScoreGrad", True), ("SwiGluGrad", True), ("ApplyAdamWV2", True),
     ("Swish", False), ("AddRmsNorm", True), ("LayerNormV3", True), ("Norm", False),
     ("aten::_fused_adamw_", True), ("_matmul_ogs_NNT_bf16xbf16", True),
     ("vllm::unified_attention_with_output", True),
     ("ForeachAddList", False), ("Cast", False), ("NonZero", False), ("Exp", False),
     ("SomethingNew", False)],
)  # fmt: skip
def test_products_and_attention_are_the_work_itself(kind: str, *, is_work: bool) -> None:
    (seen,) = check(recording([kernel(kind, MS)]))
    assert seen.is_work == is_work
    assert seen.advice


def test_without_a_device_calls_of_the_host_take_the_time() -> None:
    rows = [kernel("aten::conv2d", 3 * MS, core="CPU"), kernel("aten::mul", MS, core="CPU")]
    seen = next(iter(check(recording(rows))))
    assert "in 1 call" in seen.what
    assert not seen.is_work


def test_a_type_without_a_line_is_told_with_its_shapes() -> None:
    (seen,) = check(recording([kernel("Sort", MS, input_shapes="4,5")]))
    assert not seen.places
    assert seen.evidence == (("on 4,5", "1 kernel, 1 ms per step"),)


def test_element_wise_operators_of_a_gpu_at_one_line_are_one_finding() -> None:
    kinds = ("aten::pow", "aten::mean", "aten::rsqrt", "aten::mul")
    rows = [kernel(kind, MS, path="m.py", line=9, start_ns=at) for at, kind in enumerate(kinds)]
    (seen,) = check(recording([*rows]))
    assert len(seen.kernels) == len(kinds)
    assert "torch.compile" in seen.gpu_advice
    (seen,) = check(recording([kernel("aten::_index_put_impl_", MS)]))
    assert seen.gpu_advice.startswith("embedding or index_select")


def test_kernels_over_lists_of_tensors_are_one_finding() -> None:
    kinds = ("ForeachAddList", "ForeachMulScalar", "ForeachAddListV2")
    seen, product = check(recording([kernel(kind, MS) for kind in (*kinds, "MatMulV3")]))
    assert seen.kernels == {0, 1, 2}
    assert seen.advice.startswith("the optimizer")
    assert product.is_work


@pytest.mark.parametrize(
    ("between", "basis", "types"),
    [(0, "", "IndexPutV2, NonZero"), (9, "", "IndexPutV2"), (0, "forward", "IndexPutV2")],
)
def test_the_mask_of_an_assignment_is_told_with_it_whatever_it_is_called(
    between: int, basis: str, types: str
) -> None:
    rows = [kernel("NonZero", MS), *[kernel("MatMulV3", MS)] * between]
    rows = [*rows, kernel("IndexPutV2", 4 * MS, basis=basis)]
    rows = [{**row, "start_ns": at * 10 * MS} for at, row in enumerate(rows)]
    told = {seen.what.split(" take")[0]: seen for seen in check(recording(rows, step_ns=99 * MS))}
    (seen,) = (told[name] for name in told if name.startswith("IndexPut"))
    assert seen.what.startswith(types)
    assert ("masked_fill_(mask, v)" in seen.advice) == ("NonZero" in types)


def test_the_gradient_of_an_assignment_goes_with_it() -> None:
    here = {"path": "m.py", "line": 9}
    rows = [kernel("NonZero", MS, **here), kernel("IndexPutV2", 4 * MS, **here)]
    rows += [kernel("MatMulV3", MS)] * 9
    rows += [kernel("IndexPutV2", 3 * MS, **here, basis="forward")]
    rows += [kernel("IndexPutV2", 2 * MS, path="m.py", line=4, basis="forward")]  # of ``x[mask]``
    rows = [{**row, "start_ns": at * 10 * MS} for at, row in enumerate(rows)]
    told = list(check(recording(rows, step_ns=199 * MS)))
    assert [o.cost_ns // MS for o in told if o.what.startswith("IndexPut")] == [8, 2]


def test_a_mask_alone_is_an_operator_like_others() -> None:
    (seen,) = check(recording([kernel("NonZero", MS)]))
    assert "x[index] = v" in seen.advice


@pytest.mark.parametrize(("looked_up", "together"), [("9", True), ("90", False)])
def test_a_table_that_is_rewritten_for_few_rows_is_one_finding(
    looked_up: str, *, together: bool
) -> None:
    made = {"input_shapes": f"{looked_up},8;{looked_up}", "output_shapes": "100,8"}
    rows = [kernel("EmbeddingDenseGradV2", MS, **made)]
    rows += [kernel("ApplyAdamWV2", 3 * MS, input_shapes="100,8;100,8;1")]
    rows += [kernel("ApplyAdamWV2", MS, input_shapes="8,8;8,8;1"), kernel("MatMulV3", MS)]
    seen = next(iter(check(recording(rows))))
    assert (seen.cost_ns == 4 * MS and not seen.is_work) == together
    assert ("spread the table" in seen.advice and "rewrites" in seen.advice) == together


def test_a_step_that_waits_is_told_of_no_type_that_takes_next_to_nothing_of_it() -> None:
    rows = [kernel("IndexPutV2", 4 * MS), kernel("MatMulV3", 96 * MS)]
    told = [o.what.split()[0] for o in check(recording(rows, step_ns=900 * MS))]
    assert told == ["MatMulV3"]
