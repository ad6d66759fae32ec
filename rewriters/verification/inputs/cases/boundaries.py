"""Calls in which both sides of a changed comparison are equal: ``self.length + t > self.max_len``.

Whether a test says ``>`` or ``>=`` shows there alone, and chance makes nothing as long as that.
"""

from __future__ import annotations

import ast
import itertools
import re
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import last_name, parse_once, walk
from npufix.rewriters.verification.calls.coverage import watching
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import Several, Value
from npufix.rewriters.verification.inputs.cases.axes import Axis, list_places, set_sizes
from npufix.rewriters.verification.inputs.cases.trials import Trials, with_specs
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import CodeType, FrameType

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.target import Target

_PURE = (
    ast.Attribute,
    ast.BinOp,
    ast.Call,
    ast.Constant,
    ast.Name,
    ast.Subscript,
    ast.UnaryOp,
)
_CALLED = re.compile(
    r"(dim|float|int|len|max|min|numel|size|abs|amax|amin|detach|diff|div|exp|item|log|mean|mul|neg"
    r"|norm|pow|prod|reshape|sigmoid|softmax|sqrt|square|squeeze|sub|sum|tanh|unsqueeze|view)$"
)
"""What only tells a number, or numbers."""
_SPELLED = {
    **dict.fromkeys(("gt", "greater"), ast.Gt),
    **dict.fromkeys(("ge", "greater_equal"), ast.GtE),
    **dict.fromkeys(("lt", "less"), ast.Lt),
    **dict.fromkeys(("le", "less_equal"), ast.LtE),
}
"""What compares as an operator does."""
_ORDERS = (ast.Eq, ast.Gt, ast.GtE, ast.Lt, ast.LtE, ast.NotEq)
_ORDERED = re.compile(r"\b(topk|sort|argsort|argmax|argmin|max|min|median|kthvalue|unique)\w*\(")
"""Which of two equal numbers is the first is for nobody to say."""
_NO_TENSOR = re.compile(
    r"^(-?\d[\d.e]*|None|True|False|['\"].*)$"
    r"|\.(shape|ndim|dim|size|dtype|device|numel)\b|\b(len|type)\("
)
_MOST = 3
"""Comparisons, and calls of each."""
_SMALL = range(1, 10)
"""What two numbers are tried as, where both stand in a comparison."""
_LARGEST = 1 << 12
_MOST_ELEMENTS = 64


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides, of which one may be as large as the other."""

    line: int
    """Where its statement begins."""
    left: CodeType
    right: CodeType


def meet_boundaries(
    trials: Trials, assignment: Assignment, axes: Sequence[Axis], job: Job
) -> Iterator[tuple[Assignment, bool]]:
    """Yield calls at which the sides of comparisons that the change leaves out are equal.

    Each with whether the original runs through it. ``axes``: those of the assignment. A size, a
    number, or what the object is made with becomes as much larger or smaller as one side is than
    the other.
    """
    for one in find_compared(job.original, job.patched, job.qualname, *changed_lines(job)):
        gaps, _ = _find_gaps(trials, assignment, one)
        met = 0
        for other in (o for g in sorted(gaps) for o in _change_by(g, assignment, axes, trials)):
            if met >= _MOST:
                break
            found, ran = _find_gaps(trials, other, one)
            if 0 in found:
                met += 1
                yield other, ran
        for other in _set_pairs(trials, assignment, one):
            found, ran = _find_gaps(trials, other, one)
            if 0 in found:
                yield other, ran


@runs_with_target
def list_refused_at_boundaries(
    target: Target, assignments: Sequence[Assignment], job: Job
) -> list[Assignment]:
    """Return the calls of that kind that the original refuses: ``if n >= self.most: raise``."""
    found: list[Assignment] = []
    for one in assignments:
        places = list_places(one.specs)
        alike = {n: frozenset(p for p, own in places.items() if own == n) for n in places.values()}
        axes = [Axis(every, size) for size, every in alike.items()]
        found += [a for a, ran in meet_boundaries(Trials(target), one, axes, job) if not ran]
    return found


def changed_lines(job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lines that differ, of both versions."""
    return tuple(job.lines_original), tuple(job.lines_patched)


@lru_cache(maxsize=4)  # asked for each object and each way to call it
def find_compared(
    original: str,
    patched: str,
    qualname: str,
    lines: tuple[int, ...],
    lines_patched: tuple[int, ...],
) -> tuple[Comparison, ...]:
    """Return the comparisons of numbers on these lines that the other version does not have.

    After them those that one version alone joins with others: where ``h * w == n and h != w``
    becomes ``h * w == n``, the first must hold for the second to tell. Those of the patched code
    are read where the original has changed first: ``n >= most - 1``.
    """
    before, after = (find_function(parse_once(text), qualname) for text in (original, patched))
    own, other = _list_comparisons(before, lines), _list_comparisons(after, lines_patched)
    place = min((line for line, _ in _list_statements(before, lines)), default=0)
    every = [*own, *((place, n, joined) for _, n, joined in other if place)]
    texts = {ast.dump(n) for _, n, _ in own} & {ast.dump(n) for _, n, _ in other}
    joins = {ast.dump(j) for _, _, j in own} & {ast.dump(j) for _, _, j in other}
    new = [(line, n) for line, n, joined in every if ast.dump(joined) not in joins]
    found: dict[str, Comparison] = {}
    for line, node in sorted(new, key=lambda one: ast.dump(one[1]) in texts):
        sides = node.left, node.comparators[0]
        if all(map(_is_pure, sides)):
            left, right = (compile(ast.Expression(s), "<a side>", "eval") for s in sides)
            found.setdefault(ast.dump(node), Comparison(line, left, right))
    return tuple(found.values())[:_MOST]


def _list_statements(
    function: ast.AST | None, lines: Sequence[int]
) -> list[tuple[int, list[ast.expr]]]:
    """Return where the statements on these lines begin, and what they consist of."""
    found = []
    for node in walk(function) if function is not None else ():
        own = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
        end = max((n.end_lineno or 0 for n in own), default=0)
        if isinstance(node, ast.stmt) and set(lines) & set(range(node.lineno, end + 1)):
            found.append((node.lineno, own))
    return found


def _list_comparisons(
    function: ast.AST | None, lines: Sequence[int]
) -> list[tuple[int, ast.Compare, ast.AST]]:
    """Return the comparisons by order on these lines.

    Each with where its statement begins, and with what it is joined to: an ``and``, or itself.
    """
    found: list[tuple[int, ast.Compare, ast.AST]] = []
    for line, own in _list_statements(function, lines):
        nodes = [*walk(*own)]
        joined = {id(n): j for j in nodes if isinstance(j, ast.BoolOp) for n in j.values}
        for node in nodes:
            one = _as_comparison(node)
            if isinstance(one, ast.Compare) and isinstance(one.ops[0], _ORDERS):
                found.append((line, one, joined.get(id(node), one)))
    return found


def _as_comparison(node: ast.AST) -> ast.AST:
    """Return what ``max(a, b)`` compares, which is another number on either side of a limit.

    And ``a.gt(b)``, which is ``a > b``.
    """
    if not isinstance(node, ast.Call):
        return node
    name = ast.unparse(node.func)
    order = {"max": ast.GtE, "min": ast.LtE}.get(name) or _SPELLED.get(last_name(node.func))
    sides = list(node.args)
    if isinstance(node.func, ast.Attribute) and not name.startswith("torch."):
        sides.insert(0, node.func.value)
    if order is None or len(sides) != 2:  # noqa: PLR2004 - sides
        return node
    left, right = sides
    compared = ast.Compare(left, [order()], [right])
    return ast.fix_missing_locations(ast.copy_location(compared, node))


def holds_equal(job: Job) -> bool:
    """Say whether tensors are held against each other, and nothing is ordered: ``draft == target``.

    Numbers that are drawn are never equal, unless they are few.
    """
    function = find_function(parse_once(job.original), job.qualname)
    if function is None or _ORDERED.search(ast.unparse(function)):
        return False
    return any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Eq | ast.NotEq)
        and not any(_NO_TENSOR.search(ast.unparse(n)) for n in (node.left, *node.comparators))
        for node in walk(function)
    )


def _is_pure(side: ast.expr) -> bool:
    """Say whether reading this once more changes nothing: ``self.length + x.shape[1]``."""
    called = {id(n.func) for n in walk(side) if isinstance(n, ast.Call)}
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in walk(side) if id(n) in called]
    return all(map(_CALLED.match, names)) and all(isinstance(n, _PURE) for n in walk(side))


@contextmanager
def _watch(
    filename: str, one: Comparison, names: Sequence[str] = ()
) -> Iterator[tuple[list[float], list[tuple[int, int]]]]:
    """Collect how much the right side is larger, each time that the comparison is come to.

    And with which small numbers in place of two ``names`` it would be as large.
    """
    seen: list[float] = []
    equal: list[tuple[int, int]] = []

    def look(frame: FrameType) -> None:
        seen.extend(_list_gaps(*read_sides(one, frame)))
        for pair in itertools.product(_SMALL, _SMALL) if names and not equal else ():
            others = dict(zip(names, pair, strict=True))
            if 0 in _list_gaps(*read_sides(one, frame, others)):
                equal.append(pair)

    with watching(filename, one.line, look):
        yield seen, equal


def _has_fractions(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool


def _list_gaps(left: object, right: object) -> list[float]:
    """Return how much larger the right side is: a number, or whole ones held against a number.

    Each of the latter, for ``count > self.threshold`` where ``count`` is of every row.
    """
    plain = [type(side) in {int, float} for side in (left, right)]
    whole = [s for s in (left, right) if isinstance(s, torch.Tensor)]
    if plain.count(True) + len(whole[:1]) < 2 or any(map(_has_fractions, whole)):  # noqa: PLR2004 - sides
        return []
    if not whole:
        return [right - left]  # type: ignore[operator] # numbers
    gaps: torch.Tensor = right - left  # type: ignore[operator] # one of them is a tensor
    numbers: list[float] = gaps.flatten()[:_MOST_ELEMENTS].tolist()
    return sorted(set(numbers))[:_MOST]


def read_sides(
    one: Comparison, frame: FrameType, others: Mapping[str, int] | None = None
) -> list[object]:
    """Return what the sides are in a frame of the user's, where names may stand for ``others``."""
    scope = {**frame.f_locals, **(others or {})}
    read = (partial(eval, code, frame.f_globals, scope) for code in (one.left, one.right))
    return [try_call(side, CALL_S).value for side in read]


def _find_gaps(trials: Trials, assignment: Assignment, one: Comparison) -> tuple[set[float], bool]:
    """Return how much the right side is larger in a call of the original, and whether that runs."""
    with _watch(trials.target.loaded.filename, one) as (seen, _):
        ran = trials.run(CallCase(assignment)) is not None
    return set(seen[:_MOST]), ran


def _change_by(
    gap: float, assignment: Assignment, axes: Iterable[Axis], trials: Trials
) -> Iterator[Assignment]:
    """Yield the same call with one size or one number that is larger, or smaller, by so much."""
    specs, recipe = assignment.specs, assignment.recipe
    known = {place.name for axis in axes for place in axis.places}
    given = {n: s.value for n, s in specs.items() if isinstance(s, Value) and s.given}
    numbers = {n: v for n, v in given.items() if n not in known}
    made = {} if recipe is None else trials.target.settings_of(recipe)
    for step in (gap, -gap) if gap else ():
        if type(gap) is int:
            for axis in axes:
                new = axis.size + int(step)
                if 0 < new <= _LARGEST:
                    yield Assignment(recipe, set_sizes(specs, axis.places, new, old=axis.size))
        for name, value in numbers.items():
            if type(value) is type(gap):
                yield with_specs(assignment, **{name: Value(value + step)})
        yield from _change_items(assignment, step)
        for name, value in made.items():
            if recipe is not None and type(value) is type(gap):
                yield Assignment(recipe.made_with(**{name: Value(value + step)}), specs)


def _set_pairs(trials: Trials, assignment: Assignment, one: Comparison) -> Iterator[Assignment]:
    """Yield the same call with two numbers with which the sides are equal.

    ``side * side == height * width`` holds of 3 and 3, as ``(side, side) == (height, width)`` does,
    and of 1 and 9. Neither is come to where one number changes.
    """
    read = {*one.left.co_names, *one.right.co_names}
    given = {n: s.value for n, s in assignment.specs.items() if isinstance(s, Value)}
    names = [n for n, value in given.items() if type(value) is int and n in read][:2]
    if len(names) < 2:  # noqa: PLR2004 - a pair
        return
    with _watch(trials.target.loaded.filename, one, names) as (_, equal):
        trials.run(CallCase(assignment))
    few = [*equal[:1], *equal[-1:], *equal[len(equal) // 2 :][:1]]
    for pair in dict.fromkeys(few):
        yield with_specs(assignment, **dict(zip(names, map(Value, pair), strict=True)))


def _change_items(assignment: Assignment, step: float) -> Iterator[Assignment]:
    """Yield the same call with another number in a list or a dictionary."""
    held = {n: s for n, s in assignment.specs.items() if isinstance(s, Several)}
    for name, spec in held.items():
        for at, item in enumerate(spec.items):
            number = item.value if isinstance(item, Value) else None
            if isinstance(number, int | float) and type(number) is type(step):
                items = (*spec.items[:at], Value(number + step), *spec.items[at + 1 :])
                yield with_specs(assignment, **{name: replace(spec, items=items)})
