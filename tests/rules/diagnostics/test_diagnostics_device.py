"""Diagnostics of kernels and clocks, on both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest
from observed import only

from npufix.advisor.rules_test.recordings import MS, START, US, in_a_row, recording
from npufix.profiling_parsers.profile import Environment
from npufix.rules.diagnostics import (
    ai_cpu_operator,
    cast_storm,
    changing_shapes,
    frequency_drop,
    small_kernels,
    transdata_storm,
)


def on_ai_cpu(duration: int, **columns: Any) -> dict[str, Any]:
    return {
        "type": "Sort", "core": "AI_CPU", "duration_ns": duration, "input_shapes": "1024,1024",
        "input_dtypes": "INT64", "output_shapes": "1024,1024", "path": "m.py", "line": 9,
        "function": "f", **columns,
    }  # fmt: skip


@pytest.mark.parametrize(("duration", "expected"), [(20 * US, 0), (20 * US + 1, 1)])
def test_20_us_on_the_ai_cpu_are_told(duration: int, expected: int) -> None:
    found = list(ai_cpu_operator.check(recording([on_ai_cpu(duration)])))
    assert [o.cost_ns for o in found] == [duration] * expected
    assert all(o.kernels == {0} and o.places[0].line == 9 for o in found)


def test_what_to_write_instead_of_masked_scatter_is_said() -> None:
    found = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS, type="MaskedScatter")]))
    assert "index_put(mask.nonzero(as_tuple=True), rows)" in found.advice


def test_no_saving_is_made_up() -> None:
    found = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS)]))
    assert found.saving_ns is None
    assert "too few kernels" in found.basis
    unknown = on_ai_cpu(5 * MS, input_shapes="", output_shapes="", input_dtypes="")
    seen = only(ai_cpu_operator, recording([unknown]))
    assert seen.saving_ns is None
    assert ("inputs", "dtypes were not recorded") in seen.evidence


def test_the_same_type_on_an_ai_core_is_the_measure() -> None:
    fast = [
        {"type": "Sort", "duration_ns": ns, "input_shapes": "512,1024", "input_dtypes": "FLOAT",
         "output_shapes": "512,1024"}
        for ns in (100 * US, 200 * US, 300 * US)
    ]  # fmt: skip
    found = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS), *fast]))
    # Four times the bytes of the largest that ran on an AI core: 4 x 0.3 ms and 4 x 0.2 ms.
    assert found.saving_ns == (5 * MS - 1200 * US, 5 * MS - 800 * US)


def test_else_the_bandwidth_of_element_wise_kernels_is_the_measure() -> None:
    large = {"type": "Mul", "input_shapes": "1024,1024", "input_dtypes": "FLOAT",
             "output_shapes": "1024,1024", "duration_ns": 8 * US}  # fmt: skip
    small = {**large, "input_shapes": "8", "output_shapes": "8", "duration_ns": 2 * US}
    found = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS), *[large] * 5, *[small] * 5]))
    assert found.saving_ns is not None
    low, high = found.saving_ns
    # 16 MiB at 8 MiB per 8 µs: 8 µs once in 32 bits, 160 µs ten times, and a launch.
    assert low == pytest.approx(5 * MS - 162 * US, rel=1e-3)
    assert high == pytest.approx(5 * MS - 10 * US, rel=1e-3)
    sums = on_ai_cpu(5 * MS, type="ReduceSum", input_dtypes="DOUBLE")
    summed = only(ai_cpu_operator, recording([sums, *[large] * 5, *[small] * 5]))
    assert summed.saving_ns is not None
    assert summed.saving_ns[0] == pytest.approx(5 * MS - 34 * US, rel=1e-3), "two passes at most"
    alone = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS), *[small] * 5]))
    assert alone.saving_ns is None, "how quickly 16 MiB are read is not shown"
    big = only(ai_cpu_operator, recording([on_ai_cpu(5 * MS), *[large] * 5]))
    assert big.saving_ns == pytest.approx((5 * MS - 170 * US, 5 * MS - 10 * US), rel=1e-3)
    few = on_ai_cpu(90 * US, input_shapes="1000", output_shapes="1000")
    quick = only(ai_cpu_operator, recording([few, *[small] * 5]))
    assert quick.saving_ns == pytest.approx((86 * US + 800, 88 * US - 12), abs=500)
    # A cast is launched before it: no saving where the host is late, whatever the device gains.
    assert quick.instead is not None
    assert (quick.instead[0], quick.instead_launches) == (1, 2)
    shown = only(ai_cpu_operator, recording([few, *[large] * 5]))
    assert shown.saving_ns is not None, "large kernels alone show enough of a small one"


@pytest.mark.parametrize(
    ("name", "dtypes", "chip", "expected"),
    [
        ("Sort", "INT64", "", "INT64 has no AI core kernel; BF16, FLOAT, FLOAT16 have"),
        ("Sort", "DT_BF16", "", "these dtypes have an AI core kernel"),
        ("Add", "FLOAT;DOUBLE", "", "DOUBLE has no AI core kernel"),
        # Behind the first input int64 may be an index.
        ("Sort", "FLOAT;INT64", "", "these dtypes have an AI core kernel"),
        ("Abs", "COMPLEX64", "Ascend910B3", "COMPLEX64 has no AI core kernel"),
        ("ArgMaxV2", "INT32", "Ascend910A", "INT32 has no AI core kernel"),
        ("ArgMaxV2", "INT32", "Ascend910B3", "these dtypes have"),
        ("IndexPutV2", "INT64;INT64", "", "INT64 goes there with more than 100 indices"),
        ("IndexPut", "DOUBLE", "", "DOUBLE has no AI core kernel"),
        ("IndexPutV2", "FLOAT;FLOAT", "", "indices of different shapes"),
        ("NoSuchType", "FLOAT", "", "are not known"),
        ("Sort", "", "", "dtypes were not recorded"),
        ("Sort", ";;", "", "dtypes were not recorded"),
    ],
)
def test_the_reason_comes_from_the_table(name: str, dtypes: str, chip: str, expected: str) -> None:
    assert expected in ai_cpu_operator.reason(name, dtypes, chip)


def test_the_chip_of_the_run_decides() -> None:
    rows = [on_ai_cpu(MS, type="ArgMaxV2", input_dtypes="INT32")]
    old = only(ai_cpu_operator, recording(rows, environment=Environment(chip="Ascend910A")))
    assert old.evidence[1][1].startswith("INT32 has no AI core kernel")


def converts(source: str, target: str, duration: int) -> dict[str, Any]:
    return {"type": "TransData", "input_shapes": source, "output_shapes": target,
            "duration_ns": duration, "path": "m.py", "line": 2, "function": "f"}  # fmt: skip


@pytest.mark.parametrize(("other", "expected"), [(95 * US, 1), (96 * US, 0)])
def test_conversions_matter_from_5_percent_of_compute(other: int, expected: int) -> None:
    rows = [{"duration_ns": other}, converts("1,8", "8", 3 * US), converts("8", "1,8", 2 * US)]
    rows += [{"duration_ns": MS, "communication": True}]
    found = list(transdata_storm.check(recording(rows, step_ns=MS)))
    assert [o.cost_ns for o in found] == [5 * US] * expected
    for seen in found:
        assert seen.kernels == {1, 2}
        assert ("converted and converted back", "1 pair per step") in seen.evidence


def test_conversions_in_one_direction_are_no_pairs() -> None:
    found = only(transdata_storm, recording([converts("1,8", "8", US)] * 3, step_ns=MS))
    assert ("converted and converted back", "0 pairs per step") in found.evidence
    found = only(transdata_storm, recording([converts("", "", US)], step_ns=MS))
    assert found.evidence[0][1] == "unknown, shapes were not recorded"


@pytest.mark.parametrize(("other", "expected"), [(95 * US, 1), (96 * US, 0)])
def test_casts_matter_from_5_percent_of_compute(other: int, expected: int) -> None:
    cast = {"type": "Cast", "input_shapes": "8", "duration_ns": 2500}
    rows = [
        {"duration_ns": other},
        {**cast, "input_dtypes": "FLOAT"},
        {**cast, "input_dtypes": "DT_BF16"},
    ]
    found = list(cast_storm.check(recording(rows, step_ns=MS)))
    assert [o.cost_ns for o in found] == [5 * US] * expected
    assert all(("same shape cast from two dtypes", "1 pair per step") in o.evidence for o in found)


def with_shapes(step: int, shapes: list[str], state: str = "dynamic") -> list[dict[str, Any]]:
    return [{"step": step, "input_shapes": shape, "state": state} for shape in shapes]


SAME = [f"8,{i}" for i in range(10)]


@pytest.mark.parametrize(("new", "expected"), [(2, 0), (3, 1)])
def test_a_fifth_of_new_shapes_is_fine(new: int, expected: int) -> None:
    later = [*SAME[new:], *(f"9,{i}" for i in range(new))]
    rows = with_shapes(1, SAME) + with_shapes(2, later)
    apis = [{"level": "acl", "name": "Slice_Tiling", "count": 20, "total_ns": 4 * MS, "max_ns": MS}]
    looked_at = recording(rows, step={"free_ns": MS}, step_count=2, apis=apis)
    assert [o.cost_ns for o in changing_shapes.check(looked_at)] == [MS] * expected


def test_dynamic_operators_whose_shapes_stay_are_fine() -> None:
    rows = with_shapes(1, SAME) + with_shapes(2, SAME)
    assert not list(changing_shapes.check(recording(rows, step_count=2)))
    assert not list(changing_shapes.check(recording(with_shapes(1, SAME))))


def test_static_operators_are_not_told() -> None:
    rows = with_shapes(1, SAME) + with_shapes(2, [f"9,{i}" for i in range(10)], "static")
    assert not list(changing_shapes.check(recording(rows, step_count=2)))
    rows = with_shapes(1, SAME, "") + with_shapes(2, [f"9,{i}" for i in range(10)], "")
    assert not list(changing_shapes.check(recording(rows, step_count=2)))


def short(count: int, duration: int = 5 * US, gap: int = 10 * US) -> list[dict[str, Any]]:
    rows = in_a_row([duration] * count, gap)
    return [{**row, "launch_ns": row["start_ns"] - 3 * US} for row in rows]


@pytest.mark.parametrize(("free_ns", "expected"), [(9_000, 0), (100_000, 1), (200_000, 1)])
def test_short_kernels_matter_by_the_time_before_them(free_ns: int, expected: int) -> None:
    looked_at = recording(short(11), step={"free_ns": free_ns}, step_ns=MS)
    assert [o.cost_ns for o in small_kernels.check(looked_at)] == [100 * US] * expected


@pytest.mark.parametrize(("kind", "told"), [("ZerosLike", True), ("MemSet", True), ("Add", False)])
def test_gradients_that_are_zeroed_one_by_one_are_told_how_not_to(kind: str, *, told: bool) -> None:
    rows = [{**row, "type": kind} for row in short(11)]
    (seen,) = small_kernels.check(recording(rows, step={"free_ns": 100 * US}, step_ns=MS))
    assert ("zero_grad(set_to_none=True)" in seen.advice) == told


@pytest.mark.parametrize(("small", "expected"), [(1, 0), (2, 1)])
def test_more_than_a_tenth_of_the_kernels_must_be_short(small: int, expected: int) -> None:
    rows = in_a_row([5 * US] * small + [50 * US] * (10 - small), 10 * US)
    # A gap before the first of them, too.
    rows = [{**row, "start_ns": row["start_ns"] + 100 * US} for row in rows]
    rows.insert(0, {"communication": True, "start_ns": 0, "duration_ns": 60 * US})
    apis = [{"level": "node", "name": "launch", "count": 10, "total_ns": 100 * US, "max_ns": US}]
    looked_at = recording(rows, step={"free_ns": 300 * US}, step_ns=MS, apis=apis)
    assert len(list(small_kernels.check(looked_at))) == expected


@pytest.mark.parametrize("collects", [False, True])
def test_a_pause_is_not_before_the_short_kernel_behind_it(*, collects: bool) -> None:
    # A scheduler, or the garbage collector, was 9 ms late: that the next kernel is short is chance.
    first, behind = short(12)[:6], short(12)[6:]
    behind = [{**row, "start_ns": row["start_ns"] + 9 * MS} for row in behind]
    rows = [{**row, "launch_ns": row["start_ns"] - 3 * US} for row in (*first, *behind)]
    gc = [{"start_ns": rows[6]["start_ns"] + START - 9 * MS, "duration_ns": 9 * MS}] * collects
    looked_at = recording(rows, step={"free_ns": 10 * MS}, step_ns=10 * MS, gc=gc)
    (seen,) = small_kernels.check(looked_at)
    assert seen.cost_ns == pytest.approx(100 * US, abs=15 * US)


@pytest.mark.parametrize(("gap", "expected"), [(US, 0), (US + 1, 1)])
def test_short_kernels_that_follow_each_other_are_fine(gap: int, expected: int) -> None:
    rows = [{**row, "launch_ns": i * 10 * US} for i, row in enumerate(short(11, 5 * US, gap))]
    looked_at = recording(rows, step={"free_ns": 300 * US}, step_ns=MS)
    assert len(list(small_kernels.check(looked_at))) == expected


@pytest.mark.parametrize(("mhz", "expected"), [(1756.0, 0), (1755.0, 1), (1710.0, 1)])
def test_a_lower_clock_is_told_by_what_it_costs(mhz: float, expected: int) -> None:
    rows = in_a_row([10 * MS, 30 * MS], 0)
    clock = [
        {"device": 0, "start_ns": START, "mhz": 1800.0},
        {"device": 0, "start_ns": START + 10 * MS, "mhz": mhz},
    ]
    found = list(frequency_drop.check(recording(rows, frequency=clock, step_ns=40 * MS)))
    assert [o.kernels for o in found] == [frozenset({1})] * expected
    lost = round(30 * MS * (1 - mhz / 1800))
    assert [o.cost_ns for o in found] == [lost] * expected
    assert [o.saving_ns for o in found] == [(0, lost)] * expected
    said = f"75.0% of its compute time at {mhz:.0f} instead of 1800 MHz, which takes"
    assert all(said in o.what for o in found)


@pytest.mark.parametrize(("slow_ns", "expected"), [(10_400_000, 400_000), (30 * MS, 1_500_000)])
def test_the_same_kernel_at_full_clock_tells_what_a_low_one_costs(
    slow_ns: int, expected: int
) -> None:
    clock = [
        {"device": 0, "start_ns": START, "mhz": 1800.0},
        {"device": 0, "start_ns": START + 10 * MS, "mhz": 1710.0},
    ]
    rows = in_a_row([10 * MS, slow_ns], 0)
    assert only(frequency_drop, recording(rows, frequency=clock)).likely_ns == expected


def test_a_low_clock_of_an_idle_device_is_fine() -> None:
    rows = [{"start_ns": 0}, {"start_ns": 60 * MS}]
    clock = [
        {"device": 0, "start_ns": START, "mhz": 1800.0},
        {"device": 0, "start_ns": START + MS, "mhz": 800.0},
        {"device": 0, "start_ns": START + 50 * MS, "mhz": 1800.0},
    ]
    assert not list(frequency_drop.check(recording(rows, frequency=clock)))


def test_types_that_one_dtype_keeps_on_the_ai_cpu_are_one_finding() -> None:
    double = [on_ai_cpu(MS, type=kind, input_dtypes="DOUBLE;DOUBLE") for kind in ("Mul", "Sub")]
    seen = only(
        ai_cpu_operator, recording([*double, on_ai_cpu(2 * MS, type="Mul", input_dtypes="DOUBLE")])
    )
    assert seen.what.startswith("Mul, Sub run on the AI CPU 3 times per step and take 4 ms")
    # A sort has a remedy of its own.
    assert len(list(ai_cpu_operator.check(recording([*double, on_ai_cpu(MS)])))) == 2


@pytest.mark.parametrize(("asks", "least"), [("npu::npu_format_cast", 5 * US), ("aten::mm", 0)])
def test_a_weight_that_the_program_converts_need_not_be_at_every_call(
    asks: str, least: int
) -> None:
    rows = [{**converts("8", "1,8", 5 * US), "host_op": 0}]
    found = only(transdata_storm, recording(rows, [{"name": asks}], step_ns=MS))
    assert found.saving_ns == (least, 5 * US)
    assert ("once, when the model is loaded" in found.advice) == bool(least)
