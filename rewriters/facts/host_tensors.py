"""Which tensors are on the host, as far as it shows where they are made and who hands them in."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.facts.kinds.value_kinds import OF_ARRAY
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.modules.syntax import (
    last_name,
    list_handed,
    list_stored_names,
    nodes_of,
)
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match

_MADE = operators.FACTORIES | {"from_numpy"}
_STAYS = (operators.KEEPS | operators.SAME_SHAPE | {Op.SETITEM}) - {"cpu", *operators.TO_DEVICE}
"""What leaves a tensor on its device."""
_TOGETHER = operators.BROADCAST | {"outer"}
_OF_ONE = frozenset({Op.GETITEM, Op.ITEM, Op.COMPARE, "all", "any", "max", "mean", "min", "sum"})
"""What is computed of one tensor, where that lies."""
_JOINS = frozenset({"cat", "concat", "concatenate", "hstack", "stack", "tuple", "list", "vstack"})
_MADE_EACH = re.compile(
    r"ListComp\(elt=Call\(func=Attribute\(value=Name\(id='torch'.{0,20}attr='(arange|linspace)'"
)
"""``[torch.arange(n) for n in lengths]``, as what is not read further stands in a graph."""
_HOST = frozenset({"'cpu'", "torch.device('cpu')"})
_OLD_MAKERS = re.compile(r"torch\.(\w+)?Tensor")


def list_parts(node: Node) -> list[Node]:
    """Return what a value is made of, but for indexes: ``x[np.arange(n)]`` is where ``x`` is."""
    parts = [node]
    for part in parts:  # grows
        args = part.args[:1] if part.op == Op.GETITEM else part.args
        parts += [arg for arg in args if arg not in parts]
    return parts


def works_on_host(flow: FunctionFlow, match: Match) -> bool:
    """Tell whether tensors are on the host: ``x.cpu()``, ``torch.tensor(items)``, and views of it.

    What is made without a device is there, and no operator brings it elsewhere; for a value, a mask
    or an index beside a tensor of the device that says nothing, and neither does it in ``forward``,
    which may be called below ``with torch.device("npu")``.
    """
    operands = [_source(node) for node in match.bindings.values()]
    if any(is_brought_to_host(n) or _is_read_as_array(flow, n) for n in operands):
        return True
    if is_given_by_host(flow, operands[0]) or _is_put_there(operands[0]):
        return True
    if is_kept_on_host(flow, operands[0], said=flow.function.name == "forward"):
        return True
    if flow.function.name == "forward":
        return False
    first = next(iter(match.bindings.values()))
    return (
        _is_made_there(operands[0])
        or _meets_host(first, set())
        or any(
            node.op in operators.COMPARISONS
            and first in node.args
            and any(arg is not first and _meets_host(arg, set()) for arg in node.args)
            for node in match.bindings.values()
        )
    )


@lru_cache(maxsize=4)
def returns_made_on_host(flow: FunctionFlow) -> bool:
    """Tell whether all that a function returns are tensors that it has made without a device.

    ``coords = torch.rand(n, 2)``, written into and returned, where nothing says a device.
    """
    function = flow.function
    nodes = nodes_of(function)
    said = {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    said |= {n.arg for n in nodes if isinstance(n, ast.keyword | ast.arg) and n.arg}
    if function.name == "forward" or said & {"device", "set_default_device", *operators.TO_DEVICE}:
        return False
    values = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
    every = [v.elts if isinstance(v, ast.Tuple) else [v] for v in values]
    made: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                made.setdefault(ast.unparse(target), []).append(node.value)
    args = {arg.arg for arg in function.args.args}
    there = {name for name, codes in made.items() if all(_makes(flow, code) for code in codes)}
    parts = [[ast.unparse(part) for part in each] for each in every]
    # what is handed back unchanged, ``if not n: return x``, lies where the rest does
    return any(each and there.issuperset(each) for each in parts) and all(
        {*each} <= there | (args - {*made}) for each in parts
    )


def _makes(flow: FunctionFlow, code: ast.expr) -> bool:
    """Tell whether code calls a maker of torch, and fills it: ``torch.zeros(n).fill_(1)``."""
    while isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute):
        name = flow.names.dotted(code.func) or ""
        if name.startswith("torch."):
            return bool(_OLD_MAKERS.fullmatch(name)) or (
                name.removeprefix("torch.") in operators.FACTORIES and name != "torch.from_numpy"
            )
        if not code.func.attr.endswith("_"):
            return False
        code = code.func.value
    return False


def is_brought_to_host(node: Node) -> bool:
    """Tell whether a value comes from a copy on the host: ``(x.cpu() - y)[1:]``, of one device."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        part = stack.pop()
        if part.op == "cpu":
            return True
        if part not in seen:
            seen.add(part)
            few = part.op in _STAYS | {Op.GETITEM, Op.ITEM}
            stack += part.args[:1] if few else part.args if part.op in _TOGETHER else ()
    return False


def _meets_host(node: Node, seen: set[Node]) -> bool:
    """Tell whether a value is computed with a range of the host: ``1 / base ** (arange(n) / n)``.

    What an operator takes together lies on one device.
    """
    if node in seen:
        return False
    seen.add(node)
    if node.op in _TOGETHER | _JOINS:
        return any(_meets_host(part, seen) for part in node.args)
    if node.op in _STAYS | {Op.GETITEM}:
        return bool(node.args) and _meets_host(node.args[0], seen)
    if node.op == Op.OPAQUE:
        text = str(node.value)
        return _MADE_EACH.match(text) is not None and "arg='device'" not in text
    return node.op in {"arange", "linspace"} and _is_made_there(node)


def names_host(device: ast.expr) -> bool:
    """Tell whether code spells out that a tensor is one of the host."""
    return ast.unparse(device) in _HOST


def is_kept_on_host(flow: FunctionFlow, node: Node, *, said: bool = False) -> bool:
    """Tell whether an attribute is a table of the host: ``self.age = torch.zeros(n)``.

    What no module keeps is moved by nobody: all that it is assigned is made there, or of itself,
    or is a part of what is called so: ``lengths_cpu[:n]``. A module may be made below another
    default, and then it has to be ``said``: ``self.age = torch.zeros(n, device="cpu")``.
    """
    while node.args and node.op in _OF_ONE | _STAYS:
        node = node.args[0]
    if node.op != Op.ATTR or flow.cls is None or node.args[0].value != "self":
        return False
    said = said or any(base.endswith("Module") for base in map(last_name, flow.cls.bases))
    given = [value for _, value in list_assigned(flow.names, flow.cls, str(node.value))]
    own = re.compile(rf"self\.{node.value}(\[| [-+*/&|])")
    given = [v for v in given if not (isinstance(v, ast.Constant) and v.value is None)]
    made = [v for v in given if v is None or not own.match(ast.unparse(v))]
    return bool(made) and all(
        _is_called_of_host(v)
        if not isinstance(v, ast.Call)
        else (not said or any(k.arg == "device" for k in v.keywords))
        and (flow.names.dotted(v.func) or "").startswith("torch.")
        and last_name(v.func) in _MADE
        and all(k.arg != "device" or names_host(k.value) for k in v.keywords)
        for v in made
    )


def _is_called_of_host(code: ast.expr | None) -> bool:
    """Tell whether a name says where a tensor lies: ``starts_cpu[1:] - starts_cpu[:-1]``."""
    match code:
        case ast.Name(name) | ast.Attribute(_, name):
            return name.endswith("_cpu")
        case ast.Subscript(whole, _):
            return _is_called_of_host(whole)
        case ast.BinOp(left, _, right):
            return _is_called_of_host(left) and _is_called_of_host(right)
    return False


def is_given_by_host(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether all who call a function hand it a tensor of the host: ``self.draw(x.cpu())``.

    So they do where it is declared as an array.
    """
    tree, function = flow.names.tree, flow.function
    if node.op != Op.PARAM or tree is None:
        return False
    if OF_ARRAY.fullmatch(annotation(flow, str(node.value))):
        return True
    given = [
        list_handed(function.args, call).get(str(node.value))
        for call in _list_calls(tree).get(function.name, ())
    ]
    return bool(given) and all(
        is_bound_on_host(flow, code.id)
        if isinstance(code, ast.Name)
        else isinstance(code, ast.Call) and last_name(code.func) in {"cpu", "from_numpy"}
        for code in given
    )


def is_bound_on_host(flow: FunctionFlow, name: str) -> bool:
    """Tell whether all that a module binds to a name are numbers that it makes a tensor of there.

    ``sizes = torch.stack([torch.tensor(u.shape[2:]) for u in x])``, which layers hand on.
    """
    made = () if flow.names.tree is None else _list_bound(flow.names.tree).get(name, ())
    return bool(made) and all(_makes_of_numbers(flow, code) for code in made)


@lru_cache(maxsize=2)
def _list_bound(module: ast.Module) -> dict[str, list[ast.expr]]:
    """Return what a module assigns to each name."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(module):
        match node:
            case ast.Assign([*targets], value):
                for target in targets:
                    for inner in ast.walk(target):
                        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                            found.setdefault(inner.id, []).append(value)
            case ast.For(target, items) | ast.comprehension(target, items):
                for name in list_stored_names(target):
                    found.setdefault(name, []).append(items)
            case ast.AugAssign(ast.Name(name), value=value) | ast.AnnAssign(
                ast.Name(name), value=ast.expr() as value
            ):
                found.setdefault(name, []).append(value)
    return found


def _makes_of_numbers(flow: FunctionFlow, code: ast.expr) -> bool:
    match code:
        case ast.Call(called, [ast.List(items), *_], words):
            parts = items
        case ast.Call(called, [ast.ListComp(made), *_], words):
            parts = [made]
        case ast.Call(called, [_, *_], words):
            parts = []
        case _:
            return False
    name = flow.names.dotted(called)
    if name in {"torch.stack", "torch.cat"}:
        return bool(parts) and all(_makes_of_numbers(flow, part) for part in parts)
    there = [word.value for word in words if word.arg == "device"]
    return name in {"torch.tensor", "torch.from_numpy"} and all(map(names_host, there))


@lru_cache(maxsize=2)
def _list_calls(module: ast.Module) -> dict[str, list[ast.Call]]:
    """Return the calls of a module by the last name of what is called."""
    found: dict[str, list[ast.Call]] = {}
    for node in nodes_of(module):
        if isinstance(node, ast.Call):
            found.setdefault(last_name(node.func) or "", []).append(node)
    return found


def _is_read_as_array(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether ``y.numpy()`` of what a tensor became says that both are on the host.

    So does ``torch.from_numpy(y)``: that is an array until there.
    """
    for evaluation in flow.by_operation.get("from_numpy", ()):
        part = evaluation.node
        while part.args and part is not node and part.op in _STAYS | {Op.GETITEM, "from_numpy"}:
            part = part.args[0]
        if part is node and evaluation.node is not node:
            return True
    for evaluation in flow.by_operation.get("numpy", ()):
        parts = list(evaluation.node.walk())
        if node in parts and not any(part.op in {"cpu", "to"} for part in parts):
            return True
    return False


def is_beside_arrays(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether another argument is read as an array: ``waves[i][:n].numpy()`` beside ``n``.

    Of a tensor of the device that is an error.
    """
    return node.op == Op.PARAM and any(
        e.node.args and _source(e.node.args[0]).op == Op.PARAM
        for e in flow.by_operation.get("numpy", ())
    )


def _source(node: Node) -> Node:
    """Return what a value is a view of, or what was changed in place: ``zeros(n).uniform_()``."""
    while node.args and (node.op in _STAYS | {Op.GETITEM} or str(node.op).endswith("_")):
        node = node.args[0]
    return node


def is_move_to_device(move: Node) -> bool:
    """Tell whether a value is moved to a device: not so ``x.to(torch.long)``, ``x.to("cpu")``."""
    given = move.args[1:]
    if move.op not in operators.TO_DEVICE or any(arg.value == "cpu" for arg in given):
        return False
    return move.op != "to" or any(arg.op not in {Op.DTYPE, Op.DTYPE_OF, Op.CONST} for arg in given)


def is_moved_to_host(node: Node) -> bool:
    """Tell whether a value is computed of what lies on the host: ``n > 0`` of ``n = x.cpu()``."""
    while node.args and node.op != "cpu":
        if node.op not in operators.ELEMENTWISE | _STAYS | _OF_ONE:
            return False
        node = node.args[0]
    return node.op == "cpu"


def is_made_on_host(node: Node) -> bool:
    """Tell whether a tensor is made without a device, or is a view of one: ``torch.tensor(n)``."""
    return _is_made_there(_source(node))


def _is_put_there(node: Node) -> bool:
    """Tell whether a tensor is made where the host is named: ``torch.zeros(n, device="cpu")``."""
    keywords = node.value if isinstance(node.value, tuple) else ()
    given = dict(zip(reversed(keywords), reversed(node.args), strict=False))
    made = str(node.op).removesuffix("(*)") in _MADE
    return made and "device" in given and given["device"].value == "cpu"


def _is_made_there(node: Node) -> bool:
    if node.op == Op.CALL and _OLD_MAKERS.fullmatch(str(node.args[0].value)):
        return True
    name = str(node.op).removesuffix("(*)")
    keywords = node.value if isinstance(node.value, tuple) else ()
    return name in _MADE and "device" not in keywords
