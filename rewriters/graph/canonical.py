"""One spelling for each operation: ``x.pow(2)``, ``x**2`` and ``torch.square(x)`` are one node."""

from __future__ import annotations

import re
from string import ascii_letters
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.nodes import Node
from npufix.rewriters.graph.operators import REQUIRED
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from npufix.rewriters.graph.nodes import Graph, Serial

_KEYWORD_ALIASES = {
    "axis": "dim", "keepdims": "keepdim", "input": "self", "tensor": "self", "tensors": "self",
    "split_size_or_sections": "split_size", "train": "training",
}  # fmt: skip
_REDUCES_ONE_OR_ALL = frozenset({"max", "min", "median", "std", "std_mean", "var", "var_mean"})
"""Take a dimension, or none, in ways of their own."""
_EXACT = 2**53
_KEEPS_DIM = frozenset({"amax", "amin", "logsumexp", "mean", "sum"})
# Fields of the named tuples that torch returns.
_FIELDS = {"values": 0, "indices": 1}


def construct(
    graph: Graph, dotted: str, args: Sequence[Node], keywords: Mapping[str, Node], epoch: int
) -> Node:
    """Return the node of an object of a known class; the first argument is what it is made of."""
    op = f"optim.{dotted.rpartition('.')[2]}"
    values, named = _bind(op, args, keywords)
    ordered = _order(graph, op, values, named)
    if ordered is None:
        keys = tuple(sorted(named))
        return graph.node(dotted, *values, *(named[k] for k in keys), value=keys, epoch=epoch)
    return graph.node(dotted, *ordered, epoch=epoch)


def random_op(  # noqa: PLR0913, PLR0917 - what a call is, and where it stands
    graph: Graph,
    op: str,
    args: Sequence[Node],
    keywords: Mapping[str, Node],
    serial: Serial,
    epoch: int,
) -> Node:
    """Return the node of a call that draws random numbers: no two of them are the same."""
    values, named = _bind(op, args, keywords)
    ordered = _order(graph, op, values, named)
    if ordered is not None:
        return graph.node(op, *ordered, value=(serial,), epoch=epoch)
    return graph.node(op, *args, *keywords.values(), value=(serial, *keywords), epoch=epoch)


def tensor_op(
    graph: Graph, op: str, args: Sequence[Node], keywords: Mapping[str, Node], epoch: int
) -> Node:
    """Return the canonical node of a torch call; ``args[0]`` is the tensor it acts on."""
    op = operators.canonical_name(op)
    values, named = _bind(op, args, keywords)
    if op in operators.CASTS and len(values) == 1 and not named:
        return cast(graph, values[0], graph.node(Op.DTYPE, value=operators.CASTS[op]), epoch)
    if op in {"to", "type"} and (other := _other_kind(graph, op, values, named, epoch)) is not None:
        return other
    if op == "type_as" and len(values) == 2 and not named:  # noqa: PLR2004 - self and other
        return cast(graph, values[0], dtype_of(graph, values[1]), epoch)
    if op in {"cat", "stack"} and values and values[0].op == Op.LIST:
        values[0] = graph.node(Op.TUPLE, *values[0].args)
    if op == "einsum" and not named:
        values = _einsum(graph, values)
    if op == "where" and len(values) == 1 and not named:
        op, values = "nonzero", [*values, graph.constant(True)]  # noqa: FBT003 - as_tuple
    if op in _REDUCES_ONE_OR_ALL:
        values, named = _place_dim(graph, op, values, named)
    ordered = _order(graph, op, values, named)
    if ordered is None:
        keys = tuple(sorted(named))
        return graph.node(op, *values, *(named[key] for key in keys), value=keys, epoch=epoch)
    return arithmetic(graph, op, ordered, epoch)


def spread(
    op: str, args: list[Node], keywords: dict[str, Node]
) -> tuple[list[Node], dict[str, Node]]:
    """Return the arguments of ``x.view((2, -1))``, ``permute(x, dims=[1, 0])`` one by one."""
    rest = [*args[1:], *keywords.values()]
    if operators.canonical_name(op) not in operators.SPREAD or len(rest) != 1:
        return args, keywords
    (only,) = rest
    whole = only.op in {Op.TUPLE, Op.LIST} and only.args and args
    return ([args[0], *only.args], {}) if whole else (args, keywords)


def _bind(
    op: str, args: Sequence[Node], keywords: Mapping[str, Node]
) -> tuple[list[Node], dict[str, Node]]:
    """Return the arguments by position, the tensor first, and those that stay named."""
    first, *others = list(operators.parameters(op) or ("self",))
    values, named = list(args), {}
    for key, node in keywords.items():
        name = key if key in others else _KEYWORD_ALIASES.get(key, key)
        if name in {first, "self"} and op != "einsum":
            values.insert(0, node)
        else:
            named[name] = node
    return values, named


def _place_dim(
    graph: Graph, op: str, values: list[Node], named: dict[str, Node]
) -> tuple[list[Node], dict[str, Node]]:
    """Return ``max(x, dim=1)`` as ``max(x, 1)``, and settings by name: ``x.var(1, False)``.

    ``correction`` is what ``unbiased`` says in numbers: ``False`` is 0, ``True`` is 1.
    """
    named = dict(named)
    if op in {"max", "min", "median"}:
        settings: tuple[str, ...] = ("keepdim",)
    else:
        settings = ("unbiased", "keepdim")
        if len(values) == 2 and isinstance(values[1].value, bool):  # noqa: PLR2004 - x.var(False)
            values, named["unbiased"] = values[:1], values[1]
    if "dim" in named and len(values) == 1:
        values = [*values, named.pop("dim")]
    if len(values) > 1:
        values[1] = _plain_dim(graph, values[1], values[0])
    extra = values[2:]
    if len(extra) <= len(settings):
        values, named = values[:2], dict(zip(settings, extra, strict=False)) | named
    correction = named.get("correction")
    if correction is not None and any(_is(correction, number) for number in (0, 1)):
        named["unbiased"] = graph.constant(bool(named.pop("correction").value))
    return values, named


def _einsum(graph: Graph, values: list[Node]) -> list[Node]:
    """Return the arguments of ``einsum("ik, kj -> ij", [a, b])`` as of ``("ab,bc->ac", a, b)``."""
    if len(values) == 2 and values[1].op in {Op.TUPLE, Op.LIST}:  # noqa: PLR2004 - with operands
        values = [values[0], *values[1].args]
    if not values or values[0].op != Op.CONST or not isinstance(values[0].value, str):
        return values
    equation = values[0].value.replace(" ", "")
    letters = dict.fromkeys(filter(str.isalpha, equation))
    if len(letters) > len(ascii_letters) or "->" not in equation:
        return values  # without an arrow the order of the letters counts
    plain = str.maketrans(dict(zip(letters, ascii_letters, strict=False)))
    return [graph.constant(equation.translate(plain)), *values[1:]]


def spell_with_letters(equation: Hashable) -> str | None:
    """Return ``"batch head i d, batch head j d -> batch head i j"`` of einops as torch spells it.

    ``None`` if it says more than which axes there are: ``...``, ``()``, ``1``.
    """
    if not isinstance(equation, str) or not re.fullmatch(r"[\w\s,]*->[\w\s]*", equation):
        return None
    axes = dict.fromkeys(re.findall(r"\w+", equation))
    if len(axes) > len(ascii_letters) or not all(axis[0].isalpha() for axis in axes):
        return None
    letters = dict(zip(axes, ascii_letters, strict=False))
    return re.sub(r"\w+", lambda axis: letters[axis[0]], equation)


def _other_kind(
    graph: Graph, op: str, values: list[Node], named: Mapping[str, Node], epoch: int
) -> Node | None:
    """Return a cast, a copy on the host, or both: ``x.to("cpu", torch.int64)``."""
    wanted = _cast_target(values, named)
    if wanted is not None:
        return cast(graph, values[0], wanted, epoch)
    rest = [*values[1:], *(n for key, n in named.items() if key not in {"copy", "non_blocking"})]
    others = [node for node in rest if not _is(node, "cpu")]
    if op != "to" or len(others) != len(rest) - 1 or not all(map(_is_dtype, others[:2])):
        return None
    copied = graph.node("cpu", values[0], epoch=epoch)
    return cast(graph, copied, others[0], epoch) if others else copied


def _cast_target(values: list[Node], named: Mapping[str, Node]) -> Node | None:
    """Return the dtype of ``x.to(...)`` if that is all the call asks for."""
    rest = [*values[1:], *named.values()]
    if len(rest) == 1 and set(named) <= {"dtype"} and (named or _is_dtype(rest[0])):
        return rest[0]
    return None


def _is_dtype(node: Node) -> bool:
    """Tell whether a value can only be a dtype: ``torch.float32``, ``x.dtype``, ``self.dtype``.

    So is what two branches leave, of which each has one.
    """
    if node.op == Op.PHI:
        return all(map(_is_dtype, node.args[1:]))  # behind the test
    by_name = node.op in {Op.ATTR, Op.PARAM} and str(node.value).endswith("dtype")
    promoted = node.op.removesuffix("(*)") in {"promote_types", "result_type"}
    if node.op.startswith("py:functools.reduce"):
        promoted = node.args[0].value == "torch.promote_types"
    return by_name or promoted or node.op in {Op.DTYPE, Op.DTYPE_OF}


def cast(graph: Graph, x: Node, dtype: Node, epoch: int) -> Node:
    """Return ``x`` as ``dtype``; two equal casts in a row are one."""
    if x.op == Op.CAST and x.args[1] is dtype:
        return x
    return graph.node(Op.CAST, x, dtype, epoch=epoch)


def dtype_of(graph: Graph, x: Node, epoch: int = 0) -> Node:
    """Return the dtype of ``x`` as a node; that of a cast is the one asked for."""
    return x.args[1] if x.op == Op.CAST else graph.node(Op.DTYPE_OF, x, epoch=epoch)


def _order(graph: Graph, op: str, values: list[Node], named: dict[str, Node]) -> list[Node] | None:
    """Return all arguments in signature order with defaults, ``None`` if they do not fit."""
    if op == "squeeze" and len(values) > 2:  # noqa: PLR2004 - self and one dim
        return None
    signature = operators.signature(op)
    if signature is None or not values:  # ``F.silu()``, which raises when it is called
        return None
    names = list(signature)
    if names and names[-1].startswith("*"):
        return _gather(graph, names[-1][1:], values, named)
    given = dict(zip(names, values[1:], strict=False))
    if len(values) - 1 > len(names) or set(given) & set(named) or set(named) - set(names):
        return None
    given |= named
    # The last dimension of a result that has one more is another one.
    of_dim = None if op in {"stack", "unsqueeze"} else values[0]
    result = [values[0]]
    for name, default in signature.items():
        if name in given:
            is_dim = name == "dim"
            result.append(_plain_dim(graph, given[name], of_dim) if is_dim else given[name])
        elif default is REQUIRED:
            return None
        else:
            result.append(graph.constant(default))
    return result


def _gather(
    graph: Graph, name: str, values: list[Node], named: dict[str, Node]
) -> list[Node] | None:
    """Return ``x.flip(0, 1)``, ``x.flip([0, 1])``, ``x.flip(dims=(0, 1))`` as ``x, (0, 1)``."""
    x, *rest = values
    if name in named and not rest:
        rest = [named[name]]
    elif named or not rest:
        return None
    match rest:
        case [Node(Op.LIST | Op.TUPLE, parts)]:
            return [x, graph.node(Op.TUPLE, *parts)]
        case [Node(Op.CONST)] | [_, _, *_]:
            return [x, graph.node(Op.TUPLE, *rest)]
    return [x, *rest]


def _plain_dim(graph: Graph, dim: Node, x: Node | None) -> Node:
    """Return ``(-1,)`` and ``x.ndim - 1`` as ``-1``, ``[1, 2]`` as ``(1, 2)``."""
    if dim.op in {Op.TUPLE, Op.LIST} and len(dim.args) == 1:
        return dim.args[0]
    if dim.op == Op.LIST:
        return graph.node(Op.TUPLE, *dim.args)
    if dim.op == "sub" and dim.args[0].op == Op.RANK and _is(dim.args[1], 1):
        parts = x.args if x is not None and x.op in {Op.TUPLE, Op.LIST} else (x,)  # of ``cat``
        is_last = any(_is_rank_of(dim.args[0], part) for part in parts)
        return graph.constant(-1) if is_last else dim
    return (
        graph.constant(dim.value[0])
        if (dim.op == Op.CONST and isinstance(dim.value, tuple) and len(dim.value) == 1)
        else dim
    )


def _is_rank_of(rank: Node, x: Node | None) -> bool:
    """Tell whether a number of dimensions is that of a tensor, as far as nothing reshapes it."""
    while x is not None and x is not rank.args[0] and (x.op in operators.SAME_SHAPE or _is_cut(x)):
        x = x.args[0].args[0] if x.op == Op.ITEM else x.args[0]
    return x is rank.args[0] and rank.epoch == 0


def _is_cut(x: Node) -> bool:
    """Tell whether a tensor is a range of another one in each dimension: ``x[..., : n // 2]``."""
    if x.op == Op.ITEM:
        return x.args[0].op in {"chunk", "split"}
    index = x.args[1] if x.op == Op.GETITEM else None
    items = index.args if index is not None and index.op == Op.TUPLE else (index,)
    return all(i is not None and (i.op == Op.SLICE or _is_constant(i, ...)) for i in items)


def arithmetic(  # noqa: C901, PLR0911, PLR0912 - one case a spelling
    graph: Graph, op: str, args: Sequence[Node], epoch: int
) -> Node:
    """Return the canonical node of an operator, spelled out or as a symbol."""
    if op in {"mul", "div"}:
        args = [_host_number(graph, arg) for arg in args]
    x = args[0]
    if op in {"add", "sub"} and len(args) == 3 and _is(args[2], 1):  # noqa: PLR2004 - alpha
        args = args[:2]
    if op == "div" and len(args) == 3 and _is(args[2], None):  # noqa: PLR2004 - rounding_mode
        args = args[:2]
    if op == "addcmul" and _is(args[3], 1):
        return arithmetic(graph, "add", [x, arithmetic(graph, "mul", args[1:3], epoch)], epoch)
    if op == "norm" and _is(args[1], 2):
        args = [x, graph.constant("fro"), *args[2:]]
    match op:
        case "clamp_min":
            return graph.node("clamp", *args, graph.constant(None), epoch=epoch)
        case "clamp_max":
            return graph.node("clamp", x, graph.constant(None), *args[1:], epoch=epoch)
        case "transpose" if all(map(_is_number, args[1:])):  # either way round it is one
            return graph.node(op, x, *sorted(args[1:], key=lambda dim: dim.value), epoch=epoch)  # type: ignore[arg-type, return-value]  # numbers
        case "div" if all(map(_is_number, args)) and args[1].value:
            return graph.constant(x.value / args[1].value)  # type: ignore[operator]  # numbers
        case "unsqueeze" if _drops(x, args[1]):  # ``x.mean(-1)[..., None]``
            return graph.node(x.op, *x.args[:2], graph.constant(True), *x.args[3:], epoch=x.epoch)  # noqa: FBT003
        case "pow" if _is(args[1], 2):
            return graph.node("square", x, epoch=epoch)
        case "pow" if _is(args[1], -0.5):
            return graph.node("rsqrt", x, epoch=epoch)
        case "pow" if _is(args[1], 0.5):
            return graph.node("sqrt", x, epoch=epoch)
        case "mul" if x is args[1]:
            return graph.node("square", x, epoch=epoch)
        case "reciprocal" if x.op == "sqrt":
            return graph.node("rsqrt", x.args[0], epoch=epoch)
        case "div" if len(args) == 2 and _is_length_of_sum(x, args[1]):  # noqa: PLR2004
            return graph.node("mean", *x.args, epoch=epoch)
        case "div" if len(args) == 2 and args[1].op == "sqrt":  # noqa: PLR2004
            inverse = graph.node("rsqrt", args[1].args[0], epoch=epoch)
            return inverse if _is(x, 1) else graph.node("mul", x, inverse, epoch=epoch)
        case "neg" if x.op == Op.CONST and isinstance(x.value, (int, float)):
            return graph.constant(-x.value)
    return graph.node(op, *args, epoch=epoch)


def _host_number(graph: Graph, node: Node) -> Node:
    """Return the number in ``torch.sqrt(torch.tensor(head_size, dtype=torch.float32))``.

    A tensor without dimensions on the host scales others as a number does, in their dtype.
    """
    found = node.args[0] if node.op == Op.AGAIN else node
    if found.op in {"sqrt", "rsqrt"}:
        inner = _host_number(graph, found.args[0])
        return node if inner is found.args[0] else graph.node(found.op, inner, epoch=found.epoch)
    if found.op != "tensor" or found.value not in {None, (), ("dtype",)}:
        return node
    number = found.args[0]
    own = number.op == Op.ATTR and number.args[0].op == Op.PARAM and number.args[0].value == "self"
    return number if own or number.op == Op.SIZE or _is_number(number) else node


def new_axis(graph: Graph, base: Node, index: Node, epoch: int) -> Node | None:
    """Return ``x[:, None]`` as ``x.unsqueeze(1)``, nothing for any other subscript."""
    items = index.args if index.op == Op.TUPLE else (index,)
    if len(items) > 1 and _is_constant(items[-1], ...):
        items = items[:-1]  # ``x[:, None, ...]``
    new = [place for place, item in enumerate(items) if _is_constant(item, None)]
    first = bool(items) and _is_constant(items[0], ...)
    rest = [item for item in items[first:] if not _is_constant(item, None)]
    if len(new) != 1 or not all(map(_is_whole, rest)):
        return None
    dim = new[0] - len(items) if first else new[0]
    return arithmetic(graph, "unsqueeze", [base, graph.constant(dim)], epoch)


def _is_whole(index: Node) -> bool:
    return index.op == Op.SLICE and all(_is_constant(part, None) for part in index.args)


def _is_constant(node: Node, value: object) -> bool:
    return node.op == Op.CONST and node.value is value


def field_of(graph: Graph, base: Node, name: str) -> Node | None:
    """Return ``topk(...).indices`` as item 1 of the pair."""
    if base.op in operators.PAIRS and name in _FIELDS:
        return graph.node(Op.ITEM, base, value=_FIELDS[name])
    return None


def _drops(x: Node, dim: Node) -> bool:
    """Tell whether ``x`` reduces this one dimension, and does not keep it."""
    return x.op in _KEEPS_DIM and x.args[1] is dim and _is_number(dim) and x.args[2].value is False


def _is_length_of_sum(total: Node, length: Node) -> bool:
    """Tell whether ``x.pow(2).sum(-1) / x.shape[-1]`` is a mean: both are of one dimension."""
    if total.op != "sum" or length.op != Op.SIZE or not _is_number(total.args[1]):
        return False
    x = total.args[0]
    while x is not length.args[0] and x.op in operators.SAME_SHAPE:
        x = x.args[0]
    return x is length.args[0] and total.args[1] is length.args[1] and length.epoch == 0


def _is_number(node: Node) -> bool:
    """Tell whether a value is a literal that a float holds: others divide to an error."""
    found = node.value if node.op == Op.CONST else None
    return type(found) in {int, float} and abs(found) <= _EXACT  # type: ignore[arg-type]  # a number


def _is(node: Node, value: object) -> bool:
    return node.op == Op.CONST and not isinstance(node.value, bool) and node.value == value
