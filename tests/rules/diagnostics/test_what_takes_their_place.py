"""What observations say takes the place of kernels: how many, for how long, and which go."""

from __future__ import annotations

import pytest
from kernel_chains import ADDED, NORM, chain, kernel, seen, the

from npufix.advisor.rules_test.recordings import MS, US
from npufix.rules.diagnostics import (
    add_relu,
    add_rms_norm_across_modules,
    add_rms_norm_quantise,
    blocking_launches,
    expert_matmul_loop,
    optimizer_in_small_kernels,
    recomputed_cos_sin,
    separate_projections,
    written_out_operator,
)


def expert(rows: int, us: int = 100) -> dict[str, object]:
    return kernel("MatMulV2", f"{rows},32;32,16", f"{rows},16", duration_ns=us * US)


def test_of_a_fused_pair_the_part_goes_that_costs_nothing_then() -> None:
    found = the(seen(add_rms_norm_across_modules, chain(ADDED, NORM, times=3)))
    assert found.kernels == set(range(6))
    assert found.dropped == {0, 2, 4}
    assert found.likely_ns == 150 * US, "it still reads what is added"


def test_of_a_relu_behind_a_sum_nothing_is_left() -> None:
    sums = kernel("Add", "64,32;64,32", "64,32")
    found = the(seen(add_relu, chain(sums, kernel("Relu", "64,32", "64,32"), times=2)))
    assert (found.saving_ns, found.likely_ns) == ((0, 200 * US), 180 * US)


def test_one_grouped_product_takes_the_place_of_a_whole_loop() -> None:
    loop = [expert(rows) for rows in (5, 9, 3, 9, 4, 8, 5, 7)]
    between = kernel("FlashAttentionScore", "8,64,16", "8,64,16")
    found = the(seen(expert_matmul_loop, chain(*loop, between, times=2)))
    assert found.instead is not None
    assert found.instead[0] == 2
    assert found.instead[1] < found.cost_ns


def test_a_grouped_product_of_large_experts_may_lose() -> None:
    sizes = ((2000, 400), (2100, 420), (1900, 380), (2000, 400))
    loop = [
        kernel("MatMulV2", f"{rows},4096;4096,4096", f"{rows},4096", duration_ns=us * US)
        for rows, us in sizes
    ]
    found = the(seen(expert_matmul_loop, chain(*loop)))
    assert found.instead is not None
    _, least, most = found.instead
    assert least < found.cost_ns < most


def projections(gradients: int) -> list[dict[str, object]]:
    ahead = [kernel("MatMulV3", "64,32;32,32", "64,32", line=10 + n) for n in range(3)]
    behind = [
        kernel("MatMulV3", "64,32;32,32", "64,32", line=10 + n % 3, basis="forward")
        for n in range(gradients)
    ]
    return chain(*[{"basis": "call-stack", **row} for row in ahead], *behind)


@pytest.mark.parametrize(("gradients", "kernels"), [(0, 3), (6, 9), (5, 3)])
def test_one_product_takes_the_place_of_three_and_two_of_their_gradients(
    gradients: int, kernels: int
) -> None:
    found = the(seen(separate_projections, projections(gradients)))
    assert len(found.kernels) == kernels
    assert found.instead == (1, 290 * US, 300 * US), "two launches of 5 us less"
    # Of five it is not known whose they are.
    wanted = ((580 * US, 600 * US), 2) if gradients == 6 else (None, 2)
    assert (found.instead_backward, found.instead_launches_backward) == wanted


def test_lists_of_parameters_become_one_kernel_for_each() -> None:
    lists = {
        "path": "train.py", "line": 3, "function": "main", "host_op": 1, "duration_ns": MS,
        "input_shapes": "64,16;64;8,8", "input_dtypes": "FLOAT;FLOAT;FLOAT",
        "output_shapes": "64,16;64;8,8",
    }  # fmt: skip
    kinds = (
        "ForeachMulScalar",
        "ForeachAddcmulScalar",
        "ForeachSqrt",
        "ForeachDivList",
        "ForeachAdd",
    )
    host = [
        {"name": "Optimizer.step#AdamW.step", "start_ns": 0, "duration_ns": MS},
        {"name": "aten::_foreach_mul_", "start_ns": 10 * US},
    ]
    rows = chain(*[{**lists, "type": kind} for kind in kinds])
    found = the(seen(optimizer_in_small_kernels, rows, step_ns=9 * MS, host_rows=host))
    assert found.instead is not None
    # Of ten tensors moved for each parameter a fused Adam moves seven.
    assert found.instead[0] == 3
    assert found.instead[1] + found.instead[2] == pytest.approx(2 * 5 * MS * 7 / 10)


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [("128,64", "DT_BF16", 1), ("129,64", "DT_BF16", 0), ("128,64", "FLOAT", 0)],
)
def test_a_norm_of_few_rows_is_converted_by_its_kernel(shape: str, dtype: str, told: int) -> None:
    norm = kernel("RmsNorm", f"{shape};64", f"{shape};1", input_dtypes=f"{dtype};{dtype}")
    cast = kernel("Cast", shape, shape, input_dtypes=dtype)
    assert len(seen(add_rms_norm_quantise, chain(norm, cast))) == told
    gradient = kernel("RmsNormGrad", shape, shape)
    assert not seen(add_rms_norm_quantise, chain(norm, cast, gradient))


def test_a_swiglu_between_bounds_is_not_one_without() -> None:
    half = "64,32"
    clamp = kernel("ClipByValueV2", half, half, input_dtypes="DT_BF16")
    swish, product = kernel("Swish", half, half), kernel("Mul", f"{half};{half}", half)
    found = the(seen(written_out_operator, chain(swish, clamp, clamp, product)))
    assert found.what.startswith("clamped SwiGLU is written out")
    assert "npu_swiglu" not in found.advice
    assert len(found.kernels) == 4


def tables(*beside: dict[str, object]) -> list[dict[str, object]]:
    one = [kernel("Mul", "8,1;32", "8,32"), *beside, kernel("Cos", "8,32", "8,32")]
    rows = chain(*[{**row, "duration_ns": 10 * US} for row in one])
    return [{**row, "start_ns": 1000 * at} for at, row in enumerate(rows * 6)]


def test_what_makes_the_positions_goes_with_the_tables() -> None:
    found = the(seen(recomputed_cos_sin, tables()))
    assert len(found.kernels) == 2 * 5
    larger = kernel("Mul", "4,8,32;8,32", "4,8,32")
    assert len(the(seen(recomputed_cos_sin, tables(larger))).kernels) == 5


def test_blocked_launches_wait_as_long_as_the_host_was_blocked() -> None:
    rows = [
        {"type": "Add", "start_ns": at * 100 * US, "launch_ns": at * 100 * US - 5 * US}
        for at in range(1, 11)
    ]
    rows = [{**row, "duration_ns": 20 * US} for row in rows]
    apis = [
        {"level": "acl", "name": "aclrtSynchronizeStream", "count": 10, "total_ns": 400 * US},
        {"level": "node", "name": "launch", "count": 10, "total_ns": 50 * US},
    ]

    def sooner(**others: object) -> int:
        one = the(seen(blocking_launches, rows, step={"free_ns": MS}, **others))
        return sum(one.sooner_ns.values())

    on = {"ASCEND_LAUNCH_BLOCKING": "1"}
    assert sooner(variables=on) == 9 * 25 * US, "to the end of the kernel, by nothing else"
    assert sooner(apis=apis) == pytest.approx(400 * US, abs=10)
    assert sooner(variables=on, apis=apis) == pytest.approx(450 * US, abs=10)
