"""Advice about kernels of one card that a fused operator does at once."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_chains import ADDED, NORM, PRODUCT, REDUCED, chain, kernel, seen, the

from npufix.advisor.rules_test.recordings import MS, US
from npufix.rules.diagnostics import (
    add_relu,
    add_rms_norm_quantise,
    all_gather_matmul,
    average_after_adamw,
    bias_dropout_add,
    clip_grad_norm,
    eager_deformable_attention,
    eager_driving_operator,
    expert_exchange_matmul,
    expert_matmul_loop,
    expert_permutation,
    expert_routing,
    feed_forward_inference,
    gelu_add,
    gradient_accumulation_add,
    grouped_matmul_all_reduce,
    matmul_all_reduce,
    matmul_all_reduce_add_rms_norm,
    matmul_reduce_scatter,
    optimizer_in_small_kernels,
    transpose_batch_matmul,
)

ALL = (
    add_relu, add_rms_norm_quantise, all_gather_matmul, average_after_adamw, bias_dropout_add,
    clip_grad_norm, eager_deformable_attention, eager_driving_operator, expert_exchange_matmul,
    expert_matmul_loop, expert_permutation, expert_routing, feed_forward_inference, gelu_add,
    gradient_accumulation_add, grouped_matmul_all_reduce, matmul_all_reduce,
    matmul_all_reduce_add_rms_norm, matmul_reduce_scatter, optimizer_in_small_kernels,
    transpose_batch_matmul,
)  # fmt: skip


# --- sequences on one card


def dense(rows: int) -> dict[str, Any]:
    return kernel("MatMulV2", f"{rows},32;32,16", f"{rows},16")


def test_products_of_experts_have_one_weight_shape_and_other_rows() -> None:
    loop = chain(dense(5), kernel("GatherV2"), dense(9), dense(3), kernel("IndexPutV2"), dense(9))
    found = the(seen(expert_matmul_loop, loop))
    # Four products of 100 us, at the rate of that of nine rows.
    assert found.cost_ns == 400 * US
    assert found.saving_ns is not None
    assert found.saving_ns[0] == 0
    assert 0 < found.saving_ns[1] < 300 * US
    assert found.instead is not None
    assert found.instead[0] == 1
    assert seen(expert_matmul_loop, chain(*[dense(5)] * 4)) == []  # a stack of layers
    backward = [kernel("MatMulV2", f"{n},8;8,{n}", f"{n},{n}") for n in (32, 16, 32, 16)]
    assert seen(expert_matmul_loop, chain(*backward)) == []


def test_gradients_that_are_added_in_float32() -> None:
    single = {"input_dtypes": "FLOAT;DT_BF16"}
    rows = chain(PRODUCT, kernel("Add", "64,16;64,16", "64,16", **single))
    assert the(seen(gradient_accumulation_add, rows)).saving_ns == (0, 100 * US)
    half = chain(PRODUCT, kernel("Add", "64,16;64,16", "64,16", input_dtypes="DT_BF16"))
    assert seen(gradient_accumulation_add, half) == []
    other = chain(PRODUCT, kernel("Add", "64,17;64,17", "64,17", **single))
    assert seen(gradient_accumulation_add, other) == []


ADD = kernel("Add", "64,16;64,16", "64,16")


@pytest.mark.parametrize(
    ("rule", "rows", "saved"),
    [
        (gelu_add, [kernel("Gelu", "64,16", "64,16"), ADD], 1),
        (add_relu, [ADD, kernel("Relu", "64,16", "64,16")], 1),
        (bias_dropout_add, [ADD, kernel("DropOutDoMask", "64,16;128;1", "64,16"), ADD], 2),
        (
            expert_permutation,
            [kernel("Sort", "64", "64;64"), kernel("Sort", "64", "64;64"),
             kernel("GatherV2", "32,16;64;1", "64,16")],
            1,
        ),
        (
            expert_permutation,
            [kernel("GatherV2", "32,16;64;1", "64,16"), kernel("Mul", "32,2,16;32,2,1", "32,2,16"),
             kernel("ReduceSum", "32,2,16;1", "32,16")],
            2,
        ),
    ],
)  # fmt: skip
def test_kernels_that_hand_a_tensor_on_are_told(
    rule: Any, rows: list[dict[str, Any]], saved: int
) -> None:
    found = the(seen(rule, chain(*rows)))
    assert (found.cost_ns, found.saving_ns) == (100 * US * len(rows), (0, 100 * US * saved))
    small = [{**rows[0], "output_shapes": "3"}, *rows[1:]]
    assert seen(rule, chain(*small)) == []
    assert seen(rule, chain(*rows), step_ns=100 * MS) == []  # not worth telling


FFN = [
    kernel("MatMulV2", "64,32;32,128", "64,128"),
    kernel("Gelu", "64,128", "64,128"),
    kernel("MatMulV2", "64,128;128,32", "64,32"),
]
GATED = [
    kernel("MatMulV2", "64,32;32,128", "64,128"),
    kernel("Swish", "64,128", "64,128"),
    kernel("MatMulV2", "64,32;32,128", "64,128"),
    kernel("Mul", "64,128;64,128", "64,128"),
    kernel("MatMulV2", "64,128;128,32", "64,32"),
]
TRANSPOSED = [
    kernel("BatchMatMulV2", "8,64,16;8,16,32", "8,64,32"),
    kernel("Transpose", "8,64,32;3", "64,8,32"),
]
ROUTER = [kernel("SoftmaxV2", "64,8", "64,8"), kernel("TopKV2", "64,8;1", "64,2;64,2")]
QUANTISE = [
    kernel("AddRmsNorm", "64,16;64,16;16", "64,16;64,1;64,16"),
    kernel("DynamicQuant", "64,16", "64,16;64"),
]


@pytest.mark.parametrize(
    ("rule", "rows", "saved"),
    [
        (feed_forward_inference, FFN, 1),
        (feed_forward_inference, GATED, 2),
        (transpose_batch_matmul, TRANSPOSED, 1),
        (expert_routing, ROUTER, 1),
        (add_rms_norm_quantise, QUANTISE, 1),
    ],
)
def test_operators_without_a_gradient_are_for_inference(
    rule: Any, rows: list[dict[str, Any]], saved: int
) -> None:
    assert the(seen(rule, chain(*rows))).saving_ns == (0, 100 * US * saved)
    assert seen(rule, chain(*rows, kernel("SoftmaxGrad"))) == []
    step = [{"name": "Optimizer.step#AdamW.step"}]
    assert seen(rule, chain(*rows), host_rows=step) == []


def test_a_short_activation_is_not_worth_the_fusion() -> None:
    short = [FFN[0], {**FFN[1], "duration_ns": 20 * US}, FFN[2]]
    assert seen(feed_forward_inference, chain(*short)) == []


@pytest.mark.parametrize("read", ["8,64,16;8,16,30", "8,64,16;8,16,65552", "64,16;16,32"])
def test_products_that_the_transposing_operator_refuses(read: str) -> None:
    product = {**TRANSPOSED[0], "input_shapes": read}
    assert seen(transpose_batch_matmul, chain(product, TRANSPOSED[1])) == []


def test_levels_are_sampled_by_one_line_at_several_sizes() -> None:
    def sample(side: int, line: int = 7) -> dict[str, Any]:
        return kernel("GridSampler2D", f"8,32,{side},{side};8,100,4,2", "8,32,100,4", line=line)

    found = the(seen(eager_deformable_attention, chain(sample(64), sample(32))))
    assert found.saving_ns == (0, 200 * US)
    assert seen(eager_deformable_attention, chain(sample(64), sample(64))) == []
    assert seen(eager_deformable_attention, chain(sample(64), sample(32, line=8))) == []


# --- optimizers

UPDATE = {"type": "Mul", "duration_ns": 20 * US, "host_op": 1, "path": "train.py", "line": 5}


def optimizer(name: str) -> list[dict[str, Any]]:
    return [
        {"name": f"Optimizer.step#{name}.step", "start_ns": 0, "duration_ns": MS},
        {"name": "aten::mul", "start_ns": 10 * US},
        {"name": "aten::mul", "start_ns": 2 * MS},
    ]


def test_an_optimizer_in_small_kernels_is_told_with_its_class() -> None:
    rows = chain(*[UPDATE] * 12, {**UPDATE, "host_op": 2}, {**UPDATE, "host_op": -1})
    found = the(seen(optimizer_in_small_kernels, rows, host_rows=optimizer("AdamW")))
    assert found.what.startswith("AdamW takes 240 µs per step (6.0% of the step) in 12 kernels")
    assert "fused=True" in dict(found.evidence)["fused counterpart"]
    assert found.kernels == set(range(12))
    assert found.places[0].path == "train.py"


def test_a_fused_adam_moves_seven_tensors_for_each_parameter() -> None:
    cells = {"input_dtypes": "FLOAT", "input_shapes": "64,16", "output_shapes": "64,16"}
    one = [
        {**UPDATE, **cells, "type": kind} for kind in ("Mul", "Mul", "Sqrt", "Add", "Div", "Add")
    ]
    found = the(seen(optimizer_in_small_kernels, chain(*one * 4), host_rows=optimizer("AdamW")))
    assert found.cost_ns == 480 * US
    assert found.instead == (4, 196 * US, 364 * US), "7 of 12 tensors, more or less by 30 %"
    assert found.saving_ns == (116 * US, 284 * US)
    sgd = [{**row, "type": "Mul"} for row in one]
    (other,) = seen(optimizer_in_small_kernels, chain(*sgd * 4), host_rows=optimizer("SGD"))
    assert other.instead == (1, 216 * US, 480 * US, 480 * US), "5 of 11 tensors; a list of 24"
    assert other.saving_ns == (0, 264 * US)
    blind = [{**row, "input_shapes": "", "output_shapes": ""} for row in sgd * 4]
    (unknown,) = seen(optimizer_in_small_kernels, chain(*blind), host_rows=optimizer("SGD"))
    assert unknown.instead is unknown.saving_ns is None
    assert (found.advice, other.advice) == (
        "torch.optim.AdamW(..., fused=True) or torch_npu.optim.NpuFusedAdamW",
        "torch_npu.optim.NpuFusedSGD",
    )


def test_a_few_foreach_kernels_of_a_whole_model_are_told_as_one() -> None:
    rows = chain(*[{**UPDATE, "type": f"Foreach{n}", "duration_ns": MS} for n in ("Mul", "Sqrt")])
    found = the(seen(optimizer_in_small_kernels, rows, host_rows=optimizer("AdamW")))
    assert found.what.startswith("AdamW takes 2 ms per step")


def test_lists_of_parameters_are_an_optimizer_without_a_mark_too() -> None:
    kinds = ("MulScalar", "LerpScalar", "Sqrt", "AddcdivScalar")
    lists = [{**UPDATE, "type": f"Foreach{kind}", "duration_ns": MS} for kind in kinds]
    found = the(seen(optimizer_in_small_kernels, chain(*lists)))
    assert found.what.startswith("updates of lists of parameters take 4 ms per step")
    average = {**UPDATE, "type": "ApplyAdamWV2"}  # of the weights, behind a fused step
    assert seen(optimizer_in_small_kernels, chain(*lists, average)) == []
    assert seen(optimizer_in_small_kernels, chain(*lists[:2])) == [], "gradients are scaled"


@pytest.mark.parametrize(("scale", "clips"), [("Mul", True), ("Addcmul", False)])
def test_gradients_that_are_clipped_one_by_one_are_no_update(scale: str, *, clips: bool) -> None:
    cells = {"input_dtypes": "FLOAT", "input_shapes": "64,16", "output_shapes": "64,16"}
    kinds = [kind for kind in ("LpNormV2", scale) for _ in range(24)]
    rows = [{**UPDATE, **cells, "type": kind} for kind in kinds]
    (found,) = seen(optimizer_in_small_kernels, chain(*rows))
    assert found.what.startswith("clipping the gradient" if clips else "an update of one parameter")
    least = 960 * US if clips else 432 * US
    assert found.instead == (1, least, 960 * US, 960 * US)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (chain(*[UPDATE] * 12, {**UPDATE, "type": "ApplyAdamWV2"}), "AdamW"),  # fused already
        (chain(*[UPDATE] * 12), "NpuFusedAdamW"),
        (chain(*[UPDATE] * 12), "Shampoo"),  # nothing to offer
        (chain(*[UPDATE] * 9), "SGD"),
    ],
)
def test_other_optimizers_are_not_told(rows: list[dict[str, Any]], name: str) -> None:
    assert seen(optimizer_in_small_kernels, rows, host_rows=optimizer(name)) == []


def test_averages_behind_adamw_have_the_shapes_of_its_parameters() -> None:
    step = [kernel("ApplyAdamWV2", "64,16;64,16", "64,16") for _ in range(4)]
    averages = [kernel("LerpScalar", "64,16;64,16", "64,16") for _ in range(4)]
    found = the(seen(average_after_adamw, chain(*step, *averages)))
    assert found.saving_ns == (0, 400 * US)
    assert seen(average_after_adamw, chain(*averages, *step)) == []  # in front of it
    assert seen(average_after_adamw, chain(*step, averages[0])) == []
    layer = [kernel("Mul", "64,16;64,16", "64,16") for _ in range(13)]
    assert seen(average_after_adamw, chain(*step, *layer)) == []  # more than an average takes
    slow = [{**row, "core": "AI_CPU"} for row in averages]
    assert seen(average_after_adamw, chain(*step, *slow)) == []
    other = [kernel("LerpScalar", "3,3;3,3", "3,3") for _ in range(4)]
    assert seen(average_after_adamw, chain(*step, *other)) == []


def test_norms_of_single_gradients() -> None:
    norms = chain(*[kernel("LpNormV2", "64,16", "1")] * 6)
    found = the(seen(clip_grad_norm, norms, host_rows=optimizer("NpuFusedAdamW")))
    assert ("optimizers", "NpuFusedAdamW") in found.evidence
    assert found.saving_ns == (0, 600 * US)
    assert seen(clip_grad_norm, norms) == []  # nobody knows the optimizer
    assert seen(clip_grad_norm, norms[:3], host_rows=optimizer("SGD")) == []
    sharded = [*norms, *chain(kernel("ApplyAdamWV2"))]
    assert seen(clip_grad_norm, sharded, host_rows=optimizer("AdamW")) == []


# --- operators of driving models


@pytest.mark.parametrize(
    ("columns", "operator"),
    [
        ({"host_op": 0}, "deform_conv2d"),
        ({"function": "bev_pool"}, "bev_pool_v3"),
        ({"function": "draw_heatmap_gaussian"}, "npu_gaussian"),
        ({"function": "hard_voxelize"}, "voxelization"),
        ({"type": "MaxPool3DWithArgmaxV2", "input_shapes": "6,64,450,800"}, "npu_max_pool2d"),
    ],
)
def test_operators_of_driving_models_are_known_by_the_table(
    columns: dict[str, Any], operator: str
) -> None:
    host = [{"name": "torchvision::deform_conv2d"}, {"name": "aten::add"}]
    plain = {"host_op": 1, "function": "forward"}
    rows = chain({**kernel("Sort", "5"), **plain}, {**kernel("Add", "5"), **plain, **columns})
    found = the(seen(eager_driving_operator, rows, host_rows=host))
    assert operator in found.what
    assert found.kernels == {1}
    assert found.saving_ns is None


@pytest.mark.parametrize("shape", ["6,60,450,800", "6,64,100,800", "64,450,800"])
def test_images_that_the_pooling_operator_refuses(shape: str) -> None:
    assert seen(eager_driving_operator, chain(kernel("MaxPoolV3", shape))) == []


# --- all of them


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.RULE.name)
def test_advice_is_silent_where_its_kernels_are_not(rule: Any) -> None:
    rows = chain(kernel("Add"), kernel("Conv2D", "a;;9,9"), kernel("hcom_broadcast_"))
    assert seen(rule, rows) == []
    assert rule.RULE.table == "fusion"


CHAINS = (
    chain(PRODUCT, REDUCED, ADDED, NORM),
    chain(*FFN), chain(*GATED), chain(*TRANSPOSED), chain(*ROUTER), chain(*QUANTISE),
    chain(ADD, kernel("Relu", "64,16", "64,16")),
    chain(dense(5), dense(9), dense(3), dense(9)),
)  # fmt: skip


@pytest.mark.parametrize("rows", CHAINS, ids=lambda rows: "-".join(row["type"] for row in rows))
def test_no_kernel_is_told_twice(rows: list[dict[str, Any]]) -> None:
    told = [found.kernels for rule in ALL for found in seen(rule, rows)]
    assert told
    assert sum(map(len, told)) == len(frozenset().union(*told))
