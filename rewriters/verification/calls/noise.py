"""The same computation with other roundings: how far off a result may be and still be right.

Every operator, forward and backward, gives a result that is off by up to a unit in the last place;
a sum or a product of matrices is taken over operands that are off by as much. So a sum that
cancels is uncertain by the size of what was summed, and a softmax over a single key has a gradient
that is rounding alone, though the code as it is written makes exact zeros of both.

What is merely moved, selected or compared is not touched, neither is a sum that is exact, of whole
numbers say: nothing that rounds would make it another, unless it is a part of a longer sum, which
other orders round. Nor are the halves that a softmax makes of two equal scores. Numbers as large as
masks fill with stay as well.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npufix.rewriters.verification.calls.values import seed_generator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = range(5)
"""An element that is off by luck alone in all of them is rare: one in many thousands."""
_FILL = 5e3
"""Masks fill with -1e4 and beyond; that rounding lets them swallow a score is meant."""
_SUMS = frozenset({"add", "sub", "rsub"})
_EXACTLY_ROUNDED = _SUMS | {"mul", "div"}
_MOVES = frozenset({
    "_to_copy", "_unsafe_view", "abs", "amax", "amin", "argmax", "argmin", "aminmax",
    "bernoulli", "bernoulli_", "cat", "ceil", "clamp", "clamp_", "clamp_max", "clamp_min",
    "clone", "constant_pad_nd", "copy", "copy_", "cummax", "cummin", "detach", "dropout",
    "embedding", "empty", "empty_like", "eye", "fill", "fill_", "flip", "floor", "frac",
    "full", "full_like", "gather", "index", "index_copy", "index_fill", "index_put",
    "index_put_", "index_select", "kthvalue", "lift_fresh", "linspace", "masked_fill",
    "masked_fill_", "masked_scatter", "masked_select", "max", "maximum", "median", "min",
    "minimum", "native_dropout", "neg", "nan_to_num", "new_empty", "new_full", "new_ones",
    "new_zeros", "normal", "normal_", "ones", "ones_like", "polar", "rand", "rand_like",
    "randn", "randn_like", "relu", "relu_", "repeat", "roll", "round", "scalar_tensor",
    "scatter", "select_scatter", "sgn", "sign", "slice_scatter", "sort", "stack",
    "threshold_backward", "topk", "tril", "triu", "trunc", "uniform", "uniform_", "where",
    "zero", "zero_", "zeros", "zeros_like", "arange", "as_strided_scatter",
})  # fmt: skip
_INNER_PRECISION = torch.finfo(torch.float32).eps
"""Kernels sum numbers of a half dtype in float32."""
_BLOCK = 8.0
"""The root of the number of terms that kernels hold in as many sums."""
_SOFTMAX, _LOG_SOFTMAX = "_softmax", "_log_softmax"
_SOFTMAX_BACKWARD = "_softmax_backward_data"
_EXACT = 256.0
"""Whole numbers up to it are numbers of every dtype."""
_ROUNDS_ONCE = frozenset({"_softmax", "_log_softmax", "convert_element_type"})


class _Noise(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # same
        self._source = seed_generator("noise", seed)
        self._coarsest = 0.0
        """Of the dtypes that results have had."""
        self._summed: tuple[torch.Tensor, torch.Tensor] | None = None
        """The last result of a sum, and how far off its elements were made."""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        keywords = kwargs or {}
        name = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - how operators are told apart
        if func.is_view or (name in _MOVES and not _accumulates(func, args, keywords)):
            return func(*args, **keywords)
        plain = name.removesuffix("_")
        exact = cancelled = None
        written = func._schema.is_mutable  # noqa: SLF001 - same
        if plain in _EXACTLY_ROUNDED:
            exact = _in_float64(_out_of_place(func, plain), args, keywords)
            cancelled = _measure_operands(args) if plain in _SUMS else None
        elif not written and torch.Tag.pointwise not in func.tags and name not in _ROUNDS_ONCE:
            return self._reduce(name, func, args, keywords)
        elif name == _SOFTMAX:
            exact = _in_float64(func, args, keywords)
            if isinstance(exact, torch.Tensor):  # of a single score, the gradient is rounding alone
                exact = exact.masked_fill(exact == 1, math.nan)
        result = func(*args, **keywords)
        if name == _LOG_SOFTMAX:
            result = self._shift_logarithm(result, *args)
        return self._round(result, exact, cancelled, written=written)

    def _shift_logarithm(
        self, result: torch.Tensor, value: torch.Tensor, dim: int, *_: object
    ) -> torch.Tensor:
        """Return a log-softmax as ``x - x.logsumexp(dim)`` leaves it, which cancels in float32."""
        size = torch.where(value.abs() < _FILL, value.abs().double(), 0.0).nan_to_num(0.0, 0.0, 0.0)
        off = (size.amax(dim, keepdim=True) * self._draw(size.shape)) if size.numel() else size
        inner = min(_INNER_PRECISION, torch.finfo(result.dtype).eps)
        return (result.double() + off * inner).to(result.dtype)

    def _reduce(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> object:
        """Return a sum over operands that are off by the precision in which it is taken."""
        result = func(*args, **keywords)
        if all(map(_is_whole, _list_leaves((args, result)))):
            return result  # in any order: how many there are is not one less, for ``int(n.sum())``
        # A gradient may be summed in parts, each of them rounded: over heads, then over rows.
        backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001 - no other way to ask
        tensors = [t for t in _list_leaves(args) if isinstance(t, torch.Tensor)]
        kinds = (t.dtype for t in tensors)
        coarse = max((torch.finfo(k).eps for k in kinds if k.is_floating_point), default=0.0)
        inner = _INNER_PRECISION if coarse == 0.0 else min(_INNER_PRECISION, coarse)  # of float64
        eps = max(inner, coarse if backward else 0.0)
        found = _in_float64(func, args, keywords, partial(self._shaken, eps))
        plain = _in_float64(func, args, keywords)
        most = max((t.numel() for t in tensors), default=0)
        several = [list(r) if isinstance(r, tuple | list) else [r] for r in (result, found, plain)]
        if len({len(s) for s in several}) == 1:
            moved = [
                _move(r, f, p, most) if _fit(r, f) and _fit(r, p) else r
                for r, f, p in zip(*several, strict=True)
            ]
            result = (
                type(result)(moved)
                if type(result) in {tuple, list}
                else moved[0]
                if isinstance(result, torch.Tensor)
                else result
            )
        if name == _SOFTMAX_BACKWARD and isinstance(result, torch.Tensor):
            result = self._shift_rows(result, *args)
        rounded = self._round(result, None, written=False)
        if isinstance(rounded, torch.Tensor) and _fit(rounded, found) and _fit(rounded, plain):
            self._summed = rounded, (found.double() - plain.double()).abs()  # type: ignore[attr-defined] # tensors, as they fit
        return rounded

    def _shift_rows(
        self, result: torch.Tensor, grad: torch.Tensor, output: torch.Tensor, dim: int, *_: object
    ) -> torch.Tensor:
        """Return the gradient of a softmax with the sum of each row taken as attention kernels do.

        From what the row makes of the values, as it was rounded when it was written: the gradients
        of a row do not cancel where those of the code as it is written do.
        """
        most = (grad.double() * output.double()).abs().sum(dim, keepdim=True)
        own = min(_INNER_PRECISION, torch.finfo(grad.dtype).eps)
        least = (self._find_doubt(grad) * output.double()).sum(dim, keepdim=True)
        most = (most * max(own, self._coarsest)).maximum(least.nan_to_num(0.0, 0.0, 0.0))
        off = output.double() * most * self._draw(most.shape)
        return (result.double() + off.nan_to_num(0.0, 0.0, 0.0)).to(result.dtype)

    def _find_doubt(self, grad: torch.Tensor) -> torch.Tensor:
        """Return how far off a gradient is that is a sum: by what was summed, not what is left."""
        if self._summed is not None:
            summed, off = self._summed
            same = summed.data_ptr() == grad.data_ptr() and summed.numel() == grad.numel()
            if same and grad.is_contiguous():
                return off.reshape(grad.shape)
        return torch.zeros((), dtype=torch.float64)

    def _shaken(self, eps: float, value: torch.Tensor) -> torch.Tensor:
        size = torch.where(value.abs() < _FILL, value.abs() * eps, 0.0)
        return value + size * self._draw(value.shape)

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        return torch.rand(shape, generator=self._source, dtype=torch.float64) * 2 - 1

    def _round(
        self,
        result: object,
        exact: object,
        cancelled: torch.Tensor | None = None,
        *,
        written: bool,
    ) -> object:
        if isinstance(result, tuple | list) and type(result) in {tuple, list}:
            return type(result)(self._round(item, None, written=written) for item in result)
        if not isinstance(result, torch.Tensor) or not _is_real(result):
            return result
        value = result.double()
        kind = torch.finfo(result.dtype)
        self._coarsest = max(self._coarsest, kind.eps)
        size = torch.maximum(value.abs() * kind.eps, torch.tensor(kind.smallest_normal * kind.eps))
        touched = (value != 0) & (value.abs() < _FILL)
        if isinstance(exact, torch.Tensor) and exact.shape == value.shape:
            touched &= exact != value
            if cancelled is not None and cancelled.shape == value.shape:
                alone = (exact == value) & (cancelled > 0) & (cancelled < _FILL)
                size = torch.where(alone, cancelled * kind.eps, size)
                touched |= alone
        other = (value + torch.where(touched, size * self._draw(value.shape), 0.0)).to(result.dtype)
        if not written:
            return other
        result.copy_(other)
        return result


def _measure_operands(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return how large the operands of a sum are, 0 where they are whole numbers or short ones.

    ``(a + b) + c`` is exact where ``a + b`` is and ``c`` cancels it; ``a + (b + c)`` need not be.
    """
    operands = [a for a in args[:2] if isinstance(a, torch.Tensor) and a.dtype == torch.float32]
    if len(operands) < 2:  # noqa: PLR2004 - a sum has two
        return None
    long = [torch.where((a != a.bfloat16()) & (a != a.trunc()), a.abs(), 0.0) for a in operands]
    return torch.maximum(long[0], long[1]).double()


def _accumulates(func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:  # noqa: ANN401 - an operator
    """Say whether an operator that mostly moves adds up here."""
    name = str(func)
    return "index_put" in name and bool(args[3] if len(args) > 3 else keywords.get("accumulate"))  # noqa: PLR2004 - its position


def _list_leaves(value: object) -> list[object]:
    """Return what stands in lists and tuples, as operators take and return nothing else."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _list_leaves(item)]
    return [value]


def _is_whole(value: object) -> bool:
    """Say whether this is no tensor of floats, or one of whole numbers whose sums are exact."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return not (isinstance(value, torch.Tensor) and value.is_complex())
    return bool(((value == value.round()) & (value.abs() < _EXACT)).all())


def _is_real(value: torch.Tensor) -> bool:
    strided = value.layout is torch.strided and value.is_cpu
    return strided and value.is_floating_point() and bool(value.numel())


def _fit(result: object, other: object) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and _is_real(result)
        and result.shape == other.shape
    )


def _move(
    result: torch.Tensor, shaken: torch.Tensor, plain: torch.Tensor, most: int
) -> torch.Tensor:
    off = (shaken.double() - plain.double()).nan_to_num(0.0, 0.0, 0.0)
    # Added one by one, n terms are off by the rounding of n sums, not by the root of that.
    terms = most / result.numel()
    return (result.double() + off * max(1.0, math.sqrt(terms) / _BLOCK)).to(result.dtype)


def _out_of_place(func: Any, plain: str) -> Any:  # noqa: ANN401 - an operator
    if not func._schema.is_mutable:  # noqa: SLF001 - same
        return func
    packet = getattr(torch.ops.aten, plain, None)
    overload = func._overloadname  # noqa: SLF001 - same
    return getattr(packet, overload, func) if "out" not in overload else None


def _in_float64(
    func: Callable[..., Any] | None,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    change: Callable[[torch.Tensor], torch.Tensor] = lambda value: value,
) -> object:
    """Return what an operator makes of its operands in float64; None if it cannot."""

    def wide(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return change(value.double()) if _is_real(value) else value
        if isinstance(value, torch.dtype):
            return torch.float64 if value.is_floating_point else value
        if isinstance(value, list | tuple):
            return type(value)(map(wide, value))
        return value

    if func is None:
        return None
    try:
        return func(*map(wide, args), **{key: wide(value) for key, value in keywords.items()})
    except (RuntimeError, TypeError, NotImplementedError):
        return None


@contextmanager
def round_otherwise(seed: int) -> Iterator[None]:
    """Run the block with roundings drawn by ``seed``."""
    with _Noise(seed):
        yield
