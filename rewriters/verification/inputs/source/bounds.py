"""Numbers that are at most as large as others: ``rotary_dim`` of ``x[..., :rotary_dim]``.

A text says ``rotary_dim is even and at most D``, code ``assert n <= x.shape[-1]``. Where code takes
``x[..., :n]`` and ``x[..., n:]`` apart, n is within the axis: Python cuts a larger one down without
a word, but what is left over is nothing, and no caller means that. Nor does one that advances by a
hop of 0, or gives milestones in no order where a text says that they rise.
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.inputs.source.guards import list_guards, list_refused
from npufix.rewriters.verification.inputs.source.usage import find_last_line, list_arguments

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from npufix.rewriters.verification.calls.values import Spec
    from npufix.rewriters.verification.inputs.source.shapes import Shape
    from npufix.rewriters.verification.inputs.source.usage import Function

_AT_MOST = re.compile(
    r"(?i)(?:\b(?:at most|no (?:more|larger|greater|longer|wider) than|up to|below|within"
    r"|(?<!no )(?<!not )(?:smaller|less|fewer|shorter) than(?: or equal to)?"
    r"|not (?:exceed(?:ing)?|(?:more|larger|greater|longer) than))\b|<=?|\u2264)[\s`]*(\w+)"
)
_AT_LEAST = re.compile(
    r"(?i)(?:\b(?:at least|no (?:less|smaller|shorter) than"
    r"|(?<!no )(?<!not )(?:larger|greater|more|longer) than(?: or equal to)?)\b"
    r"|>=?|\u2265)[\s`]*(\w+)"
)
_STRICT = re.compile(r"(?i)below|(?:\w+ than|[<>])(?!=| or equal)")
"""What does not let a number be as large as its bound, of what is matched at its beginning."""
_MORE_THAN = re.compile(
    r"(?m)(?:^|[;,.(])\s*`*(\w+)`* *(>=?) *(\d+)`*(?= *(?:[;,)]|\.?\s*$|\.\s|and\b))"
)
"""``x: (B, T), T > 1``, but not ``if T > 1``, which says that others are, too."""
_CLAUSES = re.compile(r"[;.]\s+|\n[ \t]*\n|\n(?=[ \t]*[\w`]+ *[:(])")
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_BRACKETS = re.compile(r"\([^()]*\)|\[[^\[\]]*\]")
_ADVANCES = re.compile(
    r"(^|_)(hop|stride|dilation)(_?(size|len(gth)?))?$"
    r"|(^|_)(chunk|block|patch|window|tile|bucket)_?(size|len(gth)?)$"
)
"""What code moves on by, or cuts into parts of."""
_UPPER = {"low": "high", "lower": "upper", "lo": "hi", "min": "max", "minimum": "maximum"}
"""What names of numbers say that they are no more than: ``low_threshold``, ``high_threshold``."""
_LEAST = "1"
_TESTED = frozenset({"0", "1", "-1"})
"""What stands for no parts at all, where code asks for it."""


class Bound(NamedTuple):
    """A number and what it is at most: another one, or the size of an axis of an argument.

    ``Bound("1", "hop")`` is a hop of at least 1; with twice the same name, each number of a list is
    at most the next one.
    """

    small: str
    large: str
    axis: int | None = None
    below: bool = False
    """Whether it is less, and not as large: ``rank < world``."""


class _Axis(NamedTuple):
    name: str
    at: int


def find_fixed(function: Function) -> dict[str, int]:
    """Return the sizes that code raises without: 2 of ``if mixtures != 2: raise``."""
    found: dict[str, int] = {}
    for _, part, raises in list_guards(function):
        match part:
            case ast.Compare(ast.Name(size), [op], [ast.Constant(int(number))]) if (
                isinstance(op, ast.NotEq if raises else ast.Eq) and type(number) is int
            ):
                found[size] = number
    return found


def list_tied(function: Function, names: Collection[str]) -> Iterator[tuple[str, Shape]]:
    """Yield the shapes that code raises without, and of whose sizes they are.

    ``("n", "3")`` for ``if y.shape != (n, 3): raise``, and ``("n", "...")`` of what ``n`` is the
    length of: ``n = x.shape[0]``.
    """
    shaped = {
        name: axes
        for name, line, axes, _ in list_refused(function)
        if axes and name in names and line <= find_last_line(function, name)
    }
    sizes = {axis for axes in shaped.values() for axis in axes}
    if not all(axis.isidentifier() or axis.isdecimal() for axis in sizes):
        return
    yield from shaped.items()
    for node in walk(function):
        match node:
            case ast.Assign(
                [ast.Name(size)],
                ast.Subscript(ast.Attribute(ast.Name(name), "shape"), ast.Constant(0))
                | ast.Call(ast.Attribute(ast.Name(name), "size"), [ast.Constant(0)])
                | ast.Call(ast.Name("len"), [ast.Name(name)]),
            ) if size in sizes and name in names and name not in shaped:
                yield name, (size, "...")


def list_bounds(
    function: Function, shapes: Collection[Shape], rising: Collection[str] = ()
) -> list[Bound]:
    """Return what the text of a function says of its numbers, demands, and takes apart.

    ``shapes`` are those that are said of its arguments; the numbers of ``rising`` are in order.
    """
    arguments = {arg.arg for arg in list_arguments(function)}
    sizes = {name for shape in shapes for size in shape for name in re.findall(r"\w+", size)}
    axes = dict(_list_named_axes(function, arguments))
    said = _read_said(ast.get_docstring(function) or "", arguments | sizes)
    demanded = _list_demanded(function, axes, arguments)
    ordered = [Bound(name, name) for name in sorted(rising)]
    steps = [Bound(_LEAST, name) for name in sorted(arguments) if _is_step(name, function)]
    parted = [*_list_parted(function, arguments), *_list_paired(function, arguments)]
    return list(dict.fromkeys([*said, *demanded, *parted, *ordered, *steps]))


def choose_within(
    limits: Iterable[tuple[str, str]], chosen: Mapping[str, int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return sizes of which each number is at most its bound, and less where that is free.

    ``limits`` are pairs of a number and its bound; ``given`` are sizes that are not to be chosen.
    """
    sizes = dict(chosen)
    for small, large in limits:
        least, most = given.get(small, sizes.get(small)), sizes.get(large)
        if most is None or large in given or small == large or small.isdecimal():
            continue
        if least is None:
            sizes[small] = max(most // 2, 1)
        elif least > most and small in given:
            sizes[large] = 2 * least
        elif least > most:
            sizes[small], sizes[large] = most, least
    return sizes


def are_within(
    limits: Iterable[Bound], specs: Mapping[str, Spec], sizes: Mapping[str, int]
) -> bool:
    """Say whether numbers are at most what they may be, as far as their sizes are known."""
    for small, name, axis, below in limits:
        large = sizes.get(name)
        if small == name and not _rises(specs.get(name)):
            return False
        if small.isdecimal():
            number = getattr(specs.get(name), "value", sizes.get(name))
            if type(number) is int and number < int(small) + below:
                return False
        if axis is not None:
            shape = getattr(specs.get(name), "shape", ())
            large = shape[axis] if axis in range(-len(shape), len(shape)) else None
        if small in sizes and large is not None and sizes[small] > large - below:
            return False
        numbers = [getattr(specs.get(n), "value", None) for n in (small, name)]
        least, most = (n if isinstance(n, int | float) else None for n in numbers)
        if least is not None and most is not None and least > most:
            return False
    return True


def _rises(spec: Spec | None) -> bool:
    """Say whether plain numbers are in order; of tensors, that is how they are drawn."""
    items = getattr(spec, "items", None)
    values = (
        getattr(spec, "value", None) if items is None else [getattr(i, "value", 0) for i in items]
    )
    numbers = values if isinstance(values, tuple | list) else ()
    if not all(isinstance(number, int | float) for number in numbers):
        return True
    return all(one <= other for one, other in itertools.pairwise(numbers))


def _list_paired(function: Function, arguments: Collection[str]) -> Iterator[Bound]:
    """Yield numbers that by their names are a lower and an upper one, and that no code compares."""
    for small in sorted(arguments):
        words = small.split("_")
        large = "_".join(_UPPER.get(word, word) for word in words)
        both = {small, large}
        asked = (n for n in walk(function) if isinstance(n, ast.Compare))
        if (
            small != large
            and large in arguments
            and not any(
                both <= {ast.unparse(side) for side in (n.left, *n.comparators)} for n in asked
            )
        ):
            yield Bound(small, large)


def _is_step(name: str, function: Function) -> bool:
    """Say whether code moves on by a number, of which 0 means nothing of its own."""
    if not _ADVANCES.search(name.lower()):
        return False
    if re.search(rf"\b{name}\b[^.\n]*\b(0|zero|disable)", ast.get_docstring(function) or ""):
        return False
    tests = any(_name_of(one) == name for node in walk(function) for one in _list_asked(node))
    return not tests and not any(isinstance(node, ast.Try) for node in walk(function))


def _list_asked(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what code asks whether it is zero, or keeps from being so."""
    match node:
        case ast.If(test=one) | ast.IfExp(test=one) | ast.While(test=one):
            yield one
        case ast.BoolOp(values=several) | ast.Call(func=ast.Name(id="max"), args=several):
            yield from several
        case ast.UnaryOp(op=ast.Not(), operand=one):
            yield one
        case ast.Compare(left=left, comparators=[other]):
            sides = (left, other), (other, left)
            yield from (one for one, held in sides if ast.unparse(held) in _TESTED)


def _read_said(text: str, names: Collection[str]) -> list[Bound]:
    """Return what a docstring says of numbers and sizes of these names."""
    found: list[Bound] = []
    for name, sign, least in _MORE_THAN.findall(text):
        if name in names:
            found.append(Bound(least, name, below=sign == ">"))
    for clause in _CLAUSES.split(text):
        plain = _BRACKETS.sub(" ", clause)
        for pattern, is_upper in ((_AT_MOST, True), (_AT_LEAST, False)):
            for said in pattern.finditer(plain):
                before = [w for w in re.findall(r"\w+", plain[: said.start()]) if w in names]
                other = said.group(1)
                if before and other in names and other != before[-1]:
                    pair = (before[-1], other) if is_upper else (other, before[-1])
                    strict = _STRICT.match(said.group(0)) is not None
                    found.append(Bound(pair[0], pair[1], below=strict))
    return found


def _list_named_axes(function: Function, arguments: Collection[str]) -> Iterator[tuple[str, _Axis]]:
    """Yield what ``b, t, d = x.shape`` and ``d = x.size(-1)`` call the axes of arguments."""
    for node in walk(function):
        if not (isinstance(node, ast.Assign) and len(node.targets) == 1):
            continue
        target, value = node.targets[0], ast.unparse(node.value)
        if isinstance(target, ast.Tuple) and not any(
            isinstance(part, ast.Starred) for part in target.elts
        ):
            whole = next((a for a in arguments if value in {f"{a}.shape", f"{a}.size()"}), "")
            for at, part in enumerate(target.elts if whole else ()):
                yield ast.unparse(part), _Axis(whole, at)
        elif isinstance(target, ast.Name):
            axis = _read_axis(node.value, arguments)
            if axis is not None:
                yield target.id, axis


def _read_axis(node: ast.expr, arguments: Collection[str]) -> _Axis | None:
    """Return the axis that ``x.shape[-1]`` or ``x.size(-1)`` is the size of."""
    match node:
        case (
            ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=at)
            | ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size"), args=[at])
        ) if name in arguments:
            text = ast.unparse(at)
            return _Axis(name, int(text)) if re.fullmatch(r"-?\d+", text) else None
    return None


def _list_demanded(
    function: Function, axes: Mapping[str, _Axis], arguments: Collection[str]
) -> Iterator[Bound]:
    """Yield what ``assert n <= d`` and ``if n > d: raise`` demand."""
    for node in walk(function):
        if isinstance(node, ast.Assert):
            test, holds = node.test, True
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            test, holds = node.test, False
        else:
            continue
        for one in test.values if isinstance(test, ast.BoolOp) else [test]:
            if not isinstance(one, ast.Compare):
                continue
            sizes = [one.left, *one.comparators]
            for left, op, right in zip(sizes, one.ops, sizes[1:], strict=False):
                is_upper = isinstance(op, ast.Lt | ast.LtE) == holds
                small, large = (left, right) if is_upper else (right, left)
                name = _name_of(small)
                axis = _read_axis(large, arguments) or axes.get(_name_of(large))
                if not isinstance(op, _ORDERS) or not name or name in axes:
                    continue
                if axis is not None:
                    yield Bound(name, axis.name, axis.at)
                elif _name_of(large):
                    yield Bound(name, _name_of(large))


def _name_of(node: ast.expr | None) -> str:
    """Return the name of a number: an argument, or one that the object holds."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _list_parted(function: Function, arguments: Collection[str]) -> Iterator[Bound]:
    """Yield the numbers at which an axis is taken apart: ``x[..., :n]`` and ``x[..., n:]``."""
    first, rest = set[Bound](), dict[Bound, None]()
    for node in walk(function):
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        dots = next((n for n, p in enumerate(parts) if ast.unparse(p) == "..."), None)
        for at, part in enumerate(parts if node.value.id in arguments else ()):
            if not isinstance(part, ast.Slice) or part.step is not None:
                continue
            axis = at if dots is None or at < dots else at - len(parts)
            if _name_of(part.upper) and part.lower is None:
                first.add(Bound(_name_of(part.upper), node.value.id, axis))
            elif _name_of(part.lower) and part.upper is None:
                rest[Bound(_name_of(part.lower), node.value.id, axis)] = None
    yield from (bound for bound in rest if bound in first)
