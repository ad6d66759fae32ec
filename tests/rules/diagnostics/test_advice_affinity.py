"""Advice about slow operators: what a recording must show for it, and what it must not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from npufix.advisor.rules_test.recordings import MS, US, in_a_row, recording
from npufix.rules.diagnostics import (
    ai_cpu_operator,
    expanded_bool,
    growing_concatenation,
    layout_copies,
    leading_axis_reduction,
    loop_over_elements,
    many_sync_batch_norms,
    operator_on_the_host,
    recomputed_cos_sin,
    separate_projections,
    strided_slicing,
    unaligned_attention_heads,
    unaligned_matmul,
    zero_filling,
)

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Observation, Recording

LINE: dict[str, Any] = {"path": "m.py", "line": 9, "function": "f", "basis": "call-stack"}


def told(rule: Any, looked_at: Recording) -> list[Observation]:
    return list(rule.RULE.check(looked_at))


def kernel(name: str, shapes: str = "", output: str = "", **columns: Any) -> dict[str, Any]:
    return {
        "type": name, "input_shapes": shapes, "output_shapes": output, "duration_ns": 2 * MS,
        **LINE, **columns,
    }  # fmt: skip


def apart(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return kernels one after the other, a long one first that has nothing to do with them."""
    return [{**row, "start_ns": at * 10 * MS} for at, row in enumerate(rows)]


def falls_back(name: str) -> Recording:
    host = [
        {"name": name, "start_ns": 20 * US, "duration_ns": 900 * US, **_place()},
        {"name": "aten::empty", "start_ns": 21 * US, "duration_ns": US},
        {"name": "aten::_to_cpu", "start_ns": 30 * US, "duration_ns": 500 * US},
        {"name": "aten::add", "start_ns": 2 * MS, "duration_ns": 10 * US},
    ]
    kernels = in_a_row([10 * US, 10 * US], 1 * MS)
    return recording(kernels, host, step_ns=2 * MS)


def _place() -> dict[str, Any]:
    return {name: value for name, value in LINE.items() if name != "basis"}


def test_the_operator_around_the_copy_to_the_host_falls_back() -> None:
    (found,) = told(operator_on_the_host, falls_back("aten::linalg_slogdet"))
    assert found.what.startswith("aten::linalg_slogdet runs on the host: 1 call per step")
    assert found.is_idle
    assert found.cost_ns == 900 * US
    assert found.places[0].line == 9


def test_no_copy_to_the_host_no_fallback() -> None:
    looked_at = falls_back("aten::logdet")
    ops = looked_at.host_ops[looked_at.host_ops["name"] != "aten::_to_cpu"]
    assert not told(operator_on_the_host, replace(looked_at, host_ops=ops))
    busy = looked_at.kernels.assign(duration_ns=MS)
    assert not told(operator_on_the_host, replace(looked_at, kernels=busy))


@pytest.mark.parametrize(("layers", "expected"), [(20, 0), (21, 1)])
def test_more_than_20_sync_batch_norms(layers: int, expected: int) -> None:
    rows = [kernel("SyncBatchNormGatherStats", duration_ns=US)] * layers
    assert len(told(many_sync_batch_norms, recording(rows))) == expected


@pytest.mark.parametrize(
    ("shapes", "dtypes", "duration", "expected"),
    [
        ("4096,151936;151936,1024", "DT_BF16;DT_BF16", 2 * MS, 1),
        ("4096,152064;152064,1024", "DT_BF16;DT_BF16", 2 * MS, 0),
        ("4096,1016;1016,1024", "FLOAT16;FLOAT16", 2 * MS, 1),
        # short rows, short kernels, unknown widths
        ("4096,1000;1000,1024", "FLOAT16;FLOAT16", 2 * MS, 0),
        ("4096,151936;151936,1024", "FLOAT16;FLOAT16", 50 * US, 0),
        ("4096,151936;151936,1024", "", 2 * MS, 0),
    ],
)
def test_rows_of_a_product(shapes: str, dtypes: str, duration: int, expected: int) -> None:
    rows = [kernel("MatMulV3", shapes, input_dtypes=dtypes, duration_ns=duration)]
    found = told(unaligned_matmul, recording(rows, step_ns=4 * MS))
    assert [o.cost_ns for o in found] == [duration] * expected
    assert all(o.saving_ns is None for o in found)


def test_aligned_products_are_the_measure() -> None:
    odd = kernel("MatMulV2", "1024,1016;1016,1024", "1024,1024", input_dtypes="BF16;BF16")
    good = kernel(
        "MatMulV2", "1024,1024;1024,1024", "1024,1024", input_dtypes="BF16;BF16", duration_ns=MS
    )
    as_fast = {**odd, "duration_ns": round(MS * 1016 / 1024 * 1.01)}
    assert told(unaligned_matmul, recording([as_fast, good, good, good])) == []
    (found,) = told(unaligned_matmul, recording([odd, good, good, good]))
    assert found.kernels == {0}
    assert found.saving_ns is not None
    assert found.saving_ns[1] == pytest.approx(2 * MS - MS * 1016 / 1024, rel=1e-6)
    assert found.likely_ns == pytest.approx(0.95 * found.saving_ns[1], rel=1e-6)


@pytest.mark.parametrize(("duration", "expected"), [(2 * MS, 1), (MS, 0)])
def test_rows_that_a_product_writes_count_where_it_is_slow(duration: int, expected: int) -> None:
    odd = kernel(
        "MatMulV3",
        "1024,1024;1016,1024",
        "1024,1016",
        input_dtypes="BF16;BF16",
        duration_ns=duration,
    )
    good = kernel(
        "MatMulV3", "1024,1024;1024,1024", "1024,1024", input_dtypes="BF16;BF16", duration_ns=MS
    )
    assert len(told(unaligned_matmul, recording([odd, good, good, good]))) == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("2,8,1024,80;2", 1), ("2,8,1024,64", 0), ("2,8,1024,128", 0), ("1024,2,640", 0), ("", 0)],
)
def test_the_size_of_heads(shape: str, expected: int) -> None:
    found = told(unaligned_attention_heads, recording([kernel("FlashAttentionScore", shape)]))
    assert len(found) == expected
    assert all(("of the tiles used", "62 %") in o.evidence for o in found)


@pytest.mark.parametrize(("duration", "expected"), [(MS, 1), (MS - 1000, 0)])
def test_fills_from_1_percent_of_the_step(duration: int, expected: int) -> None:
    rows = [kernel("ZerosLike", duration_ns=duration), kernel("Add")]
    found = told(zero_filling, recording(rows))
    assert [o.saving_ns for o in found] == [(0, duration)] * expected


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [(["8,64"] * 5, 4), (["8,64"] * 4, 0), ([f"{n},64" for n in range(1, 9)], 0)],
)
def test_cos_of_the_same_shape(shapes: list[str], expected: int) -> None:
    rows = [kernel("Cos", shape) for shape in shapes]
    found = told(recomputed_cos_sin, recording(rows))
    assert sum(len(o.kernels) for o in found) == expected


def test_cos_once_in_each_of_many_steps_is_not_repeated() -> None:
    rows = [kernel("Cos", "8,64", step=step) for step in range(9)]
    assert not told(recomputed_cos_sin, recording(rows, step_count=9))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"input_dtypes": "BOOL"}, 1),
        ({"input_dtypes": "DT_BOOL;INT64"}, 1),
        ({"input_dtypes": "INT32"}, 0),
        ({"input_dtypes": "BOOL", "core": "AI_CPU"}, 0),
        ({"input_dtypes": "BOOL", "duration_ns": 21 * US}, 0),
    ],
)
def test_slow_expansion_of_bool(columns: dict[str, Any], expected: int) -> None:
    rows = [kernel("ExpandD", "1,512", "1024,512", **columns)]
    assert len(told(expanded_bool, recording(rows))) == expected


@pytest.mark.parametrize(("rule", "name"), [(strided_slicing, "StridedSlice"),
                                            (layout_copies, "Transpose")])  # fmt: skip
@pytest.mark.parametrize(("other", "expected"), [(38 * MS, 1), (39 * MS, 0)])
def test_copies_from_5_percent_of_compute(rule: Any, name: str, other: int, expected: int) -> None:
    rows = [kernel(name, "8,64", "64,8"), kernel("MatMulV3", duration_ns=other)]
    assert len(told(rule, recording(rows))) == expected


def reductions(shapes: str, output: str, duration: int) -> Recording:
    # 8 MiB in 8 µs: 1 TB/s
    fast = kernel("Mul", "1024,1024", "1024,1024", input_dtypes="FLOAT", duration_ns=8 * US)
    slow = kernel("ReduceSum", shapes, output, input_dtypes="FLOAT", duration_ns=duration)
    return recording([slow, *[fast] * 5], step_ns=4 * MS)


@pytest.mark.parametrize(
    ("shapes", "output", "duration", "expected"),
    [
        ("8,1024,128", "8,128", 400 * US, 1),
        ("8,1024,128", "8,1,128", 400 * US, 1),
        ("8,1024,128", "8,1024", 400 * US, 0),
        ("8,1024,128", "8,128", 21 * US, 0),
        ("8,1024,128", "", 400 * US, 0),
    ],
)
def test_reductions_over_leading_axes(
    shapes: str, output: str, duration: int, expected: int
) -> None:
    assert len(told(leading_axis_reduction, reductions(shapes, output, duration))) == expected


def test_whole_numbers_are_slow_for_another_reason() -> None:
    looked_at = reductions("8,1024,128", "8,128", 400 * US)
    whole = looked_at.kernels.assign(input_dtypes=pd.Categorical(["INT64"] + ["FLOAT"] * 5))
    assert not told(leading_axis_reduction, replace(looked_at, kernels=whole))


def test_no_bandwidth_no_slow_reduction() -> None:
    rows = [kernel("ReduceSum", "8,1024,128", "8,128", input_dtypes="FLOAT")]
    assert not told(leading_axis_reduction, recording(rows))


@pytest.mark.parametrize(
    ("shapes", "output", "expected"),
    [
        ("1,8,511,64;1,8,1,64", "1,8,512,64", 1),
        ("1,8,31,64;1,8,1,64", "1,8,32,64", 0),
        ("1,8,256,64;1,8,256,64", "1,8,512,64", 0),
        ("1,8,511,64;1,8,1,64", "", 0),
        ("511;1", "512", 0),
    ],
)
def test_caches_that_grow(shapes: str, output: str, expected: int) -> None:
    rows = [kernel("ConcatD", shapes, output)]
    found = told(growing_concatenation, recording(rows))
    assert len(found) == expected
    # What is written in place of all of it is a few rows.
    assert all(seen.likely_ns and seen.likely_ns > 0.9 * seen.cost_ns for seen in found)


def projections(*inputs: str, **columns: Any) -> Recording:
    rows = [kernel("MatMulV3", f"{shape};8,8", "64,8", **columns) for shape in inputs]
    return recording(apart(*rows))


def test_three_products_of_one_input() -> None:
    (found,) = told(separate_projections, projections("64,8", "64,8", "64,8"))
    assert len(found.kernels) == 3
    assert not told(separate_projections, projections("64,8", "64,8", "64,16"))
    assert not told(separate_projections, projections("64,8", "64,8"))
    backward = projections("64,8", "64,8", "64,8", basis="forward")
    assert not told(separate_projections, backward)
    own = [kernel("MatMulV3", "64,8;8,8", "64,8", basis=b) for b in ("", "forward", "forward")]
    assert not told(separate_projections, recording(apart(*own)))  # one, and its two gradients


@pytest.mark.parametrize(
    ("calls", "shape", "expected"), [(101, "4", 1), (100, "4", 0), (101, "2048", 0)]
)
def test_a_line_with_many_tiny_kernels(calls: int, shape: str, expected: int) -> None:
    rows = [kernel("Mul", shape, duration_ns=10 * US)] * calls
    assert len(told(loop_over_elements, recording(rows))) == expected


def test_the_line_of_an_optimizer_is_no_loop_over_elements() -> None:
    rows = [kernel("Mul", "4", duration_ns=10 * US)] * 200 + [kernel("Mul", "1024,1024")]
    assert not told(loop_over_elements, recording(rows))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Sort", "x.float().sort()"), ("Cumsum", "torch.int32"), ("UniqueConsecutive", "no unique"),
     ("IndexPut", "masked_fill_"), ("ComplexAbs", "view_as_real"), ("Mul", "")],
)  # fmt: skip
def test_what_to_write_instead_on_the_ai_cpu(name: str, expected: str) -> None:
    rows = [kernel(name, core="AI_CPU")]
    (found,) = told(ai_cpu_operator, recording(rows))
    assert found.advice == expected if not expected else expected in found.advice
