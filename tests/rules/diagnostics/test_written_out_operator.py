"""Fused operators that run as the kernels of their formula, and rows that only look like one."""

from __future__ import annotations

import pytest
from kernel_chains import chain, kernel, seen, the

from npufix.rules.diagnostics.written_out_operator import RULE

X, ROW, SCORES = "2,64,32", "2,64,1", "8,64,64"
RMS = [
    kernel("Pow", X, X), kernel("ReduceMean", X, ROW), kernel("Adds", ROW, ROW),
    kernel("Rsqrt", ROW, ROW), kernel("Mul", f"{X};{ROW}", X), kernel("Cast", X, X),
    kernel("Mul", f"32;{X}", X),
]  # fmt: skip
ATTENTION = [
    kernel("BatchMatMulV2", "8,64,4;8,4,64", SCORES), kernel("Muls", SCORES, SCORES),
    kernel("Add", f"{SCORES};1,64,64", SCORES), kernel("SoftmaxV2", SCORES, SCORES),
    kernel("Cast", SCORES, SCORES), kernel("BatchMatMulV2", f"{SCORES};8,64,4", "8,64,4"),
]  # fmt: skip
PRODUCT = kernel("BatchMatMulV2", f"{SCORES};8,64,4", "8,64,4")
INTO_SCORES = kernel("BatchMatMulV2", "8,64,4;8,4,64", SCORES)
BACKWARD = [
    INTO_SCORES, PRODUCT, kernel("Cast", SCORES, SCORES),
    kernel("SoftmaxGrad", f"{SCORES};{SCORES}", SCORES), kernel("Cast", SCORES, SCORES),
    kernel("Muls", SCORES, SCORES), PRODUCT, PRODUCT,
]  # fmt: skip
ROTATED_FIRST = [kernel(kind, X, X) for kind in ("Neg", "ConcatD", "Mul", "Mul", "Add")]
ROTARY = [kernel(kind, X, X) for kind in ("Mul", "Neg", "ConcatD", "Mul", "Add")]
GELU = [kernel(kind, X, X) for kind in ("Pow", "Muls", "Add", "Muls", "Tanh", "Adds", "Mul")]
SCALAR_GELU = [
    kernel(kind, X, X) for kind in ("Pows", "Muls", "Add", "Muls", "Tanh", "Adds", "Mul", "Muls")
]
"""As current versions call operations with a number; ``0.5 *`` comes last or first."""
BEHIND = kernel("MatMulV3", X, X)
NORM = [
    kernel(kind, X, X)
    for kind in ("ReduceMean", "Sub", "Pow", "ReduceMean", "Adds", "Sqrt", "RealDiv", "Mul", "Add")
]


@pytest.mark.parametrize(
    ("rows", "name", "own"),
    [
        (RMS, "RMSNorm", 7), (ATTENTION, "attention", 6), (ROTARY, "rotary embedding", 5),
        ([BEHIND, *ROTATED_FIRST], "rotary embedding", 5),
        ([*SCALAR_GELU[:-2], SCALAR_GELU[-1], SCALAR_GELU[-2], BEHIND], "GELU", 8),
        ([kernel(k, X, X) for k in ("RealDiv", "Erf", "Adds", "Muls", "Mul")], "GELU", 5),
        (GELU, "GELU", 7), ([*SCALAR_GELU, BEHIND], "GELU", 8),
        ([SCALAR_GELU[-1], *SCALAR_GELU[:-1], BEHIND], "GELU", 8), (NORM, "LayerNorm", 9),
        ([kernel("Swish", X, X), kernel("Mul", f"{X};{X}", X)], "SwiGLU", 2),
        ([kernel(k, X, X) for k in ("DSARandomUniform", "Greater", "Cast", "Mul", "RealDiv")],
         "dropout", 5),
        ([kernel(k, X, X) for k in ("StatelessRandomUniformV2", "Less", "SelectV2")], "dropout", 3),
        ([kernel(k, X, X) for k in ("StatelessBernoulli", "Mul", "Muls")], "dropout", 3),
    ],
)  # fmt: skip
def test_a_formula_is_known_by_its_kernels(
    rows: list[dict[str, object]], name: str, own: int
) -> None:
    found = the(seen(RULE, chain(*rows, times=3)))
    assert found.what.startswith(f"{name} is written out 3 times per step: ")
    assert len(found.kernels) == 3 * own
    assert found.saving_ns is not None
    assert 0 < found.saving_ns[1] < found.cost_ns


@pytest.mark.parametrize(
    "rows",
    [
        [kernel("StatelessBernoulli", ROW, ROW), kernel("RealDiv", ROW, ROW),
         kernel("Mul", f"{X};{ROW}", X)],  # whole paths are dropped
        [kernel("StatelessRandomNormalV2", X, X), kernel("Muls", X, X), kernel("Add", X, X)],
        [kernel("StatelessBernoulli", X, X), kernel("Mul", X, X)],  # a random sign
    ],
)  # fmt: skip
def test_random_numbers_are_no_dropout_by_themselves(rows: list[dict[str, object]]) -> None:
    assert seen(RULE, chain(*rows, BEHIND, times=3)) == []


def test_attention_is_one_finding_with_its_backward_pass() -> None:
    rows = chain(*ATTENTION, kernel("MatMulV3", X, X), *BACKWARD, times=2)
    found = the(seen(RULE, rows))
    assert found.what.startswith("attention is written out 2 times per step: BatchMatMulV2 > Muls")
    assert len(found.kernels) == 2 * (len(ATTENTION) + len(BACKWARD))
    # The products are what a fused operator computes as well.
    assert found.saving_ns is not None
    products = sum(row["duration_ns"] for row in rows if row["type"] == "BatchMatMulV2")
    assert found.saving_ns[1] == found.cost_ns - products


def test_of_fused_attention_the_products_are_left_as_fast_as_the_quickest() -> None:
    # 8 heads of 512 rows, 64 wide: 0.27 GFLOP each; a large product does 4 in 100 µs.
    q, scores = "8,512,64", "8,512,512"
    large = kernel("MatMulV3", "1024,2048;2048,1024", "1024,1024")
    rows = [
        large, kernel("BatchMatMulV3", f"{q};8,64,512", scores), kernel("Muls", scores, scores),
        kernel("SoftmaxV2", scores, scores), kernel("BatchMatMulV3", f"{scores};{q}", q),
    ]  # fmt: skip
    found = the(seen(RULE, chain(*rows, times=3)))
    assert found.instead is not None
    count, least, most, likely = found.instead
    at_best = 2 * 2 * 8 * 512 * 512 * 64 / (2 * 1024 * 1024 * 2048) * 100_000
    assert (count, found.instead_backward) == (3, None)
    assert least / 3 == pytest.approx(at_best / 0.9, rel=0.01)
    assert most / 3 == pytest.approx(at_best / 0.4, rel=0.01)
    assert likely == pytest.approx((least + most) / 2, rel=0.01)
    # A square that all heads share may be a mask of what lies above the diagonal, of which half is
    # skipped; where several sequences share it, it is not about their lengths.
    masked = rows.copy()
    for of_all, mask in (
        (scores, "1,512,512"), ("2,4,512,512", "2,1,512,512"), ("2,4,512,512", "1,1,512,512"),
    ):  # fmt: skip
        masked[2] = kernel("Add", f"{of_all};{mask}", of_all)
        half = the(seen(RULE, chain(*masked, times=3))).instead
        assert half is not None
        assert half[1] / 3 == pytest.approx(at_best / 1.8, rel=0.01)
        middle = (half[1] * half[2]) ** 0.5 if mask == "1,1,512,512" else (half[1] + half[2]) / 2
        assert half[3] == pytest.approx(middle, rel=0.01)
    # No large product, no shapes: at most all but the products, as before.
    assert the(seen(RULE, chain(*rows[1:], times=3))).instead is None


def test_the_norm_with_a_weight_is_not_found_twice() -> None:
    rows = [
        *chain(*RMS),
        *({**row, "start_ns": row["start_ns"] + 10**7} for row in chain(*RMS[:5])),
    ]
    found = the(seen(RULE, rows))
    assert found.what.startswith("RMSNorm is written out 2 times")
    assert len(found.kernels) == 7 + 5


@pytest.mark.parametrize(
    "rows",
    [
        RMS[:4], ATTENTION[:4], ROTARY[1:], ROTATED_FIRST[1:], GELU[1:],
        [kernel("SoftmaxV2", SCORES, SCORES), *ATTENTION[5:]],
        [kernel("Swish", X, X), kernel("Mul", f"{SCORES};{SCORES}", SCORES)],
        [*RMS[:3], kernel("MatMulV3", X, X), *RMS[3:]],
        BACKWARD[2:], [*BACKWARD[:4], *(kernel("BatchMatMulV2", X, X),) * 2],
    ],
)  # fmt: skip
def test_parts_of_a_formula_are_none(rows: list[dict[str, object]]) -> None:
    assert seen(RULE, chain(*rows, times=3)) == []


def test_a_fused_kernel_is_as_fast_as_the_bytes_that_it_moves() -> None:
    made = {"input_dtypes": "FLOAT;FLOAT"}
    cast = kernel("Cast", X, X)
    forward = [{**row, **made} for row in (cast, *RMS[:5])]
    back = [{**kernel("Sub", f"{X};{X}", X), **made, "basis": "forward"} for _ in range(4)]
    lines = [{**row, "line": 7} for row in (*forward, *back)]
    found = the(seen(RULE, chain(*lines, times=3)))
    assert len(found.kernels) == 3 * (6 + 4), "the cast before it and its gradient, too"
    assert found.instead is not None
    assert found.instead_backward is not None
    assert found.saving_ns is not None
    count, least, most = found.instead
    tensor = 2 * 64 * 32 * 4
    small = 2 * 64 * 4
    # Cast, Pow, ReduceMean, Adds, Rsqrt, Mul: what they move in 600 µs.
    moved = 2 * tensor + 2 * tensor + (tensor + small) + 4 * small + (2 * tensor + small)
    usual = 2 * tensor / moved * 600_000
    assert count == 3
    assert (least + most) / 2 / 3 == pytest.approx(usual, rel=0.01)
    assert sum(found.instead_backward) / 2 / 3 == pytest.approx(1.5 * usual, rel=0.01)
    assert found.saving_ns[1] == pytest.approx(found.cost_ns - least - found.instead_backward[0])


def test_a_line_that_computes_more_keeps_its_gradient() -> None:
    forward = [{**row, "line": 7} for row in (*RMS[:5], kernel("MatMulV3", X, X))]
    back = {**kernel("Sub", f"{X};{X}", X), "basis": "forward", "line": 7}
    assert len(the(seen(RULE, chain(*forward, back, times=3))).kernels) == 3 * 5


def test_attention_needs_no_shapes() -> None:
    # Level0 records none; what softmax writes is then not known to be what the product reads.
    bare = [kernel(str(row["type"]), "", "") for row in ATTENTION]
    found = the(seen(RULE, chain(*bare, times=2)))
    assert found.what.startswith("attention is written out 2 times per step")
    assert seen(RULE, chain(*[kernel("Swish", "", ""), kernel("Mul", "", "")], times=2)) == []


def test_the_gradient_of_a_norm_needs_no_line() -> None:
    # kernel_details alone: weight, product with the root, root, mean, square.
    kinds = (
        "Mul", "Mul", "ReduceSum", "Cast", "Mul", "Mul", "ReduceSum", "Pows", "Mul", "Muls",
        "RealDiv", "Muls", "Mul", "Add", "Cast",
    )  # fmt: skip
    behind = [kernel(kind, X, X) for kind in kinds]
    behind[7:10] = [kernel(kind, ROW, ROW) for kind in kinds[7:10]]
    found = the(seen(RULE, chain(*RMS, BEHIND, *behind, BEHIND, times=3)))
    assert len(found.kernels) == 3 * (len(RMS) + len(kinds))
    # The order is that of the graph, whose sums come wherever both ways to a tensor meet; and the
    # sum of the residual branch is none of the norm.
    others = [*behind[:7], behind[13], *behind[7:9], *behind[10:13], behind[14], behind[13]]
    found = the(seen(RULE, chain(*RMS, BEHIND, *others, BEHIND, times=3)))
    assert len(found.kernels) == 3 * (len(RMS) + len(kinds) - 1)
    on_gpu = [
        kernel(f"aten::{name}", shape, "")
        for name, shape in (
            ("pow", X), ("mean", X), ("add", ROW), ("rsqrt", ROW), ("mul", X), ("mul", X),
            ("bmm", X), ("mul", X), ("sum", X), ("pow", ROW), ("mul", ROW), ("mul", ROW),
            ("div", X), ("mul", X), ("mul", X), ("add", X), ("add", X), ("bmm", X),
        )
    ]  # fmt: skip
    assert len(the(seen(RULE, chain(*on_gpu, times=3))).kernels) == 3 * (6 + 9)
    assert found.instead is not None
    assert found.instead[0] == 2 * 3  # a kernel forward and one backward
    assert not found.instead_backward
    assert seen(RULE, chain(*behind[4:8], BEHIND, times=3)) == []
    # Without a sum over a row it is another root: that of an optimizer, for one.
    others = [row for row in behind if row["type"] != "ReduceSum"]
    assert len(the(seen(RULE, chain(*RMS, BEHIND, *others, BEHIND))).kernels) == len(RMS)


def test_the_halves_of_a_rotary_embedding_are_counted() -> None:
    half = "2,64,16"
    rows = [
        kernel("Mul", X, X), kernel("Slice", X, half), kernel("Slice", X, half),
        kernel("Neg", half, half), kernel("ConcatD", f"{half};{half}", X), kernel("Mul", X, X),
        kernel("Add", X, X), BEHIND,
        kernel("Mul", X, X), kernel("Slice", X, half), kernel("Slice", X, half),
        kernel("Neg", half, half), kernel("SliceGrad", half, X), kernel("Mul", X, X), BEHIND,
    ]  # fmt: skip
    assert len(the(seen(RULE, chain(*rows, times=3))).kernels) == 3 * (7 + 6)
    # Nothing that is halved: some other difference.
    rows[11] = kernel("Neg", X, X)
    assert len(the(seen(RULE, chain(*rows, times=3))).kernels) == 3 * 7


def test_attention_on_a_gpu_is_known_by_what_it_reads() -> None:
    heads = "8,64,4"
    rows = [
        kernel("aten::bmm", f"{heads};8,4,64", ""), kernel("aten::div", SCORES, ""),
        kernel("aten::add", f"{SCORES};1,64,64", ""), kernel("aten::_softmax", SCORES, ""),
        kernel("aten::bmm", f"{SCORES};{heads}", ""),
    ]  # fmt: skip
    found = the(seen(RULE, chain(*rows, times=2)))
    assert found.what.startswith("attention is written out 2 times per step")
    assert found.gpu_advice.startswith("F.scaled_dot_product_attention")
    apart = [*rows[:-1], kernel("aten::bmm", f"{heads};8,4,64", "")]
    assert seen(RULE, chain(*apart, times=2)) == []


def test_nodes_of_autograd_lead_to_the_gradient_without_lines() -> None:
    ahead = [{**row, "node": at} for at, row in enumerate([*GELU, BEHIND])]
    behind = [{**kernel("Mul", f"{X};{X}", X), "node": -2 - at} for at in (7, 6, 5, 4, 4)]
    found = the(seen(RULE, chain(*ahead, *behind, times=1)))
    assert len(found.kernels) == len(GELU) + 4, "not that of the product behind it"
