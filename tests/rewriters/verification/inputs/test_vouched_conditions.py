"""What a user vouches for decides which invented calls count."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.inputs import assumptions  # noqa: E402 - it needs torch
from npufix.rewriters.verification.inputs.assumptions import meets  # noqa: E402 - same
from npufix.rules.registry import all_rules  # noqa: E402 - same


def test_each_tensor_that_rows_are_copied_from_is_as_wide() -> None:
    first = {"wide0": torch.Size([3, 4]), "read0": torch.Size([2, 4])}
    assert meets(["as-wide"], first)
    assert not meets(["as-wide"], first | {"wide1": torch.Size([3, 4]), "read1": (3, 2)})


FIRST = torch.tensor([[True, False, False]])
LATER = torch.ones(3, 3, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("values", "fits"),
    [([1, 2, 3], True), ([2**30, 2**30], False), ([-(2**31)], False), ([], True)],
)
def test_sums_that_fit_32_bits(values: list[int], *, fits: bool) -> None:
    assert meets(["sums-fit-int32"], {"x": torch.tensor(values), "dim": -1}) is fits


def test_a_condition_on_the_program_alone_leaves_out_no_call() -> None:
    assert meets(["mindspeed-installed"], {"x": torch.tensor([2**62, 2**62])})


@pytest.mark.parametrize(
    ("name", "query", "key", "kept"),
    [
        ("same-heads", (2, 4, 3, 8), (2, 4, 5, 8), True),
        ("same-heads", (2, 4, 3, 8), (2, 2, 3, 8), False),
        ("same-heads", (2, 3, 4, 8), (2, 5, 4, 8), False),
        ("same-heads-third", (2, 3, 4, 8), (2, 5, 4, 8), True),
        ("same-heads-third", (2, 3, 4, 8), (2, 3, 2, 8), False),
        ("same-heads-third", (2, 3, 4, 8), (1, 3, 4, 8), False),
    ],
)
def test_heads_are_counted_where_the_layout_has_them(
    name: str, query: tuple[int, ...], key: tuple[int, ...], *, kept: bool
) -> None:
    operands = {"q": torch.zeros(query), "k": torch.zeros(key), "v": torch.zeros(key)}
    assert meets([name], operands) is kept


def test_every_condition_with_several_meanings_is_checked() -> None:
    conditions = (c for rule in all_rules() for form in rule.forms for c in form.conditions)
    meanings = {condition.meaning for condition in conditions if condition.meaning}
    assert meanings
    assert meanings <= assumptions._MEANINGS.keys()


def test_a_number_is_no_mask_of_the_same_rank() -> None:
    x = torch.zeros(2, 3)
    assert meets(["same-rank-mask"], {"x": x, "mask": x > 0})
    assert not meets(["same-rank-mask"], {"x": x, "mask": False})
    assert not meets(["same-rank-mask"], {"x": x, "mask": torch.zeros(2).bool()})
    assert meets(["same-rank-mask"], {"hidden": x})
    assert not meets(["same-rank-mask"], {"x": x, "y": x[..., None], "mask": x > 0})


def test_what_meets_in_a_round_has_one_number_of_dimensions() -> None:
    x = torch.zeros(2, 1)
    assert meets(["same-dimensions"], {"alike0_0": x, "alike0_1": x, "alike1_0": x[0]})
    assert not meets(["same-dimensions"], {"alike0_0": x, "alike0_1": x[:, 0]})


@pytest.mark.parametrize(
    ("name", "operands", "kept"),
    [
        ("ascending-borders", {"index": torch.tensor([0, 2, 2, 5])}, True),
        ("ascending-borders", {"index": torch.tensor([0, 3, 2])}, False),
        ("finite-arms", {"arm0": lambda: torch.ones(2), "arm1": lambda: torch.ones(())}, True),
        ("finite-arms", {"arm0": lambda: torch.ones(2) / 0}, False),
        ("finite-arms", {"arm0": lambda: torch.ones(2)[3]}, False),
        ("mask-or-same-dtype", {"a": torch.ones(2), "b": torch.ones(2).half()}, False),
        ("mask-or-same-dtype", {"a": torch.ones(2) > 0, "b": torch.ones(2).half()}, True),
        ("matrices-that-fit", {"a": torch.ones(2, 3, 4), "b": torch.ones(2, 4, 5)}, True),
        ("matrices-that-fit", {"a": torch.ones(2, 3, 1), "b": torch.ones(2, 4, 5)}, False),
        ("matrices-that-fit", {"a": torch.ones(3), "b": torch.ones(3, 3)}, False),
        ("no-short-rows", {"x": torch.eye(3)[:2] * 1e-5, "eps": 1e-6}, False),
        ("no-short-rows", {"x": torch.tensor([[0.0, 0.0], [1, 1]]), "eps": 1e-6}, True),
        ("single-precision", {"x": torch.ones(2).bfloat16()}, False),
    ],
)
def test_promises_about_borders_and_arms(
    name: str, operands: dict[str, object], *, kept: bool
) -> None:
    assert meets([name], operands) is kept


@pytest.mark.parametrize(
    ("name", "operands", "kept"),
    [
        ("finite-fill", {"value": float("-inf")}, False),
        ("finite-fill", {"value": -1e9}, True),
        ("int64-classes", {"target": torch.ones(2).int()}, False),
        ("is-number", {"value": torch.ones(2)}, False),
        ("last-dimension", {"x": torch.ones(2, 3, 4), "dim": 1}, False),
        ("last-dimension", {"x": torch.ones(2, 3, 4), "dim": 2}, True),
        ("no-ignored-labels", {"target": torch.tensor([1, -100])}, False),
        ("number-eps", {"eps": torch.tensor(1e-6)}, False),
        ("number-eps", {"eps": 1e-6}, True),
        ("number-scale", {"scale": torch.ones(4, 1, 1)}, False),
        ("number-scale", {"scale": 0.5, "divisor": torch.tensor(8.0)}, False),
        ("number-scale", {"scale": 0.5, "divisor": 8}, True),
        ("no-fully-masked-row", {"hidden": FIRST, "also": LATER}, False),  # of the first query all
        ("no-fully-masked-row", {"hidden": FIRST.flip(-1), "also": LATER}, True),
        ("one-dimensional-weight", {"x": torch.ones(2, 8), "weight": torch.ones(8)}, True),
        ("one-dimensional-weight", {"x": torch.ones(2, 8), "weight": torch.ones(2, 1, 8)}, False),
        ("one-dimensional-weight", {"x": torch.ones(2, 8), "weight": torch.ones(1)}, False),
        ("one-dimensional-weight", {"x": torch.ones(2, 8), "weight": 8**0.5}, False),
        ("one-dimensional-weight", {"act": len}, True),
        ("plain-settings", {"alpha": 1.5, "limit": torch.ones(1)}, False),
        ("sum-fits-dtype", {"x": torch.full((2,), 4e4).half()}, False),
        ("sum-fits-dtype", {"x": torch.full((2,), 4e4)}, True),
        ("very-negative-fill", {"value": -1.0}, False),
        ("very-negative-fill", {"value": float("-inf")}, True),
        ("weight-given", {"weight": None}, False),
        ("weight-given", {"weight": torch.ones(2)}, True),
    ],
)
def test_promises_about_weights_numbers_and_labels(
    name: str, operands: dict[str, object], *, kept: bool
) -> None:
    assert meets([name], operands) is kept


def test_promises_about_rows_that_are_written_where_a_mask_is_true() -> None:
    x, rows = torch.zeros(2, 3, 4), torch.ones(2, 4)
    places = torch.tensor([[True, False, True], [False, False, False]])
    every = places.unsqueeze(-1).expand_as(x)
    names = ["mask-of-rows", "as-many-rows"]
    assert meets(names, {"x": x, "mask": every, "rows": rows})
    assert meets(names[1:], {"x": x, "mask": places, "rows": rows})
    assert not meets(names[1:], {"x": x, "mask": every, "rows": torch.ones(3, 4)})
    one = every.clone()
    one[0, 0, 1] = False
    assert not meets(names[:1], {"x": x, "mask": one, "rows": rows})
