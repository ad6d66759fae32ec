"""What is promised of arguments: in each row of a mask a key, axes as long as a product.

``mask (B, T): True where a token stands, at least one in each row``: a row without any is a call
that no caller makes, and what attention makes of it is nobody's concern.
``assert L == H * W`` over ``x (B, L, C)``: a call without that is none, either.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.calls.values import Promise
from npufix.rewriters.verification.inputs.source.usage import find_last_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
_SAID = re.compile(r"(?<![\w.])(\w+) ={1,2} ((?:\w+(?: ?\* ?\w+)+))(?![\w(]|\.\w)")
_CUTS = frozenset({"view", "reshape", "unflatten"})


def read_promises(text: str, names: Sequence[str]) -> dict[str, Promise]:
    """Return the masks of which a text says that no row of theirs hides everything, and how."""
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
    return found


def read_products(
    function: Function, docstring: str, shapes: Mapping[str, tuple[Shape, ...]]
) -> dict[str, tuple[Shape, ...]]:
    """Return the shapes of arguments, with the product in it where an axis must be one.

    ``shapes``: what is said of each argument. Where nothing is, the names are those of the code:
    ``b, n, c = x.shape`` above ``assert n == h * w`` says ``x (b, h * w, c)``.
    """
    equal = {**dict(_SAID.findall(docstring)), **dict(_list_demanded(function))}
    unpacked = {name: sizes for name in shapes for sizes in _list_unpacked(function, name)}
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
    return found


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


def _list_unpacked(function: Function, name: str) -> Iterator[Shape]:
    """Yield ``("b", "n", "c")`` for ``b, n, c = x.shape``, where ``x`` is the argument yet."""
    last = find_last_line(function, name)
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
