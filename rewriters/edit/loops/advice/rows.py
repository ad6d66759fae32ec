"""Loops over rows that a person writes as a few operators: padding, searching, ranges."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.loops.advice.rounds import follow, list_bound
from npufix.rewriters.edit.loops.advice.several import say_of_several
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.facts.steps.weights import WEIGHTS, changes_weights
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import last_name, list_indexes, list_names, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.loops.given.facts import Facts
    from npufix.rewriters.edit.loops.given.reading import Loop
    from npufix.rewriters.graph.dataflow import FunctionFlow

PADDED = (
    "each round copies one row: write all of them at once, out[segment, place] = torch.cat(rows), "
    "where segment = numpy.repeat(range(n), lengths) and place count rows and columns on the host; "
    "torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) at least spares the loop in Python"
)
ROWS = (
    "each round asks what one row holds, for which the host waits, or launches kernels for it: ask "
    "all rows at once, first = (x == value).int().argmax(dim=1) with (x == value).any(dim=1), "
    "and take or write with gather, torch.where and torch.arange(width) < first[:, None]"
)
RANGES = (
    "each round makes a range of its own: starts[:, None] + torch.arange(width, device=x.device) "
    "makes ranges of one length at once; those of several lengths are torch.arange(total, "
    "device=x.device) - torch.repeat_interleave(begins - starts, lengths, output_size=total)"
)
_LIMITS = frozenset({"clamp", "clip", "relu", "sigmoid", "tanh", "where"})
"""What each round does to a sum or a product so far, which no operator on all columns does."""
_MOVES = frozenset({"cat", "flip", "gather", "roll"})
"""What moves the elements of a column, which no running sum does."""
COLUMNS = (
    "each round reads the column that the one before has written, and launches small kernels: "
    "torch.cumsum, cumprod, cummax and logcumsumexp compute sums, products and limits of all "
    "columns at once; what else reads no earlier column is computed before or behind the loop"
)
TRIANGLE = (
    "each round adds up the rows above it, which inverts a triangular matrix row by row: where a "
    "is below the diagonal and has n rows, (1 - a)^-1 = (1 + a)(1 + a^2)(1 + a^4)... takes log2(n) "
    "products of all matrices at once"
)
KEYS = (
    "a list of tensors for each key launches kernels for each row and each key: number the keys on "
    "the host once (numpy.unique(keys, return_inverse=True)), then index_add_ adds up all groups, "
    "torch.bincount counts them, and sums[group] hands each row what its group has"
)
ELEMENTS = (
    "each round launches the kernels of a function for one element: give it all elements, with "
    "x[..., 0] instead of x[0], torch.maximum and torch.minimum instead of max and min, "
    "clamp(min=0) instead of max(x, 0), and add up with sum()"
)
CALLED = (
    "each round launches the kernels of a function for one row: call it once with all rows, the "
    "numbers of each row as n.view(-1, *[1] * (x.dim() - 1)), with dimensions that count from the "
    "end, keepdim=True, and torch.where for branches that a row decides"
)
PARTS = (
    "each round compares all rows anew, and the host waits for how many x[group == i] has: sort "
    "them by their group once, order = group.argsort(stable=True), and take the parts of "
    "x[order].split(torch.bincount(group, minlength=n).tolist()), which waits once; what treats "
    "rows by themselves takes all of them, with the group as one more index, out[group, place] = x"
)
JOINED = (
    "each round joins parts of one row, for whose lengths the host waits: positions = "
    "torch.arange(width, device=x.device) tell for all rows at once what stands where, the first "
    "part at positions < n[:, None], the next as y.gather(1, (positions - n[:, None]).clamp(min=0))"
)
BY_HAND = (
    PADDED, ROWS, RANGES, COLUMNS, TRIANGLE, KEYS, ELEMENTS, CALLED, PARTS, JOINED, WEIGHTS,
)  # fmt: skip
_ASKS = frozenset({"all", "any", "nonzero"})
_READS = frozenset({"item", "tolist"})
"""What is said where the host reads single values."""
_MAY_BE_CALLED = frozenset({"append", "float", "int", "len", "max", "min", "range"})
_MOST = 14
"""Statements of a round."""
_MOST_OF_HELPER = 12
_OF_TENSORS = frozenset(operators.TABLE) | operators.PURE_METHODS | {"to", "view"}


def say_by_hand(  # noqa: PLR0911 - one case a form
    flow: FunctionFlow, facts: Facts, loop: Loop
) -> str:
    """Return what a person writes instead of a loop, "" if it is none of these."""
    if changes_weights(loop.statement):
        return WEIGHTS
    own = list_names(loop.target)
    bound = dict(list_bound(loop.body))
    if (found := say_of_several(flow, loop)) != "":
        return found
    if _pads(facts, loop, own, bound):
        return PADDED
    if _makes_ranges(flow, loop, own, bound):
        return RANGES
    if (found := _of_columns(facts, loop, own)) != "":
        return found
    if _groups(facts, loop, own):
        return KEYS
    if _takes_elements(flow, loop, own):
        return ELEMENTS
    if _calls_with_rows(flow, facts, loop, own):
        return CALLED
    if _asks_rows(flow, facts, loop, own, bound):
        return ROWS
    return say_of_parts(flow, facts, loop, own, bound)


def say_of_parts(
    flow: FunctionFlow, facts: Facts, loop: Loop, own: set[str], bound: Mapping[str, ast.expr]
) -> str:
    """Return what to do about ``x[group == i]`` and ``torch.cat((x[i, : n[i]], y[i]))``."""
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    code: list[ast.AST] = [*loop.body, *made]
    if _asks_object_of_round(loop, code, own):
        return ""  # an assigner of each class, and not a row of it
    picks = [n for n in walk(*code) if isinstance(n, ast.Subscript)]
    loads = [n for n in picks if isinstance(n.ctx, ast.Load) and isinstance(n.value, ast.Name)]
    # of ``h = cell(h, x[:, i])`` each round makes the next: ``out[last == i] = h[last == i]``
    next_ones = {name for name, value in bound.items() if name in list_names(value)}
    for pick in (n for n in loads if last_name(n.value) not in next_ones):
        items = list_indexes(pick.slice)
        index = bound.get(items[0].id) if isinstance(items[0], ast.Name) else items[0]
        known = facts.is_tensor(pick.value)
        if _is_of_round(index, own) and (known or (known is None and flow.cls is not None)):
            return PARTS
    for call in (n for n in walk(*code) if isinstance(n, ast.Call)):
        found = flow.names.dotted(call.func) in {"torch.nonzero", "torch.where"}
        if found and len(call.args) == 1 and _is_of_round(call.args[0], own):
            return PARTS
        if flow.names.dotted(call.func) in {"torch.cat", "torch.concat"}:
            inner = [n for n in follow([call], bound) if isinstance(n, ast.Subscript)]
            rows = any(isinstance(n.slice, ast.Tuple) and list_names(n) & own for n in inner)
            ends = [n.slice for n in inner if _ends_by_table(n.slice, own, bound)]
            if rows and ends:
                return JOINED
    return ""


def _asks_object_of_round(loop: Loop, code: Sequence[ast.AST], own: set[str]) -> bool:
    """Tell whether a loop goes over objects of its class: ``assigner.assign(x[ids == i])``."""
    asked = any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and isinstance(n.func.value, ast.Name)
        and n.func.value.id in own
        and n.func.attr not in _OF_TENSORS
        for n in walk(*code)
    )
    return asked and any(
        isinstance(n, ast.Attribute) and ast.unparse(n).startswith("self.")
        for n in walk(loop.items)
    )


def _is_of_round(index: ast.expr | None, own: set[str]) -> bool:
    """Tell whether an index takes what belongs to the round: ``coords[:, 0] == i``."""
    match index:
        case ast.Compare(ast.Name() | ast.Attribute() | ast.Subscript(), [ast.Eq()], [number]):
            plain = isinstance(number, ast.Name | ast.BinOp)
            return plain and bool(list_names(number) & own) and list_names(number) <= own
    return False


def _ends_by_table(index: ast.expr, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether an index goes up to what a table says of the round: ``i, : n[i]``."""
    parts = list_indexes(index)
    ends = [p.upper for p in parts if isinstance(p, ast.Slice) and p.upper and not p.lower]
    return any(
        isinstance(n, ast.Subscript) and list_names(n.slice) & own
        for end in ends
        for n in follow([end], bound)
    )


def _calls_with_rows(flow: FunctionFlow, facts: Facts, loop: Loop, own: set[str]) -> bool:
    """Tell whether a loop collects what a function of the module makes of ``x[i], n[i]``."""
    several = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    if len(several) != 1 or loop.total or (loop.body and loop.made is not None):
        return False
    match several[0]:
        case ast.Call(ast.Name(name), [_, *_] as given, []):
            pass
        case _:
            return False
    tree = flow.names.tree or flow.function
    helpers = [s for s in ast.walk(tree) if isinstance(s, FunctionNode) and s.name == name]
    rows = [arg for arg in given if list_names(arg) & own]
    picks = [arg for arg in rows if isinstance(arg, ast.Subscript)]
    of_tensors = [facts.is_tensor(p.value) for p in picks]
    return (
        len(helpers) == 1
        and len(picks) == len(rows) > 0
        and False not in of_tensors
        and not _makes_other_widths(helpers[0], given, own)
        and (True in of_tensors or _returns_tensor(helpers[0]))
        and any(isinstance(n, ast.Return) and n.value is not None for n in walk(helpers[0]))
    )


def _makes_other_widths(helper: FunctionNode, given: Sequence[ast.expr], own: set[str]) -> bool:
    """Tell whether rows get results of several sizes: ``rope(ids[..., i], dims[i])``."""
    takes = [*helper.args.posonlyargs, *helper.args.args]
    return any(
        arg.annotation is not None and ast.unparse(arg.annotation) == "int"
        for arg, code in zip(takes, given, strict=False)
        if list_names(code) & own
    )


def _returns_tensor(function: FunctionNode) -> bool:
    return function.returns is not None and ast.unparse(function.returns).endswith("Tensor")


def _names(code: ast.AST, bound: Mapping[str, ast.expr]) -> set[str]:
    """Return the names that code reads, those of the round followed to what they are."""
    found = list_names(code)
    todo = list(found & bound.keys())
    for name in todo:  # grows
        more = list_names(bound[name]) - found
        found |= more
        todo += more & bound.keys()
    return found


def _pads(facts: Facts, loop: Loop, own: set[str], bound: Mapping[str, ast.expr]) -> bool:
    """Tell whether a round is ``out[i, : len(row)] = row``."""
    if not loop.body:
        return False
    *others, last = loop.body
    if not all(isinstance(s, ast.Assign | ast.Expr) for s in others):
        return False
    match last:
        case ast.Assign([ast.Subscript(ast.Subscript(base, row), ast.Slice() as part)], value):
            places = [row, part]
        case ast.Assign([ast.Subscript(base, ast.Tuple([*places]))], value):
            pass
        case _:
            return False
    ends = [p.upper for p in places if isinstance(p, ast.Slice) and p.upper and not p.lower]
    counted = any(isinstance(p, ast.Name) and p.id in own for p in places)
    if len(ends) != 1 or not counted or facts.is_tensor(base) is not True:
        return False
    while isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
        value = value.value  # ``row[:n]``
    match value:
        case ast.Name(name):
            is_row = name in own and not any(
                isinstance(p, ast.Name) and p.id == name for p in places
            )
        case ast.Subscript(rows, ast.Name(counter)):
            is_row = counter in own and facts.is_tensor(rows) is not True
        case _:
            return False
    return is_row and bool(_names(ends[0], bound) & own)


def _makes_ranges(
    flow: FunctionFlow, loop: Loop, own: set[str], bound: Mapping[str, ast.expr]
) -> bool:
    """Tell whether a round is ``parts.append(torch.arange(start[i], start[i] + n, device=d))``."""
    made = [loop.made] if loop.made is not None else [one.made for one in loop.lists]
    return any(
        isinstance(code, ast.Call)
        and flow.names.dotted(code.func) == "torch.arange"
        and any(k.arg == "device" for k in code.keywords)
        and any(_names(arg, bound) & own for arg in code.args)
        for code in made
    )


def _of_columns(facts: Facts, loop: Loop, own: set[str]) -> str:
    """Return what a loop is of which each round writes ``x[:, i]`` from earlier columns."""
    for code in loop.body:
        match code:
            case ast.Assign([ast.Subscript(ast.Name(base) as whole, index)], value):
                pass
            case _:
                continue
        if not list_names(index) & own or facts.is_tensor(whole) is not True:
            continue
        bound = dict(list_bound(loop.body))
        nodes = list(follow([value], bound, 1))
        read = [
            n.slice
            for n in nodes
            if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id == base
        ]
        multiplies = any(
            isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult | ast.MatMult) for n in nodes
        )
        own_row = any(_is_above(part, own) for part in read)
        if _is_above(index, own) and own_row and multiplies:
            return TRIANGLE if any(_are_rows_above(part, own) for part in read) else ""
        if any(_cuts(part, own) for part in (index, *read)):
            return ""
        others = [part for part in read if _is_near(part, index, own)]
        calls = _calls(*loop.body)
        is_call = any(
            "self" in list_names(c.func) or last_name(c.func) in _LIMITS | _MOVES for c in calls
        )
        if others and len(loop.body) == 1 and not is_call:
            return COLUMNS
    return ""


def _is_near(read: ast.expr, written: ast.expr, own: set[str]) -> bool:
    """Tell whether one column is so many rounds from another: ``:, i - 1`` from ``:, i``.

    Of ``:, x[i]`` nobody knows which round has written it.
    """
    one, other = (i.elts if isinstance(i, ast.Tuple) else [i] for i in (read, written))
    apart = [(a, b) for a, b in zip(one, other, strict=False) if ast.dump(a) != ast.dump(b)]
    names = {_counted(place) for pair in apart for place in pair}
    return len(one) == len(other) and len(apart) == 1 and len(names) == 1 and names <= own


def _counted(place: ast.expr) -> str:
    """Return the name of ``i``, ``i - 1`` and ``i + 1``, "" of anything else."""
    match place:
        case ast.Name(name) | ast.BinOp(ast.Name(name), ast.Add() | ast.Sub(), ast.Constant()):
            return name
    return ""


def _is_above(index: ast.expr, own: set[str]) -> bool:
    """Tell whether an index is ``..., i, :i``."""
    match index:
        case ast.Tuple([*_, ast.Name(row), ast.Slice(None, ast.Name(end), None)]):
            return row == end and row in own
    return False


def _cuts(index: ast.expr, own: set[str]) -> bool:
    """Tell whether an index goes up to the round: ``:i``."""
    return any(isinstance(n, ast.Slice) and list_names(n) & own for n in walk(index))


def _are_rows_above(index: ast.expr, own: set[str]) -> bool:
    """Tell whether an index is ``..., :i, :i``; beside zeros also ``..., :, :i``."""
    match index:
        case ast.Tuple([*_, ast.Slice(), ast.Slice(None, ast.Name(end), None)]):
            return end in own
    return False


def _groups(facts: Facts, loop: Loop, own: set[str]) -> bool:
    """Tell whether a round is ``found[key[i]].append(x[i])``."""
    match loop.body:
        case [
            ast.Expr(
                ast.Call(
                    ast.Attribute(ast.Subscript(_, key), "append"),
                    [ast.Subscript(rows, ast.Name(i))],
                )
            )
        ]:
            joined = (facts.flow.names.dotted(n.func) for n in _calls(facts.flow.function))
            by_key = i in own and bool(list_names(key) & own)
            of_tensors = facts.is_tensor(rows) is not False and "torch.stack" in joined
            return by_key and of_tensors
    return False


def _calls(*code: ast.AST) -> list[ast.Call]:
    return [node for node in walk(*code) if isinstance(node, ast.Call)]


def _takes_elements(flow: FunctionFlow, loop: Loop, own: set[str]) -> bool:
    """Tell whether all that a loop does is to add up ``self.overlap(box, other)``."""
    made = loop.made
    if loop.body or not loop.total or not isinstance(made, ast.Call):
        return False
    match made.func:
        case ast.Attribute(ast.Name("self"), name) if flow.cls is not None:
            body: Sequence[ast.stmt] = flow.cls.body
        case ast.Name(name) if flow.names.tree is not None:
            body = flow.names.tree.body
        case _:
            return False
    given = [i for i, arg in enumerate(made.args) if list_names(arg) & own]
    helpers = [s for s in body if isinstance(s, FunctionNode) and s.name == name]
    return len(helpers) == 1 and bool(given) and _reads_numbers(helpers[0])


def _reads_numbers(function: FunctionNode) -> bool:
    """Tell whether a function computes with ``box[0]``, and decides and calls nothing else."""
    body = [s for s in function.body if not isinstance(s, ast.Expr)]
    plain = all(isinstance(s, ast.Assign | ast.Return) for s in body)
    nodes = list(walk(*body))
    calls = [last_name(n.func) for n in nodes if isinstance(n, ast.Call)]
    picks = [
        n
        for n in nodes
        if isinstance(n, ast.Subscript)
        and isinstance(n.slice, ast.Constant)
        and isinstance(n.slice.value, int)
    ]
    known = {"abs", "clamp", "max", "maximum", "min", "minimum", "relu", "sqrt"}
    return plain and len(body) <= _MOST_OF_HELPER and len(picks) > 1 and {*calls} <= known


def _asks_rows(
    flow: FunctionFlow, facts: Facts, loop: Loop, own: set[str], bound: Mapping[str, ast.expr]
) -> bool:
    """Tell whether a round asks what a row of a tensor holds, or writes to it by a test."""
    nodes = list(walk(*loop.body))
    count = sum(isinstance(n, ast.stmt) for n in nodes)
    if count > _MOST or any(isinstance(n, ast.For | ast.While | ast.Break) for n in nodes):
        return False
    calls = _calls(*loop.body)
    if not all(_is_of_tensors(flow, facts, call) for call in calls):
        return False
    rows = {name for name in own if facts.is_tensor(loop.items) is True}
    rows |= {base.id for base in _list_rows(nodes, own) if _may_be_tensor(flow, facts, base)}
    rows |= {
        name  # ``row = parts[k][i]``, of which ``row.any()`` is asked
        for name, value in bound.items()
        if isinstance(value, ast.Subscript)
        and isinstance(value.value, ast.Subscript)
        and list_names(value.slice) & own
    }
    asks = any(
        isinstance(c.func, ast.Attribute) and c.func.attr in _ASKS and _names(c, bound) & rows
        for c in calls
    )
    tests = [n for n in nodes if isinstance(n, ast.If | ast.IfExp)]
    tested = any(
        _names(test.test, bound) & rows or any(_list_rows([*walk(test.test)], own))
        for test in tests
    )
    return asks or (tested and any(_writes_row(test, own, rows) for test in tests))


def _list_rows(nodes: Sequence[ast.AST], own: set[str]) -> Iterator[ast.Name]:
    """Yield ``x`` of ``x[i]`` and ``x[i, :n]``."""
    for node in nodes:
        match node:
            case ast.Subscript(ast.Name() as base, index) if list_names(index) & own:
                yield base


def _may_be_tensor(flow: FunctionFlow, facts: Facts, code: ast.Name) -> bool:
    """Tell whether a name is a tensor, or what a module is handed, which is none of NumPy."""
    known, node = facts.is_tensor(code), facts.node(code)
    if known is not None or flow.cls is None or node is None:
        return known is True
    return node.op != Op.ATTR and not is_of_numpy(node)  # ``delays = self.lm.delays`` are settings


def _writes_row(test: ast.If | ast.IfExp, own: set[str], rows: set[str]) -> bool:
    """Tell whether ``x[i, n] = 0`` stands under a test: no list is indexed so."""
    if isinstance(test, ast.IfExp):
        return False
    targets = [s.targets[0] for s in walk(*test.body, *test.orelse) if isinstance(s, ast.Assign)]
    return any(
        isinstance(t, ast.Subscript)
        and isinstance(t.slice, ast.Tuple)
        and list_names(t.slice) & own
        and list_names(t.value) & rows
        for t in targets
    )


def _is_of_tensors(flow: FunctionFlow, facts: Facts, call: ast.Call) -> bool:
    """Tell whether a call is of torch, of a method of a tensor, or of what counts."""
    match call.func:
        case ast.Name(name):
            return name in _MAY_BE_CALLED
        case ast.Attribute(owner, name):
            of_torch = (flow.names.dotted(call.func) or "").startswith("torch.")
            return (
                of_torch
                or name in _MAY_BE_CALLED | _ASKS | _READS
                or facts.is_tensor(owner) is True
            )
    return False
