"""What is promised of arguments: in each row of a mask a key, axes as long as a product.

``mask (B, T): True where a token stands, at least one in each row``: a row without any is a call
that no caller makes, and what attention makes of it is nobody's concern.
``assert L == H * W`` over ``x (B, L, C)``: a call without that is none, either, nor is one that
cannot be cut as ``h = w = int(x.shape[1] ** 0.5)`` above ``x.reshape(x.shape[0], h, w, p, p, c)``
cuts it: ``x (n, side * side, p * p * c)``.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names, walk
from npufix.rewriters.verification.calls.values import Promise
from npufix.rewriters.verification.inputs.source.shapes import ANY
from npufix.rewriters.verification.inputs.source.usage import (
    find_last_line,
    is_shape,
    list_arguments,
    read_axis,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.source.shapes import Shape
    from npufix.rewriters.verification.inputs.source.usage import Function

_MASK = r"mask|keep|valid$|is_pad|padding"
_FIRST = r"\b(the )?first( \w+){0,4} (always|never)\b|\balways\b[^.;]{0,30}\bfirst\b"
_SOME = (
    r"\bat least one\b|\b(never|not) (all|fully|completely|entirely)\b|\bnever empty\b"
    r"|\bno (row|query|sample|sequence|image|batch)\b[^.;]{0,20}\b(empty|all|fully|completely)\b"
    r"|\b(each|every) (row|query|sample|sequence)\b[^.;]{0,30}\b(sees|attends|keeps|has an?)\b"
)
_PROMISE = re.compile(rf"(?i)(?P<first>{_FIRST})|{_SOME}")
_HIDES = re.compile(
    r"(?i)\b(true|1|ones?|nonzero|set) *(where|for|means?|=|if|at|marks?)[^.;]*"
    r"\b(pad|ignor|hid|hides|masked|invalid|exclud|not (attend|allow|see))"
)
_RISING = re.compile(
    r"(?i)\b(?:sorted|rising|ascending|increasing|monotonic\w*)\b"
    r"(?!\s+(?:by|along|(?:in )?(?:a )?(?:desc|decreas|revers|falling)))"
)
_PERMUTED = re.compile(
    r"(?i)\b(?:permutations?\b(?!-?\s*(?:invarian|equivar|matri|test|to\b|is\b|are\b))|permuted\b)"
)
_OF_RESULT = re.compile(r"(?i)\b(?:returns?|gives?|gets?|not|to be|will be)\b|->")
"""What is sorted later, or by the code itself, is in any order before."""
_SORTS = r"(?<!search)sort|topk"
_SEARCHED = {
    "searchsorted": 0,
    "bucketize": 1,
    **dict.fromkeys(("bisect", "bisect_left", "bisect_right"), 0),
}
"""Which argument has to be in order."""
_FROM_ONE = re.compile(
    r"(?i)\b(?:in|from|between)\b *[\[(]?1 *(?:,|to|and|\.\.\.?) *(?P<most>\w+)\b"
    r"(?P<open> *- *1\b|\))?|\bnone (?:is|of them is) (?:0|zero|empty)\b"
    r"|\b(?:1 *<=|0 *<(?!=)) *(?P<name>\w+) *<(?:(?P<below>=)|(?!=)) *(?P<limit>\w+)"
)
"""What says that the least of the whole numbers is one."""
_SAID = re.compile(r"(?<![\w.])(\w+) ={1,2} ((?:\w+(?: ?\* ?\w+)+))(?![\w(]|\.\w)")
_VIEWS = frozenset({"view", "reshape"})
_CUTS = _VIEWS | {"unflatten"}
_UNKNOWN = "columns"
"""An axis that is cut into what is not known."""
_TURNS = frozenset({"transpose", "permute", "swapaxes", "contiguous"})
_ROOTS = frozenset({"sqrt", "isqrt"})


def find_rising(function: Function, text: str) -> set[str]:
    """Return the arguments whose numbers are in order, by a text or by what searches them.

    ``edges (K,), sorted``; ``torch.searchsorted(edges, x)``. No text counts where the code sorts:
    in ``x (N,): returned sorted`` it would hide that a change no longer does.
    """
    names = {a.arg for a in list_arguments(function)}
    calls = [n for n in walk(function) if isinstance(n, ast.Call)]
    sorts = any(re.search(_SORTS, last_name(call.func)) for call in calls)
    found: set[str] = set()
    for said in () if sorts else _RISING.finditer(text):
        clause = re.split(r"[.;\n]", text[: said.start()])[-1]
        # one milestone of several, "which are in rising order"
        words = (w if w in names else f"{w}s" for w in re.findall(r"\w+", clause))
        before = [word for word in words if word in names]
        found.update(before[-1:] if not _OF_RESULT.search(clause) else ())
    as_given = names - list_stored_names(function)  # not ``edges = sorted(edges)``
    for call in calls:
        at = _SEARCHED.get(last_name(call.func))
        if at is not None and not any(word.arg == "sorter" for word in call.keywords):
            found |= {a.id for a in call.args[at : at + 1] if isinstance(a, ast.Name)} & as_given
    return found


def list_told_apart(function: Function, shapes: Mapping[str, Sequence[Shape]]) -> Iterator[str]:
    """Yield N for ``q (B, N, D), k (B, N, D)`` above ``k.size(1) - q.size(1)``."""
    for (left, at), (right, beside) in _find_sizes_told_apart(function):
        for one, other in itertools.product(shapes[left], shapes[right]):
            inside = at in range(-len(one), len(one)) and beside in range(-len(other), len(other))
            if inside and ANY not in one + other and one[at] == other[beside]:
                yield one[at]


def read_from_one(text: str, names: Collection[str]) -> dict[str, str]:
    """Return the arguments whose whole numbers are at least 1, and what they are less than.

    ``lengths (B,) in [1, T]`` are less than ``T + 1``; of ``lengths (N,), none is 0`` nobody knows.
    Not so ``labels (N,), > 0 are foreground``, which tells some from others.
    """
    found: dict[str, str] = {}
    for said in _FROM_ONE.finditer(text):
        clause = re.split(r"[.;\n]", text[: said.start()])[-1]
        before = [w for w in (*re.findall(r"\w+", clause), said["name"]) if w in names]
        most, ends = (
            said["most"] or said["limit"],
            said["open"] or (said["limit"] and not said["below"]),
        )
        for name in before[-1:]:
            found.setdefault(name, "" if most is None else most if ends else f"{most} + 1")
    return found


def read_promises(text: str, names: Sequence[str]) -> dict[str, Promise]:
    """Return the masks of which a text says that no row of theirs hides everything, and how.

    And the whole numbers that are said to be a permutation.
    """
    masks = [name for name in names if re.search(_MASK, name.lower())]
    found: dict[str, Promise] = {}
    for promise in _PROMISE.finditer(text) if masks else ():
        before = text[: promise.start()].rpartition("\n\n")[2]
        mentioned = [m for m in re.finditer(r"\w+", before) if m.group(0) in names]
        name = mentioned[-1].group(0) if mentioned else masks[0] if len(masks) == 1 else ""
        if name in masks:
            about = text[text.index(name) if not mentioned else mentioned[-1].start() :]
            hides = _HIDES.search(about.partition("\n\n")[0]) is not None
            found[name] = Promise(value=not hides, first=promise["first"] is not None)
    for said in _PERMUTED.finditer(text):
        clause = re.split(r"[.;\n]", text[: said.start()])[-1]
        named = [word for word in re.findall(r"\w+", clause) if word in names]
        if not _OF_RESULT.search(clause):
            found |= dict.fromkeys(named[-1:], Promise(permutes=True))
    return found


def read_products(
    function: Function, docstring: str, shapes: Mapping[str, tuple[Shape, ...]]
) -> dict[str, tuple[Shape, ...]]:
    """Return the shapes of arguments, with the product in it where an axis must be one.

    ``shapes``: what is said of each argument. Where nothing is, the names are those of the code:
    ``b, n, c = x.shape`` above ``assert n == h * w`` says ``x (b, h * w, c)``.
    """
    equal = {**dict(_SAID.findall(docstring)), **dict(_list_demanded(function))}
    unpacked = {name: sizes for name in shapes for sizes in list_unpacked(function, name)}
    found: dict[str, tuple[Shape, ...]] = {}
    for name, said in shapes.items():
        code = unpacked.get(name, ())
        demanded = {at: equal[size] for at, size in enumerate(code) if size in equal}
        known = said or ((code,) if demanded else ())
        new = tuple(
            tuple(
                (demanded.get(at) if len(code) == len(shape) else None) or equal.get(size, size)
                for at, size in enumerate(shape)
            )
            for shape in known
        )
        found[name] = new
        cut = None if demanded else find_cut_shape(function, name)
        if cut is not None and not any(len(shape) > len(cut) for shape in known):
            # What a text calls T is a square for the code, which may not say what the rest is.
            told = next((shape for shape in known if len(shape) == len(cut)), cut)
            pairs = zip(cut, told, strict=True)
            found[name] = (tuple(said if own == _UNKNOWN else own for own, said in pairs),)
        found[name] = tuple(_tie(shape, function, name) for shape in found[name])
    return found


def _tie(shape: Shape, function: Function, name: str) -> Shape:
    """Return a shape with axes that are as long as others, or multiples, where the code demands it.

    ``imgs (N, C, H, W)`` above ``assert imgs.shape[2] == imgs.shape[3] and imgs.shape[2] % p == 0``
    is ``(N, C, H * p, H * p)``.
    """
    tied = list(shape)
    if "..." in tied:
        return shape
    for left, right, equal in _list_demands_on_axes(function, name):
        if left.at >= len(tied):
            continue
        if isinstance(right, _Axis) and equal and right.at < len(tied):
            before = tied[right.at]
            tied = [tied[left.at] if size == before else size for size in tied]
        elif isinstance(right, str) and not equal and tied[left.at].isidentifier():
            before = tied[left.at]
            tied = [f"{size} * {right}" if size == before else size for size in tied]
    return tuple(tied)


def _list_demands_on_axes(
    function: Function, name: str
) -> Iterator[tuple[_Axis, _Factor | None, bool]]:
    """Yield two axes and True if they are equally long, an axis and what it is a multiple of."""
    sizes = _Sizes(name, frozenset(arg.arg for arg in list_arguments(function)))
    last = find_last_line(function, name)
    for statement in function.body:
        if statement.lineno > last:
            return
        if isinstance(statement, ast.Assign):
            sizes.note(statement)
        test = statement.test if isinstance(statement, ast.Assert) else None
        for one in test.values if isinstance(test, ast.BoolOp) else [test]:
            match one:
                case ast.Compare(
                    left=ast.BinOp(left=size, op=ast.Mod(), right=part),
                    ops=[ast.Eq()],
                    comparators=[ast.Constant(value=0)],
                ):
                    left, right, equal = sizes.read(size), sizes.read(part), False
                case ast.Compare(left=size, ops=[ast.Eq()], comparators=[other]):
                    left, right, equal = sizes.read(size), sizes.read(other), True
                case _:
                    continue
            if isinstance(left, _Axis) and not left.is_side:
                yield left, right, equal


def _list_demanded(function: Function) -> Iterator[tuple[str, str]]:
    """Yield ``L`` and ``H * W``, without which the function raises."""
    kind: type[ast.cmpop]
    for node in walk(function):
        if isinstance(node, ast.Assert):
            test, kind = node.test, ast.Eq
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            test, kind = node.test, ast.NotEq
        else:
            continue
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
            continue
        for one, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
            if isinstance(test.ops[0], kind) and isinstance(one, ast.Name) and _is_product(other):
                yield one.id, ast.unparse(other)


def _is_product(node: ast.expr) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return False
    return all(isinstance(n, ast.Name) or _is_product(n) for n in (node.left, node.right))


def list_unpacked(function: Function, name: str) -> Iterator[Shape]:
    """Yield ``("b", "n", "c")`` for ``b, n, c = x.shape``, where ``x`` is the argument yet."""
    last = find_last_line(function, name, sized=True)
    for node in walk(function):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        parts = node.targets[0].elts
        if ast.unparse(node.value) in {f"{name}.shape", f"{name}.size()"} and node.lineno <= last:
            # each ``_`` is a size of its own
            sizes = [
                n.id if n.id != "_" else f"_{at}"
                for at, n in enumerate(parts)
                if isinstance(n, ast.Name)
            ]
            if len(sizes) == len(parts):
                yield tuple(sizes)


def find_unpacked_settings(function: Function) -> dict[str, list[str]]:
    """Return ``{"resolution": ["h", "w"]}`` for ``h, w = self.resolution``."""
    found: dict[str, list[str]] = {}
    for node in walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=parts)],
                value=ast.Attribute(value=ast.Name(id="self"), attr=name),
            ):
                found[name] = [ast.unparse(part) for part in parts]
    return found


def list_multiples(function: Function) -> list[tuple[str, str]]:
    """Return the sizes that the code cuts into parts: ``h`` and ``s`` of ``h // s``.

    Of ``x.view(b, h // s, s, w // s, s, c)``, and of ``assert h % s == 0``.
    """
    found: list[tuple[str, str]] = []
    for node in walk(function):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CUTS:
            sizes = {n.id for n in walk(node) if isinstance(n, ast.Name)}
            given = [*node.args, *(e for a in node.args for e in getattr(a, "elts", ()))]
            names = {ast.unparse(one) for one in given} & sizes
            parts = [g for g in given if ast.unparse(getattr(g, "right", g)) in names]
        elif isinstance(node, ast.Assert) and ast.unparse(node.test).endswith(" == 0"):
            parts = [node.test.left] if isinstance(node.test, ast.Compare) else []
        for part in parts:
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.FloorDiv | ast.Mod):
                left, right = part.left, part.right
                if isinstance(left, ast.Name) and isinstance(right, ast.Name):
                    found.append((left.id, right.id))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _Axis:
    """The size of an axis of the argument, or the side of a square of that many."""

    at: int
    is_side: bool = False


_Factor: TypeAlias = _Axis | str
"""A size of an axis, or one with a name of its own."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What the sizes in a function are of, as far as it says that."""

    name: str
    """The argument whose axes are cut."""
    arguments: frozenset[str]
    known: dict[str, _Factor] = field(default_factory=dict)

    def read(self, node: ast.expr) -> _Factor | None:
        """Return what a size is of; None if that is not known."""
        match node:
            case ast.Constant(value=int(number)) if number > 0:
                return str(number)
            case ast.Name(id=name):
                own = name if name in self.arguments and name != self.name else None
                return self.known.get(name, own)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                return name
            case (
                ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id=name), attr="shape"),
                    slice=ast.Constant(value=int(at)),
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="size"),
                    args=[ast.Constant(value=int(at))],
                )
            ) if name == self.name:
                return _Axis(at)
            case ast.Call(func=ast.Name(id="int" | "round"), args=[inner]):
                return self.read(inner)
        return self._read_root(node)

    def _read_root(self, node: ast.expr) -> _Axis | None:
        match node:
            case ast.BinOp(left=inner, op=ast.Pow(), right=ast.Constant(value=0.5)):
                found = self.read(inner)
            case ast.Call(func=ast.Attribute(attr=name), args=[inner]) if name in _ROOTS:
                found = self.read(inner)
            case _:
                return None
        return _Axis(found.at, is_side=True) if isinstance(found, _Axis) else None

    def note(self, statement: ast.Assign) -> None:
        """Take in what an assignment says: ``h = w = int(n ** 0.5)``, ``b, n, c = x.shape``."""
        value = statement.value
        whole = ast.unparse(value) in {f"{self.name}.shape", f"{self.name}.size()"}
        several = value.elts if isinstance(value, ast.Tuple) else []
        for target in statement.targets:
            if isinstance(target, ast.Name):
                self._bind(target, self.read(value))
            elif isinstance(target, ast.Tuple):
                each = [self.read(v) for v in several]
                for at, part in enumerate(target.elts):
                    own = each[at] if len(each) == len(target.elts) else None
                    self._bind(part, _Axis(at) if whole else own)

    def _bind(self, target: ast.expr, size: _Factor | None) -> None:
        if isinstance(target, ast.Name):
            self.known.pop(target.id, None)
            if size is not None:
                self.known[target.id] = size


def find_cut_shape(function: Function, name: str) -> Shape | None:
    """Return the shape that an argument must have to be cut as the code does; None if any will do.

    None as well where it cuts an axis into what is not known.
    """
    sizes = _Sizes(name, frozenset(arg.arg for arg in list_arguments(function)))
    last = find_last_line(function, name)
    for statement in function.body:
        leaves = isinstance(statement, ast.If) and _returns(statement)
        if statement.lineno > last or leaves:
            break
        if isinstance(statement, ast.Assign):
            sizes.note(statement)
        if isinstance(statement, ast.If | ast.For | ast.While | ast.Try):
            continue  # what is cut in a branch is cut where that fits
        for parts in _list_cuts(statement, name):
            found = _join([sizes.read(part) for part in parts])
            if found is not None:
                return found
    return None


def _returns(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return) for node in walk(statement))


def _list_cuts(statement: ast.stmt, name: str) -> Iterator[list[ast.expr]]:
    for node in walk(statement):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if node.func.attr in _VIEWS and _is_turned(node.func.value, name):
            given = [*node.args, *(k.value for k in node.keywords if k.arg == "shape")]
            one = given[0] if len(given) == 1 else None
            yield one.elts if isinstance(one, ast.Tuple | ast.List) else given


def _is_turned(node: ast.expr, name: str) -> bool:
    """Say whether this is the argument, its axes in any order."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _TURNS:
            return False
        node = node.func.value
    return isinstance(node, ast.Name) and node.id == name


def _join(factors: list[_Factor | None]) -> Shape | None:
    """Return the axes before they were cut; None if they are what is written, or not known."""
    sides = [f.at for f in factors if isinstance(f, _Axis) and f.is_side]
    whole = [f.at for f in factors if isinstance(f, _Axis) and not f.is_side]
    rest = [f for f in factors if isinstance(f, str)]
    if None in factors:
        rest = [_UNKNOWN]  # of what is not known is one number at least
    squares = set(sides)
    twice = all(sides.count(at) == 2 for at in squares)  # noqa: PLR2004 - of a square
    if not (twice and (squares or len(rest) > 1)) or len({*whole, *squares}) < len(whole) + len(
        squares
    ):
        return None
    axes = {at: f"size_{at}" for at in whole}
    axes |= {at: f"side_{at} * side_{at}" for at in squares}
    left = set(range(len(axes) + bool(rest))) - axes.keys()
    if len(left) != bool(rest):
        return None
    axes |= {at: " * ".join(rest) for at in left}
    return tuple(axes[at] for at in sorted(axes))


def _find_sizes_told_apart(function: Function) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield two sizes of two arguments, by name and axis, that the code does not take for equal.

    ``k.size(1) - q.size(1)``, and ``torch.ones(t, s)`` after ``t, s = q.shape[1], k.shape[1]``.
    """
    names = {arg.arg: find_last_line(function, arg.arg) for arg in list_arguments(function)}
    nodes = list(walk(function))
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and type(n.ctx) is ast.Store]
    kept: dict[str, tuple[str, int]] = {}

    def place(node: ast.expr) -> tuple[str, int] | None:
        sized = node.value if isinstance(node, ast.Subscript) else None
        axis = read_axis(node.slice) if isinstance(node, ast.Subscript) else []
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            sized, axis = ast.Call(node.func, [], []), read_axis(node.args[0])
        own = (n for n, last in names.items() if sized and axis and node.lineno <= last)
        name = next((n for n in own if sized and is_shape(sized, n)), None)
        return (name, axis[0]) if name else kept.get(getattr(node, "id", ""))

    for assigned in (n for n in nodes if isinstance(n, ast.Assign)):
        target, value = assigned.targets[0], assigned.value
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        whole = next(
            (n for n, t in names.items() if is_shape(value, n) and assigned.lineno <= t), ""
        )
        for at, one in enumerate(targets):
            found = (whole, at) if whole else place(values[at]) if at < len(values) else None
            if isinstance(one, ast.Name) and stored.count(one.id) == 1 and found is not None:
                kept[one.id] = found
    for node in nodes:
        held = getattr(node, "args", []) if isinstance(node, ast.Call) else []
        held = node.elts if isinstance(node, ast.Tuple) else held
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            held = [node.left, node.right]
        for left, right in itertools.pairwise(map(place, held)):
            if left and right and left[0] != right[0]:
                yield left, right
