"""The affinity table: deliberate mistakes, each on the inputs that the rule itself offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch
from rule_checks import each_mistake, refuted

from npufix.rewriters.verification.judge.verify_rule import verify_rule
from npufix.rewriters.verification.verdict import Status
from npufix.rules.substitution import Form
from npufix.rules.substitutions import (
    batched_vector_product,
    creation_on_host,
    gather_elements,
    index_by_vector,
    integer_cumsum,
    linear_matmul_add,
    masked_assignment,
    masked_copy,
    nonzero_reduction,
    one_hot_sum,
    repeat_interleave,
    repeated_mask,
    where_comparison,
)

if TYPE_CHECKING:
    from rule_checks import Mistake
    from torch import Tensor


def mask_inverted(x: Tensor, mask: Tensor, value: float) -> None:
    x.masked_fill_(~mask, value)


def multiplied(x: Tensor, mask: Tensor, value: float) -> None:  # noqa: ARG001
    x *= ~mask


def not_in_place(x: Tensor, mask: Tensor, value: float) -> None:
    x = x.masked_fill(mask, value)


def another_value(x: Tensor, mask: Tensor, value: float) -> None:
    x.masked_fill_(mask, value + 1)


def duplicates_lost(indices: Tensor, classes: int, literal_dim: int) -> Tensor:  # noqa: ARG001
    return indices.new_zeros(*indices.shape[:-1], classes).scatter_(-1, indices, 1)


def counted_in_floats(indices: Tensor, classes: int, literal_dim: int) -> Tensor:  # noqa: ARG001
    zeros = torch.zeros(*indices.shape[:-1], classes)
    return zeros.scatter_add_(-1, indices, torch.ones_like(indices).float())


def one_class_more(indices: Tensor, classes: int, literal_dim: int) -> Tensor:
    return one_hot_sum.add_ones(indices, classes + 1, literal_dim)


def next_row(x: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(index.size(0), device=index.device)
    return x[(rows + 1) % index.size(0), index.squeeze(1)]


def next_class(x: Tensor, index: Tensor) -> Tensor:
    rows = torch.arange(index.size(0), device=index.device)
    return x[rows, (index.squeeze(1) + 1) % x.size(1)]


def all_rows(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(x.size(0)), index.squeeze(1)]


def column_dropped(x: Tensor, index: Tensor) -> Tensor:
    return gather_elements.pick_flat(x, index)


def selected_twice(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.flip(0))


def tiled(x: Tensor, repeats: int) -> Tensor:
    return x.reshape(1, -1).expand(repeats, -1).clone().reshape(-1)


def aliased(x: Tensor, repeats: int) -> Tensor:
    return x.reshape(-1, 1).expand(-1, repeats).reshape(-1)


def first_tiled(x: Tensor, repeats: int) -> Tensor:
    return x.repeat(repeats, *[1] * (x.dim() - 1))


def last_aliased(x: Tensor, repeats: int) -> Tensor:
    return x.unsqueeze(-1).expand(*x.shape, repeats).flatten(-2)


def next_dimension(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    return x.repeat_interleave(repeats, min(literal_dim + 1, x.dim() - 1))


def bias_forgotten(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ARG001
    return torch.mm(x, weight.t())


def bias_twice(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t(), beta=2)


def rounded(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias.half(), x.half(), weight.t().half()).to(x.dtype)


def rows_as_columns(x: Tensor, mask: Tensor, value: float) -> None:
    x.masked_fill_(mask.unsqueeze(0) if mask.dim() == 1 else mask.unsqueeze(-2), value)


def last_by_first(x: Tensor, mask: Tensor, value: float) -> None:
    x[mask.nonzero(as_tuple=True)] = value


def only_first_position(x: Tensor, mask: Tensor, value: float) -> None:
    x[mask.nonzero()[:1].view(-1)] = value


def chosen_the_other_way(x: Tensor, mask: Tensor, y: Tensor) -> None:
    x.copy_(torch.where(mask, x, y))


def blended(x: Tensor, mask: Tensor, y: Tensor) -> None:
    x.copy_(mask * y + ~mask * x)


def rebound(x: Tensor, mask: Tensor, y: Tensor) -> None:
    x = torch.where(mask, y, x)


def added_everywhere(x: Tensor, mask: Tensor, literal_value: float) -> None:  # noqa: ARG001
    x.add_(literal_value)


def row_of_duplicates_lost(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.unique())


def all_columns(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(1, index.clamp(max=x.size(1) - 1))


def from_the_wrong_end(x: Tensor, repeats: int, literal_dim: int) -> Tensor:
    return x.repeat_interleave(repeats, literal_dim + 1)


def counted_in_bfloat16(
    indices: Tensor,
    classes: int,
    literal_dim: int,  # noqa: ARG001
    dtype: torch.dtype,
) -> Tensor:
    zeros = indices.new_zeros(*indices.shape[:-1], classes, dtype=torch.bfloat16)
    return zeros.scatter_(-1, indices, 1).to(dtype)


def scattered_as(indices: Tensor, classes: int, literal_dim: int, dtype: torch.dtype) -> Tensor:
    return one_hot_sum.scatter_ones_as(indices, classes, literal_dim, dtype)


def weight_transposed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.addmm(bias, x, weight.t()) if weight.size(0) == weight.size(1) else x @ weight


def outer_product(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(2) * b.unsqueeze(1)


def summed_over_batch(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(0).view(1, 1, -1)


def products_rounded(a: Tensor, b: Tensor) -> Tensor:
    return (a.bfloat16() * b.bfloat16()).sum(-1, keepdim=True).unsqueeze(-1).to(a.dtype)


def column_of_rows(a: Tensor, b: Tensor) -> Tensor:
    return (a * b.transpose(-2, -1)).sum(-1)


def first_dimension_summed(literal_equation: str, a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    return (a * b).sum(0)


def minimum_for_maximum(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(x, y)


def lerp(x: Tensor, y: Tensor) -> Tensor:
    return torch.lerp(x, y, (x < y).float())


def clamped_from_above(x: Tensor, limit: float) -> Tensor:
    return x.clamp(max=limit)


def clamped_to_float(x: Tensor, limit: float) -> Tensor:
    return x.clamp(min=float(limit))


def gradient_of_ties_stopped(x: Tensor, limit: float) -> Tensor:
    return torch.where(x <= limit, limit, x)


def never_found(mask: Tensor) -> bool:
    return bool(mask.all().item())


def size_of_table(mask: Tensor) -> int:
    return mask.nonzero().numel()


def multiplied_by_mask(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask).sum()


def mean_of_all(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x, 0).mean()


def rows_in_order(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index.sort().values)


def filled_and_negated(x: Tensor, index: Tensor, literal_value: float) -> None:
    x.index_fill_(0, index, -1 - literal_value)


def filled_elsewhere(x: Tensor, index: Tensor, literal_value: float) -> Tensor:
    return x.index_fill(0, index, literal_value)


def counted_from_one(x: Tensor, n: int) -> Tensor:
    numbers = torch.arange(1, n + 1, dtype=torch.float64, device=x.device)
    return x.unsqueeze(-1) * torch.exp(numbers * -0.5)


def weighed(f: Tensor, x: Tensor, limit: float, other: float) -> Tensor:  # noqa: ARG001
    return x * (f.unsqueeze(-1) > limit)


def limit_included(f: Tensor, x: Tensor, limit: float, other: float) -> Tensor:
    return torch.where(f.unsqueeze(-1) >= limit, x, other)


def left_in_32_bits(x: Tensor, dim: int) -> Tensor:
    return x.cumsum(dim, dtype=torch.int32)


def added_as_bytes(x: Tensor, dim: int) -> Tensor:
    return x.cumsum(dim, dtype=torch.int8).bool().long()


FILL = (masked_assignment.everywhere, masked_assignment.inputs)
TAKE = (masked_copy.taken, masked_copy.taken_inputs)
COUNT = (one_hot_sum.counted, one_hot_sum.inputs)
COUNT_AS = (one_hot_sum.counted_as, one_hot_sum.typed_inputs)
FLAT = (gather_elements.column_flat, gather_elements.column_inputs)
LINEAR = (linear_matmul_add.by_hand, linear_matmul_add.inputs)
DOT = (batched_vector_product.dot, batched_vector_product.dot_inputs)
LARGER = (where_comparison.larger, where_comparison.pair_inputs)
RAISED = (where_comparison.raised, where_comparison.limit_inputs)
PICKED = (nonzero_reduction.picked, nonzero_reduction.picked_inputs)
COMPARED = (repeated_mask.compared, repeated_mask.compared_inputs)
ROWS = (index_by_vector.picked, index_by_vector.inputs)
SET = (index_by_vector.assigned, index_by_vector.fill_inputs)
SUMS = (integer_cumsum.counted, integer_cumsum.inputs)
MISTAKES = [
    (*FILL, mask_inverted),
    (*FILL, multiplied),
    (*FILL, not_in_place),
    (*FILL, another_value),
    (masked_assignment.rows, masked_assignment.row_inputs, rows_as_columns),
    (masked_assignment.trailing, masked_assignment.trailing_inputs, last_by_first),
    (masked_assignment.found, masked_assignment.vector_inputs, only_first_position),
    (*TAKE, chosen_the_other_way),
    (*TAKE, blended),
    (*TAKE, rebound),
    (masked_copy.added, masked_copy.scaled_inputs, added_everywhere),
    (*COUNT, duplicates_lost),
    (*COUNT, counted_in_floats),
    (*COUNT, one_class_more),
    (*COUNT_AS, counted_in_bfloat16),
    (*COUNT_AS, scattered_as),
    (*FLAT, next_row),
    (*FLAT, next_class),
    (*FLAT, all_rows),
    (gather_elements.column, gather_elements.column_inputs, column_dropped),
    (gather_elements.vector, gather_elements.vector_inputs, selected_twice),
    (gather_elements.rows, gather_elements.row_inputs, row_of_duplicates_lost),
    (gather_elements.rows, gather_elements.row_inputs, all_columns),
    (repeat_interleave.flattened, repeat_interleave.inputs, tiled),
    (repeat_interleave.flattened, repeat_interleave.inputs, aliased),
    (repeat_interleave.along_first, repeat_interleave.inputs, first_tiled),
    (repeat_interleave.along_last, repeat_interleave.inputs, last_aliased),
    (repeat_interleave.along, repeat_interleave.dim_inputs, next_dimension),
    (repeat_interleave.along_from_the_end, repeat_interleave.end_inputs, from_the_wrong_end),
    (*LINEAR, bias_forgotten),
    (*LINEAR, bias_twice),
    (*LINEAR, rounded),
    (linear_matmul_add.product, linear_matmul_add.product_inputs, weight_transposed),
    (*DOT, outer_product),
    (*DOT, summed_over_batch),
    (*DOT, products_rounded),
    (batched_vector_product.by_column, batched_vector_product.column_inputs, column_of_rows),
    (batched_vector_product.einsum, batched_vector_product.einsum_inputs, first_dimension_summed),
    (*LARGER, minimum_for_maximum),
    (*LARGER, lerp),
    (*RAISED, clamped_from_above),
    (*RAISED, clamped_to_float),
    (*RAISED, gradient_of_ties_stopped),
    (nonzero_reduction.found, nonzero_reduction.mask_inputs, never_found),
    (nonzero_reduction.counted, nonzero_reduction.mask_inputs, size_of_table),
    (*PICKED, multiplied_by_mask),
    (*PICKED, mean_of_all),
    (*ROWS, rows_in_order),
    (*SET, filled_and_negated),
    (*SET, filled_elsewhere),
    (creation_on_host.made, creation_on_host.inputs, counted_from_one),
    (*COMPARED, weighed),
    (*COMPARED, limit_included),
    (*SUMS, left_in_32_bits),
    (*SUMS, added_as_bytes),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_refuted(mistake: Mistake) -> None:
    refuted(*mistake)


def test_without_duplicates_setting_counts() -> None:
    """``scatter_`` is right where the indices of a row differ: the other form's condition."""
    form = Form(one_hot_sum.counted, duplicates_lost, one_hot_sum.unique_inputs)
    assert verify_rule(form, seed=0).status is Status.EQUIVALENT
