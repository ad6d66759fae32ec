"""What the conditions that a user vouches for mean for the operands of one call.

A condition is a promise about the program. The verifier makes up its calls, so it has to keep the
promise: a call whose operands break it says nothing. Operands come by the names of the rule.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Operands = Mapping[str, object]

_VERY_NEGATIVE = -10000
_NONE = torch.empty(0)
"""Stands for an operand that is not given."""
_MASKS = ("mask", "shown", "hidden", "added", "bias")
_HALVES = {torch.float16, torch.bfloat16}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)


def meets(names: Iterable[str], operands: Operands) -> bool:
    """Tell whether a call keeps the promises; one that cannot be told from operands is kept."""
    return all(_MEANINGS[name](operands) for name in names if name in _MEANINGS)


def _tensors(operands: Operands, *names: str) -> list[torch.Tensor]:
    wanted = names or tuple(operands)
    found = (operands.get(name) for name in wanted)
    return [value for value in found if isinstance(value, torch.Tensor)]


def _floats(operands: Operands) -> list[torch.Tensor]:
    inner = [p for v in operands.values() if isinstance(v, torch.nn.Module) for p in v.parameters()]
    return [t for t in (*_tensors(operands), *inner) if t.is_floating_point()]


def _is_weaker(operands: Operands) -> bool:
    """Tell whether a value meets tensors whose dtype it does not change, as no number does."""
    values = _tensors(operands, "x")
    return not values or all(
        t.dtype == torch.result_type(values[0].reshape(-1)[:1].squeeze(0), t)
        for name in operands
        if name.startswith("y")
        for t in _tensors(operands, name)
    )


def _passes_check(operands: Operands) -> bool:
    """Tell whether checks can be made at all, and pass: ``check``, ``failure_1``."""
    made = [(n.partition("_")[0], c) for n, c in operands.items() if callable(c)]
    try:
        return all(c() if n == "check" else not c() for n, c in made if n in {"check", "failure"})
    except Exception:  # noqa: BLE001 - code of the user
        return False


def _table_dtype(operands: Operands) -> bool:
    tables = {t.dtype for t in _tensors(operands, "cos", "sin")}
    x = {t.dtype for t in _tensors(operands, "x")}
    return len(tables) <= 1 and (
        tables <= x or (tables == {torch.float32} and x <= _HALVES | tables)
    )


def _is_one_or_each(operands: Operands) -> bool:
    """Tell whether weights are one number, or one for each element of the rows."""
    lengths = {t.shape[-1] for t in _tensors(operands, "x") if t.dim()} | {1}
    return all(t.dim() == 1 and len(t) in lengths for t in _tensors(operands, "weight"))


def _is_vector_weight(operands: Operands) -> bool:
    """Tell whether the weight is a tensor of one dimension, as long as the rows that it scales."""
    weight = operands.get("weight", _NONE)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
        return False
    return weight is _NONE or all(t.shape[-1:] == weight.shape for t in _tensors(operands, "x"))


def _are_numbers(*names: str) -> Callable[[Operands], bool]:
    return lambda operands: all(isinstance(operands.get(n, 0), (int, float)) for n in names)


def _numbers(operands: Operands, name: str) -> list[float]:
    value = operands.get(name)
    return [float(value)] if isinstance(value, (int, float)) else []


def _sums_fit(operands: Operands) -> bool:
    """Tell whether tensors are of floats, and their dtype can hold the sum of the magnitudes."""
    return all(
        t.is_floating_point() and float(t.double().abs().sum()) <= torch.finfo(t.dtype).max
        for t in _tensors(operands, "x")
    )


def _dims(number: int, *names: str) -> Callable[[Operands], bool]:
    return lambda operands: all(t.dim() == number for t in _tensors(operands, *names))


def _has_named_dims(operands: Operands) -> bool:
    """Tell whether tensors have the dimensions that their names say: two of ``dims2_0``."""
    told = ((name.removeprefix("dims").partition("_")[0], name) for name in operands)
    return all(
        t.dim() == int(n) for n, name in told if n.isdigit() for t in _tensors(operands, name)
    )


def _are_alike(operands: Operands) -> bool:
    """Tell whether tensors that meet have one number of dimensions: ``alike0_0``, ``alike0_1``."""
    groups: dict[str, set[int]] = {}
    for name in operands:
        if name.startswith("alike"):
            found = {t.dim() for t in _tensors(operands, name)}
            groups.setdefault(name.partition("_")[0], set()).update(found)
    return all(len(dims) <= 1 for dims in groups.values())


def _are_tensors(operands: Operands) -> bool:
    """Tell whether what is called so is a tensor: ``tensor0``."""
    told = (v for name, v in operands.items() if name.removeprefix("tensor").isdigit())
    return all(isinstance(value, torch.Tensor) for value in told)


def _fewer_dims(by: int) -> Callable[[Operands], bool]:
    def holds(operands: Operands) -> bool:
        if any(not isinstance(operands.get(name, _NONE), torch.Tensor) for name in ("x", "mask")):
            return False  # a number has no dimensions to compare
        masks, others = _tensors(operands, "mask"), list(_tensors(operands, "x", "y"))
        return all(t.dim() - mask.dim() == by for mask in masks for t in others)

    return holds


def _same_shape(operands: Operands) -> bool:
    return len({t.shape for t in _tensors(operands) if t.dim() > 1 and t.is_floating_point()}) <= 1


def _same_heads(operands: Operands, heads: int = 1) -> bool:
    found = _tensors(operands, "q", "k", "v", "query", "key", "value")
    # All but the length and the size of a head: the length stands beside the heads.
    length = -2 if heads == 1 else 1
    return len({(*t.shape[:length], *t.shape[length:-1][1:]) for t in found}) <= 1


def _no_ties(operands: Operands) -> bool:
    values = [v for v in operands.values() if isinstance(v, (torch.Tensor, int, float))]
    if len(values) != 2:  # noqa: PLR2004 - the two that are compared
        return True
    first, second = (torch.as_tensor(v) for v in values)
    return not bool(torch.eq(first, second).any())


def _is_additive_mask(operands: Operands) -> bool:
    masks = _tensors(operands, *_MASKS)
    return not any(
        m.is_floating_point()
        and (m.requires_grad or bool(((m != 0) & ~(m <= _VERY_NEGATIVE)).any()))
        for m in masks
    )


def _sees_a_key(operands: Operands) -> bool:
    both = _tensors(operands, "hidden", "also")
    if len(both) == 2 and bool((both[0] | both[1]).all(-1).any()):  # noqa: PLR2004 - of one attention
        return False
    for mask in _tensors(operands, *_MASKS):
        hidden = mask if mask.dtype == torch.bool else mask <= _VERY_NEGATIVE
        # Whether True hides or shows a key is the rule's business: neither may fill a row.
        if mask.dim() and mask.numel() and bool((hidden.all(-1) | (~hidden).all(-1)).any()):
            return False
    return True


def _are_all_different(operands: Operands) -> bool:
    """Tell whether no two elements of a row are equal: then its order is one alone."""
    rows = (t.detach().sort(dim=-1)[0] for t in _tensors(operands, "x") if t.dim())
    return not any(bool((row[..., 1:] == row[..., :-1]).any()) for row in rows)


def _has_enough(operands: Operands) -> bool:
    """Tell whether a tensor has as many elements as are wanted of it."""
    k = operands.get("k", 0)
    sizes = [t.shape[-1] for t in _tensors(operands, "x") if t.dim()]
    return isinstance(k, int) and all(0 <= k <= size for size in sizes)


def _unique(operands: Operands) -> bool:
    return all(
        not bool((t.sort(-1).values.diff(dim=-1) == 0).any())
        for t in _tensors(operands, "indices", "index")
        if t.dim()
    )


def _fits(operands: Operands) -> bool:
    value = operands.get("value", operands.get("literal_value", operands.get("limit")))
    for x in _tensors(operands, "x"):
        if not isinstance(value, (int, float)):
            return True
        if x.dtype in _INTEGERS and not float(value).is_integer():
            return False
        if x.is_floating_point() and abs(float(value)) > torch.finfo(x.dtype).max:
            return abs(float(value)) == float("inf")
    return True


def _zero_one(operands: Operands) -> bool:
    # One of floating point would be asked for its gradient.
    return all(
        not t.is_floating_point() and not bool(((t != 0) & (t != 1)).any())
        for t in _tensors(operands, *_MASKS)
    )


def _is_function(expected: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Operands], bool]:
    def holds(operands: Operands) -> bool:
        act = operands.get("act")
        tried = torch.linspace(-3, 3, 13)
        return not callable(act) or bool(torch.allclose(act(tried), expected(tried)))

    return holds


def _takes_kernel(operands: Operands) -> bool:
    return all(
        t.dim() == 4 and all(size and size % 32 == 0 for size in t.shape[-2:])  # noqa: PLR2004 - the operator's limits
        for t in _tensors(operands, "x", "scores")
    )


def _is_mask_of_rows(operands: Operands) -> bool:
    x, mask = operands.get("x"), operands.get("mask")
    if not isinstance(x, torch.Tensor) or not isinstance(mask, torch.Tensor) or not x.dim():
        return False
    return mask.shape == x.shape and bool((mask == mask[..., :1]).all())


def _are_as_many_rows(operands: Operands) -> bool:
    x, mask, rows = (operands.get(name) for name in ("x", "mask", "rows"))
    if not all(isinstance(value, torch.Tensor) for value in (x, mask, rows)):
        return False
    assert isinstance(x, torch.Tensor)  # noqa: S101 - for the type checker
    assert isinstance(mask, torch.Tensor)  # noqa: S101 - same
    assert isinstance(rows, torch.Tensor)  # noqa: S101 - same
    width = x.shape[-1] if mask.dim() < x.dim() else 1
    return int(mask.sum()) * width == rows.numel()


def _has_finite_arms(operands: Operands) -> bool:
    """Tell whether both arms can be computed, and have no NaN or infinity."""
    arms = [operands[name] for name in operands if name.startswith("arm")]
    try:
        made = [arm() for arm in arms if callable(arm)]
    except Exception:  # noqa: BLE001 - code of the user
        return False
    return all(bool(value.isfinite().all()) for value in made if isinstance(value, torch.Tensor))


def _is_mask_or_alike(operands: Operands) -> bool:
    masks, values = _tensors(operands, "a"), _tensors(operands, "b")
    return all(m.dtype in {torch.bool, v.dtype} for m in masks for v in values)


def _fit_as_matrices(operands: Operands) -> bool:
    pairs = [(a, b) for a in _tensors(operands, "a") for b in _tensors(operands, "b")]
    return all(
        min(a.dim(), b.dim()) > 1 and (*a.shape[:-2], a.shape[-1]) == tuple(b.shape[:-1])
        for a, b in pairs
    )


def _has_no_short_rows(operands: Operands) -> bool:
    """Tell whether all rows are far longer than ``eps``."""
    eps = operands.get("eps", operands.get("literal_eps", 0.0))
    least = 1e3 * eps if isinstance(eps, float) else 0.0
    norms = [t.double().norm(dim=-1) for t in _tensors(operands, "x") if t.dim()]
    return not any(bool(((n > 0) & (n < least)).any()) for n in norms)


def _takes_as_many(operands: Operands) -> bool:
    """Tell whether masks pick as many elements of each row to read as to write."""
    counts: dict[str, torch.Tensor] = {}
    for name, mask in operands.items():
        if re.match(r"(taken|written)\d", name):
            if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
                return False
            counts[name] = mask.flatten(1).sum(1)
    taken = {name.removeprefix("taken"): n for name, n in counts.items() if name[0] == "t"}
    return all(torch.equal(n, counts[f"written{number}"]) for number, n in taken.items())


def _is_as_wide(operands: Operands) -> bool:
    """Tell whether what rows are copied from has as many columns as what they are copied to."""
    pairs = [
        (operands.get(f"read{name.removeprefix('wide')}"), wide)
        for name, wide in operands.items()
        if re.fullmatch(r"wide\d+", name)
    ]
    return all(
        a >= b
        for read, wide in pairs
        if isinstance(read, tuple) and isinstance(wide, tuple) and len(read) == len(wide)
        for a, b in zip(read[1:], wide[1:], strict=True)
    )


def _driving_takes(operands: Operands) -> bool:
    """Tell whether numbers are float32 and finite, and groups not negative."""
    return all(
        t.dtype == torch.float32 and bool(t.isfinite().all())
        if t.is_floating_point()
        else not bool((t < 0).any())
        for t in _tensors(operands)
    )


_MEANINGS: Mapping[str, Callable[[Operands], bool]] = {
    "activation-is-gelu": _is_function(functional.gelu),
    "activation-is-gelu-tanh": _is_function(partial(functional.gelu, approximate="tanh")),
    "activation-is-silu": _is_function(functional.silu),
    "as-many-of-each-row": _takes_as_many,
    "as-many-of-both": lambda o: (
        len({n for name, n in o.items() if re.fullmatch(r"count\d+", name)}) <= 1
    ),
    "as-many-rows": _are_as_many_rows,
    "as-wide": _is_as_wide,
    "ascending-borders": lambda o: (
        not any(bool((t.diff() < 0).any()) for t in _tensors(o, "index"))
    ),
    "batch-sequence-hidden": _dims(3, "x", "residual"),
    "batch-of-images": _dims(4, "x"),
    "batches-of-matrices": _dims(3),
    "batches-of-small-matrices": lambda o: all(
        t.dim() >= 3 and max(t.shape[-2:]) <= 16  # noqa: PLR2004 - a block of the Cube unit
        for t in _tensors(o)
    ),
    "are-tensors": _are_tensors,
    "boolean-mask": lambda o: all(t.dtype == torch.bool for t in _tensors(o, "mask")),
    "mask-despite-name": lambda o: all(t.dtype == torch.bool for t in _tensors(o, "mask")),
    "check-never-fails": _passes_check,
    "column-mask": _fewer_dims(1),
    "enough-elements": _has_enough,
    "finite-arms": _has_finite_arms,
    "finite-fill": lambda o: all(map(math.isfinite, _numbers(o, "value"))),
    "alike-and-some": lambda o: not hasattr(rows := o.get("rows", "x"), "__len__") or len(rows) > 0,
    "finite-table": lambda o: all(bool(t.isfinite().all()) for t in _tensors(o, "table")),
    "four-dimensional": _dims(4, "q", "k", "v", "query", "key", "value"),
    "nonnegative-count": lambda o: not isinstance(n := o.get("repeats", 0), int) or n >= 0,
    "one-number": lambda o: isinstance(o.get("value", 0), (int, float)),
    "one-head-per-batch": _dims(3, "q", "k", "v"),
    "integer-vector": lambda o: all(
        t.dim() == 1 and t.dtype in _INTEGERS[:-1]
        for t in _tensors(o, *(n for n in o if re.fullmatch(r"index\d*", n)))
    ),
    "integer-picks": lambda o: all(
        t.dtype in _INTEGERS[1:-1] for t in _tensors(o, *(n for n in o if n.startswith("picks")))
    ),
    "int64-classes": lambda o: all(t.dtype == torch.int64 for t in _tensors(o, "target")),
    "int-repeats": lambda o: type(o.get("repeats", 0)) is int,
    "is-number": _are_numbers("value"),
    "is-device": lambda o: isinstance(o.get("device", "cpu"), (str, int, torch.device)),
    "keeps-dtype": lambda o: all(
        t.is_floating_point() or t.dtype in {torch.bool, torch.int64} for t in _tensors(o, "x")
    ),
    "kernel-shape": _takes_kernel,
    "known-dimensions": _has_named_dims,
    "labels-of-classes": lambda o: all(t.dtype == torch.int64 for t in _tensors(o, "labels")),
    "last-dimension": lambda o: all(
        o.get("dim", -1) in {-1, t.dim() - 1} for t in _tensors(o, "x")
    ),
    "log-takes-tensors": _dims(0, "x"),
    "mask-dims": lambda o: all(t.dim() > 0 for t in _tensors(o, "mask")),
    "mask-of-rows": _is_mask_of_rows,
    "mask-is-boolean": _is_additive_mask,
    "mask-shape": _dims(4, "mask"),
    "mask-or-same-dtype": _is_mask_or_alike,
    "matrices-that-fit": _fit_as_matrices,
    "matrix-factors": _dims(2, "a", "b", "left", "right"),
    "matrix-input": _dims(2, "x", "weight"),
    "matrix-table": _dims(2, "table"),
    "matrix-scores": _dims(2, "x", "scores", "input"),
    "may-be-written": lambda o: (
        not any(
            t.is_leaf and t.requires_grad
            for n in o
            if n.startswith("target")
            for t in _tensors(o, n)
        )
    ),
    # who casts the module gives it inputs of that dtype
    "module-moves-along": lambda o: all(t.dtype not in _HALVES for t in _tensors(o, "x")),
    "no-doubles": lambda o: all(t.dtype != torch.float64 for t in _tensors(o, "x")),
    "no-ignored-labels": lambda o: not any(bool((t < 0).any()) for t in _tensors(o, "target")),
    "no-fully-masked-row": _sees_a_key,
    "no-short-rows": _has_no_short_rows,
    "no-ties": _are_all_different,
    "no-nan": lambda o: not any(bool(t.isnan().any()) for t in _floats(o)),
    "nonnegative-index": lambda o: all(
        not bool((t < 0).any())
        for t in _tensors(o, *(n for n in o if re.fullmatch(r"index|indices\d*", n)))
    ),
    "number-eps": _are_numbers("eps"),
    "number-scale": _are_numbers("scale", "divisor"),
    "one-dimensional-weight": _is_vector_weight,
    "one-column-index": lambda o: all(t.shape[1:] == (1,) for t in _tensors(o, "index")),
    "one-or-each": _is_one_or_each,
    "plain-settings": _are_numbers("alpha", "limit"),
    "one-row": lambda o: all(t.dim() and set(t.shape[:-1]) <= {1} for t in _tensors(o, "row")),
    "plane-mask": _fewer_dims(2),
    "positive-lengths": lambda o: all(not bool((t <= 0).any()) for t in _tensors(o, "counted")),
    "rows-of-several": lambda o: all(
        t.dim() > 1 for t in _tensors(o, *(n for n in o if n.startswith("deep")))
    ),
    "rotary-limits": _dims(4, "x", "cos", "sin"),
    "row-mask": _fewer_dims(1),
    "same-dtype": lambda o: len({t.dtype for t in _floats(o)}) <= 1,
    "same-dimensions": _are_alike,
    "same-heads": _same_heads,
    "same-heads-third": partial(_same_heads, heads=2),
    "same-rank-mask": _fewer_dims(0),
    "same-rank-values": lambda o: len({t.dim() for t in _tensors(o, "x", "y")}) == 1,
    "same-shape": _same_shape,
    "one-width": lambda o: all(
        len(set(n)) == 1
        for name, n in o.items()
        if name.startswith("widths") and isinstance(n, tuple)
    ),
    "one-shape": lambda o: len({t.shape for t in _tensors(o)}) == 1,
    "single-precision": lambda o: all(t.dtype == torch.float32 for t in _floats(o)),
    "sum-fits-dtype": _sums_fit,
    "two-rows": lambda o: all(t.dim() > 1 and t.shape[-2] == 2 for t in _tensors(o, "x")),  # noqa: PLR2004 - gate and up
    "some-rows": lambda o: all(t.shape[:1] != (0,) for t in _tensors(o, "x")),
    "sums-fit-int32": lambda o: all(
        float(t.double().abs().sum()) < 2**31 for t in _tensors(o, "x")
    ),
    "takes-dtype": _is_weaker,
    "three-dimensions": _dims(3, "x"),
    "two-dimensions": _dims(2, "x"),
    "table-dtype": _table_dtype,
    "ties-without-gradient": _no_ties,
    "unique-indices": _unique,
    "value-fits-dtype": _fits,
    "vector": _dims(1, "x", "index"),
    "vector-of-places": lambda o: all(
        t.dim() == 1 and t.dtype == torch.int64 for t in _tensors(o, "places")
    ),
    "vector-weight": _dims(1, "weight"),
    "vector-mask": _dims(1, "x", "mask"),
    "within-limits": _driving_takes,
    "very-negative-fill": lambda o: all(n <= _VERY_NEGATIVE for n in _numbers(o, "value")),
    "weight-given": lambda o: o.get("weight", _NONE) is not None,
    "zero-one-mask": _zero_one,
    "whole-pieces": lambda o: all(
        n >= 0 for name, n in o.items() if name.startswith("left") and isinstance(n, int)
    ),
}
