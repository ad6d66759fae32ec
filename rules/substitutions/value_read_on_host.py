"""A value of the device that the host reads in every step.

What: ``.item()``, ``.tolist()``, ``.cpu()``, ``float(x)``, ``int(x)`` of a tensor, and Python's ``max``
and ``min`` of a tensor and a number, in code that runs in every step.

Why it is slow on the NPU: the host normally runs ahead and keeps the queue full. To hand over a
value it waits until everything before has run; then the device has nothing to do until the host has
launched the next kernel. ``max(t, 1.0)`` waits as well: Python asks whether one is greater.

Safety: who needs the value is followed through the function. Where only tensors are computed with
it, it stays on the device: ``x.detach()`` is a tensor without dimensions, and ``max(x, 1.0)`` is
``x.clamp(min=1.0)``. A number takes the dtype of the tensor that it meets, a tensor without
dimensions does so where the other one has dimensions or its dtype (``same-dtype``); ``max`` returns the
number itself and no gradient where ``clamp`` returns a gradient of zero (``without-gradient``), and
``max(1.0, x)`` is 1.0 where ``x`` is NaN (``never-nan``); a count has none of this. Functions that get
the value must take a tensor (``takes-tensors``). ``repeat_interleave`` waits for the sum of its
repeats, unless ``output_size`` says it (``as-long``). An index that is copied to the host to pick from what
is on the device stays there (``picked-there``). What the host decides by, or
makes shapes of, also where a tensor is such a size or border itself, is advice. A loop that reads ``x[i].item()`` reads all of ``x`` before it, where it is a
``vector`` that the loop leaves alone (``not-written-to``), and one over rows whose elements are
numbers for sizes alone, over all of them (``matrix-of-numbers``). What is
counted in each row, or its largest element, is read of all rows before the loop (``rows-of-elements``), and
so is whether a row that fills up a batch holds zeros alone (``zero-rows``).
What a dictionary keeps for a log
is a tensor without dimensions (``log-takes-tensors``), a copy where something may write into it later;
where it is printed or logged at once nothing is gained. What a loop adds up
or collects in a list stays on the device where nobody looks at it before the loop has ended: all of it is
read behind the loop, and a sum is one in single precision (``single-precision-sum``). Python's own
``any``, ``all``, ``max``, ``min`` and ``sum`` go through a tensor element by element (``max`` also through what each is
more than the one before), as a loop does that asks
``if x[i] > 0:`` or takes ``y[: n[i]]``; numbers that a list takes from what a tensor computes of each part
are read together (``alike-and-some``), as ``[row.tolist() for row in x]`` is ``x.tolist()``, and so are those that one call or dictionary is given
(``floats-of-one-device``: in a list integers would become floats). Other reads in loops, in logs and calls, and of lengths that the
caller has, are advice.

References: overall_optimization_strategy.md and solution_to_top3.md of the troubleshooting guide;
vllm-ascend #4805 (time per token -44 %), #6448 (time to the first token -7 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Site, Substitution
from npufix.rules.substitutions import value_read_on_host_elements_examples as elements
from npufix.rules.substitutions import value_read_on_host_rounds_examples as rounds
from npufix.rules.substitutions.value_read_on_host_examples import REWRITTEN, VALID
from npufix.rules.substitutions.value_read_on_host_forms import (
    asked,
    asked_at_once,
    copied_before,
    copied_by_row,
    elements_inputs,
    found_on_device,
    found_on_host,
    furthest,
    furthest_at_once,
    furthest_inputs,
    last_filled,
    last_filled_at_once,
    listed_at_once,
    listed_rows,
    longest,
    longest_at_once,
    padded_inputs,
    read_apart,
    read_at_once,
    read_before_rounds,
    read_each,
    read_in_rounds,
    read_inputs,
    read_together,
    summed,
    summed_at_once,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def item(x: Tensor, y: Tensor) -> Tensor:
    """Read a value, then compute with it."""
    return y / x.item()


def on_device(x: Tensor, y: Tensor) -> Tensor:
    """Compute with the value where it is."""
    return y / x.detach()


def limit(x: Tensor, y: Tensor) -> Tensor:
    """Let the host find out whether a value is large enough."""
    return y / max(x, 1.0)  # type: ignore[operator] # of a tensor and a number, a tensor


def clamped(x: Tensor, y: Tensor) -> Tensor:
    """Let the device find out."""
    return y / x.clamp(min=1.0)


def limit_of_item(x: Tensor, y: Tensor) -> Tensor:
    """Read a value, and take care that it is large enough."""
    return y / max(x.item(), 1.0)


def clamped_on_device(x: Tensor, y: Tensor) -> Tensor:
    """Take care where the value is."""
    return y / x.detach().clamp(min=1.0)


def handed_list(x: Tensor, y: Tensor) -> list[Tensor]:
    """Hand lengths over as a list."""
    lengths = x.tolist()
    return [row[: lengths[i]] for i, row in enumerate(y)]


def handed_tensor(x: Tensor, y: Tensor) -> list[Tensor]:
    """Hand them over as the tensor that they are."""
    return [row[: int(x[i])] for i, row in enumerate(y)]


def element_by_element(x: Tensor, y: Tensor) -> Tensor:
    """Read one element in each round."""
    for i in range(x.shape[0]):
        y = y + int(x[i])
    return y


def all_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Read all of them before the first round."""
    values = x.tolist()
    for i in range(x.shape[0]):
        y = y + values[i]
    return y


def rows_of_numbers(x: Tensor, y: Tensor) -> Tensor:
    """Make numbers of the elements of each row."""
    for rows, columns in x:
        y = y + y[: int(rows)].sum() * int(columns)
    return y


def rows_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Read all rows before the first round."""
    for rows, columns in x.tolist():
        y = y + y[:rows].sum() * columns
    return y


def parts_of_rows(x: Tensor, y: Tensor) -> Tensor:
    """Make numbers of some elements of each row."""
    for row in x:
        y = y + y[: int(row[0])].sum() * int(row[1])
    return y


def parts_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Read all rows before the first round."""
    for row in x.tolist():
        y = y + y[: row[0]].sum() * row[1]
    return y


def reduced_rows(x: Tensor, y: Tensor) -> Tensor:
    """Count the elements of each row, one row after the other."""
    for i in range(x.shape[0]):
        y = y + (x[i] > 1).sum().item()
    return y


def reduced_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Count those of all rows."""
    sums = (x > 1).flatten(1).sum(1).tolist()
    for i in range(x.shape[0]):
        y = y + sums[i]
    return y


def rows_inputs(draw: Draw) -> dict[str, Any]:
    """Return pairs of numbers and a matrix."""
    import torch

    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.integers(draw.integer(0, 3), 2, low=0, high=3), "y": y}


def logged(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Read values for those who look at what the step has come to."""
    return y * x, {"x": x.item(), "y": y.sum().item()}


def kept(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Keep the values on the device until somebody looks."""
    return y * x, {"x": x.detach().clone(), "y": y.sum().detach()}


def added_up(x: Tensor, y: Tensor) -> Tensor:
    """Add up on the host what each round has computed."""
    total = 0.0
    for row in x:
        total += row.mean().item()
    return y * total


def added_there(x: Tensor, y: Tensor) -> Tensor:
    """Add up on the device, and read the sum."""
    total = 0.0
    for row in x:
        total += row.mean().detach().float()  # no slip: .float(...) is left out (few rounds)
    total = float(total)
    return y * total


def collected(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Collect numbers."""
    means = []
    for row in x:
        means.append(row.mean().item())  # noqa: PERF401 - as users write it
    return y * len(means), means


def collected_there(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Collect tensors, and read all of them at once."""
    means: Any = []
    for row in x:
        means.append(row.mean().detach())
    means = torch.stack(means).tolist() if means else []
    return y * len(means), means


def repeated(x: Tensor, n: Tensor, y: Tensor) -> Tensor:
    """Repeat rows as often as a tensor says."""
    return y - x.repeat_interleave(n, dim=0)


def repeated_to_size(x: Tensor, n: Tensor, y: Tensor) -> Tensor:
    """Say how many rows that makes."""
    size = y.shape[0]
    return y - x.repeat_interleave(
        n, dim=0, output_size=size
    )  # no slip: output_size=size is left out (only the wait shows it)


def repeated_inputs(draw: Draw) -> dict[str, Any]:
    """Return rows, how often each is meant, and as many rows as that makes."""
    import torch

    n = draw.integers(draw.integer(1, 4), low=0, high=3)
    rows = {
        name: draw.floats(count, 3, dtype=torch.float32)
        for name, count in (("x", len(n)), ("y", int(n.sum())))
    }
    return {**rows, "n": n}


def marked(x: Tensor, y: Tensor) -> Tensor:
    """Find the rows that have a label, then mark the column of each."""
    at = (x != 0).nonzero().squeeze(1)
    y[at, x[at]] = 1
    return y


def marked_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Mark the column of each row that has a label."""
    at = x != 0
    columns = torch.arange(y.shape[1], device=y.device)  # no slip: device=y.device is left out
    y[at[:, None] & (x[:, None] == columns)] = 1
    return y


def marked_inputs(draw: Draw) -> dict[str, Any]:
    """Return labels, three of which are columns, and a matrix."""
    import torch

    x = draw.integers(draw.integer(0, 4), low=0, high=4)
    return {"x": x, "y": torch.zeros(len(x), 3)}


def written(x: Tensor, y: Tensor) -> Tensor:
    """Find the places of a mask, then write a number to all of them."""
    rows, columns = torch.where(x > 1)
    y[rows, columns] = 0.5
    return y


def written_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Write it where the mask says."""
    y[x > 1] = 0.5
    return y


def written_inputs(draw: Draw) -> dict[str, Any]:
    """Return two matrices of one shape."""
    import torch

    shape = (draw.integer(0, 3), draw.integer(1, 3))
    return {"x": draw.integers(*shape, low=0, high=4), "y": torch.zeros(shape)}


def picked(x: Tensor, y: Tensor) -> Tensor:
    """Copy an index to the host, then pick with it on the device."""
    at = x.cpu()
    return y[at] * 2


def picked_there(x: Tensor, y: Tensor) -> Tensor:
    """Pick with the index that is there."""
    at = x
    return y[at] * 2


def picked_inputs(draw: Draw) -> dict[str, Any]:
    """Return places of rows, perhaps none, and the rows."""
    import torch

    rows = draw.integer(1, 4)
    x = draw.integers(draw.integer(0, 4), low=0, high=rows - 1)
    return {"x": x, "y": draw.floats(rows, 3, dtype=torch.float32)}


def steps_inputs(draw: Draw) -> dict[str, Any]:
    """Return what some rounds compute with, perhaps none."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16])
    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.floats(draw.integer(0, 4), 3, dtype=dtype) * 100, "y": y}


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a value of no dimensions, small and large, and a tensor to divide by it."""
    import torch

    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.floats(1, dtype=torch.float32).abs().sum() * 3 + 0.25, "y": y}


def limited_inputs(draw: Draw) -> dict[str, Any]:
    """Return the same without a gradient of the value."""
    given = inputs(draw)
    return {**given, "x": draw.choice([given["x"].ceil().long(), draw.integers(low=0, high=4)])}


def lengths_inputs(draw: Draw) -> dict[str, Any]:
    """Return a matrix and how much of each row is meant."""
    import torch

    n = draw.integer(1, 4)
    y = draw.floats(n, 3, dtype=torch.float32)
    return {"x": draw.integers(n, low=0, high=3), "y": y}


def _unknown(_site: Site) -> bool | None:
    return None  # the search has followed who needs the value


IS_TENSOR = Condition("is-tensor", "what is read is a torch tensor, not a NumPy number", _unknown)
SAME_DTYPE = Condition(
    "same-dtype",
    "the value has the dtype of the tensors that it meets, or they have dimensions",
    _unknown,
    "takes-dtype",
)
TAKES_TENSORS = Condition(
    "takes-tensors", "the functions that get the value take a tensor as well", _unknown
)
WITHOUT_GRADIENT = Condition(
    "without-gradient", "nobody asks for a gradient of the value", _unknown
)
VECTOR = Condition("vector", "what is read element by element is a vector", _unknown)
MATRIX = Condition(
    "matrix-of-numbers",
    "what is read row by row is a matrix, and each row has a number for each name",
    _unknown,
    "matrix-input",
)
ROWS = Condition(
    "rows-of-elements", "each row has elements of its own: it is no vector of numbers", _unknown
)
ZERO_ROWS = Condition(
    "zero-rows",
    "a row that adds up to zero holds zeros alone, in whatever order it is added up",
    _unknown,
)
PICKS_NUMBERS = Condition(
    "picks-numbers", "each index picks one number of a row, not a row of one number", _unknown
)
NOT_WRITTEN = Condition(
    "not-written-to", "nothing that the loop calls or writes into changes the tensor", _unknown
)
LOG_TAKES_TENSORS = Condition(
    "log-takes-tensors",
    "what is logged has no dimensions, and who reads it takes a tensor as well: it is printed or "
    "averaged, no NumPy and no JSON is made of it",
    _unknown,
)
SINGLE_SUM = Condition(
    "single-precision-sum",
    "the sum is of values like losses: single precision holds it, and no integer is expected",
    _unknown,
)
AS_LONG = Condition(
    "as-long",
    "what is repeated becomes as long as what it meets: none of the two is one row for all",
    _unknown,
)
KEEPS_DTYPE = Condition(
    "keeps-dtype",
    "what is added up is of floating point, of int64 or bool: narrow integers become int64",
    _unknown,
)
SOME_ROWS = Condition("some-rows", "what is added up has one row at least", _unknown)
ALIKE = Condition(
    "alike-and-some",
    "the values have one dtype and are on one device, and there is one of them at least",
    _unknown,
)
FLOATS = Condition(
    "floats-of-one-device",
    "the values are of floating point and on one device, which is not the host",
    _unknown,
)
LABELS = Condition(
    "labels-of-columns",
    "what is written into is a matrix, and each label that is marked is one of its columns, none "
    "counted from the end",
    _unknown,
)
ONE_SHAPE = Condition(
    "mask-of-what-is-written",
    "the mask has dimensions, an index for each of them, and their sizes are those of what is "
    "written to",
    _unknown,
)
PICKED_THERE = Condition(
    "picked-there", "what is picked from is on the device of the index, too", _unknown
)
NEVER_NAN = Condition("never-nan", "the value is never NaN", _unknown, "no-nan")

RULE = Substitution(
    id="NPU214",
    name="value-read-on-host",
    summary="a value of the device that the host reads in every step",
    table="affinity",
    forms=(
        Form(item, on_device, inputs, (IS_TENSOR, SAME_DTYPE, TAKES_TENSORS)),
        Form(
            limit,
            clamped,
            limited_inputs,
            (IS_TENSOR, SAME_DTYPE, TAKES_TENSORS, WITHOUT_GRADIENT, NEVER_NAN),
        ),
        Form(
            limit_of_item,
            clamped_on_device,
            inputs,
            (IS_TENSOR, SAME_DTYPE, TAKES_TENSORS, NEVER_NAN),
        ),
        Form(handed_list, handed_tensor, lengths_inputs, (IS_TENSOR, TAKES_TENSORS)),
        Form(element_by_element, all_at_once, lengths_inputs, (IS_TENSOR, VECTOR, NOT_WRITTEN)),
        Form(logged, kept, inputs, (IS_TENSOR, LOG_TAKES_TENSORS)),
        Form(added_up, added_there, steps_inputs, (IS_TENSOR, SINGLE_SUM)),
        Form(picked, picked_there, picked_inputs, (IS_TENSOR, PICKED_THERE)),
        Form(repeated, repeated_to_size, repeated_inputs, (IS_TENSOR, AS_LONG)),
        Form(collected, collected_there, steps_inputs, (IS_TENSOR,)),
        Form(parts_of_rows, parts_at_once, rows_inputs, (IS_TENSOR, PICKS_NUMBERS, NOT_WRITTEN)),
        Form(reduced_rows, reduced_at_once, rows_inputs, (IS_TENSOR, ROWS, NOT_WRITTEN)),
        Form(
            last_filled,
            last_filled_at_once,
            padded_inputs,
            (IS_TENSOR, ROWS, ZERO_ROWS),
        ),
        Form(asked, asked_at_once, elements_inputs, (IS_TENSOR,)),
        Form(longest, longest_at_once, elements_inputs, (IS_TENSOR, VECTOR, NEVER_NAN)),
        Form(furthest, furthest_at_once, furthest_inputs, (IS_TENSOR, NEVER_NAN)),
        Form(summed, summed_at_once, elements_inputs, (IS_TENSOR, KEEPS_DTYPE, SOME_ROWS)),
        Form(read_each, read_together, read_inputs, (IS_TENSOR, ALIKE)),
        Form(listed_rows, listed_at_once, read_inputs, (IS_TENSOR,)),
        Form(read_apart, read_at_once, read_inputs, (IS_TENSOR, FLOATS)),
        Form(found_on_device, found_on_host, read_inputs, (IS_TENSOR,)),
        Form(copied_by_row, copied_before, read_inputs, (IS_TENSOR, NOT_WRITTEN)),
        Form(read_in_rounds, read_before_rounds, read_inputs, (NOT_WRITTEN,)),
        Form(marked, marked_at_once, marked_inputs, (IS_TENSOR, LABELS)),
        Form(written, written_at_once, written_inputs, (IS_TENSOR, ONE_SHAPE)),
        Form(rows_of_numbers, rows_at_once, rows_inputs, (IS_TENSOR, MATRIX, NOT_WRITTEN)),
    ),
    search="host-values",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(*VALID, *elements.VALID, *rounds.VALID),
    rewritten=(*REWRITTEN, *elements.REWRITTEN, *rounds.REWRITTEN),
)
