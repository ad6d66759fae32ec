"""Every limit of the operator for product, all-reduce, addition and norm, at its border."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npufix.rules.shared.recording import mm_all_reduce_limits as limits
from npufix.rules.shared.recording.mm_all_reduce_limits import (
    Call,
    Operand,
    Scenario,
    check_limits,
    scenario_of,
)


def operand(*shape: int, dtype: str = "FLOAT16") -> Operand:
    return Operand(shape, dtype, "ND", contiguous=True)


PLAIN = Call(
    x1=operand(6, 64),
    x2=operand(64, 10),
    residual=operand(2, 3, 10),
    gamma=operand(10),
    bias=operand(10),
    reduce_op="sum",
    ranks=8,
)
FULL = replace(
    PLAIN,
    x1=operand(6, 64, dtype="INT8"),
    x2=operand(64, 10, dtype="INT8"),
    bias=operand(10, dtype="INT32"),
    dequant_scale=operand(1, 10, dtype="INT64"),
)
WEIGHT = replace(
    PLAIN,
    x2=operand(64, 10, dtype="INT8"),
    antiquant_scale=operand(2, 10),
    antiquant_offset=operand(2, 10),
    antiquant_group_size=32,
)
BF16 = {"dtype": "BF16"}


def broken(call: Call) -> set[str]:
    return {limit.name for limit, holds in check_limits(call) if holds is False}


@pytest.mark.parametrize(
    ("call", "scenario"),
    [(PLAIN, Scenario.NONE), (FULL, Scenario.FULL), (WEIGHT, Scenario.WEIGHTS)],
)
def test_a_call_within_all_limits_breaks_none(call: Call, scenario: Scenario) -> None:
    assert scenario_of(call) is scenario
    assert [(limit.name, holds) for limit, holds in check_limits(call) if not holds] == []


@pytest.mark.parametrize(
    "call",
    [
        replace(PLAIN, x1=operand(2, 3, 64)),
        replace(PLAIN, bias=None),
        replace(PLAIN, x2=Operand((64, 10), "FLOAT16", "ND", transposed=True)),
        replace(PLAIN, ranks=2),
        replace(PLAIN, ranks=4),
        replace(FULL, bias=None),
        replace(FULL, dequant_scale=operand(1, dtype="UINT64")),
        replace(FULL, dequant_scale=operand(10, dtype="INT64")),
        replace(
            FULL, residual=operand(2, 3, 10, **BF16), gamma=operand(10, **BF16),
            dequant_scale=operand(1, **BF16),
        ),
        replace(WEIGHT, antiquant_offset=None),
        replace(
            WEIGHT, antiquant_scale=operand(1), antiquant_offset=operand(1), antiquant_group_size=0
        ),
        replace(
            WEIGHT, antiquant_scale=operand(10), antiquant_offset=operand(10),
            antiquant_group_size=0,
        ),
        replace(
            WEIGHT, x1=operand(6, 65535), x2=operand(65535, 10, dtype="INT8"),
            antiquant_scale=operand(2048, 10), antiquant_offset=operand(2048, 10),
        ),
        replace(
            WEIGHT, x1=operand(6, 65), x2=operand(65, 10, dtype="INT8"), antiquant_group_size=64,
        ),
        replace(
            WEIGHT, x1=operand(6, 65), x2=operand(65, 10, dtype="INT8"),
            antiquant_scale=operand(3, 10), antiquant_offset=operand(3, 10),
        ),
    ],
)  # fmt: skip
def test_just_inside_of_a_limit_nothing_is_broken(call: Call) -> None:
    assert broken(call) == set()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (replace(PLAIN, x1=replace(PLAIN.x1, layout="FRACTAL_NZ")), {"plain-format"}),
        (replace(PLAIN, gamma=replace(PLAIN.gamma, contiguous=False)), {"contiguous-inputs"}),
        (replace(PLAIN, x1=replace(PLAIN.x1, transposed=True)), {"contiguous-inputs"}),
        (replace(PLAIN, x2=replace(PLAIN.x2, contiguous=False)), {"weight-at-most-transposed"}),
        (replace(PLAIN, x1=operand(1, 2, 3, 64)), {"x1-of-two-or-three-axes"}),
        (
            replace(PLAIN, x1=operand(64)),
            {"x1-of-two-or-three-axes", "residual-rows"},
        ),
        (
            replace(PLAIN, x2=operand(1, 64, 10)),
            {"x2-of-two-axes", "same-k", "bias-of-one-axis", "residual-columns"},
        ),
        (replace(PLAIN, x1=operand(6, 63)), {"same-k"}),
        (replace(PLAIN, x1=operand(6, 0), x2=operand(0, 10)), {"same-k"}),
        (replace(PLAIN, bias=operand(1, 10)), {"bias-of-one-axis"}),
        (replace(PLAIN, bias=operand(9)), {"bias-of-one-axis"}),
        (
            replace(PLAIN, residual=operand(6, 10)),
            {"residual-of-three-axes", "residual-rows"},
        ),
        (replace(PLAIN, residual=operand(2, 4, 10)), {"residual-rows"}),
        (
            replace(PLAIN, residual=operand(2, 3, 9)),
            {"residual-columns", "gamma-columns"},
        ),
        (replace(PLAIN, gamma=operand(1, 10)), {"gamma-of-one-axis"}),
        (replace(PLAIN, gamma=operand(9)), {"gamma-columns"}),
        (replace(PLAIN, reduce_op="max"), {"sum-reduction"}),
        (replace(PLAIN, ranks=1), {"two-four-or-eight-cards"}),
        (replace(PLAIN, ranks=3), {"two-four-or-eight-cards"}),
        (replace(PLAIN, ranks=16), {"two-four-or-eight-cards"}),
        (replace(PLAIN, residual=operand(2, 3, 10, **BF16)), {"one-half-dtype"}),
        (replace(PLAIN, bias=operand(10, dtype="FLOAT")), {"one-half-dtype"}),
        (replace(PLAIN, dequant_scale=operand(1)), {"no-scales"}),
        (replace(PLAIN, antiquant_scale=operand(1)), {"no-scales"}),
        (replace(PLAIN, antiquant_group_size=32), {"no-scales"}),
        (replace(FULL, bias=operand(10)), {"int8-product"}),
        (replace(FULL, gamma=operand(10, **BF16)), {"int8-product"}),
        (replace(FULL, dequant_scale=None), {"dequant-dtype", "dequant-shape"}),
        (replace(FULL, dequant_scale=operand(1, **BF16)), {"dequant-dtype"}),
        (
            replace(FULL, residual=operand(2, 3, 10, **BF16), gamma=operand(10, **BF16)),
            {"dequant-dtype"},
        ),
        (replace(FULL, dequant_scale=operand(10, 1, dtype="INT64")), {"dequant-shape"}),
        (replace(FULL, antiquant_offset=operand(1)), {"no-antiquant"}),
        (replace(FULL, antiquant_group_size=64), {"no-antiquant"}),
        (replace(WEIGHT, x1=operand(6, 64, **BF16)), {"int8-weight"}),
        (replace(WEIGHT, antiquant_offset=operand(2, 10, **BF16)), {"int8-weight"}),
        (
            replace(
                WEIGHT, x1=operand(6, 65536), x2=operand(65536, 10, dtype="INT8"),
                antiquant_scale=operand(2048, 10), antiquant_offset=operand(2048, 10),
            ),
            {"axes-in-range"},
        ),
        (replace(WEIGHT, antiquant_scale=None, antiquant_offset=None), {"antiquant-shape"}),
        (
            replace(WEIGHT, antiquant_scale=operand(3, 10), antiquant_offset=operand(3, 10)),
            {"antiquant-shape"},
        ),
        (replace(WEIGHT, antiquant_group_size=0), {"antiquant-shape"}),
        (replace(WEIGHT, antiquant_offset=operand(10)), {"offset-shape"}),
        (replace(WEIGHT, antiquant_group_size=33), {"group-size"}),
        (
            replace(
                WEIGHT, antiquant_group_size=64, antiquant_scale=operand(1, 10),
                antiquant_offset=operand(1, 10),
            ),
            {"group-size"},  # k - 1 is 63
        ),
        (
            replace(
                WEIGHT, antiquant_group_size=31, antiquant_scale=operand(3, 10),
                antiquant_offset=operand(3, 10),
            ),
            {"group-size"},
        ),
        (replace(WEIGHT, dequant_scale=operand(1)), {"no-dequant"}),
    ],
)  # fmt: skip
def test_just_outside_of_a_limit_it_is_broken(call: Call, names: set[str]) -> None:
    assert broken(call) == names


def test_every_limit_was_at_its_border() -> None:
    marks = test_just_outside_of_a_limit_it_is_broken.pytestmark  # type: ignore[attr-defined]
    tried = set().union(*(names for _, names in marks[0].args[1]))
    assert tried == {limit.name for limit in limits.LIMITS}


def test_what_is_not_recorded_is_neither_met_nor_broken() -> None:
    bare = Operand((6, 64), "FLOAT16")
    call = replace(PLAIN, x1=bare, reduce_op=None, ranks=None, antiquant_group_size=None)
    unknown = {limit.name for limit, holds in check_limits(call) if holds is None}
    assert unknown == {
        "plain-format",
        "contiguous-inputs",
        "sum-reduction",
        "two-four-or-eight-cards",
        "no-scales",
    }
