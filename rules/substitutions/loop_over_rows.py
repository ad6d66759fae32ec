"""A loop in Python over the rows of tensors that one operator computes for all rows.

What: a ``for`` that writes to row ``i`` of a tensor (``m[i, :n[i]] = 0``, ``out[i] = x[i, j[i]]``),
adds up what each round makes (``total += x[:, i] * w[i]``),
collects the numbers of rows (``if x[i] > 0: kept.append(i)``),
or a ``torch.stack`` or ``torch.cat`` of what each round of a comprehension or of a loop with
``append`` makes (``[f(x[:, i]) for i in range(n)]``, ``[x + c * t for t in range(n)]``,
``[x[i].expand(n[i], -1) for i in range(b)]``).

Why it is slow on the NPU: each round launches kernels of its own on a few elements; a launch costs
the host some microseconds, whatever the kernel does. A length or an index that is read from the
device (``m[i, :n[i]]``) makes the host wait for all that was launched before, once per round.
Experts found it in one commit of twenty for faster serving, and measured up to 35 % of a step.

Safety: the body is read as a function of the loop variable and each operator in it takes all rows
at once, as ``torch.vmap`` does: ``arange(n) < lengths`` for rows of different lengths, index
vectors for picks, new dimensions where rows meet numbers. Only operators that treat rows by
themselves are taken: elementwise ones, those along a dimension of the row, modules such as Linear
and LayerNorm; LSTM and own modules whose ``forward`` is followed get the rows as one larger batch.
An ``if`` of which each round takes one arm becomes ``torch.where`` where both arms are rows, numbers,
sums and products, which can be computed for all rounds without failing. So does what is written through
a mask of the round (``m[x[:, i] > 0, i] = 1``), and an integer that Python computes of an element of a list
(``m[i, : math.ceil(w * r)] = 1``) is a list of those of all rounds; so are sizes that are nothing but borders
(``h, w = sizes[i]``). What treats each image by itself (``F.grid_sample(x[i : i + 1], at[i : i + 1])[0]``) gets all of
them, in batches as they are (``batch-first``). As many of the smallest of a row as a number says, where they are marked
(``m[i, x[i].topk(k[i])[1]] = 1``), are the first of one ``topk``, if none are equal (``no-ties``).
A round that needs the one before it, rows of different lengths that are stacked, random numbers, batch
norm, a module for each round, ``break`` and anything else than computing rows leave the loop as it
is, and the finding says which of them it is. What the source does not prove is a condition:
negative lengths count from the end (``nonnegative-lengths``), and a zero in ``m[i, -n[i]:]`` does not
(``positive-lengths``), a tensor without dimensions does not
take part in promoting dtypes as a vector does (``same-dtype``), Python's ``max`` is another thing
for NaN (``no-nan``), and where the dimensions of a tensor are not known it has those that it is indexed
with (``known-dimensions``); rows of halves are added to a total of a wider dtype in that (``dtype=total.dtype``, or
``same-dtype``); pieces ``x[i * n : (i + 1) * n]`` lie within ``x`` (``whole-pieces``);
``data.num_graphs`` is a number (``counts-are-numbers``). An empty ``range`` gives empty rows where ``torch.stack`` raises.
Elements that masks or lengths pick of each row (``out[i, :n[i]] = x[i, mask[i]]``) are moved by masks of
all rows, in the same order: each row must write as many as it takes (``as-many-of-each-row``).
The first elements of rows that are copied to the same places (``out[i, :n[i]] = x[i, :n[i]]``) become
``torch.where``, for which ``x`` must be as wide as ``out`` (``as-wide``).
One number that rounds write to ranges of their own (``m[a:b, a:b] = 0`` with ``a = i * n``, or where
``a += n[i]`` counts along) is written to all of them by comparisons of positions with the ends.
Sums, means, limits and softmax of parts of rows (``x[i, :n[i]].mean(0)``) are taken of all rows under the
mask ``arange(w) < n[:, None]``, and ``torch.cat`` of such parts picks by it.
A mean asks whether the dtype holds the sum (``sum-fits-dtype``), parts of two tensors that meet whether
these are of one width (``one-width``), and picks by vectors whether they hold integers (``integer-index``).
Sums and means of other parts (``x[ends[i]:ends[i + 1]]``, ``x[group == i]``), attention
of one sequence after the other and rows without their padding are advice, and so are rows that are
padded or searched one by one, ranges, columns computed from earlier ones, inverses of triangular
matrices row by row, groups in a dictionary, functions of one box that are added up, and weights of
a model that change one after the other, as those of its average do.

References: https://github.com/vllm-project/vllm-ascend/pull/4587 and pull/11762 (loops over
requests); the models GameFormer-Planner, DenseTNT and UniAD of https://gitcode.com/Ascend/DrivingSDK;
other_common_opt_ops.md of the FrameworkPTAdapter guide (loops over points and masks); torch.vmap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Substitution
from npufix.rules.substitutions.loop_over_rows_examples import REWRITTEN, VALID
from npufix.rules.substitutions.loop_over_rows_picked_examples import PICKED, PICKED_VALID

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def fill(mask: Tensor, lengths: Tensor) -> None:
    """Mark the first elements of each row."""
    for row in range(lengths.shape[0]):
        mask[row, : lengths[row]] = 1


def fill_at_once(mask: Tensor, lengths: Tensor) -> None:
    """Compare positions with lengths."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    mask[: lengths.shape[0]].masked_fill_(
        positions
        < lengths.to(mask.device).reshape(-1, 1),  # no slip: .to(...) is left out (one device)
        1,
    )


def pick(x: Tensor, index: Tensor) -> Tensor:
    """Take one element of each row."""
    return torch.stack([x[row, index[row]] for row in range(x.shape[0])])


def pick_at_once(x: Tensor, index: Tensor) -> Tensor:
    """Take one element of each row by index vectors."""
    return x[torch.arange(x.shape[0], device=x.device), index[: x.shape[0]]]


def compute(x: Tensor) -> Tensor:
    """Compute each column by itself."""
    return torch.stack([torch.tanh(x[:, column]) for column in range(x.shape[1])], dim=1)


def compute_at_once(x: Tensor) -> Tensor:
    """Compute all columns."""
    return torch.tanh(x)


def shift(x: Tensor, step: float, times: int) -> Tensor:
    """Put copies one after the other, each moved by one step more."""
    return torch.cat([x + step * time for time in range(times)], dim=0)


def shift_at_once(x: Tensor, step: float, times: int) -> Tensor:
    """Add all steps in a new dimension."""
    rows = torch.arange(times, dtype=x.dtype, device=x.device)
    return (x + (step * rows).view(-1, *[1] * x.dim())).flatten(0, 1)


def copy(x: Tensor, lengths: Tensor) -> Tensor:
    """Copy the first elements of each row."""
    out = x.new_zeros(x.shape)
    for row in range(x.shape[0]):
        out[row, : lengths[row]] = x[row, : lengths[row]]
    return out


def copy_at_once(x: Tensor, lengths: Tensor) -> Tensor:
    """Choose by a comparison of positions with lengths."""
    out = x.new_zeros(x.shape)
    positions = torch.arange(out.shape[1], device=out.device)
    out[:] = torch.where(
        positions
        < lengths[: x.shape[0]]
        .to(out.device)  # no slip: .to(...) is left out (one device)
        .reshape(-1, 1),
        x,
        out,
    )
    return out


def _tensor(draw: Draw, *shape: int) -> Tensor:
    import torch

    dtype = draw.choice([torch.float32, torch.float64])
    made = draw.floats(*shape, dtype=dtype)
    if draw.choice([False, True]):
        made = made.transpose(0, 1).contiguous().transpose(0, 1)
    return made


def fill_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix, and lengths up to more than its rows have."""
    rows, columns = draw.integer(1, 4), draw.integer(1, 5)
    lengths = draw.integers(rows, low=0, high=columns + 1)
    return {"mask": _tensor(draw, rows + draw.integer(0, 2), columns), "lengths": lengths}


def pick_inputs(draw: Draw) -> dict[str, Any]:
    """Return tensors and an index of each row, some from the end, perhaps with more behind."""
    shape = draw.integer(1, 4), draw.integer(1, 5), *draw.choice([(), (3,)])
    index = draw.integers(shape[0] + draw.integer(0, 1), low=-1, high=shape[1] - 1)
    return {"x": _tensor(draw, *shape), "index": index}


def copy_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix, and lengths up to more than its rows have."""
    rows, columns = draw.integer(1, 4), draw.integer(1, 5)
    lengths = draw.integers(rows + draw.integer(0, 1), low=0, high=columns + 1)
    return {"x": _tensor(draw, rows, columns), "lengths": lengths}


def compute_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor of two or three dimensions."""
    shape = draw.integer(1, 4), draw.integer(1, 5), *draw.choice([(), (3,)])
    return {"x": _tensor(draw, *shape)}


def shift_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, a step and how many."""
    given = compute_inputs(draw)
    return {**given, "step": draw.choice([0.3, -2.1, 3.0]), "times": draw.integer(1, 4)}


def _open(name: str, text: str, meaning: str = "") -> Condition:
    return Condition(name, text, lambda _site: None, meaning)


CONDITIONS = (
    _open(
        "is-tensor",
        "what the loop takes rows of is a torch tensor, not a list or an array",
        "are-tensors",
    ),
    _open("number-index", "the index of each round is one number", "integer-vector"),
    _open("integer-index", "the indexes of each round are integers, no mask", "integer-picks"),
    _open("nonnegative-lengths", "no length of a row is negative", "nonnegative-index"),
    _open("positive-lengths", "what is counted from the end of a row is one or more"),
    _open("nonnegative-count", "the number of rounds is not negative"),
    _open("many-rounds", "there are more than about ten rounds: each launches one kernel alone"),
    _open(
        "known-dimensions",
        "the tensors in the loop have as many dimensions as they are indexed with there",
    ),
    _open("counts-are-numbers", "what is called num_... or n_... is a number of Python"),
    _open(
        "no-broadcasting",
        "what is written to a row has the dimensions of the row",
        "same-dimensions",
    ),
    _open("separate-memory", "what the loop writes to shares no memory with what it reads"),
    _open("same-dtype", "the floating point tensors in the loop have one dtype"),
    _open("value-fits-dtype", "the value is a number that the dtype of the tensor can hold"),
    _open("sum-fits-dtype", "the dtype of what is averaged can hold the sum of each row"),
    _open("no-nan", "no number of a row that is compared is NaN"),
    _open("float-values", "the numbers that are compared are of floating point"),
    _open("same-dimensions", "the tensors that meet in a round have one number of dimensions"),
    _open(
        "ascending-borders", "each border of the pieces is as large as the one before, or larger"
    ),
    _open("adds-floats", "what is added up is of floating point, and there is a round at least"),
    _open("boolean-mask", "the mask whose rows pick elements is of dtype bool"),
    _open(
        "as-many-of-each-row",
        "each row takes as many elements as it writes: none stands for several",
    ),
    _open("as-wide", "what rows are copied from is as wide as what they are copied to, or wider"),
    _open(
        "whole-pieces", "a tensor that the rounds take one piece of after the other has them all"
    ),
    _open("one-width", "rows of which parts meet are of one width, whatever is beyond the parts"),
    _open("as-many-of-both", "what is gone through side by side has as many rounds"),
    _open("rows-of-several", "each row has a dimension of its own: it is no single number"),
    _open("no-ties", "no two numbers of a row are equal, or any of those may be picked"),
    _open("batch-first", "each round passes on a batch: its first dimension, and two or more"),
)

RULE = Substitution(
    id="NPU250",
    name="loop-over-rows",
    summary="a loop in Python over the rows of a tensor",
    table="affinity",
    forms=(
        Form(fill, fill_at_once, fill_inputs, CONDITIONS),
        Form(pick, pick_at_once, pick_inputs, CONDITIONS),
        Form(compute, compute_at_once, compute_inputs, CONDITIONS),
        Form(copy, copy_at_once, copy_inputs, CONDITIONS),
        Form(shift, shift_at_once, shift_inputs, CONDITIONS),
    ),
    replaces=("ConcatD", "Fill", "Pack", "StridedSlice", "TensorMove", "ViewCopy"),
    becomes=("Index", "Less", "MaskedFill", "Range"),
    passes=(2, 2),
    requires="torch_npu>=2.1",
    search="loops",
    valid=(*VALID, *PICKED_VALID),
    rewritten=(*REWRITTEN, *PICKED),
)
