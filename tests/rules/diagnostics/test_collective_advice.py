"""Advice about products beside collectives."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_chains import ADDED, NORM, PRODUCT, REDUCED, chain, kernel, seen, the

from npufix.advisor.rules_test.recordings import US
from npufix.rules.diagnostics import (
    all_gather_matmul,
    expert_exchange_matmul,
    grouped_matmul_all_reduce,
    matmul_all_reduce,
    matmul_all_reduce_add_rms_norm,
    matmul_reduce_scatter,
)
from npufix.rules.shared.recording.recorded_shapes import shapes

# --- product and all-reduce

LINKS = [{"name": "hcom_allReduce__1@7", "source": 0, "destination": rank} for rank in (1, 2, 3)]


def test_an_exposed_all_reduce_of_a_product_is_told_with_its_line() -> None:
    rows = chain(PRODUCT, REDUCED, kernel("Cast", "64,16", "64,16"), times=2)
    found = the(seen(matmul_all_reduce, rows, links=LINKS))
    assert found.cost_ns == 400 * US
    assert found.saving_ns == (0, 200 * US)
    assert found.what.startswith("2 MatMulV3 > hcom_allReduce_ sequences per step take 400 µs")
    assert ("ranks in the group", "4") in found.evidence
    assert [(place.path, place.line) for place in found.places] == [("model.py", 11)]
    assert found.kernels == {0, 1, 3, 4}


def test_at_most_the_shorter_one_is_saved() -> None:
    rows = chain(PRODUCT, {**REDUCED, "duration_ns": 30 * US}, kernel("Cast", "64,16", "64,16"))
    assert the(seen(matmul_all_reduce, rows)).saving_ns == (0, 30 * US)


def test_training_is_sent_to_the_wrapper_with_a_gradient() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED, NORM, kernel("RmsNormGrad", "64,16", "64,16"))
    found = the(seen(matmul_all_reduce, rows))
    assert dict(found.evidence)["run"].startswith("training")
    assert seen(matmul_all_reduce_add_rms_norm, rows) == []


@pytest.mark.parametrize(
    "after",
    [
        [kernel("Mul", "9000", "9000")],  # a bucket of gradients
        [kernel("Cast")],  # shapes were not recorded
        [],
    ],
)
def test_other_all_reduces_are_not_told(after: list[dict[str, Any]]) -> None:
    assert seen(matmul_all_reduce, chain(PRODUCT, REDUCED, *after, times=2)) == []


def test_a_hidden_all_reduce_is_not_told() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED)
    beside = {**kernel("Mul", "64,16", "64,16"), "start_ns": rows[1]["start_ns"] + US}
    assert seen(matmul_all_reduce, [*rows, beside]) == []
    running = {**kernel("Mul", "64,16", "64,16"), "start_ns": 0, "duration_ns": 190 * US}
    assert seen(matmul_all_reduce, [running, *rows]) == []


def test_another_device_hides_nothing() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED)
    beside = {**kernel("Mul"), "start_ns": rows[1]["start_ns"] + US, "device": 1}
    assert len(seen(matmul_all_reduce, [*rows, beside])) == 1


def test_what_the_larger_fusion_takes_is_told_once() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED, NORM)
    assert seen(matmul_all_reduce, rows) == []
    found = the(seen(matmul_all_reduce_add_rms_norm, rows))
    assert found.cost_ns == 400 * US
    assert found.saving_ns == (0, 300 * US)
    assert "no quantisation" in found.what
    assert sorted(place.line for place in found.places) == [10, 11, 12, 13]
    assert all(place.cost_ns == 100 * US for place in found.places)


def test_add_rms_norm_is_addition_and_norm() -> None:
    fused = kernel(
        "AddRmsNorm", "1,64,16;1,64,16;16", "1,64,16", input_dtypes="DT_BF16;DT_BF16;DT_BF16"
    )
    found = the(seen(matmul_all_reduce_add_rms_norm, chain(PRODUCT, REDUCED, fused)))
    assert found.saving_ns == (0, 200 * US)


def test_limits_that_the_dump_does_not_decide_are_named() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED, NORM)
    names = [name for name, _ in the(seen(matmul_all_reduce_add_rms_norm, rows)).evidence]
    assert "not recorded: two-four-or-eight-cards" in names
    known = the(seen(matmul_all_reduce_add_rms_norm, rows, links=LINKS))
    assert "not recorded: two-four-or-eight-cards" not in dict(known.evidence)


def test_three_cards_are_left_to_the_smaller_fusion() -> None:
    rows = chain(PRODUCT, REDUCED, ADDED, NORM)
    assert seen(matmul_all_reduce_add_rms_norm, rows, links=LINKS[:2]) == []
    assert len(seen(matmul_all_reduce, rows, links=LINKS[:2])) == 1


@pytest.mark.parametrize(
    "added",
    [
        kernel("Add", "64,16;64,16", "64,16", input_dtypes="DT_BF16;DT_BF16"),  # two axes
        kernel("Add", "1,64,16;1,64,16", "1,64,16", input_dtypes="FLOAT;FLOAT"),
    ],
)
def test_a_broken_limit_leaves_it_to_the_smaller_fusion(added: dict[str, Any]) -> None:
    rows = chain(PRODUCT, REDUCED, added, NORM)
    assert seen(matmul_all_reduce_add_rms_norm, rows) == []
    assert len(seen(matmul_all_reduce, rows)) == 1


QUANTISED = kernel(
    "QuantBatchMatmulV3", "64,32;32,16;16;;16", "64,16", input_dtypes="INT8;INT8;DT_BF16;;INT32"
)
WEIGHTS = kernel(
    "WeightQuantBatchMatmulV2", "64,32;32,16;16;16;;;", "64,16",
    input_dtypes="DT_BF16;INT8;DT_BF16;DT_BF16;;;",
)  # fmt: skip


@pytest.mark.parametrize(("product", "scenario"), [(QUANTISED, "full"), (WEIGHTS, "weight-only")])
def test_quantised_products_are_scenarios_of_their_own(
    product: dict[str, Any], scenario: str
) -> None:
    found = the(seen(matmul_all_reduce_add_rms_norm, chain(product, REDUCED, ADDED, NORM)))
    assert f"({scenario} quantisation)" in found.what
    assert "none is broken" in dict(found.evidence)["limits of the operator"]


@pytest.mark.parametrize(
    ("product", "shapes_read", "dtypes"),
    [
        (QUANTISED, "64,32;32,16;7;;16", "INT8;INT8;DT_BF16;;INT32"),
        (QUANTISED, "64,32;32,16;16;;16", "INT8;INT8;FLOAT;;INT32"),
        (QUANTISED, "64,32;32,16;16;;16", "INT8;INT8;DT_BF16;;DT_BF16"),
        (WEIGHTS, "64,32;32,16;16;3;;;", "DT_BF16;INT8;DT_BF16;DT_BF16;;;"),
        (WEIGHTS, "64,32;32,16;16;16;;;", "FLOAT16;INT8;FLOAT16;FLOAT16;;;"),
    ],
)
def test_quantised_products_with_other_scales_are_not_told(
    product: dict[str, Any], shapes_read: str, dtypes: str
) -> None:
    other = {**product, "input_shapes": shapes_read, "input_dtypes": dtypes}
    assert seen(matmul_all_reduce_add_rms_norm, chain(other, REDUCED, ADDED, NORM)) == []


def test_a_transposed_weight_is_read_as_the_product_reads_it() -> None:
    product = {**PRODUCT, "input_shapes": "64,32;16,32"}
    assert len(seen(matmul_all_reduce_add_rms_norm, chain(product, REDUCED, ADDED, NORM))) == 1


# --- gather, scatter and exchange


def test_a_product_that_waits_for_its_all_gather_is_told() -> None:
    gather = kernel("hcom_allGather_")
    product = kernel("MatMulV2", "256,32;32,16", "256,16")
    rows = chain(kernel("LayerNormV4", "64,32", "64,32"), gather, product)
    found = the(seen(all_gather_matmul, rows))
    assert (found.cost_ns, found.saving_ns) == (200 * US, (0, 100 * US))
    # weights that are gathered: the kernel before wrote something else
    assert seen(all_gather_matmul, chain(kernel("Add", "9", "9"), gather, product)) == []


def test_a_reduce_scatter_of_a_product_is_told() -> None:
    rows = chain(
        PRODUCT, kernel("hcom_reduceScatter_"), kernel("Add", "16,16;16,16", "16,16"), times=2
    )
    assert the(seen(matmul_reduce_scatter, rows)).cost_ns == 400 * US
    other = chain(PRODUCT, kernel("hcom_reduceScatter_"), kernel("Add", "7,7", "7,7"))
    assert seen(matmul_reduce_scatter, other) == []


def test_the_exchange_of_experts_is_told_both_ways() -> None:
    into = chain(
        kernel("hcom_alltoallv_"), kernel("hcom_allGather_"), kernel("BatchMatMulV2", "2,4,4;2,4,4")
    )
    assert "npu_alltoall_allgather_bmm" in the(seen(expert_exchange_matmul, into)).what
    out = chain(kernel("BatchMatMulV2"), kernel("hcom_reduceScatter_"), kernel("hcom_alltoallv_"))
    assert "npu_bmm_reducescatter_alltoall" in the(seen(expert_exchange_matmul, out)).what


def test_a_grouped_product_and_its_all_reduce_are_told() -> None:
    product = kernel("GroupedMatmul", "64,32;4,32,16", "64,16")
    rows = chain(product, REDUCED, kernel("Add", "64,16;64,16", "64,16"))
    assert the(seen(grouped_matmul_all_reduce, rows)).saving_ns == (0, 100 * US)


def test_damaged_shapes_are_no_shapes() -> None:
    assert shapes('4,8;;x,2;"') == ((4, 8), (), (), ())
    rows = chain(PRODUCT, REDUCED, kernel("Cast", "9" * 40, "a"))
    assert seen(matmul_all_reduce, rows) == []
