"""Other tensors that say the same: a mask of whole numbers for one of bools, labels of int32.

Whether the code means a form is asked of the original: it returns the same for it. For
``(1 - mask) * -1e9`` that is so for 0 and 1 of any dtype, and not for the numbers of segments, of
which ``mask > 0`` makes the same as of ones. And numbers that code compares single elements with:
labels that are ignored, a sigma of 0 at the end.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.calls.values import Tensor, Value
from npufix.rewriters.verification.inputs.arguments import INTEGER_TENSOR, MASK
from npufix.rewriters.verification.inputs.cases.trials import Trials, with_specs
from npufix.rewriters.verification.inputs.source.training import losses
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Assignment, CallCase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.target import Target

_SEGMENTS = 4
_INDEXES = (torch.int32, torch.int16, torch.uint8)
_TWO = 2
_SIGNED = 41
"""Of both signs, of any remainder, and beyond every size by which something might be indexed."""
_RELATIVE = r"(^|_)rel(ative)?_(pos(ition)?|dist(ance)?|coord(inate)?)s?$"
_CAST = r"\.(long|int|to|type)\(|torch\.(int64|long)|any integer"


def list_forms(trials: Trials, assignment: Assignment, source: str) -> Iterator[Assignment]:
    """Yield the same arguments with one tensor in another form that the original takes as well.

    ``source`` is the text of the function: what it makes int64 of may be of any type.
    """
    for name, spec in assignment.specs.items():
        if not isinstance(spec, Tensor):
            continue
        if spec.kind in {"bool", "binary"} or (spec.kind == "int" and is_mask(name)):
            other = _masks(trials, assignment, name, spec)
            typed = spec.kind == "int" and _is_typed(name, source)
            yield from (a for a in other if not (typed and _is_narrow(a.specs[name])))
        elif spec.kind == "int" and spec.dtype is None:
            if _is_cast(name, source) and not _is_typed(name, source):
                yield from _integers(trials, assignment, name, spec)
            signed = with_specs(assignment, **{name: replace(spec, low=-_SIGNED, high=_SIGNED)})
            counts = re.search(INTEGER_TENSOR, name.lower()) and not _is_signed(name, source)
            if not counts and trials.accepts(signed):
                yield signed  # distances; what counts or names something is not below zero


def _is_signed(name: str, source: str) -> bool:
    """Say whether whole numbers are told to be below zero too: by their name, or in a text."""
    unless = r"(?:(?!\b(?:not?|non|never|cannot)\b)[^.\n])*"
    said = rf"\b{name}\b{unless}\b(either sign|both signs|signed|negative)\b"
    return bool(re.search(_RELATIVE, name.lower()) or re.search(said, source))


def _is_cast(name: str, source: str) -> bool:
    """Say whether a line makes other whole numbers of an argument."""
    lines = (line for line in source.splitlines() if re.search(rf"\b{name}\b", line))
    return any(re.search(_CAST, line) for line in lines)


def _is_typed(name: str, source: str) -> bool:
    """Say whether an argument is said to be of one type: ``ids (B, T) long``, ``ends: (B,) int32``.

    ``int`` may be any of them.
    """
    typed = r"\b(u?int(8|16|32|64)|long|short)\b"
    said = rf"\b{name}\b *(:? *\([^()]*\) *(of )?(torch\.)?{typed}|: *(torch\.)?LongTensor\b)"
    return re.search(said, source) is not None


def is_said_contiguous(job: Job) -> bool:
    """Say whether a docstring has contiguous arguments: ``cache (blocks, size) contiguous``."""
    function = find_function(parse_once(job.original), job.qualname)
    text = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else ""
    return re.search(r"(?i)(?<!non-)(?<!non)(?<!not )\bcontiguous\b", text or "") is not None


def is_mask(name: str) -> bool:
    """Say whether an argument selects, by its name."""
    return re.search(MASK, name.lower()) is not None


def _masks(trials: Trials, assignment: Assignment, name: str, spec: Tensor) -> Iterator[Assignment]:
    forms: dict[Tensor, Callable[[torch.Tensor], torch.Tensor]] = {
        replace(spec, kind="bool", high=_TWO, dtype=None): lambda flags: flags,
        replace(spec, kind="int", high=_TWO, dtype=None): lambda flags: flags.long(),
        replace(spec, kind="int", high=_TWO, dtype=torch.int32): lambda flags: flags.int(),
        replace(spec, kind="binary", high=_TWO, dtype=None): lambda flags: flags.float(),
        replace(spec, kind="int", high=_SEGMENTS, dtype=None): _number,
    }
    own = replace(spec, high=_TWO, dtype=None)
    known = _results(trials, assignment, name, forms[own])
    if known is None:
        return
    for form, make in forms.items():
        seen = None if form == own else _results(trials, assignment, name, make)
        if seen is not None and _same(known, seen, name):
            yield with_specs(assignment, **{name: form})


def _is_narrow(spec: object) -> bool:
    """Say whether whole numbers are of another type than int64."""
    return isinstance(spec, Tensor) and spec.dtype is not None


def with_flags(
    assignment: Assignment, names: Collection[str], trials: Trials
) -> Iterator[Assignment]:
    """Yield a call that has masks among the arguments, and one with numbers of theirs.

    What counts the flags of a row counts that far if all of them are set; ``mask.cumsum(-1)`` is no
    count any more beyond 256 where the mask has the dtype of the activations.
    """
    masks = sorted(filter(is_mask, names))
    if masks:
        yield assignment
    yield from filter(trials.accepts, with_ones(assignment, masks))


def with_ones(
    assignment: Assignment, names: Iterable[str], dtype: torch.dtype | None = None
) -> Iterator[Assignment]:
    """Yield a call with ones and zeros of floating point for one mask after the other."""
    for name in filter(is_mask, names):
        spec = assignment.specs[name]
        if isinstance(spec, Tensor) and spec.kind in {"bool", "int"}:
            yield with_specs(assignment, **{name: replace(spec, kind="binary", dtype=dtype)})


def _number(flags: torch.Tensor) -> torch.Tensor:
    """Return 1, 2, 3, 1 ... where a flag is set."""
    numbers = torch.arange(flags.numel()).view(flags.shape) % (_SEGMENTS - 1) + 1
    return flags * numbers


def _results(
    trials: Trials, assignment: Assignment, name: str, make: Callable[[torch.Tensor], torch.Tensor]
) -> Mapping[str, object] | None:
    """Return what the original makes of a mask that is some flags in one form."""

    def change(arguments: Mapping[str, object]) -> Mapping[str, object]:
        given = arguments[name]
        assert isinstance(given, torch.Tensor)  # noqa: S101 - its spec says so
        return {**arguments, name: make(given > 0)}

    return trials.run(CallCase(assignment), change, gradients=True)


def _integers(
    trials: Trials, assignment: Assignment, name: str, spec: Tensor
) -> Iterator[Assignment]:
    known = trials.run(CallCase(assignment), gradients=True)
    for dtype in _INDEXES if known is not None else ():
        other = with_specs(assignment, **{name: replace(spec, dtype=dtype)})
        seen = trials.run(CallCase(other), gradients=True)
        if seen is not None and _same(known or {}, seen, name):
            yield other


def _same(left: Mapping[str, object], right: Mapping[str, object], changed: str) -> bool:
    """Say whether two calls did the same but for what they say of the argument that differs."""
    own = {f"{changed} after the call", f"gradient of {changed}"}
    both = left.keys() & right.keys()
    other = (left.keys() ^ right.keys()) - own
    return not other and all(_equal(left[n], right[n]) for n in both - own)


def _equal(left: object, right: object) -> bool:
    """Say whether two values are the same numbers, of whatever dtype."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right) and left == right
    if left.shape != right.shape:
        return False
    if left.is_complex() or right.is_complex():
        return torch.allclose(left, right, equal_nan=True) if left.dtype == right.dtype else False
    return torch.allclose(left.double().cpu(), right.double().cpu(), equal_nan=True)


def list_with_voids(
    assignments: Sequence[Assignment], target: Target, job: Job
) -> Iterator[CallCase]:
    """Yield labels of which some are the one that is ignored, and all of them.

    And floats of which the last is what elements are compared with: ``if sigmas[i + 1] == 0:``.
    """
    trees = [parse_once(text) for text in (job.original, job.patched)]
    functions = [f for f in (find_function(t, job.qualname) for t in trees) if f is not None]
    words = (getattr(n, "attr", getattr(n, "id", "")) for n in walk(*functions))
    known = target.constants()
    constants = {word: known[word] for word in set(words) & known.keys()}
    for one in assignments:
        own = target.make_object(one.recipe) if one.recipe is not None else None
        plain = {n: s.value for n, s in one.specs.items() if isinstance(s, Value)}
        settings = {**constants, **getattr(own, "__dict__", {}), **plain}
        said = {v for n, v in settings.items() if type(v) is int and losses.is_ignored(n)}
        for name, spec in one.specs.items():
            if not isinstance(spec, Tensor) or is_mask(name):
                continue
            if spec.kind in {"float", "unit"} and spec.shape:
                for number in sorted({n for f in functions for n in _find_compared(f, name)}):
                    yield CallCase(with_specs(one, **{name: replace(spec, void=number)}))
            if spec.kind != "int":
                continue
            voids = {n for f in functions for n in losses.find_void_numbers(f, name)}
            if re.search(INTEGER_TENSOR, name.lower()):
                voids |= said
            for void in sorted(voids):
                other = with_specs(one, **{name: replace(spec, void=void)})
                yield CallCase(other)
                yield CallCase(other, "highest")


def _find_compared(function: ast.AST, name: str) -> Iterator[int]:
    """Yield the whole numbers that single elements of an argument are compared with."""
    for node in walk(function):
        match node:
            case ast.Compare(
                left=ast.Subscript(value=ast.Name(id=known), slice=at),
                comparators=[ast.Constant(value=int(number))],
            ) if known == name and not isinstance(at, ast.Slice | ast.Tuple):
                yield number
