"""What the rounds of a loop take that no tensor of all rows can hold: objects, parts on purpose."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import look_up
from npufix.rewriters.graph.modules.names import FunctionNode, source_lines
from npufix.rewriters.graph.modules.syntax import last_name, list_handed, list_names, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.loops.advice.independence import Round
    from npufix.rewriters.edit.loops.given.reading import Loop

_OF_TENSORS = frozenset(
    {"H", "T", "data", "device", "dtype", "grad", "imag", "is_cuda", "is_npu", "itemsize", "mT",
     "nbytes", "ndim", "real", "requires_grad", "shape", "values", "indices"}
)  # fmt: skip
"""What a tensor has as well, or the pair that ``max`` returns."""
_FEW = 4
"""Rounds that are written out."""
_SHAPES = frozenset({"expand", "reshape", "unflatten", "view"})
_LAYOUTS = _SHAPES | {
    "contiguous", "detach", "flatten", "movedim", "permute", "squeeze", "t", "transpose",
    "unsqueeze",
}  # fmt: skip
_CEILING = re.compile(r"\bceil\(|- 1\) //|-\(-|\bmin\(")
_SPARES = re.compile(
    r"(?i)(sav|spar|reduc|limit)\w*( \w+){0,3} (memory|vram)|memory[- ](sav|effic)|\boom\b"
)

_PIECE = re.compile(r"(?i)(^|[._])(chunk|slice|tile|(micro|mini)_?batch)_?(size|len\w*|rows)$")


def goes_over_no_rows(source: str, loop: Loop) -> bool:
    """Tell whether a loop goes over dimensions, over parts on purpose, or over a few by name.

    ``for points in (left, right):`` only spares writing the same twice.
    """
    match loop.items:
        case ast.Tuple(few) | ast.List(few) if len(few) <= _FEW:
            return True
    return _goes_over_dimensions(loop.items, loop.target) or _is_for_memory(source, loop)


def _is_for_memory(source: str, loop: Loop) -> bool:
    """Tell whether a loop spares memory, by the comment above it or the size of its pieces.

    So does ``for rows in logits.split(chunk_size):``, which whoever calls it decides on.
    """
    match loop.items:
        case ast.Call(ast.Attribute(_, "split"), given) if any(map(_is_piece, given)):
            return True
    lines = source_lines(source)
    for number in range(loop.first.lineno - 2, -1, -1):
        line = lines[number]
        if not line.lstrip().startswith("#"):
            return False
        if _SPARES.search(line):
            return True
    return False


def _is_piece(size: ast.expr) -> bool:
    return _PIECE.search(ast.unparse(size)) is not None


def _goes_over_dimensions(items: ast.expr, target: ast.expr | None = None) -> bool:
    """Tell whether a loop has a round for each dimension: ``for i, n in enumerate(x.shape[:k])``.

    Those are few, and no rows; ``for dim in range(1, places.shape[1])`` says so as well.
    """
    if isinstance(target, ast.Name) and target.id in {"axis", "dim"}:
        return True
    match items:
        case ast.Call(ast.Name("enumerate" | "reversed" | "zip" | "list" | "tuple"), several):
            return any(map(_goes_over_dimensions, several))
        case ast.Call(ast.Name("range"), [*_, ast.Call(ast.Name("len"), [over])]):
            return _goes_over_dimensions(over)
        case ast.Call(ast.Name("range"), [*_, stop]):
            asked = {n.attr for n in walk(stop) if isinstance(n, ast.Attribute)}
            picked = any(isinstance(n, ast.Subscript) for n in walk(stop))
            return bool(asked & {"dim", "ndim"}) and not picked
        case ast.Subscript(shape, ast.Slice()) | ast.Call(shape, [], []) | shape:
            return isinstance(shape, ast.Attribute) and shape.attr in {"shape", "size"}


def scores_words(taken: Round, call: ast.Call) -> bool:
    """Tell whether a round has a logarithm for every word there is: all rows have no room.

    ``log_softmax(row)``, and ``cross_entropy(logits[:-1].float(), ids)``.
    """
    match call.args[:1]:
        case [ast.Name(name)] if last_name(call.func) == "log_softmax":
            return name in taken.own
        case [scores] if last_name(call.func) == "cross_entropy":
            return re.search(r"logits\b.*\.float\(\)", ast.unparse(scores)) is not None
    return False


def stands_alone(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round takes what no tensor of all rows can hold, or a part on purpose."""
    return (
        _takes_objects(taken, nodes)
        or _spares_memory(taken, nodes)
        or any(_is_batch_of_images(taken, node) for node in nodes)
    )


def _is_batch_of_images(taken: Round, code: ast.AST) -> bool:
    """Tell whether what a round has is a batch, of one scale: ``x.permute(0, 2, 3, 1)``."""
    match code:
        case ast.Call(ast.Attribute(ast.Name(name), "permute"), [ast.Constant(0), *others]):
            return name in taken.own - taken.counted and len(others) > 2  # noqa: PLR2004 - NCHW
    return False


def goes_back(taken: Round) -> bool:
    """Tell whether a round calls ``torch.autograd.grad``, by whatever name."""
    dotted = taken.flow.names.dotted
    return any(dotted(call.func) == "torch.autograd.grad" for call in taken.calls())


def _takes_objects(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round reads what an object of its own holds: ``sample.gt_fields.heatmaps``.

    So does a function of the file that is handed one: ``self.assign(x[i], samples[i])``.
    """
    owners = (look_up(owner, taken.bound) for owner in _list_owners(nodes))
    if any(_is_element(taken, owner) for owner in owners):
        return True
    return any(
        name in {o.id for o in _list_owners([*walk(*helper.body)]) if isinstance(o, ast.Name)}
        for call in nodes
        if isinstance(call, ast.Call)
        for helper in _list_helpers(taken, call)
        for name, value in list_handed(helper.args, call).items()
        if _is_element(taken, value)
    )


def _list_owners(nodes: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """Yield that of which code reads what no tensor has: ``sample`` of ``sample.gt_instances``."""
    called = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    for node in nodes:
        match node:
            case ast.Attribute(owner, name, ast.Load()) if (
                id(node) not in called and name not in _OF_TENSORS
            ):
                yield owner


def _is_element(taken: Round, code: ast.expr) -> bool:
    """Tell whether code is what a loop goes over: ``sample``, ``samples[i]``."""
    match code:
        case ast.Name(name):
            return name in taken.own - taken.counted
        case ast.Subscript(ast.Name() | ast.Attribute(), ast.Name(counter)):
            return counter in taken.own
    return False


def _list_helpers(taken: Round, call: ast.Call) -> list[FunctionNode]:
    """Return the functions of the file that a call may be of."""
    match call.func:
        case ast.Attribute(ast.Name("self")) if taken.flow.cls is not None:
            body: Sequence[ast.stmt] = taken.flow.cls.body
        case ast.Name():
            tree = taken.flow.names.tree
            body = tree.body if isinstance(tree, ast.Module) else []
        case _:
            return []
    name = last_name(call.func)
    return [s for s in body if isinstance(s, FunctionNode) and s.name == name]


def _spares_memory(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round takes a part of what would be too much at once, the last one shorter.

    ``x[i * n : (i + 1) * n]`` for as many rounds as ``math.ceil(len(x) / n)`` says.
    """
    pieces = [n for n in nodes if isinstance(n, ast.Slice) and taken.is_piece(n)]
    pairs = [n.args for n in nodes if isinstance(n, ast.Call) and len(n.args) > 1]
    parts = [ast.Slice(first, last) for first, last, *_ in pairs]
    ends = [p.upper for p in (*pieces, *parts) if taken.is_piece(p) and p.upper is not None]
    limited = [look_up(end, taken.bound) for end in ends]
    if any(isinstance(end, ast.Call) and last_name(end.func) == "min" for end in limited):
        return True
    match taken.loop.items:
        case ast.Call(ast.Name("range"), [count]) if limited:
            made = [n for n in walk(*taken.flow.function.body) if isinstance(n, ast.Assign)]
            named = ast.unparse(count)
            counts = [n.value for n in made if named in map(ast.unparse, n.targets)]
            return any(_CEILING.search(ast.unparse(value)) for value in (count, *counts))
    return False


def shapes_rows(taken: Round, nodes: Sequence[ast.AST]) -> bool:
    """Tell whether a round gives its part a shape of its own: ``x.view(b, -1, periods[i])``."""
    numbers = {
        name
        for name, value in taken.bound.items()
        if _is_element(taken, value) and taken.facts.is_tensor(value) is not True
    }
    calls = (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in _SHAPES)
    return any(numbers & list_names(argument) for call in calls for argument in call.args)


def lays_out(taken: Round, call: ast.Call) -> bool:
    """Tell whether a call only lays out what one round has, which no larger batch spares.

    ``x.permute(0, 2, 3, 1).reshape(-1, n)`` for each level ``x``, ``torch.cat(parts[i])``; it is
    another thing with ``x[i]`` of a tensor: ``x.transpose(1, 2)`` lays out all rows.
    """
    if last_name(call.func) in {"cat", "concat", "stack"}:
        return bool(call.args) and isinstance(call.args[0], ast.Name | ast.Subscript)
    code: ast.expr = call
    while isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute):
        if code.func.attr not in _LAYOUTS:
            return False
        code = code.func.value
    return last_name(call.func) == "detach" or isinstance(look_up(code, taken.bound), ast.Name)
